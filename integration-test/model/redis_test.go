package model

import (
	"context"
	"fmt"
	"testing"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/overlimit"
	"ratelimit/src/backend/redis"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

// A script waits this long for a store that does not answer; slow is what a
// reply may take.
const (
	storeTimeout = 500 * time.Millisecond
	slow         = 20 * time.Millisecond
)

// redisServer is a real server behind a proxy that breaks things.
type redisServer struct {
	server *redistest.Server
	proxy  *harness.Proxy
}

func startRedis(t testing.TB) *redisServer {
	server := redistest.Start(t, redistest.Options{})
	return &redisServer{server, harness.StartProxy(t, server.Addr)}
}

// redisLab is one store on it.
type redisLab struct {
	*redisServer
	store  *redis.Store
	front  backend.Backend
	cached bool
	end    context.CancelFunc
	done   chan error
}

func (r *redisServer) open(s *Script) (lab, error) {
	if _, err := r.server.Try("FLUSHALL"); err != nil {
		return nil, err
	}
	return r.connect(s.Store == "cached-redis")
}

// connect opens a store on what the server has.
func (r *redisServer) connect(cached bool) (*redisLab, error) {
	r.proxy.Heal()
	store, err := redis.New(redis.Config{
		Addr:   r.proxy.Addr,
		Config: remote.Config{Timeout: storeTimeout, DialTimeout: storeTimeout},
	})
	if err != nil {
		return nil, err
	}
	l := &redisLab{redisServer: r, store: store, front: store, cached: cached, done: make(chan error, 1)}
	if cached {
		l.front = overlimit.New(store, 0)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.end = cancel
	go func() { l.done <- store.Run(ctx) }()
	return l, nil
}

func (l *redisLab) backend() backend.Backend { return l.front }
func (l *redisLab) traits() Traits {
	return Traits{OwnClock: true, UpstreamCounts: true, Cached: l.cached}
}

func (l *redisLab) fault(f Fault) error {
	if f == Wipe {
		_, err := l.server.Try("FLUSHALL")
		return err
	}
	l.proxy.Heal()
	return breakIt(l.proxy, f)
}

// breakIt makes the proxy do f.
func breakIt(p *harness.Proxy, f Fault) error {
	switch f {
	case None:
	case Down:
		p.Refuse()
		p.Reset()
	case Lost:
		p.DropReplies()
	case Stall:
		p.Hold()
	case Slow:
		p.Latency(slow)
	case Reset:
		p.Reset()
	default:
		return fmt.Errorf("the proxy knows no fault %s", f)
	}
	return nil
}

// quiet wants connections that have broken gone on both sides and new ones
// there, and lets the server look at what it was sent on the old: it answers in
// rounds.
func (l *redisLab) quiet() error {
	err := connected(l.proxy, l.store.Stats().OpenConnections)
	for range 3 {
		if err == nil {
			_, err = l.server.Try("PING")
		}
	}
	return err
}

// connected says whether a store has just the connections that the proxy has. One that
// broke while it was idle is noticed when it is used next.
func connected(p *harness.Proxy, known int64) error {
	if there := int64(p.Open()); there != known || known == 0 {
		return fmt.Errorf("the proxy has %d connections and the store knows %d", there, known)
	}
	return nil
}

// check looks for counters that would stay for ever. One whose reply was lost may have
// to wait for its end a little.
func (l *redisLab) check() error { return harness.Retry(patience, l.checkEnds) }

func (l *redisLab) checkEnds() error {
	keys, err := l.server.Try("KEYS", "*")
	if err != nil {
		return err
	}
	list, ok := keys.([]any)
	if !ok {
		return fmt.Errorf("KEYS is answered by %v", keys)
	}
	for _, key := range list {
		ttl, err := l.server.Try("PTTL", key)
		if err != nil {
			return err
		}
		if fmt.Sprint(ttl) == "-1" {
			return fmt.Errorf("the key %v never expires", key)
		}
	}
	return nil
}

func (l *redisLab) close() error {
	l.end()
	return <-l.done
}
