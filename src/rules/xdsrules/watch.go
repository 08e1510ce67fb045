package xdsrules

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/client/sotw/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"ratelimit/src/rules"
)

// Config says whom a Watcher asks, and as whom.
type Config struct {
	// Server is the management server as gRPC writes it: host:port, dns:///host:port,
	// unix:///path.
	Server string
	// NodeID and NodeMetadata are what the server knows this node by.
	NodeID       string
	NodeMetadata map[string]string
	// Headers go with each stream.
	Headers map[string]string
	// TLS, if not nil, is asked for each new connection, so that certificates may
	// change. Nil is plain text.
	TLS func() (*tls.Config, error)
	// MaxMessage is the size of the largest response, in bytes. Defaults to
	// 4 MiB.
	MaxMessage int
	// Pauses are those between attempts to reach the server.
	Pauses Pauses
	// Options are what the rules are compiled with.
	Options rules.Options
	// AllOrNothing refuses all of a response that has a bad resource. Else the
	// resources whose domains touch none of a bad one take effect, also from the
	// first response on, and the others stay as they were.
	AllOrNothing bool
	// OnUpdate is called in Run's goroutine with each response that was loaded.
	// One that is what was last loaded, version and content, is not.
	OnUpdate func(Update)
	// OnConnect, if not nil, is called in Run's goroutine when there is a stream.
	OnConnect func()
	// OnTrouble, if not nil, is called in Run's goroutine when there is none, with
	// the reason and how long it is until the next attempt.
	OnTrouble func(reason *Trouble, pause time.Duration)
	// OnSilence, if not nil, is called in Run's goroutine, once, if there is a
	// stream and the server has never sent anything for 10s.
	OnSilence func()
}

// Update is the outcome of compiling a response.
type Update struct {
	// Set is nil when the response is refused, or changes nothing that may change.
	// With an Err it has the resources that took effect, and the others as they were
	// before.
	Set *rules.Set
	// Warnings are what is legal but odd.
	Warnings rules.Problems
	// Err is nil or [rules.Problems]: all that is wrong with the response.
	Err error
	// Resources is how many there are in the response.
	Resources int
	// Version is the server's; at most 60 bytes of it.
	Version string
	// Hash is 16 hex digits that tell the content of the resources in Set, or of
	// those that were sent if there is none, in whatever order, from others.
	Hash string
	// At is when the response was looked at.
	At time.Time
}

// Stats are figures since New.
type Stats struct {
	Connected bool
	Streams   int64 // that were opened
	Failures  int64 // attempts that failed and streams that were lost
	Acks      int64
	Nacks     int64 // of one response over and over, too
}

// Watcher loads the rules that a management server sends.
type Watcher struct {
	cfg    Config
	node   *corev3.Node
	reload chan struct{}
	dial   []grpc.DialOption // of tests

	secrets *strings.Replacer // hides the values of Headers

	connected                      atomic.Bool
	streams, failures, acks, nacks atomic.Int64

	// What is below belongs to Run.
	last    verdict
	kept    []received // those in force; empty with AllOrNothing
	judged  time.Time  // when the last response was done with; zero: there was none
	silence bool       // was told of
}

// verdict is what came of a response.
type verdict struct {
	version string
	sum     [sha256.Size]byte
	reason  string // it was refused; "" if not
	valid   bool   // there was one
	repeats int    // how often it came again
}

// again is the verdict on the same response. Only a refusal is worth counting.
func (v *verdict) again() (reason string, repeats int) {
	if v.reason != "" {
		v.repeats++
	}
	return v.reason, v.repeats
}

const (
	// loadEvery is the time between two responses. Of those that come between,
	// the last one counts.
	loadEvery = 100 * time.Millisecond
	// silenceAfter is when it is odd that the server has nothing for us.
	silenceAfter = 10 * time.Second
	// refuseFirst is the pause before the same response is refused again; it
	// doubles up to refuseMax. What replaces it may come that much later.
	refuseFirst, refuseMax = 100 * time.Millisecond, 5 * time.Second
)

