package redis

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/remotetest"
)

// faultTimeout is how long calls wait in the tests of faults.
const faultTimeout = remotetest.Timeout

// drive makes so many calls of s a second.
func drive(t *testing.T, s *Store, perSecond int, hit func(n int) backend.Hit) *remotetest.Traffic {
	t.Helper()
	return remotetest.Drive(t, remotetest.Store{Store: s, Stats: s.Stats}, perSecond, hit)
}

func recovers(t *testing.T, s *Store, keys ...string) {
	t.Helper()
	remotetest.AwaitRecovery(t, remotetest.Store{Store: s, Stats: s.Stats}, keys...)
}

func hot(int) backend.Hit {
	return backend.Hit{Key: []byte("hot_"), Limit: window(1<<40, time.Hour), Amount: 1}
}

// spread hits a hundred keys in turns.
func spread(n int) backend.Hit {
	return backend.Hit{Key: fmt.Appendf(nil, "k%d_", n%100), Limit: window(1<<40, time.Hour), Amount: 1}
}

func TestLoading(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	s := open(t, Config{Addr: server.Addr, Config: remote.Config{Timeout: faultTimeout}})
	recovers(t, s, "hot_")
	tr := drive(t, s, 500, hot)
	done := server.Loading(t)
	tr.AwaitFailures(t, 1)
	done()
	recovers(t, s, "hot_")
	tr.Stop(t)
}

// Redis stands still for over a second under 2,000 calls a second: no call waits
// longer than it may, nothing piles up, and no call passes that should not.
func TestStandstill(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	s := open(t, Config{Addr: server.Addr, Config: remote.Config{Timeout: faultTimeout}})
	const limit, perSecond = 3000, 2000
	tr := drive(t, s, perSecond, func(int) backend.Hit {
		return backend.Hit{Key: []byte("k_"), Limit: window(limit, time.Hour), Amount: 1}
	})
	harness.Await(t, 20*time.Second, "traffic", func() error {
		if tr.Passed.Load() < limit/3 {
			return errors.New("not enough")
		}
		return nil
	})
	heap := heapBytes()
	server.Pause()
	tr.AwaitFailures(t, perSecond) // it lasts 1.5 s or longer
	grown := heapBytes() - heap
	server.Resume()
	recovers(t, s, "other_")
	harness.Await(t, 20*time.Second, "the limit", func() error {
		if tr.Over.Load() == 0 {
			return errors.New("not reached")
		}
		return nil
	})
	tr.Stop(t)
	// As many calls are under way as come in while one may wait, and a few more.
	most := int64(perSecond*max(faultTimeout, time.Duration(tr.Longest.Load()))/time.Second) + 200
	if tr.Goroutines.Load() > most {
		t.Errorf("%d goroutines, want no more than %d", tr.Goroutines.Load(), most)
	}
	if grown > 16<<20 {
		t.Errorf("%d bytes more", grown)
	}
	if tr.Failed.Load() == 0 || tr.Passed.Load() > limit {
		t.Errorf("%d failed, %d passed of %d", tr.Failed.Load(), tr.Passed.Load(), limit)
	}
}

func heapBytes() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A failover that the sentinels decide on, with the old primary gone, standing
// still, or there as a replica.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	set := redistest.StartSentinel(t, redistest.SentinelOptions{})
	s := open(t, Config{
		Sentinel: &Sentinel{Primary: set.PrimaryName, Addrs: set.SentinelAddrs[:1]},
		Config:   remote.Config{Timeout: faultTimeout},
	})
	recovers(t, s, "hot_")
	for _, tt := range []struct {
		name  string
		begin func(*redistest.Server)
		end   func(*redistest.Server)
	}{
		{"killed", (*redistest.Server).Kill, func(old *redistest.Server) { old.Restart(t) }},
		{"paused", (*redistest.Server).Pause, (*redistest.Server).Resume},
		{"asked to", func(*redistest.Server) { set.Failover(t) }, func(*redistest.Server) {}},
		{"while the sentinel that was named is gone", func(*redistest.Server) {
			set.Sentinels[0].Stop()
			set.Failover(t)
		}, func(*redistest.Server) { set.Sentinels[0].Restart(t) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			old := set.Primary(t)
			tr := drive(t, s, 500, spread)
			tt.begin(old)
			primary := old
			harness.Await(t, 20*time.Second, "another primary", func() error {
				if primary = set.Primary(t); primary == old {
					return errors.New("it is still the same")
				}
				return nil
			})
			recovers(t, s, "hot_")
			passed := tr.Passed.Load()
			harness.Await(t, 20*time.Second, "calls that pass", func() error {
				if tr.Passed.Load() < passed+200 {
					return errors.New("not enough")
				}
				return nil
			})
			tr.Stop(t)
			if got := fmt.Sprint(primary.Do(t, "GET", "hot_1767225600")); got == "" || got == "<nil>" {
				t.Error("the new primary has no counts")
			}
			tt.end(old)
			harness.Await(t, 20*time.Second, "the old primary as a replica", func() error {
				info, err := old.Try("INFO", "replication") // it closes connections when it becomes one
				if err != nil || strings.Contains(fmt.Sprint(info), "role:slave") {
					return err
				}
				return errors.New("it is none")
			})
			set.AwaitFailover(t, old)
			recovers(t, s, "hot_")
		})
	}
	if n := s.Stats().OpenConnections; n > 3 { // two to the primary and one to a sentinel
		t.Errorf("%d connections are open", n)
	}
}

