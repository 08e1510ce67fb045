package algorithm

import (
	"testing"
	"time"
)

func TestTakeSlidingCounter(t *testing.T) { runTables(t, slidingCounterTables()) }

func slidingCounterTables() []table {
	const ms, s, m, h = time.Millisecond, time.Second, time.Minute, time.Hour
	polite := func(most uint64) Limit { return Limit{Kind: SlidingWindowCounter, Max: most, Period: m} }
	counting := func(most uint64) Limit {
		return Limit{Kind: SlidingWindowCounter, Max: most, Period: m, CountBlocked: true}
	}
	lastElapsed := time.Duration(latestValidInstant.UnixNano()) - MaxPeriod // of the second longest window since 1970
	return []table{
		{name: "the example of the comment", limit: polite(10), turns: []turn{
			{at: 0, take: 8, charged: true, to: 8, left: 2, reset: 2 * m},
			// 8 x 0.75 = 6
			{at: 75 * s, take: 3, charged: true, from: 6, to: 9, left: 1, reset: 105 * s},
			// until 8 x 0.625 = 5
			{at: 75 * s, op: Look, take: 2, over: true, from: 9, to: 9, left: 1, retry: 7500 * ms, reset: 105 * s},
			// the same
			{at: 75 * s, take: 1, charged: true, from: 9, to: 10, reset: 105 * s, full: 82500 * ms},
			// 5 and a bit
			{at: 82500*ms - 1, take: 1, over: true, from: 10, to: 10, retry: 1, reset: 97500*ms + 1, full: 82500 * ms},
			{at: 82500 * ms, take: 1, charged: true, from: 9, to: 10, reset: 97500 * ms, full: 90 * s},
		}},
		{name: "19 of 10 in a minute, the worst there is", limit: polite(10), turns: []turn{
			{at: m - 1, take: 10, charged: true, to: 10, reset: m + 1, full: m + 6*s},
			{at: m, take: 1, over: true, from: 10, to: 10, retry: 6 * s, reset: m, full: m + 6*s},
			{at: m + 6*s - 1, take: 1, over: true, from: 10, to: 10, retry: 1, reset: 54*s + 1, full: m + 6*s},
			{at: m + 6*s, take: 1, charged: true, from: 9, to: 10, reset: 114 * s, full: m + 12*s},
			{at: m + 54*s, take: 8, charged: true, from: 2, to: 10, reset: 66 * s, full: 2 * m},
			{at: 2*m - 1, take: 1, over: true, from: 10, to: 10, retry: 1, reset: m + 1, full: 2 * m},
			{at: 2 * m, take: 1, charged: true, from: 9, to: 10, reset: 2 * m, full: 2*m + 6666666667}, // 9 x 53.3/60 = 8
		}},
		{name: "what came early in the last window weighs for too long", limit: polite(10), turns: []turn{
			{at: 0, take: 10, charged: true, to: 10, reset: 2 * m, full: m + 6*s},
			{at: m + 1*s, take: 1, over: true, from: 10, to: 10, retry: 5 * s, reset: 59 * s, full: m + 6*s}, // 9.8
		}},
		{name: "waits beyond this window", limit: polite(10), turns: []turn{
			{at: 0, take: 10, charged: true, to: 10, reset: 2 * m, full: m + 6*s},
			{at: 10 * s, take: 1, over: true, from: 10, to: 10, retry: 56 * s, reset: 110 * s, full: m + 6*s},
			{at: 10 * s, take: 5, over: true, from: 10, to: 10, retry: 80 * s, reset: 110 * s, full: m + 6*s},
			{at: 10 * s, take: 10, over: true, from: 10, to: 10, retry: 110 * s, reset: 110 * s, full: m + 6*s},
			{at: 10 * s, take: 11, over: true, from: 10, to: 10, retry: Never, reset: 110 * s, full: m + 6*s},
			{at: m + 30*s - 1, take: 5, over: true, from: 6, to: 6, left: 4, retry: 1, reset: 30*s + 1},
			{at: m + 30*s, take: 5, charged: true, from: 5, to: 10, reset: 90 * s, full: m + 36*s},
		}},
		{
			name: "after a step back a look begins the wait, and so does a refused hit of nothing", limit: polite(10),
			turns: []turn{
				{at: h, op: Force, take: 11, charged: true, to: 11, reset: 2 * m, full: h + 70909090910},
				{
					at: 30 * s, op: Look, take: 5, over: true, from: 11, to: 11, retry: 30*s + 32727272728, reset: 90 * s,
					full: 70909090910,
				},
				{at: 40 * s, take: 0, over: true, from: 11, to: 11, retry: 20*s + 5454545455, reset: 80 * s, full: 70909090910},
				{
					at: 62727272728, op: Look, take: 5, over: true, from: 11, to: 11, retry: 30 * s, reset: 57272727272,
					full: 70909090910,
				},
			},
		},
		{name: "a clock that steps back within the window goes back", limit: polite(10), turns: []turn{
			{at: 0, take: 8, charged: true, to: 8, left: 2, reset: 2 * m},
			{at: m + 30*s, take: 1, charged: true, from: 4, to: 5, left: 5, reset: 90 * s},
			{at: m + 15*s, take: 0, from: 7, to: 7, left: 3, reset: 105 * s},
		}},
		{
			name: "the counter stops growing", limit: counting(5),
			begin: func(start int64, c *counter) {
				c.SlidingCounter = SlidingCounterState{WindowStart: start, CurrentCount: MaxScriptCount - 2}
			},
			turns: []turn{
				{take: 1, over: true, charged: true, from: MaxScriptCount - 2, to: MaxScriptCount - 1, retry: 2 * m, reset: 2 * m},
				{
					take: MaxAmount, over: true, charged: true, from: MaxScriptCount - 1, to: MaxScriptCount, retry: Never,
					reset: 2 * m,
				},
				{op: Force, take: MaxAmount, from: MaxScriptCount, to: MaxScriptCount, reset: 2 * m},
				{op: Refund, take: 2, charged: true, from: MaxScriptCount, to: MaxScriptCount - 2, reset: 2 * m},
				{
					at: m, take: 1, over: true, charged: true, from: MaxScriptCount - 2, to: MaxScriptCount - 1, retry: m,
					reset: 2 * m,
				},
				// not the sum
				{
					at: m, op: Force, take: MaxAmount, charged: true, from: MaxScriptCount - 1, to: MaxScriptCount - 1 + MaxAmount,
					reset: 2 * m,
				},
			},
		},
		{
			name: "the largest limit of a rule file", limit: Limit{Kind: SlidingWindowCounter, Max: 1<<32 - 1, Period: s},
			turns: []turn{
				{take: 1<<32 - 1, charged: true, to: 1<<32 - 1, reset: 2 * s, full: s + 1},
				{at: s, take: 1, over: true, from: 1<<32 - 1, to: 1<<32 - 1, retry: 1, reset: s, full: s + 1},
				// 4.3 leave in 1 ns
				{at: s + 1, take: 4, charged: true, from: 1<<32 - 5, to: 1<<32 - 1, reset: 2*s - 1, full: s + 2},
			},
		},
		{
			name: "the first instant there is", limit: polite(1), start: time.Unix(0, 0), turns: []turn{
				{take: 1, charged: true, to: 1, reset: 2 * m, full: 2 * m},
				{take: 1, over: true, from: 1, to: 1, retry: 2 * m, reset: 2 * m, full: 2 * m},
			},
		},
		{
			name: "the longest and last window there is ends when instants do", start: latestValidInstant,
			limit: Limit{Kind: SlidingWindowCounter, Max: 1, Period: MaxPeriod}, turns: []turn{
				{take: 1, charged: true, to: 1, reset: 2*MaxPeriod - lastElapsed, full: always},
				{
					take: 1, over: true, from: 1, to: 1, retry: 2*MaxPeriod - lastElapsed, reset: 2*MaxPeriod - lastElapsed,
					full: always,
				},
			},
		},
		{
			name: "windows with other edges count for nothing", limit: polite(10),
			begin: func(start int64, c *counter) { c.SlidingCounter = SlidingCounterState{start - int64(70*s), 5, 5} },
			turns: []turn{{take: 10, charged: true, to: 10, reset: 2 * m, full: 66 * s}},
		},
		{
			name: "nor do they while they last", limit: polite(10),
			begin: func(start int64, c *counter) { c.SlidingCounter = SlidingCounterState{start - int64(7*s), 5, 5} },
			turns: []turn{{take: 10, charged: true, to: 10, reset: 2 * m, full: 66 * s}},
		},
		{
			name: "nor when they are longer ago than a period", limit: polite(10),
			begin: func(start int64, c *counter) { c.SlidingCounter = SlidingCounterState{start - int64(30*s), 5, 5} },
			turns: []turn{{at: 40 * s, take: 10, charged: true, to: 10, reset: 80 * s, full: 66 * s}},
		},
	}
}

// To ask of the estimate rounded up is to ask of the estimate: a whole number
// lies at or above a fraction exactly if it does so above the fraction rounded
// up. Here Max - amount is the whole number; this counts it out.
func TestSlidingCounterDecidesExactly(t *testing.T) {
	const period = 12
	for most := range uint64(5) {
		limit := Limit{Kind: SlidingWindowCounter, Max: most, Period: period}
		for previous := range uint64(8) {
			for current := range uint64(6) {
				for elapsed := range int64(period) {
					for amount := range uint64(7) {
						s := SlidingCounterState{WindowStart: 10 * period, PreviousCount: previous, CurrentCount: current}
						_, v := TakeSlidingCounter(&limit, s, 10*period+elapsed, Look, amount)
						exact := previous*uint64(period-elapsed)+(current+amount)*period > most*period
						if v.Over != (exact || most == 0) {
							t.Errorf("%+v after %d of %d, %d more of %d: over is %t", s, elapsed, period, amount, most, v.Over)
						}
					}
				}
			}
		}
	}
}
