package algorithm

import (
	"fmt"
	"time"
)

// MaxAmount is the largest amount of one hit, 2^48 (281 trillion). Front ends
// saturate at it, so that sums of many hits stay far from overflow.
const MaxAmount = 1 << 48

// The instants an operation may happen at: int64 nanoseconds with room for the
// longest period beyond them.
var (
	minNow = time.Unix(0, 0)
	maxNow = time.Date(2150, 1, 1, 0, 0, 0, 0, time.UTC)
)

// ValidNow reports whether an operation may happen at t: in the years 1970 to 2149.
func ValidNow(t time.Time) bool { return !t.Before(minNow) && !t.After(maxNow) }

// Op is what an operation does to a counter.
type Op uint8

const (
	// Charge asks for Amount and counts it as the limit says.
	Charge Op = iota
	// Look asks whether Amount would pass, and writes nothing.
	Look
	// Refund gives Amount back. It is never over, never goes below empty and
	// never creates a key.
	Refund
	// Force adds Amount without asking. It is never over.
	Force
)

// String is the constant's name in lower case.
func (o Op) String() string {
	switch o {
	case Charge:
		return "charge"
	case Look:
		return "look"
	case Refund:
		return "refund"
	case Force:
		return "force"
	}
	return fmt.Sprintf("op %d", uint8(o))
}

// Valid reports whether o is one of the constants.
func (o Op) Valid() bool { return o <= Force }

// Outcome is what the arithmetic says of one operation. The zero value means that it
// passed and that nothing else is known.
type Outcome struct {
	// Over says that the hit was refused.
	Over bool
	// Charged says that the counter was written for this hit.
	Charged bool
	// Before and After are the counter before and after this hit. They are
	// equal when nothing was charged.
	Before, After uint64
	// Remaining is what would still pass after this hit, or after the minimum
	// interval. A refused hit on a GCRA, a first-hit window or a sliding window is
	// told what a smaller one could still take; on a fixed window or an estimate it
	// is told 0, as callers of envoyproxy/ratelimit expect.
	Remaining uint64
	// RetryAfter is how long the same hit has to wait before it passes: 0 when
	// it passed, -1 when it can never pass.
	RetryAfter time.Duration
	// ResetAfter is the time until the limit is whole again, over or not.
	ResetAfter time.Duration
	// Interval says that the minimum interval refused the hit.
	Interval bool
	// FullUntil is the instant before which not even one unit passes; zero
	// when some might: then nothing may be cached.
	FullUntil time.Time
}

// Reasons says why v is over: for the count, which amount did not fit into, for
// the minimum interval, or for both.
func (v *Outcome) Reasons(amount, capacity uint64) (count, interval bool) {
	return v.Over && (v.Before+amount > capacity || !v.Interval), v.Interval
}

// Never is the RetryAfter of a hit that can never pass.
const Never time.Duration = -1

// Uncharged is the verdict on an atomic hit on l whose group was refused, so that
// nothing was charged. look is the verdict on the hit AsLook, on the state as it
// is; tried the one it had as if the hits of its group before it had been
// charged, because of which alone it may be over.
func Uncharged(l *Limit, look, tried Outcome) Outcome {
	v := look
	v.Over, v.Interval = tried.Over, tried.Interval
	switch {
	case !tried.Over:
		v.RetryAfter = 0
	case !look.Over:
		v.RetryAfter = tried.RetryAfter
		if !l.Kind.tellsRest() {
			v.Remaining = 0
		}
	}
	return v
}
