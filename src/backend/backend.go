// Package backend is the contract of a store of counters. The limiter sends a [Batch]
// of [Hit]s to a [Backend], which returns one [Verdict] for each hit.
//
// A store knows keys, limits, amounts and time. It knows no domains, rules or protocols.
package backend

import (
	"context"
	"errors"

	"ratelimit/src/algorithm"
)

// Backend keeps the counters. The limiter calls it once for each request, or once for several requests.
type Backend interface {
	// Take charges every hit of b as its Op says and fills b.Verdicts, in order. A hit sees what the hits before it
	// charged. Atomic hits are charged only if their whole group passes.
	//
	// The error reports misuse only; if the store does not answer, Verdict.Err says so. Take keeps nothing of b, is
	// safe for concurrent use and returns soon after ctx ends. A store that may have to wait gives up a little before
	// the deadline of ctx, so that the backend in front of it can still decide.
	Take(ctx context.Context, b *Batch) error
}

// ErrOverload is wrapped by Verdict.Err if a store that works had no time for the hit, which
// waited behind the other hits of its request, or behind other requests.
var ErrOverload = errors.New("the request needs more time of the store than there is")

// Verdict is the store's answer to one hit. The zero value means that the hit passed and that nothing else is known.
type Verdict struct {
	// Outcome is the result of the limit's arithmetic. It is valid only if Err is nil.
	algorithm.Outcome
	// Cached says that a cache answered and the store was not asked.
	Cached bool
	// LeaseMissed says that package leased asked the store, because this replica held too few units.
	LeaseMissed bool
	// Fallback says how the hit was decided because the store did not answer. The zero
	// value, FallbackError, means that the store answered or that Err is set.
	Fallback Fallback
	// Share is how many units this replica's share of the limit admits at once. It is 0 unless Fallback is FallbackLocal.
	Share uint64
	// Err says that the store did not answer this hit, so that it is unknown whether the hit
	// was charged. It wraps ErrOverload if the store works and had too much to do, and context.Canceled if the caller
	// left first.
	Err error
}

// CallerLeft reports whether there is no answer because the caller left before the store could give one.
func (v *Verdict) CallerLeft() bool { return v.Err != nil && errors.Is(v.Err, context.Canceled) }
