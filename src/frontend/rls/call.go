package rls

import (
	"google.golang.org/grpc/mem"

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// call is the memory of one call, used again for the next.
type call struct {
	buf     mem.Buffer // what grpc-go read; nil for other callers
	req     limiter.Request
	answer  limiter.Answer
	entries []rules.Entry // of all descriptors
	limits  []limitField  // of the descriptors that bring one
	large   bool          // of Service.largePool
}

// A large call keeps memory for this many entries, descriptors and limits: what
// limiter.MaxDescriptors need with a few entries and one limit each, where append makes
// more room than is used. Other calls keep a quarter.
const (
	maxKeptEntries = 4 * limiter.MaxDescriptors
	maxKeptList    = 2 * limiter.MaxDescriptors
	smallShare     = 4
)

// newCall returns a call for the request that has turn t. Large calls have a pool of
// their own and are taken after the wait for a turn: thousands of requests may wait, and
// none of them should have that much memory.
func (s *Service) newCall(t *turn) *call {
	if t.of != nil {
		return s.largePool.Get().(*call)
	}
	return s.pool.Get().(*call)
}

// release keeps c for another request, unless c has grown too large.
func (s *Service) release(c *call) {
	if c.buf != nil {
		c.buf.Free()
		c.buf = nil
	}
	pool, share := &s.pool, smallShare
	if c.large {
		pool, share = &s.largePool, 1
	}
	if !c.answer.Reset(maxKeptList/share) || cap(c.entries) > maxKeptEntries/share || max(cap(c.req.Descriptors), cap(c.limits)) > maxKeptList/share {
		return
	}
	clear(c.entries) // they point to what was read
	clear(c.req.Descriptors)
	clear(c.limits)
	pool.Put(c)
}
