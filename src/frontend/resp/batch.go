package resp

import (
	"bytes"
	"context"
	"errors"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/frontend/pipeline"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// batch holds the requests of a connection that the limiter decides in one call. Connections share batches through a pool.
type batch struct {
	srv     *Server
	ctx     context.Context // ctx is that of the requests.
	replies *pipeline.Replies
	args    [][]byte // args are the arguments of the command that is being answered.
	// many has the requests. Those that ask the same domain one after the other are independent descriptors of one item: 16 commands
	// then take an eighth less CPU than as 16 items.
	many    limiter.Many
	last    *limiter.Item // last is the last item of many; nil if many is empty.
	writers []replyWriter // writers has one for each descriptor of the items.
	entries []rules.Entry // entries has those of all items.
	scratch replyScratch
}

// replyWriter appends the reply for descriptor i of it, which the limiter has decided.
type replyWriter func(dst []byte, it *limiter.Item, i int, s *replyScratch) []byte

// replyScratch is memory for writing a reply. The next reply reuses it.
type replyScratch struct {
	entries []rules.Entry
	path    []byte
	// limitText and timesText are the first two and the last two integers of the level last. Most replies of a batch repeat them.
	last                 limiter.Level
	limitText, timesText []byte
}

// These bound the memory of a pooled batch.
const (
	maxBatchEntries  = 16 << 10
	maxPooledArgs    = 64
	maxPooledCharges = 4 * limiter.MaxDescriptors
	// maxLaterDescriptors is the most descriptors of an item other than the first. Items keep their memory, and there may be many.
	maxLaterDescriptors = 16
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

// addRequest adds a request with the descriptor d, whose entries addEntries has added. Its bytes must not change until decide.
func (b *batch) addRequest(domain []byte, d *limiter.Descriptor, limit *algorithm.Limit, w replyWriter) {
	it := b.last
	if it == nil || (limit != nil) != (len(it.Request.CallerLimits) > 0) || !bytes.Equal(it.Request.Domain, domain) ||
		len(it.Request.Descriptors) >= maxLaterDescriptors && it != b.many.Items()[0] {
		it = b.many.Add()
		it.Request.Domain, it.Request.Protocol = domain, limiter.ProtocolRESP
		it.Request.IndependentDescriptors = true
		b.last = it
	}
	it.Request.Descriptors = append(it.Request.Descriptors, *d)
	if limit != nil {
		it.Request.CallerLimits = append(it.Request.CallerLimits, *limit)
	}
	b.writers = append(b.writers, w)
}

// addEntries returns entries with the keys and values of pairs, for the next request. If that does not fit into the batch, it first
// decides the requests before it.
func (b *batch) addEntries(pairs ...[]byte) []rules.Entry {
	if len(b.writers) >= b.srv.cfg.MaxPipelined || len(b.entries)+len(pairs)/2 > maxBatchEntries {
		b.decide()
	}
	first := len(b.entries)
	for i := 0; i+1 < len(pairs); i += 2 {
		b.entries = append(b.entries, rules.Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	return b.entries[first:len(b.entries):len(b.entries)]
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
	writers := b.writers
	for _, it := range b.many.Items() {
		for i := range it.Request.Descriptors {
			if err := b.srv.requestError(it, i); err != nil {
				b.srv.writeError(&b.replies.Buffer, err)
			} else {
				b.replies.Write(writers[i](b.replies.AvailableBuffer(), it, i, &b.scratch))
			}
		}
		writers = writers[len(it.Request.Descriptors):]
	}
	b.srv.cfg.OnDecisions(n, time.Since(start))
	b.many.Reset(maxPooledCharges)
	b.last = nil
	clear(b.entries)
	clear(b.scratch.entries[:cap(b.scratch.entries)])
	b.writers, b.entries = b.writers[:0], b.entries[:0]
}

var (
	errLoading  = &replyError{codeLoading, "no rules are loaded yet"}
	errStore    = &replyError{codeERR, "the store did not answer; the request may have been counted"}
	errInternal = &replyError{codeERR, "the request was not decided"}
)

// requestError returns the error reply for descriptor i of it; nil if it was decided.
func (s *Server) requestError(it *limiter.Item, i int) *replyError {
	err := it.Err
	if isStoreError := errors.Is(err, limiter.ErrStoreFailed); err == nil || isStoreError {
		switch st := &it.Answer.Statuses[i]; {
		case st.Err != nil:
			err = st.Err
		case isStoreError && !st.StoreFailed:
			return nil
		}
	}
	switch {
	case err == nil && it.Answer.Domain == nil && len(it.Request.CallerLimits) == 0:
		return &replyError{codeERR, "no rules are loaded for the domain " + rules.Quote(string(it.Request.Domain))}
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
