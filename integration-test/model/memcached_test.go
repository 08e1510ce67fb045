package model

import (
	"context"
	"testing"

	"ratelimit/src/backend"
	"ratelimit/src/backend/memcached"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/memcachedtest"
)

// memcachedServer is as redisServer.
type memcachedServer struct {
	proxy *harness.Proxy
}

func startMemcached(t testing.TB) *memcachedServer {
	return &memcachedServer{harness.StartProxy(t, memcachedtest.Start(t, memcachedtest.Options{}).Addr)}
}

type memcachedLab struct {
	*memcachedServer
	store *memcached.Store
	end   context.CancelFunc
	done  chan error
}

func (m *memcachedServer) open() (lab, error) {
	m.proxy.Heal()
	store, err := memcached.New(memcached.Config{
		Servers: []string{m.proxy.Addr},
		Config: remote.Config{
			Timeout:     storeTimeout,
			DialTimeout: storeTimeout,
		},
	})
	if err != nil {
		return nil, err
	}
	l := &memcachedLab{memcachedServer: m, store: store, done: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	l.end = cancel
	go func() { l.done <- store.Run(ctx) }()
	return l, nil
}

func (l *memcachedLab) backend() backend.Backend { return l.store }
func (l *memcachedLab) traits() Traits {
	return Traits{OwnClock: true, UpstreamCounts: true, Forward: true}
}

func (l *memcachedLab) fault(f Fault) error {
	l.proxy.Heal()
	return breakIt(l.proxy, f)
}

func (l *memcachedLab) quiet() error { return connected(l.proxy, l.store.Stats().OpenConnections) }

func (l *memcachedLab) check() error { return nil }

func (l *memcachedLab) close() error {
	l.end()
	return <-l.done
}
