package rls

import (
	"bytes"
	"context"
	"fmt"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	encproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"ratelimit/src/limiter"
)

// serviceDesc is RateLimitService with a handler that takes what codec makes.
func (s *Service) serviceDesc() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: pb.RateLimitService_ServiceDesc.ServiceName,
		HandlerType: (*pb.RateLimitServiceServer)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "ShouldRateLimit", Handler: s.handler()}},
		Metadata:    pb.RateLimitService_ServiceDesc.Metadata,
	}
}

// handler takes the bytes of a request to an answer.
func (s *Service) handler() grpc.MethodHandler {
	info := &grpc.UnaryServerInfo{Server: s, FullMethod: pb.RateLimitService_ShouldRateLimit_FullMethodName}
	answer := func(ctx context.Context, c any) (any, error) { return s.answer(ctx, c.(*call)) }
	return func(_ any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
		c := s.pool.Get().(*call)
		defer s.release(c)
		if err := decode(c); err != nil {
			return nil, err
		}
		return intercept(ctx, c, info, answer)
	}
}

// answer decides on the request in c. What it returns is for codec: a *reply,
// or a message for whatever scan and appendResponse leave out. What is wrong
// with the bytes is found here and not in codec, whose errors would be INTERNAL
// and counted nowhere.
func (s *Service) answer(ctx context.Context, c *call) (any, error) {
	data := c.buf.ReadOnlyData()
	if s.cfg.Metadata || !c.scan(data) {
		msg, err := unmarshal(data)
		if err != nil {
			return nil, s.refuse(err)
		}
		return s.ShouldRateLimit(ctx, msg)
	}
	if err := s.check(ctx, c); err != nil {
		return nil, s.refuse(err)
	}
	b := replies.Get(0)
	*b = s.appendResponse(*b, &c.answer)
	return (*reply)(b), nil
}

// codec is protobuf's, but for calls of RateLimitService, which stay bytes.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(encproto.Name)} }

// Unmarshal reads a message into v; a *call keeps the bytes, and that never
// fails.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*call)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	in.buf = data.MaterializeToBuffer(mem.DefaultBufferPool())
	return nil
}

// Marshal writes the message v, or hands on the bytes of a *reply.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	out, ok := v.(*reply)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	return mem.BufferSlice{mem.NewBuffer((*[]byte)(out), &replies)}, nil
}

// unmarshal reads a request. Text that is not UTF-8 is no error: Envoy hands on
// header values as they come, and whoever could make us fail with one byte
// would get past every limit where the filter lets failures pass.
func unmarshal(data []byte) (*pb.RateLimitRequest, error) {
	if err := checkSize(data); err != nil {
		return nil, err
	}
	msg := new(pb.RateLimitRequest)
	err := proto.Unmarshal(data, msg)
	if err != nil {
		if valid, ok := repair(nil, data, requestTexts); ok {
			msg = new(pb.RateLimitRequest)
			err = proto.Unmarshal(valid, msg)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: not a RateLimitRequest: %w", limiter.ErrRequest, err)
	}
	return msg, nil
}

// maxEntries bounds the entries of all descriptors of a request together.
const maxEntries = 16 * limiter.MaxDescriptors

var (
	errDescriptors = fmt.Errorf("%w: more than %d descriptors", limiter.ErrTooLarge, limiter.MaxDescriptors)
	errEntries     = fmt.Errorf("%w: more than %d entries", limiter.ErrTooLarge, maxEntries)
)

// checkSize counts descriptors and entries before memory is spent on them: an
// empty one takes two bytes on the wire and a hundred times that as a message.
func checkSize(data []byte) error {
	if len(data) < 2*limiter.MaxDescriptors {
		return nil // too short for too many
	}
	entries := 0
	descriptors, err := count(data, 2, func(d []byte) error {
		n, err := count(d, 1, nil)
		entries += n
		return err
	})
	switch {
	case err != nil:
		return err
	case descriptors > limiter.MaxDescriptors:
		return errDescriptors
	case entries > maxEntries:
		return errEntries
	}
	return nil
}

// count returns how many fields of a message have the given number, and calls
// each, if not nil, with what is in them.
func count(data []byte, number protowire.Number, each func([]byte) error) (n int, err error) {
	for len(data) > 0 {
		num, typ, tag := protowire.ConsumeTag(data)
		if tag < 0 {
			return 0, fmt.Errorf("%w: not a RateLimitRequest: %w", limiter.ErrRequest, protowire.ParseError(tag))
		}
		size := protowire.ConsumeFieldValue(num, typ, data[tag:])
		if size < 0 {
			return 0, fmt.Errorf("%w: not a RateLimitRequest: %w", limiter.ErrRequest, protowire.ParseError(size))
		}
		if num == number && typ == protowire.BytesType {
			n++
			if each != nil {
				inner, _ := protowire.ConsumeBytes(data[tag:])
				if err := each(inner); err != nil {
					return 0, err
				}
			}
		}
		data = data[tag+size:]
	}
	return n, nil
}

// texts says which fields of a message are text (nil) or messages with text.
type texts map[protowire.Number]texts

// requestTexts are domain, and of each descriptor the entries' key and value.
var requestTexts = texts{1: nil, 2: {1: {1: nil, 2: nil}}}

// repair appends src to dst with U+FFFD for what is not UTF-8 in its texts.
func repair(dst, src []byte, fields texts) ([]byte, bool) {
	for len(src) > 0 {
		num, typ, tag := protowire.ConsumeTag(src)
		if tag < 0 {
			return nil, false
		}
		size := protowire.ConsumeFieldValue(num, typ, src[tag:])
		if size < 0 {
			return nil, false
		}
		inner, known := fields[num]
		if known && typ == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(src[tag:])
			if inner == nil {
				value = bytes.ToValidUTF8(value, []byte("\uFFFD"))
			} else {
				var ok bool
				if value, ok = repair(nil, value, inner); !ok {
					return nil, false
				}
			}
			dst = protowire.AppendBytes(protowire.AppendTag(dst, num, typ), value)
		} else {
			dst = append(dst, src[:tag+size]...)
		}
		src = src[tag+size:]
	}
	return dst, true
}
