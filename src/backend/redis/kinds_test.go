package redis

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/testbed/redistest"
)

// The script and the arithmetic of package algorithm come to the same, hit by
// hit, whatever the limit.
func TestScriptAgainstArithmetic(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	s := open(t, Config{Addr: server.Addr})
	rnd := rand.New(rand.NewPCG(1, 1))
	for n := range 150 {
		l := &algorithm.Limit{
			Kind: algorithm.Kind(1 + rnd.IntN(4)), Max: []uint64{0, 1, 2, 3, 10, 1000, 999_999}[rnd.IntN(7)],
			Period: []time.Duration{
				time.Millisecond, time.Second, 1500 * time.Millisecond, time.Minute,
				24 * time.Hour, algorithm.MaxPeriod,
			}[rnd.IntN(6)], CountBlocked: rnd.IntN(2) == 0,
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
		var first algorithm.FirstHitState
		var buckets algorithm.SlidingCounterState
		var arrival algorithm.GCRAState
		now := epoch
		for step := range 60 {
			now = now.Add(time.Duration(rnd.Int64N(int64(min(l.Period,
				365*24*time.Hour))/int64(1+rnd.IntN(20))+1)) / 3).Truncate(time.Microsecond)
			if rnd.IntN(20) == 0 {
				now = now.Add(-time.Duration(rnd.Int64N(int64(min(l.Period,
					1000*time.Hour))))).Truncate(time.Microsecond)
			}
			h := backend.Hit{
				Key: fmt.Appendf(nil, "k%d_", n), Limit: l, Op: algorithm.Op(rnd.IntN(4)),
				Amount: []uint64{0, 1, 1, 1, 2, 5, 1000, algorithm.MaxAmount}[rnd.IntN(8)],
			}
			if rnd.IntN(3) > 0 {
				h.Op = algorithm.Charge
			}
			var want algorithm.Outcome
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
			b := backend.Batch{Hits: []backend.Hit{h}, Verdicts: make([]backend.Verdict, 1), Now: now}
			if err := s.Take(t.Context(), &b); err != nil {
				t.Fatal(err)
			}
			if got := b.Verdicts[0]; got != (backend.Verdict{Outcome: want}) {
				t.Fatalf("limit %d %+v, step %d at %v, %v %d on %s:\n got %+v\nwant %+v", n, *l, step, now, h.Op,
					h.Amount, before, got, want)
			}
		}
	}
}

// Redis does nothing else while it runs a script, so a log of any length must not
// take one long: neither when much of it leaves at once, nor when a caller asks
// for, or gives back, as much as there is.
func TestLongLogsAreSearched(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	s := open(t, Config{Addr: server.Addr})
	l := &algorithm.Limit{Kind: algorithm.SlidingWindow, Max: 100_000, Period: time.Hour}
	const marks = 20_000 // one a millisecond
	var log algorithm.Log
	for i := range int64(marks) {
		algorithm.TakeSliding(l, &log, epoch.UnixNano()+i*int64(time.Millisecond), algorithm.Charge, 1)
	}
	const fill = `redis.call('RPUSH', KEYS[1], '0:0')
		for i = 0, ARGV[2] - 1 do redis.call('LPUSH', KEYS[1], string.format('%.0f:%d', ARGV[1] + 1000 * i, i + 1)) end`
	server.Do(t, "EVAL", fill, "1", "{k_}|sl:3600", fmt.Sprint(epoch.UnixMicro()), fmt.Sprint(marks))
	for _, step := range []struct {
		at     time.Duration
		op     algorithm.Op
		amount uint64
	}{
		{time.Minute, algorithm.Charge, 100_000}, // over, until the newest leaves
		{time.Minute, algorithm.Charge, 85_000},
		{time.Minute, algorithm.Look, 0},
		{time.Hour + 5*time.Second, algorithm.Charge, 1}, // a quarter has left
		{time.Hour + 5*time.Second, algorithm.Refund, 7000},
		{time.Hour + 7*time.Second, algorithm.Force, 99_000}, // all but 1,000 matter no more
		{time.Hour + 7*time.Second, algorithm.Refund, 200_000},
		{time.Hour + 7*time.Second, algorithm.Charge, 100_000},
	} {
		now := epoch.Add(step.at)
		h := backend.Hit{Key: []byte("k_"), Limit: l, Op: step.op, Amount: step.amount}
		want := algorithm.TakeSliding(l, &log, now.UnixNano(), h.Op, h.Amount)
		server.Do(t, "CONFIG", "RESETSTAT")
		b := backend.Batch{Hits: []backend.Hit{h}, Verdicts: make([]backend.Verdict, 1), Now: now}
		if err := s.Take(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
		if got := b.Verdicts[0]; got != (backend.Verdict{Outcome: want}) {
			t.Errorf("%+v:\n got %+v\nwant %+v", step, got, want)
		}
		if n := server.Do(t, "LLEN", "{k_}|sl:3600"); n != int64(log.Len())+1 {
			t.Errorf("%+v: a list of %v, want %d and the one before them", step, n, log.Len())
		}
		for _, m := range commandCalls.FindAllStringSubmatch(fmt.Sprint(server.Do(t, "INFO", "commandstats")), -1) {
			if n, err := strconv.Atoi(m[2]); err != nil || n > 150 {
				t.Errorf("%+v: %s was called %s times", step, m[1], m[2])
			}
		}
	}
}

var commandCalls = regexp.MustCompile(`cmdstat_([^:]+):calls=(\d+)`)
