// Package backend is the contract of a store of counters. The limiter sends a [Batch]
// of [Hit]s to a [Backend], which returns one [Verdict] for each hit.
//
// A store knows keys, limits, amounts and time. It knows no domains, rules or protocols.
package backend

import "context"

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
