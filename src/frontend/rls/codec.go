package rls

import (
	"bytes"
	"context"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	encproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
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

// answer decides on the request in c. It returns a *reply, or a message where
// appendResponse leaves something out. Errors in the bytes are found here and not in
// codec, whose errors would be INTERNAL and counted nowhere.
func (s *Service) answer(ctx context.Context, c *call) (any, error) {
	data := c.buf.ReadOnlyData()
	t, err := s.turns.begin(ctx, wireBytes(data))
	if err != nil {
		return nil, s.refuse(err)
	}
	defer t.end()
	if t.of != nil {
		c = s.begin(&t) // the other one has buf
		defer s.release(c)
	}
	if err := c.scan(data); err != nil {
		return nil, s.refuse(err)
	}
	if err := s.check(ctx, c, &t); err != nil {
		return nil, s.refuse(err)
	}
	if s.cfg.Metadata {
		msg, err := unmarshal(data)
		if err != nil {
			return nil, s.refuse(err)
		}
		resp, err := s.response(msg, &c.answer)
		if err != nil {
			return nil, s.refuse(err)
		}
		return resp, nil
	}
	r := newReply(len(c.answer.Statuses))
	r.bytes = s.appendResponse(r.bytes[:0], &c.answer)
	r.charge(guarded(ctx))
	return r, nil
}

// codec is protobuf's, but for requests of RateLimitService and for replies, which
// stay bytes.
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
	return mem.BufferSlice{mem.NewBuffer(&out.bytes, out)}, nil
}

// unmarshal reads a request as a message, with U+FFFD for each run of bytes that is
// not UTF-8: messages cannot hold others.
func unmarshal(data []byte) (*pb.RateLimitRequest, error) {
	msg := new(pb.RateLimitRequest)
	err := proto.Unmarshal(data, msg)
	if err != nil {
		if valid, ok := repairFields(nil, data, requestTexts); ok {
			msg = new(pb.RateLimitRequest)
			err = proto.Unmarshal(valid, msg)
		}
	}
	if err != nil {
		return nil, errMalformed
	}
	return msg, nil
}

// texts says which fields of a message are text (nil) or messages with text.
type texts map[protowire.Number]texts

// requestTexts are domain, and of each descriptor the entries' key and value.
var requestTexts = texts{1: nil, 2: {1: {1: nil, 2: nil}}}

// repairFields appends src to dst with U+FFFD for what is not UTF-8 in its texts.
func repairFields(dst, src []byte, fields texts) ([]byte, bool) {
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
				if value, ok = repairFields(nil, value, inner); !ok {
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
