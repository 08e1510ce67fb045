package rls

import (
	"context"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	encproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// call is the working memory of one call. The next call reuses it.
type call struct {
	buf     mem.Buffer // what grpc-go read; nil for other callers
	req     limiter.Request
	answer  limiter.Answer
	entries []rules.Entry // of all descriptors
	large   bool          // of Service.largePool
}

// A large call keeps memory for this many entries and descriptors: what
// limiter.MaxDescriptors need with a few entries each, where append makes more room than
// is used. Other calls keep a quarter.
const (
	maxKeptEntries = 4 * limiter.MaxDescriptors
	maxKeptList    = 2 * limiter.MaxDescriptors
	smallShare     = 4
)

// newCall returns a call for the request that has turn t. Large calls have a pool of
// their own and are taken after the wait for a turn: thousands of requests may wait, and
// none of them should have that much memory.
func (s *Service) newCall(t *turn) *call {
	if t.of != nil {
		return s.largePool.Get().(*call)
	}
	return s.pool.Get().(*call)
}

// release keeps c for another request, unless c has grown too large.
func (s *Service) release(c *call) {
	if c.buf != nil {
		c.buf.Free()
		c.buf = nil
	}
	pool, share := &s.pool, smallShare
	if c.large {
		pool, share = &s.largePool, 1
	}
	if !c.answer.Reset(maxKeptList/share) || cap(c.entries) > maxKeptEntries/share || cap(c.req.Descriptors) > maxKeptList/share {
		return
	}
	clear(c.entries) // they point to what was read
	clear(c.req.Descriptors)
	pool.Put(c)
}

// serviceDesc returns the descriptor of RateLimitService. Its handler gets requests as the bytes
// that codec keeps.
func (s *Service) serviceDesc() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: pb.RateLimitService_ServiceDesc.ServiceName,
		HandlerType: (*any)(nil), // the handler needs no methods of the service
		Methods:     []grpc.MethodDesc{{MethodName: "ShouldRateLimit", Handler: s.handler()}},
		Metadata:    pb.RateLimitService_ServiceDesc.Metadata,
	}
}

// handler returns the gRPC handler of ShouldRateLimit.
func (s *Service) handler() grpc.MethodHandler {
	info := &grpc.UnaryServerInfo{Server: s, FullMethod: pb.RateLimitService_ShouldRateLimit_FullMethodName}
	answer := func(ctx context.Context, c any) (any, error) {
		r, err := s.answer(ctx, c.(*call))
		if err != nil {
			return nil, err
		}
		return r, nil
	}
	return func(_ any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
		c := s.pool.Get().(*call)
		defer s.release(c)
		if err := decode(c); err != nil {
			return nil, err
		}
		return intercept(ctx, c, info, answer)
	}
}

// answer decides on the request whose bytes c has. The bytes are parsed here and not in codec:
// grpc-go answers errors of a codec with INTERNAL, and they would not be counted.
func (s *Service) answer(ctx context.Context, c *call) (*reply, error) {
	data := c.buf.ReadOnlyData()
	t, err := s.turns.begin(ctx, wireBytes(data))
	if err != nil {
		s.cfg.OnError(err)
		return nil, grpcError(err)
	}
	defer t.end()
	if t.of != nil {
		c = s.newCall(&t) // the other one has buf
		defer s.release(c)
	}
	err = s.decide(ctx, c, data, &t)
	if err != nil {
		return nil, grpcError(err)
	}
	r, err := s.reply(c)
	if err != nil {
		return nil, grpcError(err)
	}
	r.charge(guarded(ctx))
	return r, nil
}

// grpcError returns what callers may know of err.
func grpcError(err error) error {
	class := classOf(err)
	return status.Error(class.code, class.text)
}

// codec is grpc-go's codec for protobuf, except that requests of RateLimitService and replies
// stay bytes.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(encproto.Name)} }

// Unmarshal reads a message into v. If v is a *call, it keeps the bytes and never fails.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*call)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	in.buf = data.MaterializeToBuffer(mem.DefaultBufferPool())
	return nil
}

// Marshal returns the bytes of the message v, or those that a *reply has.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	out, ok := v.(*reply)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	return mem.BufferSlice{mem.NewBuffer(&out.bytes, out)}, nil
}
