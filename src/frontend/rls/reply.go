package rls

import (
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/frontend/h2guard"
	"ratelimit/src/limiter"
)

// reply is a message as bytes, on its way to the client of conn. It is its own
// mem.BufferPool: grpc-go calls Put when the bytes are written or dropped.
type reply struct {
	bytes []byte
	conn  *h2guard.Conn // nil: not charged
	held  int64         // what conn was charged
	large bool          // of largeReplies
}

const (
	// manyStatuses is the most statuses that a small reply has room for.
	manyStatuses = 256
	// smallReply is the room of a new small reply: more than grpc-go's threshold, below
	// which it would not give buffers back.
	smallReply = 2048
	// largeReply has room for limiter.MaxDescriptors statuses with short names.
	largeReply = 64 << 10
	// maxSmall and maxLarge are the sizes up to which the memory of a reply is reused.
	maxSmall = 64 << 10
	maxLarge = 4 * largeReply
	// replyOverhead is what grpc-go keeps for a reply that waits to be written,
	// with its trailers.
	replyOverhead = 512
)

// Large replies have a pool of their own, since a connection is charged for all of a
// reply's memory.
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

// charge charges the bytes to conn until they are written.
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

// Get completes mem.BufferPool; grpc-go does not call it on a reply.
func (r *reply) Get(n int) *[]byte {
	b := make([]byte, n)
	return &b
}

// encodeReply returns msg as bytes, which it charges to conn.
func encodeReply(conn *h2guard.Conn, msg proto.Message) (*reply, error) {
	r := newReply(0)
	var err error
	if r.bytes, err = (proto.MarshalOptions{}).MarshalAppend(r.bytes[:0], msg); err != nil {
		return nil, fmt.Errorf("rls: writing a %s: %w", msg.ProtoReflect().Descriptor().Name(), err)
	}
	r.charge(conn)
	return r, nil
}

// reply returns the RateLimitResponse for the answer of c.
func (s *Service) reply(c *call) (*reply, error) {
	r := newReply(len(c.answer.Statuses))
	r.bytes = appendStatuses(r.bytes[:0], &c.answer)
	if s.cfg.Headers != nil {
		r.bytes = s.cfg.Headers.appendTo(r.bytes, &c.answer)
	}
	if !s.cfg.Metadata {
		return r, nil
	}
	fields, err := c.dynamicMetadata()
	if err == nil {
		r.bytes, err = proto.MarshalOptions{}.MarshalAppend(r.bytes, &pb.RateLimitResponse{DynamicMetadata: fields})
	}
	if err != nil {
		s.cfg.OnError(err)
		return nil, err
	}
	return r, nil
}

// appendStatuses appends a RateLimitResponse with the codes and statuses of a.
func appendStatuses(b []byte, a *limiter.Answer) []byte {
	b = appendCode(b, a.Over)
	for i := range a.Statuses {
		var start int
		b, start = beginMessage(b, 2)
		b = endMessage(appendStatus(b, &a.Statuses[i]), start)
	}
	return b
}

func appendStatus(b []byte, st *limiter.Status) []byte {
	b = appendCode(b, st.Over)
	if st.Unlimited() {
		b = appendNumber(b, 3, math.MaxUint32)
	}
	c := st.Binding
	if c == nil {
		return b
	}
	b, start := beginMessage(b, 2)
	b = endMessage(appendLimit(b, c), start)
	b = appendNumber(b, 3, min(c.Verdict.Remaining, math.MaxUint32))
	b, start = beginMessage(b, 4)
	b = appendNumber(b, 1, uint64(st.ResetAfter/time.Second))
	return endMessage(appendNumber(b, 2, uint64(st.ResetAfter%time.Second)), start)
}

func appendLimit(b []byte, c *limiter.Charge) []byte {
	b = appendNumber(b, 1, uint64(c.Limit.Requests))
	b = appendNumber(b, 2, uint64(c.Limit.Unit))
	if c.Rule != nil && c.Rule.Name != "" {
		b = protowire.AppendString(protowire.AppendTag(b, 3, protowire.BytesType), c.Rule.Name)
	}
	if m := c.Limit.Multiplier; m > 1 {
		var start int
		b, start = beginMessage(b, 4)
		b = endMessage(appendNumber(b, 1, uint64(m)), start)
	}
	return b
}

