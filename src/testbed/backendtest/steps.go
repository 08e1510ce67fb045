package backendtest

import (
	"slices"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

const (
	charge = algorithm.Charge
	look   = algorithm.Look
	refund = algorithm.Refund
	force  = algorithm.Force
)

// step is one hit on one key.
type step struct {
	at        time.Duration // after epoch
	op        algorithm.Op
	n         uint64
	over      bool
	interval  bool
	after     uint64
	remaining uint64
	retry     time.Duration
	reset     time.Duration
}

type table struct {
	name  string
	limit *algorithm.Limit
	steps []step
}

const (
	s  = time.Second
	us = time.Microsecond
)

func fixedTables() []table {
	return []table{
		{"a window ends at its edge", fixed(2, 60*s), []step{
			{at: 10 * s, n: 1, after: 1, remaining: 1, reset: 50 * s},
			{at: 59 * s, n: 1, after: 2, reset: 1 * s},
			{at: 59 * s, n: 1, over: true, after: 3, retry: 1 * s, reset: 1 * s},
			{at: 60 * s, n: 1, after: 1, remaining: 1, reset: 60 * s},
			{at: 119 * s, n: 1, after: 2, reset: 1 * s},
			{at: 125 * s, n: 2, after: 2, reset: 55 * s},
		}},
		{"refused hits count", fixed(10, 60*s), []step{
			{n: 8, after: 8, remaining: 2, reset: 60 * s},
			{n: 3, over: true, after: 11, retry: 60 * s, reset: 60 * s},
			{n: 1, over: true, after: 12, retry: 60 * s, reset: 60 * s},
		}},
		{"refused hits do not count", polite(algorithm.FixedWindow, 10, 60*s), []step{
			{n: 8, after: 8, remaining: 2, reset: 60 * s},
			{n: 3, over: true, after: 8, retry: 60 * s, reset: 60 * s},
			{n: 2, after: 10, reset: 60 * s},
			{n: 1, over: true, after: 10, retry: 60 * s, reset: 60 * s},
		}},
		{"a hit of nothing reads", fixed(1, 60*s), []step{
			{n: 0, after: 0, remaining: 1, reset: 60 * s},
			{n: 1, after: 1, reset: 60 * s},
			{n: 0, after: 1, reset: 60 * s},
			{n: 1, over: true, after: 2, retry: 60 * s, reset: 60 * s},
			{n: 0, over: true, after: 2, retry: 60 * s, reset: 60 * s},
		}},
		{"looks write nothing", fixed(3, 60*s), []step{
			{op: look, n: 3, after: 0, remaining: 3, reset: 60 * s},
			{op: look, n: 4, over: true, after: 0, retry: algorithm.Never, reset: 60 * s},
			{n: 2, after: 2, remaining: 1, reset: 60 * s},
			{op: look, n: 1, after: 2, remaining: 1, reset: 60 * s},
			{op: look, n: 2, over: true, after: 2, retry: 60 * s, reset: 60 * s},
			{n: 1, after: 3, reset: 60 * s},
		}},
		{"refunds stop at empty", fixed(3, 60*s), []step{
			{op: refund, n: 5, after: 0, remaining: 3, reset: 60 * s},
			{n: 3, after: 3, reset: 60 * s},
			{op: refund, n: 1, after: 2, remaining: 1, reset: 60 * s},
			{n: 1, after: 3, reset: 60 * s},
			{n: 4, over: true, after: 7, retry: algorithm.Never, reset: 60 * s},
			{op: refund, n: 1, after: 6, reset: 60 * s},
			{op: refund, n: 100, after: 0, remaining: 3, reset: 60 * s},
		}},
		{"force asks nobody", polite(algorithm.FixedWindow, 3, 60*s), []step{
			{op: force, n: 5, after: 5, reset: 60 * s},
			{n: 1, over: true, after: 5, retry: 60 * s, reset: 60 * s},
		}},
		{"nothing passes a limit of 0", fixed(0, 60*s), []step{
			{n: 0, after: 0, reset: 60 * s},
			{n: 1, over: true, after: 1, retry: algorithm.Never, reset: 60 * s},
		}},
		{"large amounts", fixed(algorithm.MaxAmount, 60*s), []step{
			{n: algorithm.MaxAmount, after: algorithm.MaxAmount, reset: 60 * s},
			{n: algorithm.MaxAmount, over: true, after: 2 * algorithm.MaxAmount, retry: 60 * s, reset: 60 * s},
		}},
		{"a window of several units", fixed(1, 5*60*s), []step{
			{at: 299 * s, n: 1, after: 1, reset: 1 * s},
			{at: 299 * s, n: 1, over: true, after: 2, retry: 1 * s, reset: 1 * s},
			{at: 300 * s, n: 1, after: 1, reset: 300 * s},
		}},
		{"a clock that steps back finds its old window", fixed(2, 3600*s), []step{
			{at: 4000 * s, n: 2, after: 2, reset: 3200 * s},
			{at: 1000 * s, n: 1, after: 1, remaining: 1, reset: 2600 * s},
			{at: 4000 * s, n: 1, over: true, after: 3, retry: 3200 * s, reset: 3200 * s},
		}},
	}
}

func firstHitTables() []table {
	limit := func(most uint64) *algorithm.Limit { return polite(algorithm.FirstHitWindow, most, 60*s) }
	return []table{
		{"a window begins with its first hit", limit(2), []step{
			{at: 3 * s, n: 1, after: 1, remaining: 1, reset: 60 * s},
			{at: 4 * s, n: 1, after: 2, reset: 59 * s},
			{at: 63*s - us, n: 1, over: true, after: 2, retry: us, reset: us},
			{at: 63 * s, n: 1, after: 1, remaining: 1, reset: 60 * s},
			{at: 123*s - us, n: 1, after: 2, reset: us},
			{at: 200 * s, n: 2, after: 2, reset: 60 * s},
		}},
		{"refused hits count", blocked(algorithm.FirstHitWindow, 2, 60*s), []step{
			{n: 1, after: 1, remaining: 1, reset: 60 * s},
			{at: 1 * s, n: 2, over: true, after: 3, retry: 59 * s, reset: 59 * s},
			{at: 2 * s, n: 0, over: true, after: 3, retry: 58 * s, reset: 58 * s},
			{at: 3 * s, op: refund, n: 1, after: 2, reset: 57 * s},
			{at: 60 * s, n: 2, after: 2, reset: 60 * s},
		}},
		{"a window that a refund emptied goes on", limit(2), []step{
			{n: 2, after: 2, reset: 60 * s},
			{at: 10 * s, op: refund, n: 5, after: 0, remaining: 2},
			{at: 20 * s, n: 1, after: 1, remaining: 1, reset: 40 * s},
			{at: 60 * s, n: 2, after: 2, reset: 60 * s},
		}},
		{"looks and refunds begin no window", limit(2), []step{
			{op: look, n: 2, after: 0, remaining: 2},
			{op: look, n: 3, over: true, after: 0, remaining: 2, retry: algorithm.Never},
			{op: refund, n: 1, after: 0, remaining: 2},
			{n: 0, after: 0, remaining: 2},
			{at: 30 * s, n: 1, after: 1, remaining: 1, reset: 60 * s},
			{at: 60 * s, op: look, n: 2, over: true, after: 1, remaining: 1, retry: 30 * s, reset: 30 * s},
		}},
		{"force asks nobody", limit(3), []step{
			{op: force, n: 5, after: 5, reset: 60 * s},
			{at: 10 * s, n: 1, over: true, after: 5, retry: 50 * s, reset: 50 * s},
		}},
		{"nothing passes a limit of 0", limit(0), []step{
			{n: 0, after: 0},
			{n: 1, over: true, after: 0, retry: algorithm.Never},
		}},
		{"large amounts", limit(algorithm.MaxAmount), []step{
			{n: algorithm.MaxAmount, after: algorithm.MaxAmount, reset: 60 * s},
			{n: 1, over: true, after: algorithm.MaxAmount, retry: 60 * s, reset: 60 * s},
		}},
		{"windows need not be whole seconds", polite(algorithm.FirstHitWindow, 1, 90*s+500*time.Millisecond), []step{
			{at: us, n: 1, after: 1, reset: 90*s + 500*time.Millisecond},
			{at: 90*s + 500*time.Millisecond, n: 1, over: true, after: 1, retry: us, reset: us},
			{at: 90*s + 500*time.Millisecond + us, n: 1, after: 1, reset: 90*s + 500*time.Millisecond},
		}},
		{"a clock that steps back finds its window", limit(2), []step{
			{at: 100 * s, n: 2, after: 2, reset: 60 * s},
			{at: 49 * s, op: look, n: 1, over: true, after: 2, retry: 60 * s, reset: 60 * s},
			{at: 50 * s, n: 1, over: true, after: 2, retry: 60 * s, reset: 60 * s},
			{at: 109 * s, n: 1, over: true, after: 2, retry: 1 * s, reset: 1 * s},
			{at: 160 * s, n: 1, after: 1, remaining: 1, reset: 60 * s},
		}},
	}
}

func slidingTables() []table {
	limit := func(most uint64) *algorithm.Limit { return polite(algorithm.SlidingWindow, most, 60*s) }
	return []table{
		{"each hit leaves a period later", limit(2), []step{
			{n: 1, after: 1, remaining: 1, reset: 60 * s},
			{at: 10 * s, n: 1, after: 2, reset: 60 * s},
			{at: 60*s - us, n: 1, over: true, after: 2, retry: us, reset: 10*s + us},
			{at: 60 * s, n: 1, after: 2, reset: 60 * s},
			{at: 69 * s, n: 2, over: true, after: 2, retry: 51 * s, reset: 51 * s},
			{at: 70 * s, n: 1, after: 2, reset: 60 * s},
			{at: 200 * s, n: 2, after: 2, reset: 60 * s},
		}},
		{"refused hits count", blocked(algorithm.SlidingWindow, 2, 60*s), []step{
			{n: 1, after: 1, remaining: 1, reset: 60 * s},
			{at: 1 * s, n: 1, after: 2, reset: 60 * s},
			{at: 2 * s, n: 1, over: true, after: 3, retry: 59 * s, reset: 60 * s},
			{at: 61 * s, n: 1, after: 2, reset: 60 * s},
		}},
		{"refunds take the newest out", limit(5), []step{
			{op: refund, n: 1, after: 0, remaining: 5},
			{n: 2, after: 2, remaining: 3, reset: 60 * s},
			{at: 10 * s, n: 3, after: 5, reset: 60 * s},
			{at: 20 * s, op: refund, n: 4, after: 1, remaining: 4, reset: 40 * s},
			{at: 20 * s, n: 4, after: 5, reset: 60 * s},
			{at: 60 * s, n: 1, after: 5, reset: 60 * s},
			{at: 60 * s, op: refund, n: 100, after: 0, remaining: 5},
			{at: 61 * s, n: 5, after: 5, reset: 60 * s},
		}},
		{"looks write nothing", limit(3), []step{
			{op: look, n: 3, after: 0, remaining: 3},
			{op: look, n: 4, over: true, after: 0, remaining: 3, retry: algorithm.Never},
			{n: 2, after: 2, remaining: 1, reset: 60 * s},
			{at: 10 * s, op: look, n: 1, after: 2, remaining: 1, reset: 50 * s},
			{at: 20 * s, op: look, n: 2, over: true, after: 2, remaining: 1, retry: 40 * s, reset: 40 * s},
			{at: 30 * s, n: 0, after: 2, remaining: 1, reset: 30 * s},
			{at: 60 * s, n: 3, after: 3, reset: 60 * s},
		}},
		{"force asks nobody", limit(3), []step{
			{op: force, n: 5, after: 5, reset: 60 * s},
			{at: 1 * s, n: 1, over: true, after: 5, retry: 59 * s, reset: 59 * s},
			{at: 60 * s, n: 3, after: 3, reset: 60 * s},
		}},
		{"nothing passes a limit of 0", limit(0), []step{
			{n: 0, after: 0},
			{n: 1, over: true, after: 0, retry: algorithm.Never},
		}},
		{"a distance to the last hit", paced(limit(5), 10*s), []step{
			{n: 1, after: 1, remaining: 4, reset: 60 * s},
			{at: 10*s - us, n: 1, over: true, interval: true, after: 1, remaining: 4, retry: us, reset: 50*s + us},
			{at: 10 * s, n: 2, after: 3, remaining: 2, reset: 60 * s},
			{at: 15 * s, op: look, n: 1, over: true, interval: true, after: 3, remaining: 2, retry: 5 * s, reset: 55 * s},
			{at: 20 * s, n: 1, after: 4, remaining: 1, reset: 60 * s},
		}},
		{"a distance longer than the window", paced(limit(5), 100*s), []step{
			{n: 1, after: 1, remaining: 4, reset: 100 * s},
			{at: 60 * s, n: 1, over: true, interval: true, after: 0, remaining: 5, retry: 40 * s, reset: 40 * s},
			{at: 100*s - us, n: 1, over: true, interval: true, after: 0, remaining: 5, retry: us, reset: us},
			{at: 100 * s, n: 1, after: 1, remaining: 4, reset: 100 * s},
		}},
		{"a clock that steps back stands still", limit(2), []step{
			{at: 100 * s, n: 1, after: 1, remaining: 1, reset: 60 * s},
			{at: 50 * s, n: 1, after: 2, reset: 60 * s},
			{at: 50 * s, n: 1, over: true, after: 2, retry: 60 * s, reset: 60 * s},
			{at: 160*s - us, n: 1, over: true, after: 2, retry: us, reset: us},
			{at: 160 * s, n: 2, after: 2, reset: 60 * s},
		}},
	}
}

func slidingCounterTables() []table {
	limit := func(most uint64) *algorithm.Limit { return polite(algorithm.SlidingWindowCounter, most, 60*s) }
	return []table{
		{"the last window counts by its share", limit(10), []step{
			{n: 8, after: 8, remaining: 2, reset: 120 * s},
			{at: 60 * s, n: 3, over: true, after: 8, retry: 7500 * time.Millisecond, reset: 60 * s},
			{at: 67*s + 500*time.Millisecond, n: 3, after: 10, reset: 112*s + 500*time.Millisecond},
			{at: 75 * s, op: look, n: 2, over: true, after: 9, retry: 7500 * time.Millisecond, reset: 105 * s},
			{at: 75 * s, n: 1, after: 10, reset: 105 * s},
			{at: 180 * s, n: 0, after: 0, remaining: 10},
		}},
		{"refused hits count", blocked(algorithm.SlidingWindowCounter, 10, 60*s), []step{
			{n: 8, after: 8, remaining: 2, reset: 120 * s},
			{n: 4, over: true, after: 12, retry: 90 * s, reset: 120 * s},
			{at: 90 * s, n: 4, after: 10, reset: 90 * s},
		}},
		{"refunds are of this window", limit(10), []step{
			{op: refund, n: 1, after: 0, remaining: 10},
			{n: 6, after: 6, remaining: 4, reset: 120 * s},
			{at: 60 * s, n: 4, after: 10, reset: 120 * s},
			{at: 60 * s, op: refund, n: 9, after: 6, remaining: 4, reset: 60 * s},
			{at: 60 * s, n: 4, after: 10, reset: 120 * s},
		}},
		{"looks write nothing", limit(3), []step{
			{op: look, n: 3, after: 0, remaining: 3},
			{op: look, n: 4, over: true, after: 0, retry: algorithm.Never},
			{n: 2, after: 2, remaining: 1, reset: 120 * s},
			{op: look, n: 1, after: 2, remaining: 1, reset: 120 * s},
			{op: look, n: 2, over: true, after: 2, retry: 90 * s, reset: 120 * s},
		}},
		{"force asks nobody", limit(3), []step{
			{op: force, n: 4, after: 4, reset: 120 * s},
			{n: 1, over: true, after: 4, retry: 90 * s, reset: 120 * s},
			{at: 90 * s, n: 1, after: 3, reset: 90 * s},
		}},
		{"nothing passes a limit of 0", limit(0), []step{
			{n: 0, after: 0},
			{n: 1, over: true, after: 0, retry: algorithm.Never},
		}},
		{"large amounts", limit(algorithm.MaxAmount), []step{
			{n: algorithm.MaxAmount, after: algorithm.MaxAmount, reset: 120 * s},
			{at: 60 * s, n: 1, over: true, after: algorithm.MaxAmount, retry: 1, reset: 60 * s},
			{at: 90 * s, n: algorithm.MaxAmount / 2, after: algorithm.MaxAmount, reset: 90 * s},
			{at: 120 * s, n: algorithm.MaxAmount / 2, after: algorithm.MaxAmount, reset: 120 * s},
		}},
		{"a clock that steps back stands at the window's beginning", limit(10), []step{
			{at: 60 * s, n: 5, after: 5, remaining: 5, reset: 120 * s},
			{at: 30 * s, n: 5, after: 10, reset: 120 * s},
			{at: 30 * s, n: 1, over: true, after: 10, retry: 66 * s, reset: 120 * s},
			{at: 90 * s, n: 1, over: true, after: 10, retry: 36 * s, reset: 90 * s},
			{at: 126 * s, n: 1, after: 10, reset: 114 * s},
		}},
	}
}

// Ten a minute, which is one every six seconds, and two more at once.
func gcraTables() []table {
	limit := func() *algorithm.Limit {
		return &algorithm.Limit{Kind: algorithm.GCRA, Max: 10, Period: 60 * s, Burst: 2}
	}
	counting := limit()
	counting.CountBlocked = true
	return []table{
		{"three at once, then one every six seconds", limit(), []step{
			{n: 3, after: 3, reset: 18 * s},
			{n: 1, over: true, after: 3, retry: 6 * s, reset: 18 * s},
			{at: 6*s - us, n: 1, over: true, after: 3, retry: us, reset: 12*s + us},
			{at: 6 * s, n: 1, after: 3, reset: 18 * s},
			{at: 24 * s, op: look, n: 3, after: 0, remaining: 3},
			{at: 24 * s, n: 4, over: true, after: 0, remaining: 3, retry: algorithm.Never},
			{at: 24 * s, n: 2, after: 2, remaining: 1, reset: 12 * s},
		}},
		{"what is refused is owed", counting, []step{
			{n: 3, after: 3, reset: 18 * s},
			{n: 2, over: true, after: 5, retry: 24 * s, reset: 30 * s},
			{n: 0, over: true, after: 5, retry: 12 * s, reset: 30 * s},
			{at: 12 * s, n: 0, after: 3, reset: 18 * s},
			{at: 18 * s, n: 1, after: 3, reset: 18 * s},
			{at: 18 * s, op: force, n: 2, after: 5, reset: 30 * s},
			{at: 19 * s, op: refund, n: 3, after: 2, remaining: 1, reset: 11 * s},
		}},
		{"refunds stop at now", limit(), []step{
			{op: refund, n: 2, after: 0, remaining: 3},
			{n: 3, after: 3, reset: 18 * s},
			{op: refund, n: 2, after: 1, remaining: 2, reset: 6 * s},
			{at: 1 * s, op: refund, n: 9, after: 0, remaining: 3},
			{at: 1 * s, n: 3, after: 3, reset: 18 * s},
		}},
		{"looks write nothing", limit(), []step{
			{op: look, n: 3, after: 0, remaining: 3},
			{op: look, n: 4, over: true, after: 0, remaining: 3, retry: algorithm.Never},
			{n: 2, after: 2, remaining: 1, reset: 12 * s},
			{op: look, n: 2, over: true, after: 2, remaining: 1, retry: 6 * s, reset: 12 * s},
			{op: look, n: 1, after: 2, remaining: 1, reset: 12 * s},
		}},
		{"force asks nobody", limit(), []step{
			{op: force, n: 2, after: 2, remaining: 1, reset: 12 * s},
			{n: 2, over: true, after: 2, remaining: 1, retry: 6 * s, reset: 12 * s},
		}},
		{"nothing passes a limit of 0", polite(algorithm.GCRA, 0, 60*s), []step{
			{n: 0, after: 0},
			{n: 1, over: true, after: 0, retry: algorithm.Never},
		}},
		{"a distance to the last hit", paced(limit(), 10*s), []step{
			{n: 1, after: 1, remaining: 2, reset: 10 * s},
			{at: 10*s - us, n: 1, over: true, interval: true, after: 0, remaining: 3, retry: us, reset: us},
			{at: 10 * s, n: 1, after: 1, remaining: 2, reset: 10 * s},
			{at: 15 * s, op: look, n: 1, over: true, interval: true, after: 1, remaining: 2, retry: 5 * s, reset: 5 * s},
			{at: 15 * s, op: refund, n: 1, after: 0, remaining: 3, reset: 5 * s},
			{at: 16 * s, n: 1, over: true, interval: true, after: 0, remaining: 3, retry: 4 * s, reset: 4 * s},
			{at: 20 * s, n: 1, after: 1, remaining: 2, reset: 10 * s},
		}},
		{"a clock that steps back sees a full bucket at most", limit(), []step{
			{at: 100 * s, n: 3, after: 3, reset: 18 * s},
			{at: 50 * s, op: look, n: 1, over: true, after: 3, retry: 6 * s, reset: 18 * s},
			{at: 118 * s, n: 3, after: 3, reset: 18 * s},
		}},
		{"who is refused after a step back may come when he was told to", limit(), []step{
			{at: 100 * s, n: 3, after: 3, reset: 18 * s},
			{at: 50 * s, n: 1, over: true, after: 3, retry: 6 * s, reset: 18 * s},
			{at: 56 * s, n: 1, after: 3, reset: 18 * s},
		}},
		{"and so he may with a distance", paced(limit(), 10*s), []step{
			{at: 100 * s, n: 1, after: 1, remaining: 2, reset: 10 * s},
			{at: 50 * s, n: 1, over: true, interval: true, after: 3, retry: 10 * s, reset: 18 * s},
			{at: 60 * s, n: 1, after: 3, reset: 14 * s},
		}},
	}
}

func (suite *Suite) testSteps(t *testing.T, open func(*testing.T) backend.Backend) {
	for _, tt := range slices.Concat(fixedTables(), firstHitTables(), slidingTables(), slidingCounterTables(), gcraTables()) {
		if !suite.can(tt.limit) || suite.mayNotStepBack(&tt) {
			continue
		}
		t.Run(tt.limit.Kind.String()+"/"+tt.name, func(t *testing.T) {
			store := open(t)
			for i, st := range tt.steps {
				v := take(t, store, epoch.Add(st.at), backend.Hit{Key: []byte("k"), Limit: tt.limit, Op: st.op, Amount: st.n})[0]
				got := step{st.at, st.op, st.n, v.Over, v.Interval, v.After, v.Remaining, v.RetryAfter, v.ResetAfter}
				if got != st {
					t.Fatalf("step %d:\n got %+v\nwant %+v", i, got, st)
				}
			}
		})
	}
}

// mayNotStepBack says whether the clock does in a table where it should not.
func (suite *Suite) mayNotStepBack(tt *table) bool {
	inOrder := slices.IsSortedFunc(tt.steps, func(a, b step) int { return int(a.at - b.at) })
	return !inOrder && slices.Contains(suite.Forward, tt.limit.Kind)
}
