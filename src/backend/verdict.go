package backend

import (
	"errors"

	"ratelimit/src/algorithm"
)

// ErrOverload is wrapped by Verdict.Err if a store that works had no time for the hit, which
// waited behind the other hits of its request, or behind other requests.
var ErrOverload = errors.New("the request needs more time of the store than there is")

// Verdict is the store's answer to one hit. The zero value means that the hit passed and that nothing else is known.
type Verdict struct {
	// Outcome is the result of the limit's arithmetic. It is valid only if Err is nil.
	algorithm.Outcome
	// Cached says that a cache answered and the store was not asked.
	Cached bool
	// Fallback says how the hit was decided because the store did not answer. The zero
	// value, FallbackError, means that the store answered or that Err is set.
	Fallback Fallback
	// Err says that the store did not answer this hit, so that it is unknown whether the hit
	// was charged. It wraps ErrOverload if the store works and had too much to do.
	Err error
}
