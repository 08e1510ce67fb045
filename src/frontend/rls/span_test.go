package rls

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"ratelimit/src/backend"
)

// A span always ends with the error text for callers, and the decision is made in the
// span's context.
func TestSpan(t *testing.T) {
	type key struct{}
	for _, tt := range []struct {
		name   string
		answer func(*backend.Batch) error
		req    *pb.RateLimitRequest
		want   string
	}{
		{"good", func(*backend.Batch) error { return nil }, request(descriptor("ip", "1")), ""},
		{"bad request", nil, request(), "bad request: there are no descriptors"},
		{"store", unanswered, request(descriptor("ip", "1")), "the store did not answer"},
		{"panic", func(*backend.Batch) error { panic(errSecret) }, request(descriptor("ip", "1")), "panic"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := start(t, inSpan{func(ctx context.Context, b *backend.Batch) error {
				if ctx.Value(key{}) != true {
					t.Error("another context")
				}
				return tt.answer(b)
			}})
			var ends []string
			f.cfg.StartSpan = func(ctx context.Context, domain string, req fmt.Stringer) (context.Context, func(string)) {
				if domain != "d" || !strings.HasPrefix(req.String(), `domain:"d"`) {
					t.Errorf("told of %s, %s", domain, req)
				}
				return context.WithValue(ctx, key{}, true), func(problem string) { ends = append(ends, problem) }
			}
			body, err := protojson.Marshal(tt.req)
			if err != nil {
				t.Fatal(err)
			}
			for _, ask := range []func(){
				func() { post(f.JSONHandler(), string(body)) },
				func() {
					_, _ = f.Service.answerGRPC(t.Context(), &callMemory{receivedMessage: mem.SliceBuffer(encode(t, tt.req))})
				},
			} {
				ends = nil
				func() {
					defer func() { _ = recover() }()
					ask()
				}()
				if !slices.Equal(ends, []string{tt.want}) {
					t.Errorf("ended with %q, want %q", ends, tt.want)
				}
			}
		})
	}
}

func TestDescribed(t *testing.T) {
	long := descriptor("ip", strings.Repeat("x", 1<<20))
	many := descriptor()
	for range maxRequestEntries {
		many.Entries = append(many.Entries, descriptor("a", "b").GetEntries()...)
	}
	for _, tt := range []struct {
		req  *pb.RateLimitRequest
		want string
	}{
		{
			request(descriptor("ip", "1\n\"", "b", ""), descriptor("c", "é")),
			`domain:"d" descriptors:{entries:{key:"ip" value:"1\n\""} entries:{key:"b" value:""}} descriptors:{entries:{key:"c" value:"é"}}`,
		},
		{&pb.RateLimitRequest{HitsAddend: 3, Descriptors: []*common.RateLimitDescriptor{{
			Limit:          &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 5, Unit: typev3.RateLimitUnit_HOUR},
			HitsAddend:     wrapperspb.UInt64(0),
			IsNegativeHits: true,
		}}}, `domain:"" descriptors:{ limit:{requests_per_unit:5 unit:HOUR unit_multiplier:1} hits_addend:{value:0} is_negative_hits:true} hits_addend:3`},
		{
			request(long, descriptor("b", "c")),
			`domain:"d" descriptors:{entries:{key:"ip" value:"` + strings.Repeat("x", maxRequestTextBytes) + `"}} …`,
		},
		{
			request(many, descriptor("b", "c")),
			`domain:"d" descriptors:{` + strings.Repeat(`entries:{key:"a" value:"b"} `, 146) + `…} …`,
		},
	} {
		c := new(callMemory)
		c.read(tt.req)
		if got := (*requestText)(&c.req).String(); got != tt.want {
			t.Errorf("\n got %s\nwant %s", got, tt.want)
		}
	}
}

type inSpan struct {
	answer func(context.Context, *backend.Batch) error
}

func (s inSpan) Take(ctx context.Context, b *backend.Batch) error { return s.answer(ctx, b) }
