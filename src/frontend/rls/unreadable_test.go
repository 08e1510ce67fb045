package rls

import (
	"bytes"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// raw sends bytes as a request, whatever they are.
func raw(t *testing.T, conn *grpc.ClientConn, data []byte) (*pb.RateLimitResponse, error) {
	t.Helper()
	resp := new(pb.RateLimitResponse)
	err := conn.Invoke(t.Context(), pb.RateLimitService_ShouldRateLimit_FullMethodName, data, resp,
		grpc.ForceCodecV2(rawCodec{newCodec()}))
	return resp, err
}

// rawCodec sends []byte as it is.
type rawCodec struct{ codec }

func (c rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

// wire is a request in protobuf, whose texts need not be UTF-8.
func wire(domain string, descriptors ...[]rules.Entry) []byte {
	text := func(b []byte, n protowire.Number, s []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), s)
	}
	msg := text(nil, 1, []byte(domain))
	for _, entries := range descriptors {
		var d []byte
		for _, e := range entries {
			d = text(d, 1, text(text(nil, 1, e.Key), 2, e.Value))
		}
		msg = text(msg, 2, d)
	}
	return msg
}

// One byte that is not UTF-8 must not get a request past its limits: Envoy
// sends header values as they come, and lets failures pass.
func TestNotUTF8(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		f := start(t, nil)
		_, conn := dial(t, f, cfg)
		odd := []rules.Entry{{Key: []byte("ip"), Value: []byte("1\xff\xfe2")}}
		for i, want := range []pb.RateLimitResponse_Code{
			pb.RateLimitResponse_OK, pb.RateLimitResponse_OK,
			pb.RateLimitResponse_OVER_LIMIT,
		} {
			resp, err := raw(t, conn, wire("d", odd, []rules.Entry{{Key: []byte("staff"), Value: []byte("\x80")}}))
			if err != nil || resp.GetOverallCode() != want || len(resp.GetStatuses()) != 2 {
				t.Errorf("request %d: %v, %v", i+1, resp, err)
			}
		}
		if _, err := raw(t, conn, wire("d\xff", odd)); err != nil {
			t.Errorf("domain: %v", err)
		}
		if failed := f.failed(); len(failed) > 0 {
			t.Errorf("failures: %v", failed)
		}
	})
}

func TestUnreadableMessages(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		many := make([][]rules.Entry, limiter.MaxDescriptors+1)
		entries := make([]rules.Entry, maxRequestEntries+1)
		for _, tt := range []struct {
			name string
			data []byte
			code codes.Code
			text string
		}{
			{
				"cut off", wire("d", []rules.Entry{{Key: []byte("ip")}})[:8], codes.InvalidArgument,
				"bad request: not a RateLimitRequest",
			},
			{"not protobuf", []byte("GET / HTTP/1.1\r\n"), codes.InvalidArgument, "bad request: not a RateLimitRequest"},
			{
				"not protobuf, and long", bytes.Repeat([]byte{0xFF}, 1<<16), codes.InvalidArgument,
				"bad request: not a RateLimitRequest",
			},
			{
				"too many descriptors", wire("d", many...), codes.ResourceExhausted,
				"bad request: too large: more than 1000 descriptors",
			},
			{
				"far too many", append(wire("d"), bytes.Repeat([]byte{2<<3 | 2, 0}, 2_000_000)...), codes.ResourceExhausted,
				"bad request: too large: more than 1000 descriptors",
			},
			{"too many entries", wire("d", entries), codes.ResourceExhausted, "bad request: too large: more than 16000 entries"},
		} {
			f := start(t, nil)
			_, conn := dial(t, f, cfg)
			_, err := raw(t, conn, tt.data)
			if status.Code(err) != tt.code || !strings.HasPrefix(status.Convert(err).Message(), tt.text) {
				t.Errorf("%s: got %v", tt.name, err)
			}
			if len(f.failed()) != 1 {
				t.Errorf("%s: told of %v", tt.name, f.failed())
			}
		}
	})
}
