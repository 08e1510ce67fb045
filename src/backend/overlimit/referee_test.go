package overlimit

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// playedLimits are limits of a kind, of which the first two share their counters.
func playedLimits(kind algorithm.Kind) []*algorithm.Limit {
	const s = time.Second
	switch kind {
	case algorithm.FixedWindow:
		return []*algorithm.Limit{
			uncounted(3, 60*s), uncounted(6, 60*s), uncounted(3, s), uncounted(0, 60*s), uncounted(5,
				300*s), uncounted(1<<40, 60*s),
			daily(2), daily(4),
		}
	case algorithm.GCRA:
		return []*algorithm.Limit{
			{Kind: kind, Max: 7, Burst: 3, Period: 100 * s},
			{Kind: kind, Max: 3, Burst: 5, Period: 100 * s},
			{Kind: kind, Max: 0, Period: 50 * s},
			{Kind: kind, Max: 7, Burst: 3, Period: 70 * s, MinInterval: 5 * s},
			{Kind: kind, Max: 3, Period: 60 * s},
		}
	}
	list := []*algorithm.Limit{
		{Kind: kind, Max: 3, Period: 60 * s}, {Kind: kind, Max: 6, Period: 60 * s}, {
			Kind: kind, Max: 0,
			Period: 50 * s,
		}, {Kind: kind, Max: 4, Period: 30 * s},
	}
	if kind == algorithm.SlidingWindow {
		list = append(list, &algorithm.Limit{Kind: kind, Max: 4, Period: 40 * s, MinInterval: 5 * s})
	}
	return list
}

// daily is a limit in days of the calendar that start a minute and a half after epoch.
func daily(most uint64) *algorithm.Limit {
	spec := algorithm.CalendarSpec{Units: 1, Location: time.FixedZone("west", -90)}
	calendar, err := algorithm.NewCalendar(spec)
	if err != nil {
		panic(err)
	}
	l := uncounted(most, 24*time.Hour)
	l.Calendar = calendar
	return l
}

// play makes batches of a script and holds the cache to two referees. Six
// bytes are a hit.
//
// The first is told which hits the cache answered, and is asked for looks
// instead: then it must agree in every field. The second is the store without
// a cache. Where the two count the same it must agree in every field as well:
// if refused hits are not counted. Where they do not, in what the caller sees:
// there each counter has one rule, and no refunds.
func play(t *testing.T, kind algorithm.Kind, script []byte, countBlocked bool) (answered int) {
	cached := New(counters(t), 0)
	told, plain := counters(t), counters(t)
	now := epoch
	limits, amounts := playedLimits(kind), [5]uint64{0, 1, 2, 3, 4}
	if kind == algorithm.SlidingWindow {
		amounts = [5]uint64{1, 1, 1, 0, 7} // other amounts fill it exactly too rarely
	}
	ops := []algorithm.Op{charge, charge, charge, charge, charge, look, refund, force}
	if countBlocked {
		for _, l := range limits {
			l.CountBlocked = true
		}
		ops[6] = force
	}
	for len(script) >= 6 {
		var hits []backend.Hit
		now = now.Add(time.Duration(script[0]%64) * 100 * time.Millisecond)
		for n := 1 + int(script[1]%6); n > 0 && len(script) >= 6; n-- {
			s := script[:6]
			script = script[6:]
			limit := int(s[2]) % len(limits)
			key := fmt.Appendf(nil, "key-%d", s[3]%3)
			if countBlocked {
				key = fmt.Appendf(key, "-%d", limit)
			}
			hits = append(hits, backend.Hit{
				Key:     key,
				Limit:   limits[limit],
				Amount:  amounts[s[4]%5],
				Op:      ops[s[4]/32],
				GroupID: uint16(s[5] & 1),
				Atomic:  s[5]&6 != 0,
				NoVeto:  s[5]&24 == 0,
			})
		}
		got := send(t, cached, now, slices.Clone(hits)...)
		real := send(t, plain, now, slices.Clone(hits)...)
		looks := slices.Clone(hits)
		for i := range got {
			if got[i].Cached {
				looks[i].Op = look
				answered++
			}
		}
		want := send(t, told, now, looks...)
		for i := range got {
			context := fmt.Sprintf("at %v, hit %d of %+v: %+v", now, i, hits, hits[i])
			if !same(got[i], want[i]) && !(got[i].Cached && sameOutside(got[i], want[i])) {
				t.Fatalf("%s\n got %+v\nwant %+v", context, got[i], want[i])
			}
			if !countBlocked && !same(got[i], real[i]) && !(got[i].Cached && sameOutside(got[i], real[i])) ||
				!sameOutside(got[i], real[i]) {
				t.Fatalf("%s\n      got %+v\n uncached %+v", context, got[i], real[i])
			}
		}
	}
	return answered
}

