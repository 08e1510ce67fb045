package algorithm

import (
	"testing"
	"time"
)

// When a limit is lowered below what open holds reserve, the wait of a bucket does not depend on when it was full last:
// it is the shortest one after which the request passes.
func TestWaitWithHoldsAboveALoweredLimit(t *testing.T) {
	t.Parallel()
	const hold = 30 * time.Second
	high := Limit{Kind: GCRA, Max: 10, Burst: 9, Period: time.Minute, Hold: hold}
	low := Limit{Kind: GCRA, Max: 3, Burst: 2, Period: time.Minute, Hold: hold}
	at := thursday.UnixNano()
	for name, before := range map[string]int64{"never used": 0, "full for 18 s": at - int64(18*time.Second)} {
		s := HeldState{Base: State{GCRA: GCRAState{TAT: before}}}
		s.Take(&high, at-int64(14*time.Second), Charge, 3, HoldID{1})
		s.Take(&high, at, Charge, 1, HoldID{2})
		for amount, want := range map[uint64]time.Duration{1: 50 * time.Second, 2: 70 * time.Second} {
			asked, early, later := s.Clone(), s.Clone(), s.Clone()
			if v := asked.Take(&low, at, Charge, amount, HoldID{3}); !v.Over || v.RetryAfter != want {
				t.Errorf("%s: %d must wait for %v, want %v", name, amount, v.RetryAfter, want)
			}
			if v := early.Take(&low, at+int64(want)-1, Look, amount, HoldID{3}); !v.Over {
				t.Errorf("%s: %d passes before %v", name, amount, want)
			}
			if v := later.Take(&low, at+int64(want), Look, amount, HoldID{3}); v.Over {
				t.Errorf("%s: %d does not pass after %v", name, amount, want)
			}
		}
	}
}
