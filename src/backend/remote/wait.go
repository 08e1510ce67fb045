package remote

import (
	"context"
	"time"
)

// maxMargin is how long before its caller's deadline a call gives up at most.
const maxMargin = 5 * time.Millisecond

// Wait returns how long a call may wait for a server: the timeout, or less if ctx ends
// sooner. Then it is three quarters of what is left, or ends 5 ms before ctx does, so
// that the layer in front of the store has time to use the fallback.
func Wait(ctx context.Context, timeout time.Duration) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return timeout
	}
	left := time.Until(deadline)
	return min(timeout, left-min(left/4, maxMargin))
}
