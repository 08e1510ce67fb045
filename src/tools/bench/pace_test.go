package bench

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// served runs a phase against a server that answers after what service says of
// a call.
func served(ctx context.Context, p *Phase, inFlight int,
	service func(call uint64) time.Duration,
) (*Tally, time.Duration) {
	p.sleep = time.Sleep
	t := newTally()
	var all []Loop
	for range inFlight {
		all = append(all, worker{tally: t, call: func(n uint64) (pb.RateLimitResponse_Code, error) {
			time.Sleep(service(n))
			return ok, nil
		}})
	}
	took := p.run(ctx, all)
	return t, took
}

// about is true of a latency that the histogram cannot tell from want.
func about(got int64, want time.Duration) bool {
	w := want.Microseconds()
	return got >= w-w/500 && got <= w+w/500
}

// The server stalls for a second in the middle of ten. In an open loop all calls
// that were due in that second say so; in a closed loop only the one that was
// under way.
func TestStallShows(t *testing.T) {
	stall := func(call uint64) time.Duration {
		if call == 500 {
			return time.Second
		}
		return time.Millisecond
	}
	synctest.Test(t, func(t *testing.T) {
		// A call every 10 ms. Call 500+i is due at 10i ms after the stall began; the
		// server is free again after 1000 ms and then serves one in 1 ms, so that
		// call ends at 1000+i and took 1000-9i ms, which is 1 ms again for i = 111.
		p := Phase{rate: 100, duration: 10 * time.Second, lateGrace: time.Second}
		tl, took := served(t.Context(), &p, 1, stall)
		if requests, _ := tl.counts(); requests != 1000 || p.unsent != 0 {
			t.Errorf("%d calls, %d unsent", requests, p.unsent)
		}
		// The 1 % that took longest are i = 0 to 9, the 10 % i = 0 to 99.
		for _, q := range []struct {
			quantile float64
			want     time.Duration
		}{{50, time.Millisecond}, {90, 100 * time.Millisecond}, {99, 910 * time.Millisecond}, {100, time.Second}} {
			if got := tl.latency.ValueAtQuantile(q.quantile); !about(got, q.want) {
				t.Errorf("open loop: quantile %v is %d µs, want %v", q.quantile, got, q.want)
			}
		}
		// i = 1 starts 990 ms late, i = 110 still 9 ms.
		if tl.late != 110 || tl.maxLateness != 990*time.Millisecond {
			t.Errorf("%d late, by %v at most", tl.late, tl.maxLateness)
		}
		if want := 9991 * time.Millisecond; took != want {
			t.Errorf("took %v, want %v", took, want)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		p := Phase{maxCalls: 1000}
		tl, took := served(t.Context(), &p, 1, stall)
		if p99, top := tl.latency.ValueAtQuantile(99.8),
			tl.latency.Max(); !about(p99, time.Millisecond) || !about(top, time.Second) {
			t.Errorf("closed loop: 99.8 %% is %d µs, the longest %d", p99, top)
		}
		if tl.late != 0 || tl.maxLateness != 0 {
			t.Errorf("closed loop: %d late, by %v", tl.late, tl.maxLateness)
		}
		if want := 1999 * time.Millisecond; took != want {
			t.Errorf("took %v, want %v", took, want)
		}
	})
}

// A server half as fast as the rate: late calls may start for the grace, the
// rest is said to be unsent.
func TestOverload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := Phase{rate: 100, duration: 10 * time.Second, lateGrace: 2 * time.Second}
		tl, took := served(t.Context(), &p, 1, func(uint64) time.Duration { return 20 * time.Millisecond })
		requests, _ := tl.counts()
		if requests != 601 || p.unsent != 399 { // one starts at 12 s sharp
			t.Errorf("%d calls, %d unsent", requests, p.unsent)
		}
		// Call 600 was due at 6 s.
		if tl.maxLateness != 6*time.Second || !about(tl.latency.Max(), 6020*time.Millisecond) ||
			took != 12020*time.Millisecond {
			t.Errorf("behind %v, longest %d µs, took %v", tl.maxLateness, tl.latency.Max(), took)
		}
	})
	synctest.Test(t, func(t *testing.T) { // all are sent if they are counted
		p := Phase{rate: 100, maxCalls: 1000}
		tl, took := served(t.Context(), &p, 1, func(uint64) time.Duration { return 20 * time.Millisecond })
		if requests, _ := tl.counts(); requests != 1000 || p.unsent != 0 || took != 20*time.Second {
			t.Errorf("%d calls, %d unsent, took %v", requests, p.unsent, took)
		}
	})
}

