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

// batch holds the requests of one read, which the limiter decides in one call. Connections share batches through a
// pool.
type batch struct {
	srv           *Server
	ctx           context.Context // of the requests.
	requests      limiter.Many
	entries       []rules.Entry
	repairedLines []byte            // copies of lines that were not UTF-8, made valid.
	replies       *pipeline.Replies // gets the replies.
}

// A batch with more memory than this is not pooled again.
const (
	maxBatchEntries  = 16 << 10
	maxPooledBytes   = 64 << 10
	maxPooledCharges = 64 // of each request
)

func (s *Server) newBatch(ctx context.Context, replies *pipeline.Replies) *batch {
	b := s.batchPool.Get().(*batch)
	b.ctx, b.replies = ctx, replies
	return b
}

// returnToPool puts b into its pool.
func (b *batch) returnToPool() {
	b.ctx, b.replies = nil, nil
	if cap(b.entries) <= maxBatchEntries && cap(b.repairedLines) <= maxPooledBytes {
		b.clearRequests()
		b.srv.batchPool.Put(b)
	}
}

// clearRequests removes all requests. Their entries refer to the buffers of connections.
func (b *batch) clearRequests() {
	clear(b.entries)
	b.entries, b.repairedLines = b.entries[:0], b.repairedLines[:0]
	b.requests.Reset(maxPooledCharges)
}

// addRequest adds the request in line, which must not change until decideRequests. If the request does
// not fit into the batch, addRequest first decides the earlier ones, and may return the fault of one of them.
func (b *batch) addRequest(line []byte) *pipeline.Fault {
	cfg := &b.srv.cfg
	if len(b.requests.Items()) >= cfg.MaxPipelined || len(b.entries) >= maxBatchEntries {
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
	if n := len(b.requests.Items()); n > 0 && !bytes.Equal(domain, b.requests.Items()[n-1].Request.Domain) {
		// If the domain before is unknown, the connection ends, and this request is not charged.
		if f := b.decideRequests(); f != nil {
			return f
		}
	}
	req := &b.requests.Add().Request
	req.Domain, req.Protocol = domain, b.srv.cfg.Protocol
	req.Descriptors = append(req.Descriptors, limiter.Descriptor{Entries: b.entries[first:len(b.entries):len(b.entries)]})
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
func (b *batch) decideRequests() (f *pipeline.Fault) {
	if len(b.requests.Items()) == 0 {
		return nil
	}
	start, answered := time.Now(), 0
	b.requests.Now = b.srv.now
	b.srv.cfg.Limiter.CheckMany(b.ctx, &b.requests)
	for _, it := range b.requests.Items() {
		if f = b.appendReply(it); f != nil {
			if it.Err != nil {
				b.srv.cfg.OnFailure(it.Err)
			}
			break
		}
		answered++
	}
	if answered > 0 {
		b.srv.Answered.Add(uint64(answered))
		b.srv.cfg.OnDecisions(answered, time.Since(start))
	}
	b.requests.Reset(maxPooledCharges)
	return f
}

// appendReply appends the reply for it, or returns its fault.
func (b *batch) appendReply(it *limiter.Item) *pipeline.Fault {
	err, storeFailed := it.Err, errors.Is(it.Err, limiter.ErrStoreFailed)
	switch {
	case errors.Is(err, limiter.ErrNoRules):
		return errNotReady
	case errors.Is(err, limiter.ErrInvalidRequest):
		return &pipeline.Fault{Text: err.Error()}
	case err != nil && !storeFailed:
		return errInternal
	case it.Answer.Domain == nil:
		return pipeline.Faultf("No rules are loaded for the domain %s.", it.Request.Domain)
	}
	switch st := &it.Answer.Statuses[0]; {
	case !storeFailed:
		b.replies.Write(b.srv.appendReply(b.replies.AvailableBuffer(), st))
	case b.srv.refusesEveryRequest(st):
		b.replies.WriteString(neverPassesReply)
	default:
		return errStore
	}
	return nil
}