// same compares all but Cached.
func same(a, b backend.Verdict) bool {
	return sameOutside(a, b) && a.Charged == b.Charged && a.Before == b.Before && a.After == b.After &&
		a.FullUntil == b.FullUntil
}

// sameOutside compares what a caller of the service gets to see.
func sameOutside(a, b backend.Verdict) bool {
	return a.Over == b.Over && a.Remaining == b.Remaining && a.RetryAfter == b.RetryAfter &&
		a.ResetAfter == b.ResetAfter && a.WindowEnd == b.WindowEnd
}

func TestReferee(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	const rounds = 15
	for kind := range algorithm.Concurrency {
		for _, countBlocked := range []bool{false, true} {
			answered := 0
			for range rounds {
				script := make([]byte, 6*300)
				for i := range script {
					script[i] = byte(rnd.Uint32())
				}
				answered += play(t, kind, script, countBlocked)
			}
			t.Logf("%v: %d of %d hits answered by the cache", kind, answered, rounds*300)
			switch known := kind != algorithm.SlidingWindowCounter &&
				(!countBlocked || kind == algorithm.FixedWindow); {
			case known && answered < 5: // refunds and forced hits end most entries
				t.Error("the cache has hardly been used")
			case !known && answered > 0:
				t.Error("the cache answers for what it cannot know")
			}
		}
	}
}

// Ten a second at a limit of ten a minute: the cache answers for nearly all that
// is over, as the store would.
func TestFlood(t *testing.T) {
	for kind := range algorithm.Concurrency {
		l := &algorithm.Limit{Kind: kind, Max: 10, Period: time.Minute}
		if l.Kind == algorithm.GCRA {
			l.Burst = 9
		}
		t.Run(l.Kind.String(), func(t *testing.T) {
			c, store := open(t)
			plain := counters(t)
			passed, asked := 0, 0
			for i := range 3000 {
				at := epoch.Add(time.Duration(i) * 100 * time.Millisecond)
				got, seen := store.send(t, c, at, hit("k", l, 1))
				if want := send(t, plain, at, hit("k", l, 1)); !same(got[0], want[0]) {
					t.Fatalf("at %v:\n got %+v\nwant %+v", at, got[0], want[0])
				}
				asked += len(seen)
				if !got[0].Over {
					passed++
				}
			}
			if l.Kind == algorithm.SlidingWindowCounter {
				return // nothing is known of what it will say
			}
			if passed < 50 || asked > 2*passed+5 {
				t.Errorf("%d passed, the store was asked %d times", passed, asked)
			}
		})
	}
}

func FuzzCache(f *testing.F) {
	f.Add([]byte{0, 0, 1, 0, 3, 0, 0, 0, 1, 0, 3, 0, 0, 0, 1, 0, 3, 0, 0, 0, 1, 0, 1, 0}, uint8(0), false)
	f.Add([]byte{0, 2, 1, 0, 4, 6, 0, 2, 2, 0, 4, 6, 0, 0, 1, 0, 200, 0, 0, 0, 1, 0, 1, 0}, uint8(3), true)
	f.Fuzz(func(t *testing.T, script []byte, kind uint8, countBlocked bool) {
		if len(script) <= 6*500 {
			play(t, algorithm.Kind(kind)%algorithm.Concurrency, script, countBlocked)
		}
	})
}
