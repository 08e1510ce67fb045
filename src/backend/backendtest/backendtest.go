// Package backendtest is the one suite that every store passes. The pure
// arithmetic of package algorithm is its referee.
package backendtest

import (
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/limiter"
)

// Run holds the stores that open returns to the contract of limiter.Backend.
// Each call of open returns a store without any counters, whose name space
// nobody else uses; it closes what it opened with t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) limiter.Backend) {
	t.Run("steps", func(t *testing.T) { testSteps(t, open) })
	t.Run("keys", func(t *testing.T) { testKeys(t, open) })
	t.Run("atomic", func(t *testing.T) { testAtomic(t, open) })
	t.Run("batch", func(t *testing.T) { testBatch(t, open) })
	t.Run("referee", func(t *testing.T) { testReferee(t, open) })
	t.Run("concurrent", func(t *testing.T) { testConcurrent(t, open) })
}

// epoch is where virtual time begins in all tests: the edge of a minute, an
// hour and a day.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func fixed(limit uint64, period time.Duration) *algorithm.Limit {
	return &algorithm.Limit{Kind: algorithm.FixedWindow, Max: limit, Period: period, CountBlocked: true}
}

// uncounted is fixed without counting what is refused.
func uncounted(limit uint64, period time.Duration) *algorithm.Limit {
	l := fixed(limit, period)
	l.CountBlocked = false
	return l
}

// take sends one batch and returns its verdicts; the store must answer.
func take(t *testing.T, store limiter.Backend, at time.Time, hits ...algorithm.Hit) []algorithm.Verdict {
	t.Helper()
	b := algorithm.Batch{Hits: hits, Verdicts: make([]algorithm.Verdict, len(hits)), Now: at}
	if err := store.Take(t.Context(), &b); err != nil {
		t.Fatalf("Take: %v", err)
	}
	for i, v := range b.Verdicts {
		if v.Err != nil {
			t.Fatalf("hit %d: the store did not answer: %v", i, v.Err)
		}
	}
	return b.Verdicts
}

// same compares a verdict with the referee's, but for what only caches set.
func same(a, b algorithm.Verdict) bool {
	return a.Over == b.Over && a.Charged == b.Charged && a.Before == b.Before && a.After == b.After &&
		a.Remaining == b.Remaining && a.RetryAfter == b.RetryAfter && a.ResetAfter == b.ResetAfter &&
		a.Interval == b.Interval && a.FullUntil.Equal(b.FullUntil)
}
