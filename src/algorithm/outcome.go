package algorithm

import (
	"fmt"
	"math"
	"time"
)

// MaxAmount is the largest amount of one hit, 2^48 (281 trillion). Front ends replace larger
// amounts by it, so that sums of many hits do not overflow.
const MaxAmount = 1 << 48

// latestValidInstant is the latest instant. latestValidInstant plus MaxPeriod fits into int64 nanoseconds.
var latestValidInstant = time.Date(2150, 1, 1, 0, 0, 0, 0, time.UTC)

// endOfTime is the FullUntil of a limit of 0.
const endOfTime = math.MaxInt64

// IsValidInstant reports whether t is in the years 1970 to 2149.
func IsValidInstant(t time.Time) bool { return t.Unix() >= 0 && !t.After(latestValidInstant) }

// Op is what an operation does to a counter.
type Op uint8

const (
	// Charge asks for an amount, and counts it if it passes or the limit has CountBlocked.
	Charge Op = iota
	// Look asks whether an amount would pass, and charges nothing.
	Look
	// Refund subtracts an amount from the count, down to 0. It is never refused and never creates a counter.
	Refund
	// Force adds an amount to the count. It is never refused.
	Force

	numOps
)

// String returns the constant's name in lower case.
func (o Op) String() string {
	if o.Valid() {
		return [numOps]string{"charge", "look", "refund", "force"}[o]
	}
	return fmt.Sprintf("op %d", uint8(o))
}

// Valid reports whether o is one of the constants.
func (o Op) Valid() bool { return o < numOps }

// CanBeRefused reports whether o can be refused.
func (o Op) CanBeRefused() bool { return o == Charge || o == Look }

// isOver reports whether l refuses o, where sum is the count with the amount of o. With a Max of 0 that is so even for
// an amount of 0.
func (o Op) isOver(l *Limit, sum uint64) bool { return o.CanBeRefused() && (sum > l.Max || l.Max == 0) }

// addsAmount reports whether o adds its amount to the counter. over says that o was refused.
func (o Op) addsAmount(l *Limit, over bool) bool {
	return o == Force || o == Charge && (!over || l.CountBlocked)
}

// countAfterOp returns the count after o, at most the given maximum. over says that o was refused.
func (o Op) countAfterOp(l *Limit, over bool, count, amount, most uint64) uint64 {
	switch {
	case o.addsAmount(l, over):
		return min(count+amount, most)
	case o == Refund:
		return count - min(count, amount)
	}
	return count
}

// Outcome is the result of one operation. The zero value means that it passed and that nothing else is known.
type Outcome struct {
	// Over says that the hit was refused.
	Over bool
	// Charged says that the counter was written for this hit.
	Charged bool
	// Before and After are the count before and after this hit. They are equal if nothing was charged.
	Before, After uint64
	// Remaining is the amount that would still pass after this hit and after the minimum interval. As in
	// envoyproxy/ratelimit, it is 0 if a fixed window refuses the hit.
	Remaining uint64
	// RetryAfter is how long the same hit must wait before it passes: 0 if it passed, Never if it can never pass.
	RetryAfter time.Duration
	// ResetAfter is the time until the count is 0, whether the hit was over or not.
	ResetAfter time.Duration
	// WithinMinInterval says that the minimum interval refused the hit.
	WithinMinInterval bool
	// HoldOpened and HoldClosed say that the hit opened a hold, or settled or released an open one.
	HoldOpened, HoldClosed bool
	// HoldsExpired is how many open holds of the counter were found to have expired.
	HoldsExpired uint32
	// ExpiredUnits are the units that these holds were charged, which is 0 if the limit releases them.
	ExpiredUnits uint64
	// HoldExcess is by how much a settlement exceeded what was reserved.
	HoldExcess uint64
	// FullUntil is the instant before which no unit passes, in nanoseconds since the Unix epoch. It is 0 if one might
	// pass; then the refusal must not be cached.
	FullUntil int64
	// WindowEnd is the end of the window that counts the hit, in nanoseconds since the Unix epoch by the clock of the
	// store: of the current one of the two windows of a SlidingWindowCounter. It is 0 for limits without such windows (see
	// Limit.HasWindowEnd), and for a first-hit window that has not started.
	WindowEnd int64
	// HeldHere is how many units of the count this process has taken ahead, and no hit has used. Only looks have it. The
	// size of Outcome stays a multiple of 16 bytes, in which processors copy: the last 8 bytes of another size are copied
	// with 8 before them that were just written, which stalls each copy, 20 to 45 ns a hit.
	HeldHere uint64
}

