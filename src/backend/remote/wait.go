package remote

import (
	"context"
	"time"
)

// maxMargin is how long before its caller's deadline a call gives up at most.
const maxMargin = 5 * time.Millisecond

// Wait is how long a call may wait for a server that has the timeout: that, or less
// if ctx ends sooner. Then it gives up a little before, after three quarters of what
// is left or 5 ms before the end, so that whoever stands in front of the store has
// the time to answer in its stead.
func Wait(ctx context.Context, timeout time.Duration) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return timeout
	}
	left := time.Until(deadline)
	return min(timeout, left-min(left/4, maxMargin))
}