func TestRate(t *testing.T) {
	for _, rate := range []float64{0.1, 3, 1000, 12345.6} {
		synctest.Test(t, func(t *testing.T) {
			p := Phase{rate: rate, duration: 20 * time.Second}
			tl, _ := served(t.Context(), &p, 8, func(uint64) time.Duration { return 0 })
			requests, _ := tl.counts()
			if want := uint64(20 * rate); requests != want || tl.late != 0 || tl.latency.Max() != 0 {
				t.Errorf("%v/s for 20 s: %d calls, want %d; %d late, longest %d µs", rate, requests, want, tl.late,
					tl.latency.Max())
			}
		})
	}
}

func TestClosedLoopEnds(t *testing.T) {
	for _, tt := range []struct {
		name     string
		calls    uint64
		lasts    time.Duration
		requests uint64
		took     time.Duration
	}{
		{"by time", 0, time.Second, 400, time.Second}, // 4 workers, 10 ms a call
		{"by number", 10, 0, 10, 30 * time.Millisecond},
		{"by number first", 10, time.Second, 10, 30 * time.Millisecond},
		{"by time first", 10_000, time.Second, 400, time.Second},
		{"no sooner than its last call", 0, 15 * time.Millisecond, 8, 20 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := Phase{maxCalls: tt.calls, duration: tt.lasts}
			tl, took := served(t.Context(), &p, 4, func(uint64) time.Duration { return 10 * time.Millisecond })
			if requests, _ := tl.counts(); requests != tt.requests || took != tt.took {
				t.Errorf("%s: %d calls in %v, want %d in %v", tt.name, requests, took, tt.requests, tt.took)
			}
		})
	}
}

// Both generators use the same numbers for calls.
func TestNumbers(t *testing.T) {
	for _, rate := range []float64{0, 5000} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			var got []uint64
			p := Phase{firstCall: 100, maxCalls: 50, rate: rate}
			served(t.Context(), &p, 7, func(n uint64) time.Duration {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, n)
				return time.Duration(n%3) * time.Millisecond
			})
			slices.Sort(got)
			for i, n := range got {
				if n != uint64(100+i) {
					t.Fatalf("rate %v: %v", rate, got)
				}
			}
			if len(got) != 50 {
				t.Errorf("rate %v: %d calls", rate, len(got))
			}
		})
	}
}

// When the context ends, calls under way are waited for and no other starts.
func TestInterrupt(t *testing.T) {
	for _, tt := range []struct {
		rate             float64
		requests, unsent uint64
		took             time.Duration
	}{
		{0, 18, 0, 1080 * time.Millisecond},    // 2 workers, 120 ms a call
		{10, 11, 0, 1120 * time.Millisecond},   // the last is due at 1 s
		{100, 18, 83, 1090 * time.Millisecond}, // too fast: 101 were due
		{0.5, 1, 0, 1050 * time.Millisecond},   // asleep at 1 s, for 50 ms at most
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 1001*time.Millisecond)
			defer cancel()
			p := Phase{rate: tt.rate, duration: time.Hour}
			tl, took := served(ctx, &p, 2, func(uint64) time.Duration { return 120 * time.Millisecond })
			requests, _ := tl.counts()
			if requests != tt.requests || p.unsent != tt.unsent || took != tt.took {
				t.Errorf("rate %v: %d calls, %d unsent, in %v; want %+v", tt.rate, requests, p.unsent, took, tt)
			}
		})
	}
}

// A worker without a connection does not spin.
func TestFailurePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tl := newTally()
		p := Phase{duration: time.Second}
		p.run(t.Context(), []Loop{worker{
			tally: tl,
			call:  func(uint64) (pb.RateLimitResponse_Code, error) { return 0, status.Error(codes.Unavailable, "x") },
		}})
		if requests, errs := tl.counts(); requests != 100 || errs != 100 {
			t.Errorf("%d calls, %d errors", requests, errs)
		}
	})
}

func TestSleep(t *testing.T) {
	sleep, done := newSleep()
	defer done()
	for _, d := range []time.Duration{-1, 0, 1, time.Millisecond} {
		begun := time.Now()
		sleep(d)
		if took := time.Since(begun); took < d {
			t.Errorf("slept %v of %v", took, d)
		}
	}
}
