package redis

import (
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/redistest"
)

// Counters of divvy are kept as divvy keeps them, whichever program started one.
func TestDivvyKeys(t *testing.T) {
	t.Parallel()
	const key = "divvy:ip=*:1:3:60"
	server := redistest.Start(t, redistest.Options{})
	s := open(t, Config{Addr: server.Addr, Config: remote.Config{TagKeys: true}})
	limit := &algorithm.Limit{Kind: algorithm.FirstHitWindow, Max: 3, Period: time.Minute}
	type step struct {
		do     []any // to Redis before
		op     algorithm.Op
		amount uint64
		atomic bool
		over   bool
		left   uint64
		kept   any           // the value then
		reset  time.Duration // about
	}
	for _, tt := range []struct {
		name  string
		steps []step
	}{
		{"nobody was here", []step{
			{amount: 1, left: 2, kept: "2", reset: time.Minute},
			{amount: 1, left: 1, kept: "1", reset: time.Minute},
			{amount: 2, over: true, left: 1, kept: "1", reset: time.Minute},
			{amount: 1, left: 0, kept: "0", reset: time.Minute},
			{amount: 1, over: true, kept: "0", reset: time.Minute},
			{op: algorithm.Look, amount: 0, left: 0, kept: "0", reset: time.Minute},
		}},
		{"divvy was", []step{
			{do: []any{"SET", key, "2", "EX", "30"}, amount: 1, left: 1, kept: "1", reset: 30 * time.Second},
			{do: []any{"DECR", key}, amount: 1, over: true, kept: "0", reset: 30 * time.Second},
		}},
		{"a key without an end gets one", []step{
			{do: []any{"SET", key, "0"}, op: algorithm.Look, amount: 1, over: true, kept: "0", reset: time.Minute},
			{amount: 1, over: true, kept: "0", reset: time.Minute},
		}},
		{"a clock stepped back a day, so the key seems to live for 25 hours", []step{
			{
				do: []any{"SET", key, "0", "EX", "90000"}, op: algorithm.Look, amount: 1, over: true, kept: "0",
				reset: time.Minute,
			},
			{amount: 1, over: true, kept: "0", reset: time.Minute},
		}},
		{"refunds and forced hits", []step{
			{op: algorithm.Refund, amount: 1, left: 3, kept: nil},
			{op: algorithm.Force, amount: 5, kept: "-2", reset: time.Minute},
			{op: algorithm.Refund, amount: 3, left: 1, kept: "1", reset: time.Minute},
		}},
		{"all or none", []step{
			{amount: 3, atomic: true, left: 0, kept: "0", reset: time.Minute},
			{amount: 1, atomic: true, over: true, kept: "0", reset: time.Minute},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server.Do(t, "FLUSHALL")
			for i, st := range tt.steps {
				if st.do != nil {
					server.Do(t, st.do...)
				}
				b := backend.Batch{
					Hits: []backend.Hit{{
						Key: []byte(key), Limit: limit, Op: st.op, Amount: st.amount,
						Atomic: st.atomic, StoresRemaining: true,
					}},
					Verdicts: make([]backend.Verdict, 1),
				}
				if err := s.Take(t.Context(), &b); err != nil {
					t.Fatal(err)
				}
				v := b.Verdicts[0]
				if v.Err != nil || v.Over != st.over || v.Remaining != st.left || v.ResetAfter > st.reset ||
					st.reset-v.ResetAfter > 20*time.Second {
					t.Fatalf("step %d: %+v, want %+v", i, v, st)
				}
				if kept := server.Do(t, "GET", key); kept != st.kept {
					t.Fatalf("step %d: %v is kept, want %v", i, kept, st.kept)
				}
				if ttl := server.Do(t, "PTTL", key).(int64); st.op != algorithm.Look && st.kept != nil &&
					(ttl <= 0 || ttl > st.reset.Milliseconds()) {
					t.Fatalf("step %d: it lives for %d ms", i, ttl)
				}
			}
		})
	}
}
