package divvy

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// batch holds the requests of one read, which the limiter decides in one call, and
// their replies. Connections share batches through a pool.
type batch struct {
	srv     *Server
	req     limiter.Request
	answer  limiter.Answer
	entries []rules.Entry // of all requests
	text    []byte        // of lines that were not UTF-8
	out     *bytes.Buffer // replies that are not written yet
}

// A batch with more memory than this is dropped after use.
const (
	keptEntries = 16 << 10
	keptBytes   = 64 << 10
	keptCharges = 4 * limiter.MaxDescriptors
)

// pools keep memory for the next requests.
type pools struct {
	batches sync.Pool // of *batch, without replies
	replies sync.Pool // of *bytes.Buffer
}

func (s *Server) newBatch() *batch {
	b := s.pools.batches.Get().(*batch)
	b.out = s.pools.replies.Get().(*bytes.Buffer)
	return b
}

// release puts b into its pool and returns its replies for releaseReplies: a client that
// does not read keeps its replies in use, but not the batch.
func (b *batch) release() *bytes.Buffer {
	out := b.out
	b.out = nil
	if cap(b.entries) <= keptEntries && cap(b.text) <= keptBytes && b.answer.Reset(keptCharges) {
		b.clear()
		b.srv.pools.batches.Put(b)
	}
	return out
}

func (s *Server) releaseReplies(out *bytes.Buffer) {
	if out.Cap() <= keptBytes {
		out.Reset()
		s.pools.replies.Put(out)
	}
}

// clear removes the requests, which decide has decided or a fault has ended.
func (b *batch) clear() {
	clear(b.entries) // they point into buffers of connections
	clear(b.req.Descriptors)
	b.entries, b.text = b.entries[:0], b.text[:0]
	b.req.Descriptors, b.req.Domain = b.req.Descriptors[:0], nil
}

// add adds the request of a line; the line must not change until decide. If the request
// does not fit into the batch, add first decides the earlier ones. The fault is that of
// the line, with earlier requests not yet decided, or of an earlier request.
func (b *batch) add(line []byte) *fault {
	cfg := &b.srv.cfg
	if len(b.req.Descriptors) >= cfg.MaxPipelined || len(b.entries) >= keptEntries {
		if f := b.decide(); f != nil {
			return f
		}
		b.clear()
	}
	if len(line) > cfg.MaxLine {
		return errLongLine(cfg.MaxLine)
	}
	if !utf8.Valid(line) {
		begin := len(b.text)
		b.text = appendValid(b.text, line)
		line = b.text[begin:]
	}
	first := len(b.entries)
	var f *fault
	if b.entries, f = parse(b.entries, line); f != nil {
		return f
	}
	domain := b.domain(first)
	if !bytes.Equal(domain, b.req.Domain) {
		if f := b.decide(); f != nil {
			return f
		}
	}
	b.req.Domain = domain
	pairs := b.entries[first:len(b.entries):len(b.entries)]
	b.req.Descriptors = append(b.req.Descriptors, limiter.Descriptor{Entries: pairs})
	return nil
}

// domain returns the domain of the request whose entries start at first, and removes the
// pair that names it.
func (b *batch) domain(first int) []byte {
	if key := b.srv.cfg.DomainKey; key != "" {
		for i := first; i < len(b.entries); i++ {
			if string(b.entries[i].Key) == key {
				domain := b.entries[i].Value
				b.entries = slices.Delete(b.entries, i, i+1)
				return domain
			}
		}
	}
	if b.srv.cfg.OnlyList {
		if set := b.srv.cfg.Limiter.Rules(); set != nil && set.OnlyList() != nil {
			return set.OnlyList()
		}
	}
	return b.srv.domain
}

// decide appends the replies to the requests that were added, and removes the requests.
// It stops at the first request without a reply and returns its fault.
func (b *batch) decide() *fault {
	if len(b.req.Descriptors) == 0 {
		return nil
	}
	start := time.Now()
	b.req.Now = b.srv.now
	err := b.srv.cfg.Limiter.Check(b.srv.ctx, &b.req, &b.answer)
	answered, f := b.reply(err)
	if err != nil && f != nil {
		b.srv.cfg.OnFailure(err)
	}
	if answered > 0 {
		b.srv.counts.hits.Add(uint64(answered))
		b.srv.cfg.OnHits(answered, time.Since(start))
	}
	clear(b.req.Descriptors)
	b.req.Descriptors = b.req.Descriptors[:0]
	return f
}

// reply appends the replies to the answer of Check, which returned err. It returns how
// many it appended.
func (b *batch) reply(err error) (answered int, f *fault) {
	switch {
	case errors.Is(err, limiter.ErrNotReady):
		return 0, errNotReady
	case errors.Is(err, limiter.ErrRequest):
		return 0, &fault{codeUnknown, err.Error()}
	case err != nil && !errors.Is(err, limiter.ErrStore):
		return 0, errInternal
	case b.answer.Domain == nil:
		return 0, unknownf("No rules are loaded for the domain %s.", b.req.Domain)
	}
	for i := range b.answer.Statuses {
		st := &b.answer.Statuses[i]
		switch {
		case err == nil || !st.Failed:
			b.out.Write(b.srv.appendReply(b.out.AvailableBuffer(), st))
		case b.srv.bans(st):
			b.out.WriteString(denied)
		default:
			return i, errStore
		}
	}
	return len(b.answer.Statuses), nil
}
