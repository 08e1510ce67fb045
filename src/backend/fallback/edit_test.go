package fallback

import (
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// Changes reach the counters of this process. They hold the replica's share of an amount.
func TestLocalCountsAreSet(t *testing.T) {
	t.Parallel()
	next := inMemory(t)
	s := open(t, next, 4)
	next.down.Store(true)
	limit := &algorithm.Limit{Max: 8, Period: 365 * 24 * time.Hour, CountBlocked: true}
	h := backend.Hit{Key: []byte("k"), Limit: limit, Amount: 2, Fallback: backend.FallbackLocal}
	batch := func(amount uint64) *backend.Batch {
		h := h
		h.Amount = amount
		return &backend.Batch{Hits: []backend.Hit{h}, Verdicts: make([]backend.Verdict, 1)}
	}
	charge := func() backend.Verdict {
		b := batch(2)
		if err := s.Take(t.Context(), b); err != nil || b.Verdicts[0].Err != nil {
			t.Fatal(err, b.Verdicts[0].Err)
		}
		return b.Verdicts[0]
	}
	charge()
	if v := charge(); !v.Over {
		t.Fatalf("the share of 2 lets 4 pass: %+v", v)
	}
	if err := s.SetLocalCounts(t.Context(), batch(5)); err != nil {
		t.Fatal(err)
	}
	if v := charge(); !v.Over || v.Before != 2 {
		t.Errorf("after a count of 5, which is 2 for each of 4 replicas: %+v", v)
	}
	if err := s.SetCounts(t.Context(), batch(0)); err != nil {
		t.Fatal(err)
	}
	if v := charge(); v.Over || v.Before != 0 {
		t.Errorf("after the reset: %+v", v)
	}
	if err := s.ForgetLocalCounts(); err != nil {
		t.Fatal(err)
	}
	if v := charge(); v.Over || v.Before != 0 {
		t.Errorf("after all was forgotten: %+v", v)
	}
}