// Never is the RetryAfter of a hit that can never pass: longer than any other wait.
const Never time.Duration = math.MaxInt64

// setRetryAfter sets RetryAfter if v is over: to wait, or to Never for an amount that can never pass.
func (v *Outcome) setRetryAfter(l *Limit, amount uint64, wait time.Duration) {
	if v.Over && !l.CanPass(amount) {
		v.RetryAfter = Never
	} else if v.Over {
		v.RetryAfter = wait
	}
}

// setFullUntil sets FullUntil for a counter that refuses one unit until wait after at.
func (v *Outcome) setFullUntil(l *Limit, at, wait int64) {
	switch {
	case l.CountBlocked && l.Kind != FirstHitWindow: // each refused hit changes the next outcome
	case l.Emission > 0: // the next hit may come with another burst
	case l.Max == 0, wait > math.MaxInt64-at:
		v.FullUntil = endOfTime
	case wait > 0:
		v.FullUntil = at + wait
	}
}

// remainingAfter returns Max - count, or 0 if count exceeds Max.
func (l *Limit) remainingAfter(count uint64) uint64 { return l.Max - min(l.Max, count) }

// UnchargedOutcome returns the outcome of an atomic hit on l that was not charged because its group
// was refused. look is the outcome of a Look at the unchanged counter. tried is the outcome
// with the earlier hits of the group charged, which may be over because of them alone.
func UnchargedOutcome(l *Limit, look, tried Outcome) Outcome {
	v := look
	v.Over, v.WithinMinInterval = tried.Over, tried.WithinMinInterval
	switch {
	case !tried.Over:
		v.RetryAfter = 0
	case !look.Over:
		v.RetryAfter = tried.RetryAfter
		if l.Kind == FixedWindow {
			v.Remaining = 0
		}
	}
	return v
}

// State is the state of a counter of any kind. A counter uses only the field of its kind. The
// zero value is a counter without hits.
type State struct {
	FixedWindow    FixedState // the current fixed window.
	FirstHit       FirstHitState
	SlidingCounter SlidingCounterState
	GCRA           GCRAState
	SlidingLog     Log
}

// WindowEnd returns the Outcome.WindowEnd of a look at the instant at.
func (s *State) WindowEnd(l *Limit, at int64) (end int64) {
	switch l.Kind {
	case FixedWindow:
		_, end = l.WindowBounds(at)
	case FirstHitWindow:
		if s.FirstHit.WindowEnd > at {
			end = min(s.FirstHit.WindowEnd, at+int64(l.Period))
		}
	case SlidingWindowCounter:
		_, end = WindowBounds(at, l.Period)
	}
	return end
}

// Take applies op to s with the Take function of the limit's kind.
func (s *State) Take(l *Limit, at int64, op Op, amount uint64) (v Outcome) {
	switch l.Kind {
	case FixedWindow:
		v = s.FixedWindow.Take(l, at, op, amount)
	case FirstHitWindow:
		s.FirstHit, v = TakeFirstHit(l, s.FirstHit, at, op, amount)
	case SlidingWindow:
		v = TakeSliding(l, &s.SlidingLog, at, op, amount)
	case SlidingWindowCounter:
		s.SlidingCounter, v = TakeSlidingCounter(l, s.SlidingCounter, at, op, amount)
	case GCRA:
		s.GCRA, v = TakeGCRA(l, s.GCRA, at, op, amount)
	case Concurrency:
		v = takeUnheld(l, op, amount)
	}
	return v
}

// takeUnheld applies op to a Concurrency without its holds, which is always empty.
func takeUnheld(l *Limit, op Op, amount uint64) Outcome {
	v := Outcome{Over: op.isOver(l, amount), Remaining: l.Max}
	v.setRetryAfter(l, amount, 0)
	return v
}