// Slots move while their keys are hit: the old owner says ASK, then MOVED, and
// no caller notices. Each hit is counted once.
func TestSlotsMove(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, redistest.ClusterOptions{})
	s := open(t, Config{Cluster: c.Addrs[:1], Config: remote.Config{Timeout: 5 * time.Second}})
	// Keys of one slot, some of them hit together.
	key := func(n int) []byte { return fmt.Appendf(nil, "{slot}k%d_", n%20) }
	var sent atomic.Int64
	tr := drive(t, s, 1000, func(n int) backend.Hit {
		sent.Add(1)
		return backend.Hit{Key: key(n), Limit: window(1<<40, time.Hour), Amount: 1}
	})
	// Groups cannot be answered while their keys are in two places.
	over, ended := make(chan struct{}), make(chan struct{})
	var groups atomic.Int64
	go func() {
		defer close(ended)
		for {
			select {
			case <-over:
				return
			default:
			}
			b := backend.Batch{Now: epoch, Verdicts: make([]backend.Verdict, 3)}
			for i := range 3 {
				b.Hits = append(b.Hits, backend.Hit{
					Key: key(i), Limit: window(1<<40, time.Hour), Amount: 1,
					Atomic: true,
				})
			}
			sent.Add(3)
			if err := errors.Join(s.Take(context.Background(), &b), b.Verdicts[0].Err, b.Verdicts[1].Err,
				b.Verdicts[2].Err); err != nil {
				t.Errorf("a group: %v", err)
			}
			groups.Add(1)
		}
	}()
	slot := redistest.KeySlot("{slot}")
	for range 3 {
		from := c.NodeForSlot(t, slot)
		to := c.Primaries(t)[0]
		if to == from {
			to = c.Primaries(t)[1]
		}
		m := c.StartMigration(t, slot, to)
		for m.Move(t, 4) > 0 {
			calls := tr.Passed.Load()
			harness.Await(t, 20*time.Second, "calls in between", func() error {
				if tr.Passed.Load() < calls+50 {
					return errors.New("not enough")
				}
				return nil
			})
		}
		m.Finish(t)
	}
	close(over)
	<-ended
	if groups.Load() == 0 {
		t.Error("no group was answered")
	}
	tr.Stop(t)
	if n := tr.Failed.Load(); n > 0 {
		t.Errorf("%d calls failed: %v", n, tr.Errors())
	}
	var counted int64
	owner := c.NodeForSlot(t, slot)
	for n := range 20 {
		v, _ := strconv.ParseInt(fmt.Sprintf("%s", owner.Do(t, "GET", string(key(n))+"1767225600")), 10, 64)
		counted += v
	}
	if counted != sent.Load() {
		t.Errorf("%d hits are counted, %d were sent", counted, sent.Load())
	}
}

// A replica takes over, as an operator wants it or because its primary died.
func TestReplicaIsPromoted(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, redistest.ClusterOptions{})
	s := open(t, Config{Cluster: c.Addrs, Config: remote.Config{Timeout: faultTimeout}})
	recovers(t, s, "hot_")
	for _, tt := range []struct {
		name  string
		begin func(*redistest.Server)
		end   func(*redistest.Server)
	}{
		{"handed over", func(*redistest.Server) {}, func(*redistest.Server) {}},
		{"killed", (*redistest.Server).Kill, func(old *redistest.Server) { old.Restart(t) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			old := c.NodeForKey(t, "hot_1767225600")
			tr := drive(t, s, 500, spread)
			tt.begin(old)
			c.FailoverReplica(t, old)
			recovers(t, s, "hot_")
			tr.Stop(t)
			if tr.Passed.Load() == 0 {
				t.Error("no call passed")
			}
			tt.end(old)
			c.AwaitStable(t)
			recovers(t, s, "hot_")
			for text := range tr.Errors() {
				if strings.Contains(text, "MOVED") {
					t.Errorf("somebody was told %q", text)
				}
			}
		})
	}
}
