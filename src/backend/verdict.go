package backend

import (
	"errors"

	"ratelimit/src/algorithm"
)

// ErrOverload is wrapped by the Err of hits for which a store that works had no time:
// they waited behind the other hits of their request, or behind other requests. The
// store itself is in order.
var ErrOverload = errors.New("the request needs more time of the store than there is")

// Verdict is the store's answer to one hit. The zero value means that the hit
// passed and that nothing else is known.
type Verdict struct {
	// Outcome is what the limit's arithmetic says. It is valid only if Err is nil.
	algorithm.Outcome
	// Cached says that a cache answered and the store was not asked.
	Cached bool
	// Fallback is how the hit was decided because the store did not answer.
	// FallbackError, the zero value: the store answered, or Err is set.
	Fallback Fallback
	// Err says that this hit's store did not answer, so that it is unknown what was
	// charged. It wraps ErrOverload if the store works and had too much to do.
	Err error
}

// Looked returns the verdict on h, given v, which may be the verdict on h.AsLook(). A look
// may be over where a refund or a forced hit never is.
func (h *Hit) Looked(v Verdict) Verdict {
	if !h.Op.Asks() {
		v.Over, v.Interval, v.RetryAfter = false, false, 0
	}
	return v
}
