package soak

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/memcachedtest"
	"ratelimit/testbed/redistest"
)

const short = 12 * time.Second

var duration = flag.Duration("duration", short, "how long the service is soaked on each store; all at the same time")

// pausable is a store's process.
type pausable interface {
	Pause()
	Resume()
}

// place is a store behind a proxy.
type place struct {
	env    []string
	server pausable // nil: memory, which has no faults
	proxy  *harness.Proxy
}

// TestSoak fails if the service grows, dies, panics, or does not answer well-behaved
// callers. See the package's comment for how growth is measured.
func TestSoak(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T) place{
		"memory": func(*testing.T) place {
			return place{env: []string{"BACKEND_TYPE=memory", "MEMORY_MAX_BYTES=4194304"}}
		},
		"redis": func(t *testing.T) place {
			server := redistest.Start(t, redistest.Options{Args: []string{
				"--maxmemory", "64mb", "--maxmemory-policy",
				"volatile-lfu",
			}})
			proxy := harness.StartProxy(t, server.Addr)
			return place{
				[]string{"REDIS_URL=" + proxy.Addr, "REDIS_TIMEOUT=500ms", "LOCAL_CACHE_SIZE_IN_BYTES=1048576"},
				server, proxy,
			}
		},
		"memcached": func(t *testing.T) place {
			server := memcachedtest.Start(t, memcachedtest.Options{})
			proxy := harness.StartProxy(t, server.Addr)
			return place{
				[]string{"BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT=" + proxy.Addr, "MEMCACHE_TIMEOUT=500ms"},
				server, proxy,
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			soak(t, prepare(t))
		})
	}
}

func soak(t *testing.T, at place) {
	s := startService(t, at.env...)
	var c tally
	conn, err := dial(s.Addrs["grpc"])
	if err != nil {
		t.Fatal(err)
	}
	s.ask(t.Context(), &c, conn, 1) // what is made for the first call is there
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	before, err := s.sample()
	if err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), *duration)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	for range 2 {
		g.Go(func() error { return s.steady(ctx, &c) })
		g.Go(func() error { return s.comers(ctx, &c) })
	}
	for range 4 {
		g.Go(func() error { return s.assault(ctx) })
	}
	g.Go(func() error { return s.reload(ctx) })
	g.Go(func() error { return s.scrape(ctx) })
	g.Go(func() error { return at.suffer(ctx) })
	var samples [][]float64
	var taken []time.Duration
	g.Go(func() error {
		begun := time.Now()
		return forever(ctx, min(max(*duration/120, 200*time.Millisecond), 5*time.Second), func(int) error {
			now, err := s.sample()
			if err != nil {
				return err
			}
			samples, taken = append(samples, now), append(taken, time.Since(begun))
			return nil
		})
	})
	if err := errors.Join(g.Wait(), s.Exited()); err != nil {
		t.Fatal(err)
	}

	for i, f := range figures {
		series := make([]float64, len(samples))
		for k, now := range samples {
			series[k] = now[i]
		}
		low, err := lows(series)
		switch {
		case err != nil:
			t.Error(err)
		case *duration == short && f.shortBound > 0:
			if low[2] > f.shortBound {
				t.Errorf("%s: %.1f at the end of the short form, want %.0f at most", f.name, low[2]/f.unit, f.shortBound/f.unit)
			}
		case f.grows(low):
			t.Errorf("%s: it grows: the low of the first third is %.1f, then %.1f, then %.1f", f.name, low[0]/f.unit,
				low[1]/f.unit, low[2]/f.unit)
		}
	}
	if err := s.rest(before[1]+slack, before[2]+slack); err != nil {
		t.Errorf("at rest: %v", err)
	}
	s.check(t, &c, at)
	if t.Failed() || *duration != short {
		t.Logf("%d answers, %d times unavailable\n%s", c.answered.Load(), c.unavailable.Load(), table(samples, taken))
	}
}

// slack is how many goroutines and descriptors there may be more at rest: stores
// may have as many connections as they are allowed, each with a goroutine or two.
const slack = 8

// check compares what was answered, and the state at the end, with what is promised.
func (s *service) check(t *testing.T, c *tally, at place) {
	t.Helper()
	if n := c.wrong.Load(); n > 0 {
		t.Errorf("%d requests had another answer than they deserve, the first: %s", n, *c.first.Load())
	}
	if c.answered.Load() < 20 {
		t.Errorf("%d answers: that was no soaking", c.answered.Load())
	}
	switch n := c.unavailable.Load(); {
	case at.server == nil && n > 0:
		t.Errorf("%d requests had no answer, although nothing was wrong", n)
	case at.server != nil && n == 0:
		t.Error("the faults of the store were not felt")
	}
	stats, err := s.stats()
	if err != nil {
		t.Fatal(err)
	}
	if n := stats["ratelimit.service.panics"]; n > 0 {
		t.Errorf("%v panics", n)
	}
	for _, name := range []string{
		"ratelimit.service.config_load_success", "ratelimit.service.config_load_error",
		"ratelimit.divvy.error.unknown",
	} {
		if stats[name] == 0 {
			t.Errorf("%s is 0: that was no soaking", name)
		}
	}
	harness.Await(t, harness.Deadline, "the service answers again", func() error {
		var after tally
		conn, err := dial(s.Addrs["grpc"])
		if err != nil {
			return err
		}
		s.ask(t.Context(), &after, conn, 1)
		if err := conn.Close(); err != nil {
			return err
		}
		if after.answered.Load() == 0 {
			return errors.New("it does not")
		}
		return nil
	})
}

// suffer has the store fail in one way after the other, each for a while, and be
// well for longer. In the end it is well.
func (at place) suffer(ctx context.Context) error {
	if at.server == nil {
		return nil
	}
	faults := []func(){
		at.proxy.Blackhole, at.proxy.Reset, at.proxy.Garbage, at.server.Pause, at.proxy.DropReplies,
		at.proxy.Refuse, at.proxy.HalfClose, at.proxy.Hold,
	}
	heal := func() {
		at.server.Resume()
		at.proxy.Heal()
		at.proxy.Reset() // what lost bytes stays broken
	}
	defer heal()
	// Each third of the measured time sees all of them, and as often.
	return forever(ctx, max(*duration/8/time.Duration(len(faults)), 150*time.Millisecond)/4, func(n int) error {
		switch n % 4 {
		case 2:
			faults[n/4%len(faults)]()
		case 3:
			heal()
		}
		return nil
	})
}

// table shows some twenty of the samples.
func table(samples [][]float64, taken []time.Duration) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%8s", "seconds")
	for _, f := range figures {
		fmt.Fprintf(&b, "%13s", f.name)
	}
	every := max(1, len(samples)/20)
	for i := 0; i < len(samples); i += every {
		fmt.Fprintf(&b, "\n%8.0f", taken[i].Seconds())
		for k, f := range figures {
			fmt.Fprintf(&b, "%13.1f", samples[i][k]/f.unit)
		}
	}
	return b.String()
}
