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

// received is a request as it came off the wire. What is wrong with it is the
// handler's to answer: an error of a codec would be INTERNAL, counted nowhere.
type received struct {
	msg *pb.RateLimitRequest
	err error
}

// serviceDesc is RateLimitService with a handler that takes what codec makes.
func (s *Service) serviceDesc() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: pb.RateLimitService_ServiceDesc.ServiceName,
		HandlerType: (*pb.RateLimitServiceServer)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "ShouldRateLimit", Handler: s.handle}},
		Metadata:    pb.RateLimitService_ServiceDesc.Metadata,
	}
}

func (s *Service) handle(_ any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
	in := new(received)
	if err := decode(in); err != nil {
		return nil, err
	}
	info := &grpc.UnaryServerInfo{Server: s, FullMethod: pb.RateLimitService_ShouldRateLimit_FullMethodName}
	return intercept(ctx, in, info, func(ctx context.Context, _ any) (any, error) {
		if in.err != nil {
			return nil, s.refuse(in.err)
		}
		return s.ShouldRateLimit(ctx, in.msg)
	})
}

// codec is protobuf's, but for requests of RateLimitService.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(encproto.Name)} }

// Unmarshal reads a message into v; of a *received it never fails.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*received)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	in.msg, in.err = unmarshal(buf.ReadOnlyData())
	return nil
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
	errDescriptors = fmt.Errorf("%w: more than %d descriptors", limiter.ErrRequest, limiter.MaxDescriptors)
	errEntries     = fmt.Errorf("%w: more than %d entries", limiter.ErrRequest, maxEntries)
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
