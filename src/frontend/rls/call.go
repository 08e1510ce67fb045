package rls

import (
	"context"
	"slices"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	encproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"ratelimit/src/limiter"
)

// callMemory is the working memory of one call. A later call reuses it.
type callMemory struct {
	receivedMessage mem.Buffer // the bytes that grpc-go read; nil for calls over JSON.
	requestDecoder
	req           limiter.Request
	answer        limiter.Answer
	fromLargePool bool
}

// A pooled call has room for at most so many descriptors, and for twice as many entries. For a request of
// limiter.MaxDescriptors, append reserves more.
const (
	maxPooledDescriptors      = 2 * limiter.MaxDescriptors
	maxSmallPooledDescriptors = maxPooledDescriptors / 4
)

// newCall returns a call for a request with the reservation t. Large calls have their own pool: thousands of requests
// may wait for memory, and none of them should hold that much.
func (s *Service) newCall(t *memoryReservation) *callMemory {
	if t.capacity != nil {
		return s.largeCallPool.Get().(*callMemory)
	}
	return s.smallCallPool.Get().(*callMemory)
}

// releaseCall puts c into its pool, unless c has grown too large.
func (s *Service) releaseCall(c *callMemory) {
	if c.receivedMessage != nil {
		c.receivedMessage.Free()
		c.receivedMessage = nil
	}
	pool, kept := &s.smallCallPool, maxSmallPooledDescriptors
	if c.fromLargePool {
		pool, kept = &s.largeCallPool, maxPooledDescriptors
	}
	if c.answer.Reset(kept) && cap(c.entries) <= 2*kept && cap(c.req.Descriptors) <= kept {
		clear(c.entries)
		clear(c.req.Descriptors)
		pool.Put(c)
	}
}

// shouldRateLimit is the path of the method for decisions.
const shouldRateLimit = pb.RateLimitService_ShouldRateLimit_FullMethodName

// serviceDesc describes RateLimitService to grpc-go. Its handler gets requests as bytes; see codec.
func (s *Service) serviceDesc() *grpc.ServiceDesc {
	info := &grpc.UnaryServerInfo{Server: s, FullMethod: shouldRateLimit}
	answer := func(ctx context.Context, c any) (any, error) {
		r, err := s.answerGRPC(ctx, c.(*callMemory))
		if err != nil {
			return nil, err
		}
		return r, nil
	}
	handler := func(
		_ any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor,
	) (any, error) {
		c := s.smallCallPool.Get().(*callMemory)
		defer s.releaseCall(c)
		if err := decode(c); err != nil {
			return nil, err
		}
		return intercept(ctx, c, info, answer)
	}
	return &grpc.ServiceDesc{
		ServiceName: pb.RateLimitService_ServiceDesc.ServiceName,
		HandlerType: (*any)(nil), // HandlerType accepts any service, since the handler calls no method of it.
		Methods:     []grpc.MethodDesc{{MethodName: "ShouldRateLimit", Handler: handler}},
		Metadata:    pb.RateLimitService_ServiceDesc.Metadata,
	}
}

// answerGRPC decides the request in buffered.receivedMessage. It parses the bytes itself, because grpc-go answers
// errors of a codec with INTERNAL and would not count them.
func (s *Service) answerGRPC(ctx context.Context, buffered *callMemory) (r *reply, err error) {
	defer func() {
		if err != nil {
			err = grpcError(s.reportError(err))
		}
	}()
	c, data := buffered, buffered.receivedMessage.ReadOnlyData()
	t, err := s.largeRequests.reserve(ctx, estimateProtobufMemory(data))
	if err != nil {
		return nil, err
	}
	defer t.release()
	if t.capacity != nil {
		c = s.newCall(&t)
		defer s.releaseCall(c)
	}
	if err := s.decideMessage(ctx, c, "grpc", data, &t); err != nil {
		return nil, err
	}
	r = newReply(len(c.answer.Statuses))
	if r.encodedMessage, err = s.appendAnswer(r.encodedMessage[:0], &c.req, &c.answer); err != nil {
		return nil, err
	}
	r.chargeMemory(callerConnOf(ctx))
	return r, nil
}

// grpcError returns the status that callers get for err.
func grpcError(err error) error {
	class := errorClassOf(err)
	return status.Error(class.grpcCode, class.callerText)
}

// codec is grpc-go's codec for protobuf, but keeps requests of RateLimitService and replies as bytes.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(encproto.Name)} }

// RawMessage is a message of a streaming call whose service encodes and decodes it itself. The memory of a short one is
// reused.
type RawMessage struct {
	Bytes    []byte
	MaxBytes int // bounds the length of a message that is received.
	length   int // of the last message that was received.
}

// release ends the use of Bytes. Between two messages, a stream keeps little memory.
func (m *RawMessage) release() {
	if m.Bytes = m.Bytes[:0]; cap(m.Bytes) > maxLongCallMessageBytes {
		m.Bytes = nil
	}
}

// Unmarshal decodes data into the message v. If v is a *callMemory, it keeps the bytes there.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch in := v.(type) {
	case *callMemory:
		in.receivedMessage = joinMessage(data)
	case *RawMessage:
		if in.length = data.Len(); in.length <= in.MaxBytes { // RecvMsg refuses others.
			in.Bytes = slices.Grow(in.Bytes[:0], in.length)[:in.length]
			data.CopyTo(in.Bytes)
		}
	default:
		return c.CodecV2.Unmarshal(data, v)
	}
	return nil
}

// maxPooledMessageBytes is the size of a message that takes less than four times its memory from grpc-go's pool, whose
// next size is 1 MiB.
const maxPooledMessageBytes = 32 << 10

// joinMessage returns the bytes of data in one piece.
func joinMessage(data mem.BufferSlice) mem.Buffer {
	if len(data) == 1 || data.Len() <= maxPooledMessageBytes {
		return data.MaterializeToBuffer(mem.DefaultBufferPool())
	}
	return mem.SliceBuffer(data.Materialize())
}

// Marshal encodes the message v. If v is a *reply, it returns the bytes of v.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	out, ok := v.(*reply)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	return mem.BufferSlice{mem.NewBuffer(&out.encodedMessage, out)}, nil
}
