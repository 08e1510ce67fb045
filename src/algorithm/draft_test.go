package algorithm

import (
	"math/rand/v2"
	"testing"
	"time"
)

// A draft gives the verdicts that a copy of the log would, and leaves the log as it is.
func TestDraft(t *testing.T) {
	t.Parallel()
	limits := []Limit{
		{Max: 5},
		{Max: 5, CountBlocked: true},
		{Max: 0},
		{Max: 40},
		{Max: 5, MinInterval: 3},
		{Max: 40, MinInterval: 30, CountBlocked: true},
	}
	for seed := range uint64(20_000) {
		r := rand.New(rand.NewPCG(seed, 1))
		l := limits[r.IntN(len(limits))]
		l.Kind, l.Period = SlidingWindow, 20*time.Nanosecond
		op := func() (Op, uint64) {
			amount := uint64(r.IntN(4))
			if r.IntN(20) == 0 {
				amount = MaxAmount
			}
			return []Op{Charge, Charge, Charge, Look, Refund, Force}[r.IntN(6)], amount
		}
		var log Log
		at := int64(1000)
		for range r.IntN(30) {
			at += int64(r.IntN(4))
			o, amount := op()
			TakeSliding(&l, &log, at, o, amount)
		}
		at += int64(r.IntN(12)) - 5
		before, clone := log.Clone(), log.Clone()
		draft := log.NewDraft()
		for i := range 10 {
			o, amount := op()
			var got Outcome
			draft.Take(&got, &l, at, o, amount)
			want := TakeSliding(&l, &clone, at, o, amount)
			if got != want {
				t.Fatalf("seed %d, hit %d, %v of %d at %d:\n%+v, want\n%+v", seed, i, o, amount, at, got, want)
			}
		}
		if !equalLogs(&log, &before) {
			t.Fatalf("seed %d: the log is %+v, was %+v", seed, log, before)
		}
	}
}

func equalLogs(a, b *Log) bool {
	if a.Len() != b.Len() || a.totalBeforeFirst != b.totalBeforeFirst {
		return false
	}
	for i, m := range a.liveRecords() {
		if m != b.liveRecords()[i] {
			return false
		}
	}
	return true
}
