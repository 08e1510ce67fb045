package algorithm

import (
	"testing"
	"time"
)

func TestTakeFirstHit(t *testing.T) { runTables(t, firstHitTables()) }

func firstHitTables() []table {
	const s, h, ms = time.Second, time.Hour, time.Millisecond
	polite := func(most uint64) Limit { return Limit{Kind: FirstHitWindow, Max: most, Period: 10 * s} }
	counting := func(most uint64) Limit {
		return Limit{Kind: FirstHitWindow, Max: most, Period: 10 * s, CountBlocked: true}
	}
	return []table{
		{name: "the example of the comment", limit: polite(2), turns: []turn{
			{at: 3 * s, take: 1, charged: true, to: 1, left: 1, reset: 10 * s},
			{at: 4 * s, take: 1, charged: true, from: 1, to: 2, reset: 9 * s, full: 13 * s},
			{at: 12900 * ms, take: 1, over: true, from: 2, to: 2, retry: 100 * ms, reset: 100 * ms, full: 13 * s},
			{at: 13*s - 1, take: 1, over: true, from: 2, to: 2, retry: 1, reset: 1, full: 13 * s},
			{at: 13 * s, take: 1, charged: true, to: 1, left: 1, reset: 10 * s},
			{at: 23*s - 1, take: 2, over: true, from: 1, to: 1, left: 1, retry: 1, reset: 1},
			{at: 23 * s, take: 2, charged: true, to: 2, reset: 10 * s, full: 33 * s},
		}},
		{name: "several units", limit: polite(5), turns: []turn{
			{take: 3, charged: true, to: 3, left: 2, reset: 10 * s},
			{at: 1 * s, take: 3, over: true, from: 3, to: 3, left: 2, retry: 9 * s, reset: 9 * s},
			{at: 2 * s, take: 2, charged: true, from: 3, to: 5, reset: 8 * s, full: 10 * s},
			{at: 2 * s, take: 6, over: true, from: 5, to: 5, retry: Never, reset: 8 * s, full: 10 * s},
		}},
		{name: "a refused hit that counts begins a window", limit: counting(2), turns: []turn{
			{take: 3, over: true, charged: true, to: 3, retry: Never, reset: 10 * s, full: 10 * s},
			{at: 4 * s, take: 1, over: true, charged: true, from: 3, to: 4, retry: 6 * s, reset: 6 * s, full: 10 * s},
		}},
		{name: "one that does not count begins none", limit: polite(2), turns: []turn{
			{take: 3, over: true, left: 2, retry: Never},
			{at: 4 * s, take: 2, charged: true, to: 2, reset: 10 * s, full: 14 * s},
		}},
		{
			name: "the counter stops growing", limit: counting(5),
			begin: func(start int64, c *counter) {
				c.FirstHit = FirstHitState{Count: MaxScriptCount - 2, WindowEnd: start + int64(s)}
			},
			turns: []turn{
				{take: 1, over: true, charged: true, from: MaxScriptCount - 2, to: MaxScriptCount - 1, retry: s, reset: s, full: s},
				{take: 3, over: true, charged: true, from: MaxScriptCount - 1, to: MaxScriptCount, retry: s, reset: s, full: s},
				{op: Force, take: MaxAmount, from: MaxScriptCount, to: MaxScriptCount, reset: s, full: s},
				{op: Refund, take: 2, charged: true, from: MaxScriptCount, to: MaxScriptCount - 2, reset: s, full: s},
				{at: s, take: MaxAmount, over: true, charged: true, to: MaxAmount, retry: Never, reset: 10 * s, full: 11 * s},
			},
		},
		{name: "the wait starts with the first look", limit: polite(2), turns: []turn{
			{at: h, take: 2, charged: true, to: 2, reset: 10 * s, full: h + 10*s},
			{at: 1 * s, op: Look, take: 1, over: true, from: 2, to: 2, retry: 10 * s, reset: 10 * s, full: 11 * s},
			{at: 2 * s, take: 0, from: 2, to: 2, reset: 9 * s, full: 11 * s}, // asks for nothing
			{at: 3 * s, take: 1, over: true, from: 2, to: 2, retry: 8 * s, reset: 8 * s, full: 11 * s},
			{at: 11 * s, take: 1, charged: true, to: 1, left: 1, reset: 10 * s},
		}},
		{name: "a refund finds the window of a clock that stepped back", limit: polite(2), turns: []turn{
			{at: h, take: 2, charged: true, to: 2, reset: 10 * s, full: h + 10*s},
			{at: 0, op: Refund, take: 1, charged: true, from: 2, to: 1, left: 1, reset: 10 * s},
			{at: 9 * s, take: 1, charged: true, from: 1, to: 2, reset: 1 * s, full: 10 * s},
		}},
		{
			name: "the first window there is", limit: polite(1), start: time.Unix(0, 0), turns: []turn{
				{take: 1, charged: true, to: 1, reset: 10 * s, full: 10 * s},
				{take: 1, over: true, from: 1, to: 1, retry: 10 * s, reset: 10 * s, full: 10 * s},
			},
		},
		{
			name: "the longest and last window there is", start: latestValidInstant,
			limit: Limit{Kind: FirstHitWindow, Max: 1<<32 - 1, Period: MaxPeriod}, turns: []turn{
				{take: 1<<32 - 1, charged: true, to: 1<<32 - 1, reset: MaxPeriod, full: MaxPeriod},
				{take: 1, over: true, from: 1<<32 - 1, to: 1<<32 - 1, retry: MaxPeriod, reset: MaxPeriod, full: MaxPeriod},
			},
		},
	}
}
