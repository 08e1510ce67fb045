package pipeline

import (
	"sync/atomic"
	"time"
)

// Events are callbacks of a front end. They must be fast and safe for concurrent use. Those that are nil do nothing.
type Events struct {
	// OnDecisions is called after n requests were decided together. took is how long that took.
	OnDecisions func(n int, took time.Duration)
	// OnFailure is called with the error of a request that the limiter could not decide.
	OnFailure func(error)
	// OnPanic is called for each panic that ended a connection.
	OnPanic func(value any, stack []byte)
}

// SetDefaults replaces callbacks that are nil.
func (e *Events) SetDefaults() {
	if e.OnDecisions == nil {
		e.OnDecisions = func(int, time.Duration) {}
	}
	if e.OnFailure == nil {
		e.OnFailure = func(error) {}
	}
	if e.OnPanic == nil {
		e.OnPanic = func(any, []byte) {}
	}
}

// ErrorCounts counts error replies by code. Create it with NewErrorCounts.
type ErrorCounts map[string]*atomic.Uint64

// NewErrorCounts returns counts of 0 for these codes. There can be no others.
func NewErrorCounts(codes ...string) ErrorCounts {
	c := make(ErrorCounts, len(codes))
	for _, code := range codes {
		c[code] = new(atomic.Uint64)
	}
	return c
}

// Add counts a reply.
func (c ErrorCounts) Add(code string) { c[code].Add(1) }

// Read returns the count of each code.
func (c ErrorCounts) Read() map[string]uint64 {
	counts := make(map[string]uint64, len(c))
	for code, n := range c {
		counts[code] = n.Load()
	}
	return counts
}
