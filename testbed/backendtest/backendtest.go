// Package backendtest is the suite that every store passes. It compares stores with the tables in steps.txt and with
// package algorithm.
package backendtest

import (
	"slices"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// Suite says which parts of the contract of backend.Backend a store is tested for. The zero value means all parts.
type Suite struct {
	// Kinds are the kinds of limit that the store supports. Empty means all.
	Kinds []algorithm.Kind
	// OnlyCountBlocked leaves out limits without CountBlocked, and so all limits with holds.
	OnlyCountBlocked bool
	// NoGroups leaves out atomic groups.
	NoGroups bool
	// InexactBackwards are the kinds for which the store is not exact when the clock is set back, because the window of
	// the clock is part of a counter's name.
	InexactBackwards []algorithm.Kind
	// UpstreamCounts says that the store keeps of a fixed window only the count, as envoyproxy/ratelimit does. So
	// refused hits that count also use up the room of a limit that is raised.
	UpstreamCounts bool
	// NoFullUntil says that the store never returns a FullUntil.
	NoFullUntil bool
	// NoHolds leaves out limits with holds. It is for a store that another test asks for them, and that is only reached
	// in another way.
	NoHolds bool
	// Brief repeats random tests a fifth or a third as often. It is for a store that another test asks all of them, and
	// that is only reached in another way, or is behind a layer that has tests of its own.
	Brief bool
}

// Run tests the stores that open returns for the whole contract of backend.Backend. Each call of open returns a store
// without counters, whose keys no other test uses, and closes it with t.Cleanup.
//
// Virtual time is in whole microseconds, and sometimes stands still or is set back. Then the tests do not use counters
// that have expired or will expire within a minute, because the store may have dropped them. A store whose keys expire
// by its own clock should keep them a second longer.
func Run(t *testing.T, open func(t *testing.T) backend.Backend) { Suite{}.Run(t, open) }

// Run is like the function Run, but tests only the parts of the contract that suite allows.
func (suite Suite) Run(t *testing.T, open func(t *testing.T) backend.Backend) {
	suite.addKinds()
	t.Run("steps", func(t *testing.T) { suite.testSteps(t, open) })
	t.Run("calendar", func(t *testing.T) { suite.testCalendar(t, open) })
	t.Run("keys", func(t *testing.T) { suite.testKeys(t, open) })
	t.Run("rules", func(t *testing.T) { suite.testRules(t, open) })
	if !suite.NoGroups {
		t.Run("atomic", func(t *testing.T) { suite.testAtomic(t, open) })
	}
	t.Run("batch", func(t *testing.T) { suite.testBatch(t, open) })
	t.Run("bound", func(t *testing.T) { suite.testBound(t, open) })
	t.Run("windows", func(t *testing.T) { suite.testWindows(t, open) })
	t.Run("raised limit", func(t *testing.T) { suite.testRaisedLimit(t, open) })
	t.Run("referee", func(t *testing.T) { suite.testReferee(t, open) })
	t.Run("large", func(t *testing.T) { suite.testLarge(t, open) })
	t.Run("clock set back", func(t *testing.T) { suite.testClockSetBack(t, open) })
	t.Run("editor", func(t *testing.T) { suite.testEditor(t, open) })
	t.Run("concurrent", func(t *testing.T) { suite.testConcurrent(t, open) })
	if !suite.OnlyCountBlocked && !suite.NoHolds {
		t.Run("holds", func(t *testing.T) { suite.testHolds(t, open) })
	}
}

// count returns how often a random test is repeated: brief times if the suite is brief, and otherwise whole times.
func (suite *Suite) count(whole, brief int) int {
	if suite.Brief {
		return brief
	}
	return whole
}

// addKinds adds all kinds if Kinds is empty, but for Concurrency, which testHolds tests.
func (suite *Suite) addKinds() {
	if len(suite.Kinds) > 0 {
		return
	}
	for kind := range algorithm.Concurrency {
		suite.Kinds = append(suite.Kinds, kind)
	}
}

// supports reports whether the store supports l.
func (suite *Suite) supports(l *algorithm.Limit) bool {
	return slices.Contains(suite.Kinds, l.Kind) && (l.CountBlocked || !suite.OnlyCountBlocked)
}

// perKind runs a test for each kind.
func (suite *Suite) perKind(t *testing.T, test func(t *testing.T, kind algorithm.Kind)) {
	for _, kind := range suite.Kinds {
		t.Run(kind.String(), func(t *testing.T) { test(t, kind) })
	}
}

// epoch is the start of virtual time: the edge of a minute, an hour and a day.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// countingBlocked returns a limit with CountBlocked that lets most pass at once.
func countingBlocked(kind algorithm.Kind, most uint64, period time.Duration) *algorithm.Limit {
	l := &algorithm.Limit{Kind: kind, Max: most, Period: period, CountBlocked: true}
	if kind == algorithm.GCRA && most > 0 {
		l.Burst = most - 1
	}
	return l
}

// ignoringBlocked returns a limit without CountBlocked that lets most pass at once.
func ignoringBlocked(kind algorithm.Kind, most uint64, period time.Duration) *algorithm.Limit {
	l := countingBlocked(kind, most, period)
	l.CountBlocked = false
	return l
}

func fixedWindow(most uint64, period time.Duration) *algorithm.Limit {
	return countingBlocked(algorithm.FixedWindow, most, period)
}

// withInterval sets the minimum interval of l.
func withInterval(l *algorithm.Limit, interval time.Duration) *algorithm.Limit {
	l.MinInterval = interval
	return l
}

// send sends one batch and returns its verdicts; the store must answer.
func send(t *testing.T, store backend.Backend, at time.Time, hits ...backend.Hit) []backend.Verdict {
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

// equal reports whether two verdicts are equal, apart from fields that only caches set.
func (suite *Suite) equal(a, b backend.Verdict) bool {
	return a.Over == b.Over && a.Charged == b.Charged && a.Before == b.Before && a.After == b.After &&
		a.Remaining == b.Remaining && a.RetryAfter == b.RetryAfter && a.ResetAfter == b.ResetAfter &&
		a.HoldOpened == b.HoldOpened && a.HoldClosed == b.HoldClosed && a.HoldExcess == b.HoldExcess &&
		a.WithinMinInterval == b.WithinMinInterval && a.WindowEnd == b.WindowEnd &&
		(a.FullUntil == b.FullUntil || suite.NoFullUntil && a.FullUntil == 0)
}
