package algorithm

import (
	"testing"
	"time"
	"unsafe"
)

func TestUncharged(t *testing.T) {
	const s = time.Second
	tests := []struct {
		name              string
		kind              Kind
		look, tried, want Outcome
	}{
		{
			name:  "it would have passed",
			look:  Outcome{Before: 2, After: 2, Remaining: 3, ResetAfter: s},
			tried: Outcome{Before: 2, After: 4, Remaining: 1, ResetAfter: s, Charged: true},
			want:  Outcome{Before: 2, After: 2, Remaining: 3, ResetAfter: s},
		},
		{
			name: "it is over",
			look: Outcome{Over: true, WithinMinInterval: true, Before: 5, After: 5, RetryAfter: s, ResetAfter: 2 * s},
			tried: Outcome{
				Over: true, WithinMinInterval: true, Before: 5, After: 6, RetryAfter: 2 * s, ResetAfter: 2 * s,
				Charged: true,
			},
			want: Outcome{Over: true, WithinMinInterval: true, Before: 5, After: 5, RetryAfter: s, ResetAfter: 2 * s},
		},
		{
			name:  "it is over for those before it alone",
			look:  Outcome{Before: 2, After: 2, Remaining: 3, ResetAfter: s},
			tried: Outcome{Over: true, Before: 4, After: 4, RetryAfter: 2 * s, ResetAfter: 2 * s},
			want:  Outcome{Over: true, Before: 2, After: 2, RetryAfter: 2 * s, ResetAfter: s},
		},
		{
			name:  "it is over for those before it alone, in a bucket",
			kind:  GCRA,
			look:  Outcome{Before: 2, After: 2, Remaining: 3, ResetAfter: s},
			tried: Outcome{Over: true, Before: 4, After: 4, Remaining: 1, RetryAfter: 2 * s, ResetAfter: 2 * s},
			want:  Outcome{Over: true, Before: 2, After: 2, Remaining: 3, RetryAfter: 2 * s, ResetAfter: s},
		},
		{
			name:  "a refund on a state that is over",
			look:  Outcome{Over: true, Before: 5, After: 5, RetryAfter: s, ResetAfter: s},
			tried: Outcome{Before: 5, After: 3, ResetAfter: s, Charged: true},
			want:  Outcome{Before: 5, After: 5, ResetAfter: s},
		},
	}
	for _, test := range tests {
		if got := UnchargedOutcome(&Limit{Kind: test.kind}, test.look, test.tried); got != test.want {
			t.Errorf("%s:\n got %+v\nwant %+v", test.name, got, test.want)
		}
	}
}

// Outcomes are copied several times for each hit.
func TestOutcomesAreFastToCopy(t *testing.T) {
	t.Parallel()
	if size := unsafe.Sizeof(Outcome{}); size%16 != 0 {
		t.Errorf("an Outcome has %d bytes, which is no multiple of 16", size)
	}
}

func TestOpNames(t *testing.T) {
	for op, want := range map[Op]string{Charge: "charge", Look: "look", Refund: "refund", Force: "force", 4: "op 4"} {
		if got := op.String(); got != want {
			t.Errorf("%d is %q, want %q", uint8(op), got, want)
		}
	}
}
