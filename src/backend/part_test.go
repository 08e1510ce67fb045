package backend

import (
	"slices"
	"testing"
	"time"

	"ratelimit/src/algorithm"
)

// Groups of a part are those of the batch, whatever is left out between them.
func TestPartKeepsGroupsApart(t *testing.T) {
	for _, tt := range []struct{ groups, pick, want []uint16 }{
		{[]uint16{0, 0, 1, 1}, []uint16{0, 1, 2, 3}, []uint16{0, 0, 1, 1}},
		{[]uint16{5, 5, 5}, []uint16{0, 2}, []uint16{0, 0}},
		{[]uint16{5, 6, 5}, []uint16{0, 2}, []uint16{0, 1}}, // two of one number
		{[]uint16{9, 8, 7, 7}, []uint16{1, 2, 3}, []uint16{0, 1, 1}},
	} {
		var b Batch
		for _, g := range tt.groups {
			b.Hits = append(b.Hits, Hit{GroupID: g, Limit: &algorithm.Limit{Max: 1, Period: time.Second}})
			b.Verdicts = append(b.Verdicts, Verdict{})
		}
		var p SubBatch
		for _, i := range tt.pick {
			p.Add(&b, int(i), false)
		}
		var got []uint16
		for _, h := range p.Hits {
			got = append(got, h.GroupID)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%v of %v: groups %v, want %v", tt.pick, tt.groups, got, tt.want)
		}
	}
}

func TestPartReturns(t *testing.T) {
	limit, now := &algorithm.Limit{Max: 1, Period: time.Second}, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	b := Batch{
		Hits: []Hit{
			{Limit: limit},
			{Limit: limit, Op: algorithm.Refund, Amount: 3},
			{Limit: limit, Atomic: true, Amount: 2},
		},
		Verdicts: make([]Verdict, 3),
		Now:      now,
	}
	var p SubBatch
	p.Add(&b, 1, true)
	p.Add(&b, 2, true)
	if h := p.Hits; !p.Now.Equal(now) || h[0].Op != algorithm.Look || h[0].Amount != 0 || h[1].Op != algorithm.Look ||
		h[1].Amount != 2 || h[1].Atomic {
		t.Errorf("looks: %+v", p.Batch)
	}
	p.Verdicts[0], p.Verdicts[1] = Verdict{Outcome: algorithm.Outcome{
		Over:   true,
		Before: 7,
	}}, Verdict{Outcome: algorithm.Outcome{Over: true}}
	p.CopyVerdicts(&b)
	if v := b.Verdicts; v[0] != (Verdict{}) || v[1] != (Verdict{Outcome: algorithm.Outcome{Before: 7}}) || !v[2].Over {
		t.Errorf("returned: %+v", v) // a refund is never over
	}
	if !p.Reset(MaxPooledHits) || len(p.Hits)+len(p.Verdicts)+len(p.BatchIndexes) > 0 || !p.Now.IsZero() ||
		p.Hits[:1][0].Limit != nil {
		t.Errorf("after Reset: %+v", p)
	}
	p.BatchIndexes = make([]int, MaxPooledHits+1)
	if p.Reset(MaxPooledHits) {
		t.Error("a huge part is kept")
	}
}

// A hit that is sent as a look keeps the name of its hold: a hold that is open passes once more.
func TestAsLookKeepsTheHold(t *testing.T) {
	t.Parallel()
	h := Hit{Amount: 3, Atomic: true, HoldID: NewHoldID([]byte("a"))}
	if got := h.AsLook(); got.Op != algorithm.Look || got.Amount != 3 || got.Atomic || got.HoldID != h.HoldID {
		t.Errorf("%+v", got)
	}
}
