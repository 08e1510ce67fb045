package divvy

import (
	"bytes"
	"errors"
	"slices"
	"time"
	"unicode/utf8"

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// batch is what was read of one connection at a time: its requests, which the
// limiter decides in one call, and the replies. It is used again for others.
type batch struct {
	srv     *Server
	req     limiter.Request
	answer  limiter.Answer
	entries []rules.Entry // of all requests
	text    []byte        // of lines that were no UTF-8
	out     []byte        // replies that were not written yet; the memory of box
	box     *[]byte       // of Server.boxes
}

// What a batch may keep for the next: more than any usual one needs.
const (
	keptEntries = 16 << 10
	keptBytes   = 64 << 10
	keptCharges = 4 * limiter.MaxDescriptors
)

func (s *Server) newBatch() *batch {
	b := s.batches.Get().(*batch)
	b.box = s.boxes.Get().(*[]byte)
	b.out = *b.box
	return b
}

// release gives b to others, but for the replies, which it returns: they may
// have to wait for a client that does not read, and should not hold the rest.
func (b *batch) release() *[]byte {
	box := b.box
	*box, b.out, b.box = b.out, nil, nil
	if cap(b.entries) > keptEntries || cap(b.text) > keptBytes {
		return box
	}
	b.clear()
	if b.answer.Reset(keptCharges) {
		b.srv.batches.Put(b)
	}
	return box
}

// written gives the memory of replies to others.
func (s *Server) written(box *[]byte) {
	if cap(*box) <= keptBytes {
		*box = (*box)[:0]
		s.boxes.Put(box)
	}
}

// clear forgets the requests.
func (b *batch) clear() {
	clear(b.entries) // they point into buffers of connections
	b.entries, b.text = b.entries[:0], b.text[:0]
	b.req = limiter.Request{Descriptors: b.req.Descriptors[:0], Independent: true}
}

// add adds the request of a line, which must stay as it is until decide. If it
// does not fit to those before it, they are decided first. When there is a fault
// they are still to be decided, or it is theirs.
func (b *batch) add(line []byte) *fault {
	if len(b.req.Descriptors) >= b.srv.cfg.MaxPipelined || len(b.entries) >= keptEntries {
		if f := b.decide(); f != nil {
			return f
		}
		b.clear()
	}
	if len(line) > b.srv.cfg.MaxLine {
		return b.srv.errLongLine
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
	domain := b.srv.asked()
	if key := b.srv.cfg.DomainKey; key != "" {
		domain, b.entries = named(domain, key, b.entries, first)
	}
	pairs := b.entries[first:len(b.entries):len(b.entries)]
	if len(b.req.Descriptors) > 0 && !bytes.Equal(domain, b.req.Domain) {
		if f := b.decide(); f != nil {
			return f
		}
	}
	b.req.Domain = domain
	b.req.Descriptors = append(b.req.Descriptors, limiter.Descriptor{Entries: pairs})
	return nil
}

// decide appends the replies to all requests that were added, up to the fault of
// one of them.
func (b *batch) decide() *fault {
	if len(b.req.Descriptors) == 0 {
		return nil
	}
	begun := time.Now()
	b.req.Now = b.srv.now
	err := b.srv.cfg.Limiter.Check(b.srv.ctx, &b.req, &b.answer)
	answered, f := b.reply(err)
	if err != nil && f != nil {
		b.srv.cfg.Fallback(err)
	}
	if answered > 0 {
		b.srv.hits.Add(uint64(answered))
		b.srv.cfg.OnHits(answered, time.Since(begun))
	}
	clear(b.req.Descriptors)
	b.req.Descriptors = b.req.Descriptors[:0]
	return f
}

// reply appends replies to what Check decided, err being its error, and returns
// how many.
func (b *batch) reply(err error) (answered int, f *fault) {
	switch {
	case errors.Is(err, limiter.ErrNotReady):
		return 0, errNotReady
	case errors.Is(err, limiter.ErrRequest):
		return 0, &fault{codeUnknown, err.Error()}
	case err != nil && !errors.Is(err, limiter.ErrStore):
		return 0, errInternal
	case b.answer.Domain == nil:
		return 0, &fault{codeUnknown, "No rules are loaded for the domain " + string(b.req.Domain) + "."}
	}
	for i := range b.answer.Statuses {
		st := &b.answer.Statuses[i]
		switch {
		case err == nil || !st.Failed:
			b.out = b.srv.appendReply(b.out, st)
		case b.srv.bans(st):
			b.out = append(b.out, denied...)
		default:
			return i, errStore
		}
	}
	return len(b.answer.Statuses), nil
}

// asked is the domain of a HIT that does not name one.
func (s *Server) asked() []byte {
	if s.cfg.OnlyList {
		if set := s.cfg.Limiter.Rules(); set != nil && set.OnlyList() != nil {
			return set.OnlyList()
		}
	}
	return s.domain
}

// named takes the pair with that key out of the entries from first on, and
// returns its value, or domain if there is none.
func named(domain []byte, key string, entries []rules.Entry, first int) ([]byte, []rules.Entry) {
	for i := first; i < len(entries); i++ {
		if string(entries[i].Key) == key {
			domain = entries[i].Value
			return domain, slices.Delete(entries, i, i+1)
		}
	}
	return domain, entries
}
