package rls

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"ratelimit/src/backend"
	"ratelimit/src/limiter"
)

func TestAnswers(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		f := start(t, nil)
		_, conn := dial(t, f, cfg)
		client := pb.NewRateLimitServiceClient(conn)
		steps := []struct {
			name string
			req  *pb.RateLimitRequest
			want string // as /json would write it, without durations
		}{
			{
				"within", request(descriptor("ip", "1")),
				`{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"name":"per-ip","requestsPerUnit":2,"unit":"DAY"},"limitRemaining":1}]}`,
			},
			{
				"request hits", &pb.RateLimitRequest{
					Domain: "d", HitsAddend: 2,
					Descriptors: []*common.RateLimitDescriptor{descriptor("ip", "1")},
				},
				`{"overallCode":"OVER_LIMIT","statuses":[{"code":"OVER_LIMIT","currentLimit":{"name":"per-ip","requestsPerUnit":2,"unit":"DAY"}}]}`,
			},
			{
				"descriptor hits win", &pb.RateLimitRequest{
					Domain: "d", HitsAddend: 2,
					Descriptors: []*common.RateLimitDescriptor{{
						Entries:    descriptor("ip", "2").Entries,
						HitsAddend: wrapperspb.UInt64(0),
					}},
				},
				`{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"name":"per-ip","requestsPerUnit":2,"unit":"DAY"},"limitRemaining":2}]}`,
			},
			{
				"refund", request(&common.RateLimitDescriptor{
					Entries:    descriptor("ip", "1").Entries,
					HitsAddend: wrapperspb.UInt64(3), IsNegativeHits: true,
				}),
				`{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"name":"per-ip","requestsPerUnit":2,"unit":"DAY"},"limitRemaining":2}]}`,
			},
			{
				"multiplier", request(descriptor("pay", "x")),
				`{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"requestsPerUnit":3,"unit":"HOUR","unitMultiplier":6},"limitRemaining":2}]}`,
			},
			{
				"unlimited, unmatched", request(descriptor("staff", "x"), descriptor("nobody", "x"), descriptor()),
				`{"overallCode":"OK","statuses":[{"code":"OK","limitRemaining":4294967295},{"code":"OK"},{"code":"OK"}]}`,
			},
			{"limit of the request", request(&common.RateLimitDescriptor{
				Entries: descriptor("ip", "3").Entries,
				Limit: &common.RateLimitDescriptor_RateLimitOverride{
					RequestsPerUnit: 5, Unit: typev3.RateLimitUnit_HOUR,
					UnitMultiplier: wrapperspb.UInt32(2),
				},
			}), `{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"requestsPerUnit":5,"unit":"HOUR","unitMultiplier":2},"limitRemaining":4}]}`},
			{"limit by the week, which requests have no name for", request(&common.RateLimitDescriptor{
				Entries: descriptor("ip", "3").Entries,
				Limit:   &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 5, Unit: 7},
			}), `{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"requestsPerUnit":5,"unit":"WEEK"},"limitRemaining":4}]}`},
		}
		for _, st := range steps {
			t.Run(st.name, func(t *testing.T) {
				resp, err := client.ShouldRateLimit(t.Context(), st.req)
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range resp.GetStatuses() {
					if reset := s.GetDurationUntilReset(); (reset == nil) != (s.GetCurrentLimit() == nil) ||
						reset != nil && (reset.GetSeconds() <= 0 || reset.GetNanos() != 0) {
						t.Errorf("duration_until_reset %v beside current_limit %v", reset, s.GetCurrentLimit())
					}
					s.DurationUntilReset = nil
				}
				text, err := compactJSON(resp)
				if err != nil {
					t.Fatal(err)
				}
				if got := strings.TrimSpace(string(text)); got != st.want {
					t.Errorf("\n got %s\nwant %s", got, st.want)
				}
			})
		}
		if failed := f.failed(); len(failed) > 0 {
			t.Errorf("failures: %v", failed)
		}
	})
}

