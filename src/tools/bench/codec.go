package bench

import (
	"fmt"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// codec sends a *mem.BufferSlice that is marshalled already, and reads only the overall code of a response, into a
// *pb.RateLimitResponse_Code. Several calls may send the same message, because gRPC only reads it.
type codec struct{}

// Name is empty so that the content type is application/grpc, as Envoy sends it.
func (codec) Name() string { return "" }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*mem.BufferSlice)
	if !ok {
		return nil, fmt.Errorf("%T is no message", v)
	}
	return *m, nil
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	code, ok := v.(*pb.RateLimitResponse_Code)
	if !ok {
		return fmt.Errorf("%T is no code", v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	var err error
	*code, err = OverallCode(buf.ReadOnlyData())
	return err
}

// OverallCode returns overall_code of a RateLimitResponse. It does not check the messages within the response.
func OverallCode(wire []byte) (code pb.RateLimitResponse_Code, _ error) {
	const overallCodeField = 1
	for len(wire) > 0 {
		field, kind, n := protowire.ConsumeTag(wire)
		if n < 0 {
			return 0, protowire.ParseError(n)
		}
		wire = wire[n:]
		if n = protowire.ConsumeFieldValue(field, kind, wire); n < 0 {
			return 0, protowire.ParseError(n)
		}
		if field == overallCodeField && kind == protowire.VarintType {
			v, _ := protowire.ConsumeVarint(wire)
			code = pb.RateLimitResponse_Code(v) // If the field is repeated, the last value counts.
		}
		wire = wire[n:]
	}
	return code, nil
}
