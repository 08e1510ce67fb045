package rls

import (
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// Envoy's 32-bit fields show at most 4294967295 of a large limit; JSON and headers show the whole numbers.
func TestLargeNumbers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		limit, remaining     uint64
		wantLimit, wantUnits uint32
		wantJSON, wantHeader string
	}{
		{
			4294967295, 4294967295, 4294967295, 4294967295,
			`"requestsPerUnit":4294967295,"unit":"MONTH"},"limitRemaining":4294967295,`, "L=4294967295 R=4294967295",
		},
		{
			100_000_000_000, 1, 4294967295, 1,
			`"requestsPerUnit":100000000000,"unit":"MONTH"},"limitRemaining":1,`, "L=100000000000 R=1",
		},
		{
			100_000_000_000, 99_999_999_999, 4294967295, 4294967295,
			`"requestsPerUnit":100000000000,"unit":"MONTH"},"limitRemaining":99999999999,`, "L=100000000000 R=99999999999",
		},
		{
			1 << 48, 1<<48 - 1, 4294967295, 4294967295,
			`"requestsPerUnit":281474976710656,"unit":"MONTH"},"limitRemaining":281474976710655,`,
			"L=281474976710656 R=281474976710655",
		},
	} {
		a := &limiter.Answer{Statuses: []limiter.Status{{BindingCharge: &limiter.Charge{
			Rule: &rules.Rule{}, Limit: rules.Rate{Requests: tt.limit, Unit: rules.UnitMonth, UnitMultiplier: 1},
			Verdict: &backend.Verdict{Outcome: algorithm.Outcome{Remaining: tt.remaining}},
		}}}}
		names := &HeaderNames{Limit: "L", Remaining: "R", Reset: "S"}
		var m pb.RateLimitResponse
		if err := proto.Unmarshal(names.appendHeaders(appendStatuses(nil, a), a), &m); err != nil {
			t.Fatal(err)
		}
		st := m.Statuses[0]
		if st.CurrentLimit.RequestsPerUnit != tt.wantLimit || st.LimitRemaining != tt.wantUnits {
			t.Errorf("%d of %d are %v", tt.remaining, tt.limit, st)
		}
		var headers []string
		for _, h := range m.ResponseHeadersToAdd {
			headers = append(headers, h.Key+"="+h.Value)
		}
		if got := strings.Join(headers, " "); got != tt.wantHeader+" S=0" {
			t.Errorf("%d of %d have the headers %s", tt.remaining, tt.limit, got)
		}
		if got, err := AppendJSONResponse(nil, a); err != nil || !strings.Contains(string(got), tt.wantJSON) {
			t.Errorf("%d of %d are %s, %v", tt.remaining, tt.limit, got, err)
		}
	}
}
