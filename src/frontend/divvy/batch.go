package divvy

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"
	"unicode/utf8"

	"ratelimit/src/frontend/pipeline"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// batch holds the requests of one read, which the limiter decides in one call. Connections share batches through a pool.
type batch struct {
	srv           *Server
	ctx           context.Context // ctx is that of the requests.
	req           limiter.Request
	answer        limiter.Answer
	entries       []rules.Entry
	repairedLines []byte            // repairedLines holds copies of lines that were not UTF-8, made valid.
	replies       *pipeline.Replies // replies gets the replies.
}

// A batch with more memory than this is not pooled again.
const (
	maxBatchEntries  = 16 << 10
	maxPooledBytes   = 64 << 10
	maxPooledCharges = 4 * limiter.MaxDescriptors
)

func (s *Server) newBatch(ctx context.Context, replies *pipeline.Replies) *batch {
	b := s.batchPool.Get().(*batch)
	b.ctx, b.replies = ctx, replies
	return b
}

// returnToPool puts b into its pool.
func (b *batch) returnToPool() {
	b.ctx, b.replies = nil, nil
	if cap(b.entries) <= maxBatchEntries && cap(b.repairedLines) <= maxPooledBytes && b.answer.Reset(maxPooledCharges) {
		b.clearRequests()
		b.srv.batchPool.Put(b)
	}
}

// clearRequests removes all requests. Their entries refer to the buffers of connections.
func (b *batch) clearRequests() {
	clear(b.entries)
	clear(b.req.Descriptors)
	b.entries, b.repairedLines = b.entries[:0], b.repairedLines[:0]
	b.req.Descriptors, b.req.Domain = b.req.Descriptors[:0], nil
}

// addRequest adds the request in line, which must not change until decideRequests. If the request does
// not fit into the batch, addRequest first decides the earlier ones, and may return the fault of one of them.
func (b *batch) addRequest(line []byte) *pipeline.Fault {
	cfg := &b.srv.cfg
	if len(b.req.Descriptors) >= cfg.MaxPipelined || len(b.entries) >= maxBatchEntries {
		if f := b.decideRequests(); f != nil {
			return f
		}
		b.clearRequests()
	}
	if len(line) > cfg.MaxLineBytes {
		return errLongLine(cfg.MaxLineBytes)
	}
	if !utf8.Valid(line) {
		begin := len(b.repairedLines)
		b.repairedLines = appendValidUTF8(b.repairedLines, line)
		line = b.repairedLines[begin:]
	}
	first := len(b.entries)
	var f *pipeline.Fault
	if b.entries, f = parseHit(b.entries, line); f != nil {
		return f
	}
	domain := b.takeDomain(first)
	if !bytes.Equal(domain, b.req.Domain) {
		if f := b.decideRequests(); f != nil {
			return f
		}
	}
	b.req.Domain = domain
	pairs := b.entries[first:len(b.entries):len(b.entries)]
	b.req.Descriptors = append(b.req.Descriptors, limiter.Descriptor{Entries: pairs})
	return nil
}

// takeDomain returns the domain of the request that starts at b.entries[first], and removes the pair with it.
func (b *batch) takeDomain(first int) []byte {
	if key := b.srv.cfg.DomainKey; key != "" {
		for i := first; i < len(b.entries); i++ {
			if string(b.entries[i].Key) == key {
				domain := b.entries[i].Value
				b.entries = slices.Delete(b.entries, i, i+1)
				return domain
			}
		}
	}
	if b.srv.cfg.DomainFromOnlyList {
		if set := b.srv.cfg.Limiter.Rules(); set != nil && set.OnlyOrderedListDomain() != nil {
			return set.OnlyOrderedListDomain()
		}
	}
	return b.srv.defaultDomain
}

// decideRequests decides the added requests, appends their replies, and removes the requests. If a
// request fails, decideRequests returns its fault and appends no further replies.
func (b *batch) decideRequests() *pipeline.Fault {
	if len(b.req.Descriptors) == 0 {
		return nil
	}
	start := time.Now()
	b.req.Now = b.srv.now
	err := b.srv.cfg.Limiter.Check(b.ctx, &b.req, &b.answer)
	answered, f := b.appendReplies(err)
	if err != nil && f != nil {
		b.srv.cfg.OnFailure(err)
	}
	if answered > 0 {
		b.srv.answeredHits.Add(uint64(answered))
		b.srv.cfg.OnDecisions(answered, time.Since(start))
	}
	clear(b.req.Descriptors)
	b.req.Descriptors = b.req.Descriptors[:0]
	return f
}

// appendReplies appends the replies for b.answer; err is the error of Check. It returns how many
// replies it appended, and the fault of the first request without a reply.
func (b *batch) appendReplies(err error) (answered int, f *pipeline.Fault) {
	switch {
	case errors.Is(err, limiter.ErrNoRules):
		return 0, errNotReady
	case errors.Is(err, limiter.ErrInvalidRequest):
		return 0, &pipeline.Fault{Text: err.Error()}
	case err != nil && !errors.Is(err, limiter.ErrStoreFailed):
		return 0, errInternal
	case b.answer.Domain == nil:
		return 0, newFaultf("No rules are loaded for the domain %s.", b.req.Domain)
	}
	for i := range b.answer.Statuses {
		st := &b.answer.Statuses[i]
		switch {
		case st.Err != nil:
			return i, &pipeline.Fault{Text: st.Err.Error()}
		case err == nil || !st.StoreFailed:
			b.replies.Write(b.srv.appendReply(b.replies.AvailableBuffer(), st))
		case b.srv.refusesEveryRequest(st):
			b.replies.WriteString(neverPassesReply)
		default:
			return i, errStore
		}
	}
	return len(b.answer.Statuses), nil
}
