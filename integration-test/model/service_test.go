package model

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"ratelimit/src/backend"
	"ratelimit/src/frontend/rls"
	"ratelimit/src/limiter"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/harness"
)

// service is the real one, in this process: the gRPC front end at a loopback
// address, the limiter, and a lab's store.
type service struct {
	lab     lab
	limiter *limiter.Limiter
	server  *rls.Server
	// conns share the calls: h2 decides those of one connection together, and those of several at the same time.
	conns  [3]*grpc.ClientConn
	served chan error
	clock  atomic.Int64 // in nanoseconds since the Unix epoch
	why    atomic.Value // string: the last failure, which callers are not told of
	// asksStore has an element if the store was asked since it was empty.
	asksStore chan struct{}
}

// patience bounds every call. Nothing should take as long.
const patience = 20 * time.Second

// services counts them, so that each has keys of its own.
var services atomic.Int64

// newPrefix is of keys that no other service has: Memcached takes a second to forget.
func newPrefix() string { return fmt.Sprintf("%d_", services.Add(1)) }

// start is a service on l's store, whose keys begin with prefix.
func start(l lab, prefix string) (*service, error) {
	s := &service{lab: l, served: make(chan error, 1), asksStore: make(chan struct{}, 1)}
	s.clock.Store(Start.UnixNano())
	s.limiter = limiter.New(limiter.Config{Backend: &tap{l.backend(), s}, KeyPrefix: prefix})
	headers := &rls.HeaderNames{Limit: "l", Remaining: "r", Reset: "t"}
	cfg := rls.Config{Limiter: s.limiter, HeaderNames: headers, OnError: func(err error) { s.why.Store(err.Error()) }}
	switch l.(type) {
	case *redisLab, *memcachedLab, *replicaLab:
		cfg.StoreIsRemote = true
	}
	s.server = rls.NewServer(rls.New(cfg), rls.ServerConfig{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() { s.served <- s.server.Serve(listener) }()
	for i := range s.conns {
		s.conns[i], err = grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *service) close() error {
	var err error
	for _, conn := range s.conns {
		err = errors.Join(err, conn.Close())
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s.server.Shutdown(ctx)
	if served := <-s.served; err == nil {
		err = served
	}
	return err
}

// tap tells the store the script's time, and its service that the store is asked.
type tap struct {
	backend.Backend
	service *service
}

func (t *tap) Take(ctx context.Context, b *backend.Batch) error {
	b.Now = time.Unix(0, t.service.clock.Load())
	select {
	case t.service.asksStore <- struct{}{}:
	default:
	}
	return t.Backend.Take(ctx, b)
}

func (s *service) Traits() Traits { return s.lab.traits() }

func (s *service) Reload(yaml string) error {
	if other, is := s.lab.(interface{ rules(yaml string) string }); is { // A mutant.
		yaml = other.rules(yaml)
	}
	set, _, err := filerules.Load([]filerules.File{{Name: "rules.yaml", Data: []byte(yaml)}}, compile.Options{})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, yaml)
	}
	s.limiter.UseRules(set)
	return nil
}

func (s *service) Ask(at time.Time, asks []Ask) []*Answer {
	s.clock.Store(at.UnixNano())
	return s.all(asks)
}

func (s *service) all(asks []Ask) []*Answer {
	answers := make([]*Answer, len(asks))
	var all sync.WaitGroup
	for i, ask := range asks {
		all.Go(func() { answers[i] = s.ask(s.conns[i%len(s.conns)], ask) })
	}
	all.Wait()
	return answers
}

func entries(d Descriptor) []*common.RateLimitDescriptor_Entry {
	list := []*common.RateLimitDescriptor_Entry{{Key: d.Key, Value: d.Value}}
	if d.Hold != "" {
		list = append(list, &common.RateLimitDescriptor_Entry{Key: HoldID, Value: d.Hold})
	}
	if d.Action != "" {
		list = append(list, &common.RateLimitDescriptor_Entry{Key: "hold", Value: string(d.Action)})
	}
	return list
}

func (s *service) ask(conn *grpc.ClientConn, ask Ask) *Answer {
	msg := &pb.RateLimitRequest{Domain: Domain}
	for _, d := range ask {
		msg.Descriptors = append(msg.Descriptors, &common.RateLimitDescriptor{
			Entries:        entries(d),
			HitsAddend:     wrapperspb.UInt64(uint64(max(d.Amount, -d.Amount))),
			IsNegativeHits: d.Amount < 0,
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	resp, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, msg)
	if err != nil {
		return &Answer{Failed: true, Why: fmt.Sprintf("%v (%v)", err, s.why.Load())}
	}
	a := &Answer{Over: resp.OverallCode == pb.RateLimitResponse_OVER_LIMIT, Retry: -1}
	for _, st := range resp.Statuses {
		out := Status{Over: st.Code == pb.RateLimitResponse_OVER_LIMIT, Limit: -1}
		if st.CurrentLimit != nil {
			out.Limit = int64(st.CurrentLimit.RequestsPerUnit)
			out.Remaining = int64(st.LimitRemaining)
			out.Reset = st.DurationUntilReset.AsDuration()
		}
		a.Statuses = append(a.Statuses, out)
	}
	for _, h := range resp.ResponseHeadersToAdd {
		if h.Key == "Retry-After" {
			if a.Retry, err = strconv.ParseInt(h.Value, 10, 64); err != nil {
				return &Answer{Failed: true, Why: err.Error()}
			}
		}
	}
	return a
}

// Fault also waits, after None, until the whole way through the store works: a
// store may have several connections, each of which finds out by itself.
func (s *service) Fault(f Fault) error {
	if err := s.lab.fault(f); err != nil || f != None {
		return err
	}
	return s.well(s.lab.quiet)
}

// well waits until requests are answered, and quiet has nothing to say.
func (s *service) well(quiet func() error) error {
	many, n := make([]Ask, 16), 0
	err := harness.Retry(patience, func() error {
		for i := range many { // which connection a counter goes by depends on its key
			n++
			many[i] = Ask{{Key: Probe, Value: strconv.Itoa(n)}}
		}
		for _, a := range s.all(many) {
			if a.Failed {
				return errors.New(a.Why)
			}
		}
		return quiet()
	})
	if err != nil {
		return fmt.Errorf("not well after %v: %w", patience, err)
	}
	return nil
}

// lab is a store to try things on.
type lab interface {
	backend() backend.Backend
	traits() Traits
	// fault is as Service.Fault, but need not wait for anything.
	fault(Fault) error
	// quiet returns an error that says what is missing while hits are still on their
	// way to the store.
	quiet() error
	// check says what is wrong with the store after a script, if anything is.
	check() error
	close() error
}

// play runs s on a new lab of its store.
func play(s *Script, open func(*Script) (lab, error)) (out Outcome, err error) {
	l, err := open(s)
	if err != nil {
		return out, err
	}
	defer func() {
		if closed := l.close(); err == nil {
			err = closed
		}
	}()
	real, err := startAll(l, newPrefix())
	if err != nil {
		return out, err
	}
	defer func() {
		if closed := real.close(); err == nil {
			err = closed
		}
	}()
	if out, err = Run(s, real); err == nil && out.Violation == nil {
		if wrong := l.check(); wrong != nil {
			out.Violation = &Violation{s, len(s.Steps), wrong.Error()}
		}
	}
	return out, err
}

// labs opens labs; servers are started when they are needed first, and live as
// long as the test.
type labs struct {
	t     testing.TB
	redis *redisServer
	ways  []*redisServer // of replicas, to the server of redis
	cache *memcachedServer
}

func (ls *labs) open(s *Script) (lab, error) {
	if ls.redis == nil && slices.Contains([]string{"redis", "cached-redis", "replicas"}, s.Store) {
		ls.redis = startRedis(ls.t)
	}
	switch s.Store {
	case "redis", "cached-redis":
		return ls.redis.open(s)
	case "replicas":
		if ls.ways == nil {
			ls.ways = []*redisServer{ls.redis}
			for range 2 {
				ls.ways = append(ls.ways, &redisServer{ls.redis.server, harness.StartProxy(ls.t, ls.redis.server.Addr)})
			}
		}
		return openFleet(ls.ways)
	case "memcached":
		if ls.cache == nil {
			ls.cache = startMemcached(ls.t)
		}
		return ls.cache.open()
	case "fallback":
		return newFallback(nil)
	}
	return newFlaky(s.Store == "split", nil)
}
