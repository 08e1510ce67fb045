package rls

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/frontend/h2guard"
	"ratelimit/src/limiter"
)

// reply is an encoded message. It is its own mem.BufferPool: grpc-go calls Put after it has written or dropped the
// bytes.
type reply struct {
	mem.NopBufferPool // NopBufferPool has the method Get, which grpc-go never calls on a reply.
	encodedMessage    []byte
	chargedConn       *h2guard.Conn // nil if the reply is not charged to a connection.
	chargedBytes      int64
	fromLargePool     bool
}

const (
	maxSmallReplyStatuses = 256
	// newSmallReplyBytes is above the size under which grpc-go copies messages and does not call Put.
	newSmallReplyBytes = 2048
	// newLargeReplyBytes is enough for limiter.MaxDescriptors statuses with short names.
	newLargeReplyBytes = 64 << 10
	// Longer replies are not reused.
	maxPooledSmallReplyBytes = 64 << 10
	maxPooledLargeReplyBytes = 4 * newLargeReplyBytes
	// replyOverheadBytes is how many bytes grpc-go needs for a waiting reply, including its trailers.
	replyOverheadBytes = 512
)

// Large replies have their own pool, because a connection is charged for all memory of a reply.
var (
	smallReplyPool = sync.Pool{New: func() any { return &reply{encodedMessage: make([]byte, 0, newSmallReplyBytes)} }}
	largeReplyPool = sync.Pool{New: func() any {
		return &reply{encodedMessage: make([]byte, 0, newLargeReplyBytes), fromLargePool: true}
	}}
)

func newReply(statuses int) *reply {
	if statuses > maxSmallReplyStatuses {
		return largeReplyPool.Get().(*reply)
	}
	return smallReplyPool.Get().(*reply)
}

// chargeMemory charges the memory of r to conn until Put.
func (r *reply) chargeMemory(conn *callerConn) {
	r.chargedConn, r.chargedBytes = conn.guard, int64(cap(r.encodedMessage))+replyOverheadBytes
	conn.guard.ChargeQueuedReply(r.chargedBytes)
}

// Put ends the use of the reply. Its argument is r.bytes.
func (r *reply) Put(*[]byte) {
	r.chargedConn.ReleaseWrittenReply(r.chargedBytes)
	r.chargedConn = nil
	switch {
	case r.fromLargePool && cap(r.encodedMessage) <= maxPooledLargeReplyBytes:
		largeReplyPool.Put(r)
	case !r.fromLargePool && cap(r.encodedMessage) <= maxPooledSmallReplyBytes:
		smallReplyPool.Put(r)
	}
}

// encodeMessage encodes msg and charges the reply to conn.
func encodeMessage(conn *callerConn, msg proto.Message) (*reply, error) {
	r := newReply(0)
	var err error
	if r.encodedMessage, err = (proto.MarshalOptions{}).MarshalAppend(r.encodedMessage[:0], msg); err != nil {
		return nil, fmt.Errorf("rls: writing a %s: %w", msg.ProtoReflect().Descriptor().Name(), err)
	}
	r.chargeMemory(conn)
	return r, nil
}

// appendAnswer appends the RateLimitResponse for the answer to req.
func (s *Service) appendAnswer(b []byte, req *limiter.Request, a *limiter.Answer) ([]byte, error) {
	b = appendStatuses(b, a)
	if s.cfg.HeaderNames != nil {
		b = s.cfg.HeaderNames.appendHeaders(b, a)
	}
	if !s.cfg.MetadataEnabled {
		return b, nil
	}
	fields, err := dynamicMetadata(req, a)
	if err != nil {
		return nil, err
	}
	return proto.MarshalOptions{}.MarshalAppend(b, &pb.RateLimitResponse{DynamicMetadata: fields})
}

// appendStatuses appends a RateLimitResponse with the codes and statuses of a.
func appendStatuses(b []byte, a *limiter.Answer) []byte {
	b = appendCode(b, a.Over)
	for i := range a.Statuses {
		var start int
		b, start = beginSubmessage(b, 2)
		b = endSubmessage(appendStatus(b, &a.Statuses[i]), start)
	}
	return b
}

func appendStatus(b []byte, st *limiter.Status) []byte {
	b = appendCode(b, st.Over)
	if st.IsUnlimited() {
		b = appendNumberField(b, 3, math.MaxUint32)
	}
	c := st.BindingCharge
	if c == nil {
		return b
	}
	b, start := beginSubmessage(b, 2)
	b = endSubmessage(appendLimit(b, c), start)
	b = appendNumberField(b, 3, min(c.Verdict.Remaining, math.MaxUint32))
	b, start = beginSubmessage(b, 4)
	b = appendNumberField(b, 1, uint64(st.ResetAfter/time.Second))
	return endSubmessage(appendNumberField(b, 2, uint64(st.ResetAfter%time.Second)), start)
}

