package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/redistest"
)

// While a server stands still every call ends at its deadline, or at the timeout,
// however much it asks for; and none of the hits on that server is told that it asked for
// too much. Hits on other servers may be, on a busy machine.
func TestInTimeWhileAServerStandsStill(t *testing.T) {
	for _, tt := range []struct {
		name  string
		start func(*testing.T) (Config, *redistest.Server)
	}{
		{"single", func(t *testing.T) (Config, *redistest.Server) {
			server := redistest.Start(t, redistest.Options{})
			return Config{Addr: server.Addr}, server
		}},
		{"cluster", func(t *testing.T) (Config, *redistest.Server) {
			c := redistest.StartCluster(t, redistest.ClusterOptions{})
			return Config{Cluster: c.Addrs}, c.Primaries(t)[0]
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg, server := tt.start(t)
			cfg.BreakerFailures = -1 // it would end calls early
			cfg.Timeout = faultTimeout
			byTimeout := open(t, cfg)
			cfg.Timeout = time.Minute
			byDeadline := open(t, cfg)
			for _, s := range []*Store{byTimeout, byDeadline} {
				recovers(t, s, "a_", "b_", "c_", "d_", "e_")
			}
			server.Pause()
			t.Run("timeout", func(t *testing.T) { standstill(t, byTimeout, server.Addr, t.Context) })
			t.Run("deadline", func(t *testing.T) {
				standstill(t, byDeadline, server.Addr, func() context.Context {
					ctx, cancel := context.WithTimeout(t.Context(), faultTimeout)
					t.Cleanup(cancel)
					return ctx
				})
			})
			server.Resume()
			recovers(t, byTimeout, "a_", "b_", "c_", "d_", "e_")
		})
	}
}

// standstill makes small and large calls, whose hits are on all nodes, some of them while
// others wait already.
func standstill(t *testing.T, s *Store, paused string, caller func() context.Context) {
	m := watchMachine()
	defer m.end()
	var all sync.WaitGroup
	defer all.Wait()
	pace := time.NewTicker(faultTimeout / 4)
	defer pace.Stop()
	for n := range 40 {
		var b *backend.Batch
		switch n % 4 {
		case 0:
			b = many(1000, algorithm.GCRA, fmt.Sprint("scripts", n, "_"), false)
		case 1:
			b = many(300, algorithm.SlidingWindow, fmt.Sprint("group", n, "_"), true)
		case 2:
			b = many(5000, algorithm.FixedWindow, fmt.Sprint("commands", n, "_"), false)
		default:
			b = many(300, algorithm.FixedWindow, "few_", false)
		}
		ctx := caller()
		all.Go(func() {
			begun := m.now()
			if err := s.Take(ctx, b); err != nil {
				t.Error(err)
			}
			if took := m.now() - begun; took > faultTimeout+patienceOfCalls {
				t.Errorf("call %d took %v", n, took)
			}
			if b.FirstErr() == nil {
				t.Errorf("call %d has all answers", n)
			}
			for i := range b.Hits {
				key := remote.AppendKey(nil, &b.Hits[i], b.Now.UnixNano(), false)
				owner, err := s.Table().NodeOfKey(key)
				if err == nil && owner.Addr == paused && (b.Verdicts[i].Err == nil || errors.Is(b.Verdicts[i].Err, backend.ErrOverload)) {
					t.Errorf("call %d, hit %d: %v", n, i, b.Verdicts[i].Err)
					return
				}
			}
		})
		if n%10 == 9 {
			<-pace.C
		}
	}
}

// patienceOfCalls is how much later than at its deadline a large call may end on a
// machine that has other things to do.
const patienceOfCalls = 2 * time.Second