// broken is a store in some kind of trouble.
type broken struct{ answer func(*backend.Batch) error }

func (b broken) Take(_ context.Context, batch *backend.Batch) error { return b.answer(batch) }

var errSecret = errors.New("INCRBY d_ip_10.0.0.7_: connection refused")

// overloaded is a store that works, and has no time for the request.
func overloaded(b *backend.Batch) error {
	for i := range b.Verdicts {
		b.Verdicts[i] = backend.Verdict{Err: fmt.Errorf("%w: %w", errSecret, backend.ErrOverload)}
	}
	return nil
}

func unanswered(b *backend.Batch) error {
	for i := range b.Verdicts {
		b.Verdicts[i] = backend.Verdict{Err: errSecret}
	}
	return nil
}

func TestErrors(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		badLimit := descriptor("ip", "1")
		badLimit.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1}
		oddLimit := descriptor("ip", "1")
		oddLimit.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1, Unit: 99}
		longLimit := descriptor("ip", "1")
		longLimit.Limit = &common.RateLimitDescriptor_RateLimitOverride{
			RequestsPerUnit: 1, Unit: typev3.RateLimitUnit_YEAR,
			UnitMultiplier: wrapperspb.UInt32(1 << 31),
		}
		noMultiplier := descriptor("ip", "1")
		noMultiplier.Limit = &common.RateLimitDescriptor_RateLimitOverride{
			RequestsPerUnit: 1, Unit: typev3.RateLimitUnit_DAY,
			UnitMultiplier: wrapperspb.UInt32(0),
		}
		tests := []struct {
			name  string
			store backend.Backend
			req   *pb.RateLimitRequest
			code  codes.Code
			text  string
		}{
			{"no domain", nil, &pb.RateLimitRequest{}, codes.InvalidArgument, "bad request: the domain is empty"},
			{"no descriptors", nil, request(), codes.InvalidArgument, "bad request: there are no descriptors"},
			{
				"no unit", nil, request(badLimit), codes.InvalidArgument,
				"bad request: descriptor 0: limit: the unit is not second, minute, hour, day, week, month or year",
			},
			{
				"odd unit", nil, request(oddLimit), codes.InvalidArgument,
				"bad request: descriptor 0: limit: the unit is not second, minute, hour, day, week, month or year",
			},
			{
				"no multiplier", nil, request(noMultiplier), codes.InvalidArgument,
				"bad request: descriptor 0: limit: the unit_multiplier is 0",
			},
			{
				"long window", nil, request(longLimit), codes.InvalidArgument,
				"bad request: descriptor 0: limit: the window is longer than 100 years",
			},
			{"store", broken{unanswered}, request(descriptor("ip", "1")), codes.Unavailable, "the store did not answer"},
			{
				"too much for the store",
				broken{overloaded},
				request(descriptor("ip", "1")), codes.ResourceExhausted,
				"the request needs more time of the store than there is",
			},
			{
				"misuse",
				broken{func(*backend.Batch) error { return errSecret }},
				request(descriptor("ip", "1")), codes.Internal,
				"internal error",
			},
			{
				"panic",
				broken{func(*backend.Batch) error { panic(errSecret) }},
				request(descriptor("ip", "1")), codes.Internal,
				"internal error",
			},
		}
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				f := start(t, tt.store)
				_, conn := dial(t, f, cfg)
				_, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), tt.req)
				if status.Code(err) != tt.code || status.Convert(err).Message() != tt.text {
					t.Errorf("got %v, want %v: %s", err, tt.code, tt.text)
				}
				if failed := f.failed(); len(failed) != 1 {
					t.Errorf("told of %d failures, want 1: %v", len(failed), failed)
				}
			})
		}
	})
}

func TestNotReady(t *testing.T) {
	f := start(t, nil)
	f.cfg.Limiter = limiter.New(limiter.Config{})
	_, err := f.ShouldRateLimit(t.Context(), request(descriptor("ip", "1")))
	if status.Code(err) != codes.Unavailable {
		t.Errorf("got %v, want Unavailable", err)
	}
}
