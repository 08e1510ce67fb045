package resp

import (
	"context"
	"errors"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/frontend/pipeline"
	"ratelimit/src/frontend/rediscell"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// batch holds the requests of a connection that the limiter decides in one call. Connections share batches through a
// pool.
type batch struct {
	srv     *Server
	ctx     context.Context // of the requests.
	replies *pipeline.Replies
	args    [][]byte // the arguments of the command that is being answered.
	many    limiter.Many
	writers []replyWriter     // has one for each item of many
	entries []rules.Entry     // those of all items
	limits  []algorithm.Limit // the limits that callers sent
	scratch replyScratch
}

// replyWriter appends the reply for it, which the limiter has decided. Its request has one descriptor.
type replyWriter func(dst []byte, it *limiter.Item, s *replyScratch) []byte

// replyScratch is memory for writing a reply. The next reply reuses it.
type replyScratch struct {
	entries []rules.Entry
	path    []byte
	// limitText and timesText are the first two and the last two integers of last. Most replies of a batch repeat them.
	last                 rediscell.Summary
	limitText, timesText []byte
}

// These bound the memory of a pooled batch.
const (
	maxBatchEntries  = 16 << 10
	maxPooledArgs    = 64
	maxPooledCharges = 64 // of each request
)

func (s *Server) newBatch(ctx context.Context, r *pipeline.Replies) *batch {
	b := s.batchPool.Get().(*batch)
	b.ctx, b.replies = ctx, r
	return b
}

// returnToPool puts b into its pool. All its requests must have been decided.
func (b *batch) returnToPool() {
	b.ctx, b.replies = nil, nil
	if cap(b.args) > maxPooledArgs {
		b.args = nil
	}
	clear(b.args[:cap(b.args)])
	if cap(b.entries) <= maxBatchEntries {
		b.srv.batchPool.Put(b)
	}
}

// addRequest adds a request with the descriptor d, whose entries addEntries has added. Its bytes must not change until
// decide.
func (b *batch) addRequest(domain []byte, d *limiter.Descriptor, limit *algorithm.Limit, w replyWriter) {
	req := &b.many.Add().Request
	req.Domain, req.Protocol, req.Descriptors = domain, b.srv.cfg.Protocol, append(req.Descriptors, *d)
	if limit != nil {
		b.limits = append(b.limits, *limit)
		req.CallerLimit = &b.limits[len(b.limits)-1]
	}
	b.writers = append(b.writers, w)
}

// addEntries returns entries with the keys and values of pairs, for the next request. If that does not fit into the
// batch, it first decides the requests before it.
func (b *batch) addEntries(pairs ...[]byte) []rules.Entry {
	if len(b.writers) >= b.srv.cfg.MaxPipelined || len(b.entries)+len(pairs)/2 > maxBatchEntries {
		b.decide()
	}
	first := len(b.entries)
	b.entries = appendEntries(b.entries, pairs)
	return b.entries[first:len(b.entries):len(b.entries)]
}

// appendEntries appends entries with the keys and values of pairs.
func appendEntries(dst []rules.Entry, pairs [][]byte) []rules.Entry {
	for i := 0; i+1 < len(pairs); i += 2 {
		dst = append(dst, rules.Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	return dst
}

// buffer returns an empty slice to append a reply to, for reply. It is valid until the next reply is written.
func (b *batch) buffer() []byte { return b.replies.AvailableBuffer() }

// reply writes the reply to a command that is not decided with others. It returns nil.
func (b *batch) reply(text []byte) *replyError {
	b.replies.Write(text)
	return nil
}

// decide decides the requests that were added, writes their replies, and removes them.
func (b *batch) decide() {
	n := len(b.writers)
	if n == 0 {
		return
	}
	start := time.Now()
	b.many.Now = b.srv.now
	b.srv.cfg.Limiter.CheckMany(b.ctx, &b.many)
	for i, it := range b.many.Items() {
		if err := b.srv.requestError(it); err != nil {
			b.srv.writeError(&b.replies.Buffer, err)
		} else {
			b.replies.Write(b.writers[i](b.buffer(), it, &b.scratch))
		}
	}
	b.srv.cfg.OnDecisions(n, time.Since(start))
	b.many.Reset(maxPooledCharges)
	clear(b.entries)
	clear(b.scratch.entries[:cap(b.scratch.entries)])
	b.writers, b.entries, b.limits = b.writers[:0], b.entries[:0], b.limits[:0]
}

var (
	errLoading  = &replyError{codeLoading, "no rules are loaded yet"}
	errStore    = errorf("the store did not answer; the request may have been counted")
	errInternal = errorf("the request was not decided")
)

// requestError returns the error reply for it; nil if it was decided.
func (s *Server) requestError(it *limiter.Item) *replyError {
	switch err := it.Err; {
	case err == nil && it.Answer.Domain == nil && it.Request.CallerLimit == nil:
		return errorf("no rules are loaded for the domain %s", rules.Quote(string(it.Request.Domain)))
	case err == nil:
		return nil
	case errors.Is(err, limiter.ErrNoRules):
		return errLoading
	case errors.Is(err, limiter.ErrInvalidRequest):
		return &replyError{codeERR, err.Error()}
	case errors.Is(err, limiter.ErrStoreFailed):
		s.cfg.OnFailure(err)
		return errStore
	default:
		s.cfg.OnFailure(err)
		return errInternal
	}
}