// New makes a Watcher, which does nothing before Run.
func New(cfg Config) (*Watcher, error) {
	cfg.MaxMessage = cmp.Or(max(cfg.MaxMessage, 0), 4<<20)
	cfg.Pauses = cfg.Pauses.withDefaults()
	w := &Watcher{cfg: cfg, node: &corev3.Node{Id: cfg.NodeID}, reload: make(chan struct{}, 1), secrets: secretsOf(cfg.Headers)}
	if len(cfg.NodeMetadata) > 0 {
		w.node.Metadata = &structpb.Struct{Fields: make(map[string]*structpb.Value)}
		for key, value := range cfg.NodeMetadata {
			w.node.Metadata.Fields[key] = structpb.NewStringValue(value)
		}
	}
	if cfg.Server == "" {
		return nil, errors.New("xdsrules: no server is named")
	}
	// What gRPC makes of the name is known before anything is sent.
	conn, err := grpc.NewClient(cfg.Server, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("xdsrules: server %q: %w", cfg.Server, err)
	}
	return w, conn.Close()
}

// Reload has Run leave the stream it has, or the pause it makes, and fetch the
// rules over a new connection. It never blocks. Calls that come before Run gets
// to it are one.
func (w *Watcher) Reload() {
	select {
	case w.reload <- struct{}{}:
	default:
	}
}

// Stats may be called at any time.
func (w *Watcher) Stats() Stats {
	return Stats{w.connected.Load(), w.streams.Load(), w.failures.Load(), w.acks.Load(), w.nacks.Load()}
}

// Run keeps a stream to the server and loads what it sends. It returns nil when
// ctx ends, and is called once.
func (w *Watcher) Run(ctx context.Context) error {
	failures := 0
	for {
		lasted, err := w.session(ctx)
		if ctx.Err() != nil {
			return nil
		}
		var reason *Trouble
		if !errors.As(err, &reason) { // errReload
			failures, w.last = 0, verdict{}
			continue
		}
		w.failures.Add(1)
		if lasted >= w.cfg.Pauses.Initial {
			failures = 0
		}
		failures++
		pause := w.cfg.Pauses.next(failures)
		if w.cfg.OnTrouble != nil {
			w.cfg.OnTrouble(reason, pause)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-w.reload:
			w.last = verdict{}
		case <-timer.C:
		}
		timer.Stop()
	}
}

// session is one connection with one stream. It ends with an error, a *Trouble or
// errReload, and says how long the stream was there.
func (w *Watcher) session(outer context.Context) (lasted time.Duration, err error) {
	ctx, cancel := context.WithCancelCause(outer)
	defer cancel(nil)
	conn, err := w.connect()
	if err != nil {
		return 0, w.trouble(ctx, err)
	}
	defer func() { _ = conn.Close() }() // its only error: it is closed
	t := &tap{ClientConnInterface: conn, cancel: cancel}
	client := sotw.NewADSClient(metadata.NewOutgoingContext(ctx, metadata.New(w.cfg.Headers)), w.node, TypeURL)
	if err := client.InitConnect(t, grpc.MaxCallRecvMsgSize(w.cfg.MaxMessage)); err != nil {
		return 0, w.trouble(ctx, err)
	}
	began := time.Now()
	w.streams.Add(1)
	w.connected.Store(true)
	defer func() {
		w.connected.Store(false)
		lasted = time.Since(began)
		cancel(nil)
		<-t.stream.ended
	}()
	if w.cfg.OnConnect != nil {
		w.cfg.OnConnect()
	}
	for {
		if err := w.await(ctx, t.stream); err != nil {
			return 0, err
		}
		if _, err := client.Fetch(); err != nil {
			return 0, w.trouble(ctx, err)
		}
		reason, repeats := w.judge(t.stream.shown)
		w.judged = time.Now()
		if outer.Err() != nil {
			return 0, outer.Err()
		}
		if repeats > 0 && w.superseded(ctx, t.stream, refusePause(repeats)) {
			continue
		}
		if reason == "" {
			w.acks.Add(1)
			err = client.Ack()
		} else {
			w.nacks.Add(1)
			err = client.Nack(reason)
		}
		if err != nil {
			return 0, w.trouble(ctx, err)
		}
	}
}