// appendCode appends a Code as field 1.
func appendCode(b []byte, over bool) []byte {
	if over {
		return appendNumber(b, 1, 2) // OVER_LIMIT
	}
	return appendNumber(b, 1, 1) // OK
}

// appendNumber appends a field with a number, unless the number is 0, which is the same as
// no field.
func appendNumber(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

// beginMessage begins a field with a message. start is for endMessage.
func beginMessage(b []byte, field protowire.Number) (_ []byte, start int) {
	b = append(protowire.AppendTag(b, field, protowire.BytesType), 0)
	return b, len(b)
}

// endMessage writes the size of the message from start on into the byte before it. If the
// size needs more bytes, the message makes room.
func endMessage(b []byte, start int) []byte {
	size := len(b) - start
	if size < 1<<7 {
		b[start-1] = byte(size)
		return b
	}
	more := protowire.SizeVarint(uint64(size)) - 1
	for range more {
		b = append(b, 0)
	}
	copy(b[start+more:], b[start:start+size])
	protowire.AppendVarint(b[:start-1], uint64(size))
	return b
}

// HeaderNames are the names of the headers that tell callers of a limit.
type HeaderNames struct {
	// Limit, Remaining and Reset are sent together; empty: they are not sent.
	Limit, Remaining, Reset string
	// Degraded says how the request was decided because the store did not answer;
	// empty: it is not sent.
	Degraded string
}

// retryAfter is HTTP's own name, which needs no setting.
const retryAfter = "Retry-After"

// header is a response header. Its value is text or, if that is empty, number.
type header struct {
	name, text string
	number     uint64
}

func (h *header) appendValue(b []byte) []byte {
	if h.text != "" {
		return append(b, h.text...)
	}
	return strconv.AppendUint(b, h.number, 10)
}

// maxHeaders is how many headers an answer has at most.
const maxHeaders = 5

// appendHeaders appends the headers of the answer to list: none if no limit applies.
func (n *HeaderNames) appendHeaders(list []header, a *limiter.Answer) []header {
	st := shownStatus(a)
	if st == nil {
		return list
	}
	if n.Degraded != "" && a.Fallback != backend.FallbackError {
		list = append(list, header{n.Degraded, a.Fallback.String(), 0})
	}
	if n.Limit == "" {
		return list
	}
	list = append(list,
		header{n.Limit, "", uint64(st.Binding.Limit.Requests)},
		header{n.Remaining, "", st.Binding.Verdict.Remaining},
		header{n.Reset, "", uint64(limiter.Seconds(st.ResetAfter))},
	)
	if a.Over && a.RetryAfter != algorithm.Never {
		list = append(list, header{retryAfter, "", uint64(limiter.Seconds(a.RetryAfter))})
	}
	return list
}

// appendTo appends the headers as response_headers_to_add.
func (n *HeaderNames) appendTo(b []byte, a *limiter.Answer) []byte {
	var room [maxHeaders]header
	var start, value int
	for _, h := range n.appendHeaders(room[:0], a) {
		b, start = beginMessage(b, 3)
		b = protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), h.name)
		b, value = beginMessage(b, 2)
		b = endMessage(endMessage(h.appendValue(b), value), start)
	}
	return b
}

// shownStatus returns the status that the headers show: the last one that refuses the
// request by itself, else the one with the fewest remaining, the first of equals; nil if
// no limit applies.
func shownStatus(a *limiter.Answer) (shown *limiter.Status) {
	refused := false
	for i := range a.Statuses {
		st := &a.Statuses[i]
		switch {
		case st.Binding == nil:
		case st.Over && !st.Quota:
			shown, refused = st, true
		case !refused && (shown == nil || st.Binding.Verdict.Remaining < shown.Binding.Verdict.Remaining):
			shown = st
		}
	}
	return shown
}
