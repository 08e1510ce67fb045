package rls

import (
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"ratelimit/src/algorithm"
	"ratelimit/src/frontend/h2guard"
	"ratelimit/src/limiter"
)

// reply is a message as bytes, on its way to the client of conn. It is its own
// mem.BufferPool: grpc-go calls Put when the bytes are written or dropped.
type reply struct {
	bytes []byte
	conn  *h2guard.Conn
	held  int64 // what conn was charged
	large bool  // of largeReplies
}

// replies and largeReplies keep replies for the next. They are apart, since a connection
// is charged for all of a reply's memory.
var (
	replies      = sync.Pool{New: func() any { return &reply{bytes: make([]byte, 0, smallReply)} }}
	largeReplies = sync.Pool{New: func() any { return &reply{bytes: make([]byte, 0, largeReply), large: true} }}
)

// newReply returns a reply for that many statuses.
func newReply(statuses int) *reply {
	if statuses > manyStatuses {
		return largeReplies.Get().(*reply)
	}
	return replies.Get().(*reply)
}

const (
	// manyStatuses is up to how many statuses a reply is small.
	manyStatuses = 256
	// largeReply has room for limiter.MaxDescriptors statuses with short names.
	largeReply = 64 << 10
	// maxLarge bounds what a large reply keeps for the next.
	maxLarge = 4 * largeReply
	// smallReply is what a reply has room for at first: more than grpc-go's
	// threshold, below which it would not give buffers back.
	smallReply = 2048
	// maxSmall bounds what a small reply keeps for the next.
	maxSmall = 64 << 10
	// replyOverhead is what grpc-go keeps for a reply that waits to be written,
	// with its trailers.
	replyOverhead = 512
)

// charge has conn hold the bytes until they are written.
func (r *reply) charge(conn *h2guard.Conn) {
	r.conn, r.held = conn, int64(cap(r.bytes))+replyOverhead
	conn.Queued(r.held)
}

// Put takes the reply back. Its argument is r.bytes.
func (r *reply) Put(*[]byte) {
	r.conn.Written(r.held)
	r.conn = nil
	switch {
	case r.large && cap(r.bytes) <= maxLarge:
		largeReplies.Put(r)
	case !r.large && cap(r.bytes) <= maxSmall:
		replies.Put(r)
	}
}

// Get is the other half of a mem.BufferPool, which nothing asks of a reply.
func (r *reply) Get(n int) *[]byte {
	b := make([]byte, n)
	return &b
}

// encodeReply returns msg as a reply on conn.
func encodeReply(conn *h2guard.Conn, msg proto.Message) (*reply, error) {
	r := replies.Get().(*reply)
	var err error
	if r.bytes, err = (proto.MarshalOptions{}).MarshalAppend(r.bytes[:0], msg); err != nil {
		return nil, fmt.Errorf("rls: writing a %s: %w", msg.ProtoReflect().Descriptor().Name(), err)
	}
	r.charge(conn)
	return r, nil
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
	c := st.Binding
	if c == nil {
		return b
	}
	b = protowire.AppendTag(b, 2, protowire.BytesType)
	at := len(b)
	b = endMessage(appendLimit(append(b, 0), c), at)
	b = appendNumber(b, 3, min(c.Verdict.Remaining, math.MaxUint32))
	b = protowire.AppendTag(b, 4, protowire.BytesType)
	at = len(b)
	b = appendNumber(append(b, 0), 1, uint64(st.ResetAfter/time.Second))
	return endMessage(appendNumber(b, 2, uint64(st.ResetAfter%time.Second)), at)
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
	c := st.Binding
	b = appendHeader(b, n.Limit, uint64(c.Limit.Requests))
	b = appendHeader(b, n.Remaining, c.Verdict.Remaining)
	b = appendSeconds(b, n.Reset, st.ResetAfter)
	if wait := a.RetryAfter; a.Over && wait != algorithm.Never {
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
