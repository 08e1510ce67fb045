package bench

import (
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

const (
	ok   = pb.RateLimitResponse_OK
	over = pb.RateLimitResponse_OVER_LIMIT
)

// response is one with everything that stands around the code.
func response(t testing.TB, code pb.RateLimitResponse_Code) []byte {
	t.Helper()
	wire, err := proto.Marshal(&pb.RateLimitResponse{
		OverallCode: code,
		Statuses: []*pb.RateLimitResponse_DescriptorStatus{
			{Code: over, CurrentLimit: &pb.RateLimitResponse_RateLimit{
				RequestsPerUnit: 7,
				Unit:            pb.RateLimitResponse_RateLimit_DAY,
			}},
			{Code: ok},
		},
		ResponseHeadersToAdd: []*core.HeaderValue{{Key: "RateLimit-Limit", Value: "7"}},
		RawBody:              []byte("body"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return wire
}

func TestOverallCode(t *testing.T) {
	for _, tt := range []struct {
		name string
		wire []byte
		want pb.RateLimitResponse_Code
		bad  bool
	}{
		{name: "nothing", want: pb.RateLimitResponse_UNKNOWN},
		{name: "alone", wire: []byte{8, 1}, want: ok},
		{name: "with the rest", wire: response(t, over), want: over},
		{name: "behind the rest", wire: append(response(t, 0), 8, 1), want: ok},
		{name: "twice: the last counts", wire: []byte{8, 1, 8, 2}, want: over},
		{name: "of another type: not ours", wire: []byte{8, 1, 10, 1, 2}, want: ok},
		{name: "without a name", wire: []byte{8, 9}, want: 9},
		{name: "negative", wire: []byte{8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, want: -1},
		{name: "cut in the tag", wire: []byte{0x88}, bad: true},
		{name: "cut in the code", wire: []byte{8, 0x81}, bad: true},
		{name: "cut in another field", wire: []byte{8, 1, 18, 5, 1}, bad: true},
		{name: "field 0", wire: []byte{0, 1}, bad: true},
	} {
		got, err := OverallCode(tt.wire)
		if got != tt.want || (err != nil) != tt.bad {
			t.Errorf("%s: got %v, %v, want %v", tt.name, got, err, tt.want)
		}
	}
}

func TestNamesLimit(t *testing.T) {
	t.Parallel()
	type status = pb.RateLimitResponse_DescriptorStatus
	limited := &status{Code: ok, CurrentLimit: &pb.RateLimitResponse_RateLimit{RequestsPerUnit: 7}}
	for name, tt := range map[string]struct {
		statuses        []*status
		hasAny, isLimit bool
	}{
		"an empty service": {},
		"no rule":          {[]*status{{Code: ok}, {Code: ok, LimitRemaining: 7}}, true, false},
		"a rule":           {[]*status{{Code: ok}, limited}, true, true},
	} {
		wire, err := proto.Marshal(&pb.RateLimitResponse{OverallCode: ok, Statuses: tt.statuses, RawBody: []byte("body")})
		if err != nil {
			t.Fatal(err)
		}
		if hasAny, isLimit := namesLimit(wire); hasAny != tt.hasAny || isLimit != tt.isLimit {
			t.Errorf("%s: got %t, %t", name, hasAny, isLimit)
		}
	}
	namesLimit([]byte{18, 5, 1}) // It is cut, and must not panic.
}

func FuzzOverallCode(f *testing.F) {
	f.Add(response(f, over))
	f.Add([]byte{8, 1, 8, 2})
	f.Add([]byte{8, 1, 0x13, 0x1b, 0x1c, 0x14}) // groups
	f.Add([]byte{0x88, 0x80, 0x80, 0x80, 0, 1})
	f.Fuzz(func(t *testing.T, wire []byte) {
		got, err := OverallCode(wire)
		var msg pb.RateLimitResponse
		if proto.Unmarshal(wire, &msg) != nil {
			return // what is within other fields is not looked at
		}
		if err != nil || got != msg.GetOverallCode() {
			t.Errorf("got %v, %v, want %v", got, err, msg.GetOverallCode())
		}
	})
}

func TestCodec(t *testing.T) {
	var c codec
	m := mem.BufferSlice{mem.SliceBuffer("wire")}
	code := answer{limits: new(limitsSeen)}
	whole := mem.BufferSlice{mem.SliceBuffer(response(t, over))}
	allocs := testing.AllocsPerRun(100, func() {
		if sent, err := c.Marshal(&m); err != nil || string(sent[0].ReadOnlyData()) != "wire" {
			t.Error(sent, err)
		}
		if err := c.Unmarshal(whole, &code); err != nil || code.code != over {
			t.Error(code, err)
		}
	})
	if allocs > 0 {
		t.Errorf("%v allocations", allocs)
	}
	parts := mem.BufferSlice{mem.SliceBuffer{8}, mem.SliceBuffer{1}}
	if err := c.Unmarshal(parts, &code); err != nil || code.code != ok {
		t.Error("in parts:", code, err)
	}
	if err := c.Unmarshal(nil, &code); err != nil || code.code != pb.RateLimitResponse_UNKNOWN {
		t.Error("nothing:", code, err)
	}
	if _, err := c.Marshal("text"); err == nil {
		t.Error("text was marshalled")
	}
	if err := c.Unmarshal(whole, new(string)); err == nil {
		t.Error("text was unmarshalled")
	}
}
