package bench

import (
	"fmt"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// message is a marshalled request. Several calls may send it at a time: gRPC only reads it.
type message mem.BufferSlice

func newMessage(wire []byte) message { return message{mem.SliceBuffer(wire)} }

// answer is the part of a response that is read.
type answer struct{ code pb.RateLimitResponse_Code }

// codec sends *message as it is and reads *answer.
type codec struct{}

// Name is empty so that the content type is application/grpc, as Envoy sends it.
func (codec) Name() string { return "" }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*message)
	if !ok {
		return nil, fmt.Errorf("%T is no message", v)
	}
	return mem.BufferSlice(*m), nil
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	a, ok := v.(*answer)
	if !ok {
		return fmt.Errorf("%T is no answer", v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	var err error
	a.code, err = overallCode(buf.ReadOnlyData())
	return err
}

// overallCode returns overall_code of a RateLimitResponse. It does not check the messages within the response.
func overallCode(wire []byte) (pb.RateLimitResponse_Code, error) {
	const field = 1
	var code pb.RateLimitResponse_Code
	for len(wire) > 0 {
		num, typ, tag := protowire.ConsumeTag(wire)
		if tag < 0 {
			return 0, protowire.ParseError(tag)
		}
		wire = wire[tag:]
		if num == field && typ == protowire.VarintType {
			v, n := protowire.ConsumeVarint(wire)
			if n < 0 {
				return 0, protowire.ParseError(n)
			}
			code = pb.RateLimitResponse_Code(v) // the last one counts
			wire = wire[n:]
			continue
		}
		n := protowire.ConsumeFieldValue(num, typ, wire)
		if n < 0 {
			return 0, protowire.ParseError(n)
		}
		wire = wire[n:]
	}
	return code, nil
}