// appendLimit appends a RateLimit. Its number has 32 bits, which show at most 4294967295 of a larger limit.
func appendLimit(b []byte, c *limiter.Charge) []byte {
	b = appendNumberField(b, 1, min(c.Limit.Requests, math.MaxUint32))
	b = appendNumberField(b, 2, uint64(c.Limit.Unit))
	if c.Rule != nil && c.Rule.Name != "" {
		b = protowire.AppendString(protowire.AppendTag(b, 3, protowire.BytesType), c.Rule.Name)
	}
	if m := c.Limit.UnitMultiplier; m > 1 {
		var start int
		b, start = beginSubmessage(b, 4)
		b = endSubmessage(appendNumberField(b, 1, uint64(m)), start)
	}
	return b
}

// appendCode appends field 1, a RateLimitResponse.Code.
func appendCode(b []byte, over bool) []byte {
	code := pb.RateLimitResponse_OK
	if over {
		code = pb.RateLimitResponse_OVER_LIMIT
	}
	return appendNumberField(b, 1, uint64(code))
}

// appendNumberField appends a field with the number v. It leaves out 0, as protobuf does.
func appendNumberField(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

// beginSubmessage appends the tag of a field that is a message, and one byte for its size. The caller appends the
// message, and passes its start to endSubmessage.
func beginSubmessage(b []byte, field protowire.Number) (_ []byte, start int) {
	b = append(protowire.AppendTag(b, field, protowire.BytesType), 0)
	return b, len(b)
}

// endSubmessage writes the size of the message that starts at start into the byte before it. It moves the message if
// the size needs more bytes.
func endSubmessage(b []byte, start int) []byte {
	size := len(b) - start
	if size < 1<<7 {
		b[start-1] = byte(size)
		return b
	}
	var varint [binary.MaxVarintLen64]byte
	return slices.Replace(b, start-1, start, protowire.AppendVarint(varint[:0], uint64(size))...)
}

// HeaderNames are the names of the response headers that tell callers about a limit.
type HeaderNames struct {
	// Limit, Remaining and Reset are set together. If they are empty, they are not sent.
	Limit, Remaining, Reset string
	// Policies sends RateLimit-Policy and RateLimit, as draft-ietf-httpapi-ratelimit-headers-11 defines them, instead of
	// Limit, Remaining and Reset.
	Policies bool
	// Degraded says how a request was decided without the store. If it is empty, it is not sent.
	Degraded string
}

// retryAfterHeader is the header of HTTP itself, so its name is not a setting.
const retryAfterHeader = "Retry-After"

// appendHeaders appends the headers of a as response_headers_to_add; none if no limit applies.
func (n *HeaderNames) appendHeaders(b []byte, a *limiter.Answer) []byte {
	st := statusForHeaders(a)
	if st == nil {
		return b
	}
	if n.Degraded != "" && a.Fallback != backend.FallbackError {
		b = appendHeader(b, n.Degraded, a.Fallback.String())
	}
	switch {
	case n.Policies:
		b = appendPolicyHeaders(b, a, st)
	case n.Limit == "":
		return b
	default:
		b = appendNumberHeader(b, n.Limit, st.BindingCharge.Limit.Requests)
		b = appendNumberHeader(b, n.Remaining, st.BindingCharge.Verdict.Remaining)
		b = appendNumberHeader(b, n.Reset, uint64(limiter.SecondsRoundedUp(st.ResetAfter)))
	}
	if hasRetryAfter(a) {
		b = appendNumberHeader(b, retryAfterHeader, uint64(limiter.SecondsRoundedUp(a.RetryAfter)))
	}
	return b
}

// hasRetryAfter reports whether the headers of a have Retry-After: if the request is refused now and may pass later.
func hasRetryAfter(a *limiter.Answer) bool {
	return a.Over && a.RetryAfter != algorithm.Never
}

func appendNumberHeader(b []byte, name string, value uint64) []byte {
	var digits [20]byte // 20 digits are enough for any uint64.
	return appendHeader(b, name, strconv.AppendUint(digits[:0], value, 10))
}

func appendHeader[T string | []byte](b []byte, name string, value T) []byte {
	b, open := beginHeader(b, name)
	return open.end(append(b, value...))
}

// openHeader is a header whose value is being appended: where its message and its value start.
type openHeader struct{ message, value int }

// beginHeader appends the start of a header. The caller appends the value, and then calls end.
func beginHeader(b []byte, name string) ([]byte, openHeader) {
	b, message := beginSubmessage(b, 3)
	b = protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), name)
	b, value := beginSubmessage(b, 2)
	return b, openHeader{message, value}
}

func (h openHeader) end(b []byte) []byte { return endSubmessage(endSubmessage(b, h.value), h.message) }

// statusForHeaders returns the status that the headers show: the last one that refuses the request without quota mode,
// else the first one with the fewest remaining units. It returns nil if no limit applies.
func statusForHeaders(a *limiter.Answer) (shown *limiter.Status) {
	refused := false
	for i := range a.Statuses {
		st := &a.Statuses[i]
		switch {
		case st.BindingCharge == nil:
		case st.Over && !st.InQuotaMode:
			shown, refused = st, true
		case !refused && (shown == nil || st.BindingCharge.Verdict.Remaining < shown.BindingCharge.Verdict.Remaining):
			shown = st
		}
	}
	return shown
}
