package redis

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend/redistest"
)

// The script and the arithmetic of package algorithm come to the same, hit by
// hit, whatever the limit.
func TestScriptAgainstArithmetic(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	s := open(t, Config{Addr: server.Addr})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	for n := range 300 {
		l := &algorithm.Limit{
			Kind: algorithm.Kind(1 + rnd.IntN(4)), Max: []uint64{0, 1, 2, 3, 10, 1000, 999_999}[rnd.IntN(7)],
			Period: []time.Duration{time.Millisecond, time.Second, 1500 * time.Millisecond, time.Minute, 24 * time.Hour, algorithm.MaxPeriod}[rnd.IntN(6)], CountBlocked: rnd.IntN(2) == 0,
		}
		if l.Kind == algorithm.GCRA {
			l.Burst = uint64(rnd.IntN(20))
			if l.Max > 0 && l.Validate() != nil {
				l.Burst = 0
			}
		}
		if (l.Kind == algorithm.SlidingWindow || l.Kind == algorithm.GCRA) && rnd.IntN(2) == 0 {
			l.MinInterval = (l.Period / time.Duration(1+rnd.IntN(5)*rnd.IntN(5))).Truncate(time.Microsecond)
			if l.Period < algorithm.MaxPeriod && rnd.IntN(3) == 0 { // a distance longer than the window
				l.MinInterval *= time.Duration(2 + rnd.IntN(10))
			}
		}
		if err := l.Validate(); err != nil {
			t.Fatalf("%+v: %v", l, err)
		}
		var log algorithm.Log
		var first algorithm.FirstHit
		var buckets algorithm.Buckets
		var arrival algorithm.Arrival
		now := epoch
		for step := range 60 {
			now = now.Add(time.Duration(rnd.Int64N(int64(min(l.Period, 365*24*time.Hour))/int64(1+rnd.IntN(20))+1)) / 3).Truncate(time.Microsecond)
			if rnd.IntN(20) == 0 {
				now = now.Add(-time.Duration(rnd.Int64N(int64(min(l.Period, 1000*time.Hour))))).Truncate(time.Microsecond)
			}
			h := algorithm.Hit{
				Key: fmt.Appendf(nil, "k%d_", n), Limit: l, Op: algorithm.Op(rnd.IntN(4)),
				Amount: []uint64{0, 1, 1, 1, 2, 5, 1000, algorithm.MaxAmount}[rnd.IntN(8)],
			}
			if rnd.IntN(3) > 0 {
				h.Op = algorithm.Charge
			}
			var want algorithm.Verdict
			at := now.UnixNano()
			before := fmt.Sprint(log, first, buckets, arrival)
			switch l.Kind {
			case algorithm.FirstHitWindow:
				first, want = algorithm.TakeFirstHit(l, first, at, h.Op, h.Amount)
			case algorithm.SlidingWindow:
				want = algorithm.TakeSliding(l, &log, at, h.Op, h.Amount)
			case algorithm.SlidingWindowCounter:
				buckets, want = algorithm.TakeSlidingCounter(l, buckets, at, h.Op, h.Amount)
			case algorithm.GCRA:
				arrival, want = algorithm.TakeGCRA(l, arrival, at, h.Op, h.Amount)
			}
			b := algorithm.Batch{Hits: []algorithm.Hit{h}, Verdicts: make([]algorithm.Verdict, 1), Now: now}
			if err := s.Take(t.Context(), &b); err != nil {
				t.Fatal(err)
			}
			if got := b.Verdicts[0]; got != want {
				t.Fatalf("limit %d %+v, step %d at %v, %v %d on %s:\n got %+v\nwant %+v", n, *l, step, now, h.Op, h.Amount, before, got, want)
			}
		}
	}
}