// await returns when there is a response, or the stream has ended.
func (w *Watcher) await(ctx context.Context, s *newest) error {
	silence := time.NewTimer(silenceAfter)
	defer silence.Stop()
	for waiting := true; waiting; {
		select {
		case <-s.arrived:
			waiting = false
		case <-s.ended:
			return nil
		case <-w.reload:
			return errReload
		case <-silence.C:
			if w.judged.IsZero() && !w.silence && w.cfg.OnSilence != nil {
				w.silence = true
				w.cfg.OnSilence()
			}
		}
	}
	if w.judged.IsZero() {
		return nil
	}
	rest := time.NewTimer(loadEvery - time.Since(w.judged))
	defer rest.Stop()
	select {
	case <-rest.C:
	case <-ctx.Done(): // the stream ends
	}
	return nil
}

// superseded waits and reports whether something newer came meanwhile.
func (w *Watcher) superseded(ctx context.Context, s *newest, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-s.arrived:
		s.signal() // for await
		return true
	case <-s.ended:
		return true // await looks
	case <-ctx.Done():
		return true
	case <-timer.C:
		return false
	}
}

// refusePause is the pause before a response is refused that has come again so
// many times.
func refusePause(repeats int) time.Duration {
	return min(refuseFirst<<min(repeats-1, 10), refuseMax)
}

// judge loads a response. It returns why it is refused, "" if it is not, and
// for a refused one how often it has come before.
func (w *Watcher) judge(r *discovery.DiscoveryResponse) (reason string, repeats int) {
	at := time.Now()
	u := Update{Resources: len(r.GetResources()), Version: short(r.GetVersionInfo()), At: at}
	v := verdict{version: r.GetVersionInfo(), valid: true}
	switch {
	case r.GetTypeUrl() != TypeURL && r.GetTypeUrl() != "":
		u.Err = rules.Problems{{
			Pos:  rules.Pos{File: "xds response"},
			What: fmt.Sprintf("its type is %q", short(r.GetTypeUrl())), Fix: "send " + TypeURL,
		}}
		v.sum = sha256.Sum256([]byte(r.GetTypeUrl()))
	case isHeartbeat(r.GetResources()):
		if w.last.valid {
			return w.last.again()
		}
		return "xds response: a heartbeat of resources that were never sent; send them whole", 0
	default:
		v.sum = sum(r.GetResources())
	}
	if w.last.valid && w.last.version == v.version && w.last.sum == v.sum {
		return w.last.again()
	}
	u.Hash = hex.EncodeToString(v.sum[:8])
	if u.Err == nil {
		w.load(r.GetResources(), &u)
	}
	if u.Err != nil {
		v.reason = u.Err.Error()
		if u.Set != nil {
			v.reason = "refused in part, other domains took effect: " + v.reason
		}
		v.reason = cut(v.reason)
	}
	w.last = v
	if w.cfg.OnUpdate != nil {
		w.cfg.OnUpdate(u)
	}
	return v.reason, 0
}

// load compiles resources, in part if some are bad.
func (w *Watcher) load(resources []*anypb.Any, u *Update) {
	set, warnings, list, err := load(resources, w.cfg.Options)
	u.Set, u.Warnings, u.Err = set, warnings, err
	if err == nil {
		w.keep(list)
		return
	}
	if w.cfg.AllOrNothing {
		return
	}
	part, changed := inPart(list, w.kept, err)
	if !changed {
		return
	}
	set, warnings, list, err = load(part, w.cfg.Options)
	if err != nil {
		return // the response is refused for reasons enough
	}
	w.keep(list)
	u.Set, u.Warnings = set, warnings
	whole := sum(part)
	u.Hash = hex.EncodeToString(whole[:8])
}

func (w *Watcher) keep(list []received) {
	if !w.cfg.AllOrNothing {
		w.kept = list
	}
}

// sum tells resources from others, whatever their order: servers keep them in
// maps.
func sum(resources []*anypb.Any) [sha256.Size]byte {
	sums := make([][sha256.Size]byte, len(resources))
	for i, r := range resources {
		h := sha256.New()
		h.Write([]byte(r.GetTypeUrl()))
		h.Write([]byte{0}) // in no type, so that it cannot run into the value
		h.Write(r.GetValue())
		h.Sum(sums[i][:0])
	}
	slices.SortFunc(sums, func(a, b [sha256.Size]byte) int { return bytes.Compare(a[:], b[:]) })
	all := sha256.New()
	for _, s := range sums {
		all.Write(s[:])
	}
	return [sha256.Size]byte(all.Sum(nil))
}
