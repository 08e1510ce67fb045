package algorithm

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkTake charges one unit after the other. They come as fast as the limit
// allows (passes), or ten times as fast (floods), with refused hits that count
// where it says so. A sliding window's log is full all the time.
func BenchmarkTake(b *testing.B) {
	for _, limit := range []Limit{
		{Kind: FixedWindow, Max: 1000},
		{Kind: FirstHitWindow, Max: 1000},
		{Kind: SlidingWindow, Max: 10},
		{Kind: SlidingWindow, Max: 1000},
		{Kind: SlidingWindow, Max: 100_000},
		{Kind: SlidingWindowCounter, Max: 1000},
		{Kind: GCRA, Max: 1000, Burst: 999},
	} {
		limit.Period = time.Second
		for _, run := range []struct {
			name         string
			times        int64
			countBlocked bool
		}{{"passes", 1, false}, {"floods", 10, false}, {"floods,counted", 10, true}} {
			b.Run(fmt.Sprintf("%v/%d/%s", limit.Kind, limit.Max, run.name), func(b *testing.B) {
				l := limit
				l.CountBlocked = run.countBlocked
				c, at := counter{limit: &l}, thursday.UnixNano()
				apart := int64(l.Period) / int64(l.Max) / run.times
				for range 2 * int64(l.Max) * run.times {
					c.apply(at, Charge, 1)
					at += apart
				}
				b.ReportAllocs()
				for b.Loop() {
					c.apply(at, Charge, 1)
					at += apart
				}
			})
		}
	}
}

// BenchmarkTakeFirst is the first hit of a key, which is all that many have.
func BenchmarkTakeFirst(b *testing.B) {
	for kind := range numKinds {
		b.Run(kind.String(), func(b *testing.B) {
			l := Limit{Kind: kind, Max: 1000, Period: time.Second}
			at := thursday.UnixNano()
			b.ReportAllocs()
			for b.Loop() {
				c := counter{limit: &l}
				c.apply(at, Charge, 1)
			}
		})
	}
}
