package rls

import (
	"math"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"ratelimit/src/limiter"
)

// reply is a RateLimitResponse as bytes. Its memory belongs to replies.
type reply []byte

// replies is where replies are kept for the next. It is a mem.BufferPool, whose
// buffers come back once they are sent.
var replies replyPool

type replyPool struct{ pool sync.Pool }

// smallReply is what a reply has room for at first: more than grpc-go's
// threshold, below which it would not give buffers back.
const smallReply = 2048

// Get returns a buffer that is empty and may grow.
func (p *replyPool) Get(int) *[]byte {
	if b, ok := p.pool.Get().(*[]byte); ok {
		return b
	}
	b := make([]byte, 0, smallReply)
	return &b
}

// Put takes a buffer back.
func (p *replyPool) Put(b *[]byte) {
	if cap(*b) <= maxKept {
		*b = (*b)[:0]
		p.pool.Put(b)
	}
}

// appendResponse appends the answer as response makes it, with headers.
func (s *Service) appendResponse(b []byte, a *limiter.Answer) []byte {
	b = appendNumber(b, 1, uint64(code(a.Over)))
	for i := range a.Statuses {
		b = protowire.AppendTag(b, 2, protowire.BytesType)
		at := len(b)
		b = endMessage(appendStatus(append(b, 0), &a.Statuses[i]), at)
	}
	if s.cfg.Headers != nil {
		b = s.cfg.Headers.appendTo(b, a)
	}
	return b
}

func appendStatus(b []byte, st *limiter.Status) []byte {
	b = appendNumber(b, 1, uint64(code(st.Over)))
	if st.Unlimited() {
		b = appendNumber(b, 3, math.MaxUint32)
	}
	c := st.Bound()
	if c == nil {
		return b
	}
	b = protowire.AppendTag(b, 2, protowire.BytesType)
	at := len(b)
	b = endMessage(appendLimit(append(b, 0), c), at)
	b = appendNumber(b, 3, min(c.Verdict.Remaining, math.MaxUint32))
	b = protowire.AppendTag(b, 4, protowire.BytesType)
	at = len(b)
	b = appendNumber(append(b, 0), 1, uint64(st.Until/time.Second))
	return endMessage(appendNumber(b, 2, uint64(st.Until%time.Second)), at)
}

func appendLimit(b []byte, c *limiter.Charge) []byte {
	b = appendNumber(b, 1, uint64(c.Limit.Requests))
	b = appendNumber(b, 2, uint64(c.Limit.Unit))
	if c.Rule != nil && c.Rule.Name != "" {
		b = protowire.AppendString(protowire.AppendTag(b, 3, protowire.BytesType), c.Rule.Name)
	}
	if m := c.Limit.Multiplier; m > 1 {
		b = protowire.AppendTag(b, 4, protowire.BytesType)
		at := len(b)
		b = endMessage(appendNumber(append(b, 0), 1, uint64(m)), at)
	}
	return b
}

// appendTo appends the headers as response_headers_to_add.
func (n *HeaderNames) appendTo(b []byte, a *limiter.Answer) []byte {
	st := scarcest(a)
	if st == nil {
		return b
	}
	if word := n.degraded(a); word != "" {
		b = appendText(b, n.Degraded, word)
	}
	if n.Limit == "" {
		return b
	}
	c := st.Bound()
	b = appendHeader(b, n.Limit, uint64(c.Limit.Requests))
	b = appendHeader(b, n.Remaining, c.Verdict.Remaining)
	b = appendSeconds(b, n.Reset, st.Until)
	if wait, ok := a.Retry(); ok {
		b = appendSeconds(b, retryAfter, wait)
	}
	return b
}

func appendSeconds(b []byte, name string, d time.Duration) []byte {
	return appendHeader(b, name, uint64(wholeSeconds(d)))
}

func appendText(b []byte, name, value string) []byte {
	b = protowire.AppendTag(b, 3, protowire.BytesType)
	at := len(b)
	b = append(b, 0)
	b = protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), name)
	b = protowire.AppendString(protowire.AppendTag(b, 2, protowire.BytesType), value)
	return endMessage(b, at)
}

func appendHeader(b []byte, name string, value uint64) []byte {
	b = protowire.AppendTag(b, 3, protowire.BytesType)
	at := len(b)
	b = append(b, 0)
	b = protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), name)
	b = append(protowire.AppendTag(b, 2, protowire.BytesType), 0)
	size := len(b) - 1
	b = strconv.AppendUint(b, value, 10)
	b[size] = byte(len(b) - size - 1) // no number has 128 digits
	return endMessage(b, at)
}

// appendNumber appends a field of a number, but for 0, which is the same as no
// field.
func appendNumber(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

// endMessage puts the size of a message into the byte before it, at; if it does
// not fit, the message makes room.
func endMessage(b []byte, at int) []byte {
	size := len(b) - at - 1
	if size < 1<<7 {
		b[at] = byte(size)
		return b
	}
	wide := protowire.SizeVarint(uint64(size))
	for range wide - 1 {
		b = append(b, 0)
	}
	copy(b[at+wide:], b[at+1:at+1+size])
	protowire.AppendVarint(b[:at], uint64(size))
	return b
}
