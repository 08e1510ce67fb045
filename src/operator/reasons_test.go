package operator

import (
	"slices"
	"testing"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
)

func TestOverReasons(t *testing.T) {
	for _, tt := range []struct {
		v      backend.Verdict
		amount uint64
		want   []string
	}{
		{backend.Verdict{Outcome: algorithm.Outcome{Before: 9}}, 1, []string{}},
		// a refund is never over
		{backend.Verdict{Outcome: algorithm.Outcome{Before: 20}}, 0, []string{}},
		// nothing was counted
		{backend.Verdict{Fallback: backend.FallbackDeny, Outcome: algorithm.Outcome{Over: true}}, 1, []string{}},
		{
			backend.Verdict{Fallback: backend.FallbackDeny, Outcome: algorithm.Outcome{Over: true, RetryAfter: algorithm.Never}},
			20,
			[]string{"count"},
		},
		{backend.Verdict{Outcome: algorithm.Outcome{Over: true, Before: 10}}, 1, []string{"count"}},
		// because of others of its group
		{backend.Verdict{Outcome: algorithm.Outcome{Over: true, Before: 5}}, 1, []string{"count"}},
		{
			backend.Verdict{Outcome: algorithm.Outcome{Over: true, WithinMinInterval: true, Before: 9}},
			1,
			[]string{"interval"},
		},
		{
			backend.Verdict{Outcome: algorithm.Outcome{Over: true, WithinMinInterval: true, Before: 9}},
			2,
			[]string{"count", "interval"},
		},
		// over this replica's share
		{
			backend.Verdict{
				Fallback: backend.FallbackLocal, Share: 5,
				Outcome: algorithm.Outcome{Over: true, WithinMinInterval: true, Before: 5},
			},
			1,
			[]string{"count", "interval"},
		},
		{
			backend.Verdict{Outcome: algorithm.Outcome{Over: true, WithinMinInterval: true, Before: algorithm.MaxCount}},
			algorithm.MaxAmount,
			[]string{"count", "interval"},
		},
	} {
		c := limiter.Charge{Verdict: &tt.v, RequestedAmount: tt.amount, Algorithm: &algorithm.Limit{Max: 10}}
		if got := OverReasons(&c); !slices.Equal(got, tt.want) {
			t.Errorf("%+v: %q, want %q", tt, got, tt.want)
		}
	}
}
