// Package backendtest is the one suite that every store passes. The pure
// arithmetic of package algorithm is its referee.
package backendtest

import (
	"slices"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// Suite is what is asked of a store. The zero value asks for all there is.
type Suite struct {
	// Kinds are the kinds of limit that the store counts by. Empty: all.
	Kinds []algorithm.Kind
	// CountBlocked leaves out the limits that do not count what they refuse.
	CountBlocked bool
	// NoGroups leaves out hits that stand or fall together.
	NoGroups bool
	// Forward are the kinds for which the store's answers are not exact when the
	// clock steps back behind what it has seen, as when a counter is kept under
	// the window that the clock shows.
	Forward []algorithm.Kind
	// Unsure says that the store never knows a FullUntil.
	Unsure bool
}

// Run holds the stores that open returns to the whole contract of
// limiter.Backend. Each call of open returns a store without any counters, whose
// name space nobody else uses; it closes what it opened with t.Cleanup.
//
// Virtual time is in whole microseconds, as no store need know a finer one, and
// sometimes stands still or steps back. Then nobody asks for what has done its
// work, or will have within a minute: the store may have forgotten it, or not
// yet. Where expiry goes by a clock of its own, it should come a second late.
func Run(t *testing.T, open func(t *testing.T) backend.Backend) { Suite{}.Run(t, open) }

// Run is like the function Run, but asks for what suite says.
func (suite Suite) Run(t *testing.T, open func(t *testing.T) backend.Backend) {
	if len(suite.Kinds) == 0 {
		for _, name := range algorithm.Kinds() {
			kind, _ := algorithm.ParseKind(name)
			suite.Kinds = append(suite.Kinds, kind)
		}
	}
	t.Run("steps", func(t *testing.T) { suite.testSteps(t, open) })
	t.Run("keys", func(t *testing.T) { suite.testKeys(t, open) })
	t.Run("rules", func(t *testing.T) { suite.testRules(t, open) })
	if !suite.NoGroups {
		t.Run("atomic", func(t *testing.T) { suite.testAtomic(t, open) })
	}
	t.Run("batch", func(t *testing.T) { suite.testBatch(t, open) })
	t.Run("bound", func(t *testing.T) { suite.testBound(t, open) })
	t.Run("referee", func(t *testing.T) { suite.testReferee(t, open) })
	t.Run("concurrent", func(t *testing.T) { suite.testConcurrent(t, open) })
}

// can says whether the store counts by l.
func (suite *Suite) can(l *algorithm.Limit) bool {
	return slices.Contains(suite.Kinds, l.Kind) && (l.CountBlocked || !suite.CountBlocked)
}

// perKind runs a test for each kind.
func (suite *Suite) perKind(t *testing.T, test func(t *testing.T, kind algorithm.Kind)) {
	for _, kind := range suite.Kinds {
		t.Run(kind.String(), func(t *testing.T) { test(t, kind) })
	}
}

// epoch is where virtual time begins in all tests: the edge of a minute, an
// hour and a day.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// blocked is a limit of any kind that counts what it refuses. At most most pass
// at once.
func blocked(kind algorithm.Kind, most uint64, period time.Duration) *algorithm.Limit {
	l := &algorithm.Limit{Kind: kind, Max: most, Period: period, CountBlocked: true}
	if kind == algorithm.GCRA && most > 0 {
		l.Burst = most - 1
	}
	return l
}

// polite is blocked without counting what is refused.
func polite(kind algorithm.Kind, most uint64, period time.Duration) *algorithm.Limit {
	l := blocked(kind, most, period)
	l.CountBlocked = false
	return l
}

func fixed(most uint64, period time.Duration) *algorithm.Limit {
	return blocked(algorithm.FixedWindow, most, period)
}

// paced is l with a minimum interval.
func paced(l *algorithm.Limit, interval time.Duration) *algorithm.Limit {
	l.MinInterval = interval
	return l
}

// take sends one batch and returns its verdicts; the store must answer.
func take(t *testing.T, store backend.Backend, at time.Time, hits ...backend.Hit) []backend.Verdict {
	t.Helper()
	b := backend.Batch{Hits: hits, Verdicts: make([]backend.Verdict, len(hits)), Now: at}
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
func (suite *Suite) same(a, b backend.Verdict) bool {
	return a.Over == b.Over && a.Charged == b.Charged && a.Before == b.Before && a.After == b.After &&
		a.Remaining == b.Remaining && a.RetryAfter == b.RetryAfter && a.ResetAfter == b.ResetAfter &&
		a.Interval == b.Interval && (a.FullUntil.Equal(b.FullUntil) || suite.Unsure && a.FullUntil.IsZero())
}
