package overlimit

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"ratelimit/src/algorithm"
)

// play makes batches of a script and holds the cache to two referees. Six
// bytes are a hit.
//
// The first is told which hits the cache answered, and is asked for looks
// instead: then it must agree in every field. The second is the store without
// a cache. Where the two count the same it must agree in every field as well:
// if refused hits are not counted. Where they do not, in what the caller sees:
// there each counter has one rule, and no refunds.
func play(t *testing.T, script []byte, countBlocked bool) (answered int) {
	cached := New(counters(t), Config{})
	told, plain := counters(t), counters(t)
	now := epoch
	limits := []*algorithm.Limit{
		uncounted(3, time.Second), uncounted(3, time.Minute), uncounted(6, time.Minute),
		uncounted(0, time.Minute), uncounted(5, 5*time.Minute), uncounted(1<<40, time.Minute),
	}
	ops := []algorithm.Op{charge, charge, charge, charge, charge, look, refund, force}
	if countBlocked {
		for _, l := range limits {
			l.CountBlocked = true
		}
		ops[6] = force
	}
	for len(script) >= 6 {
		var hits []algorithm.Hit
		now = now.Add(time.Duration(script[0]%64) * 100 * time.Millisecond)
		for n := 1 + int(script[1]%6); n > 0 && len(script) >= 6; n-- {
			s := script[:6]
			script = script[6:]
			limit := int(s[2]) % len(limits)
			key := fmt.Appendf(nil, "key-%d", s[3]%3)
			if countBlocked {
				key = fmt.Appendf(key, "-%d", limit)
			}
			hits = append(hits, algorithm.Hit{
				Key:    key,
				Limit:  limits[limit],
				Amount: uint64(s[4] % 5),
				Op:     ops[s[4]/32],
				Group:  uint16(s[5] & 1),
				Atomic: s[5]&6 != 0,
				NoVeto: s[5]&24 == 0,
			})
		}
		got := take(t, cached, now, slices.Clone(hits)...)
		real := take(t, plain, now, slices.Clone(hits)...)
		looks := slices.Clone(hits)
		for i := range got {
			if got[i].Cached {
				looks[i].Op = look
				answered++
			}
		}
		want := take(t, told, now, looks...)
		for i := range got {
			context := fmt.Sprintf("at %v, hit %d of %+v: %+v", now, i, hits, hits[i])
			if !same(got[i], want[i]) && !(got[i].Cached && sameOutside(got[i], want[i])) {
				t.Fatalf("%s\n got %+v\nwant %+v", context, got[i], want[i])
			}
			if !countBlocked && !same(got[i], real[i]) && !(got[i].Cached && sameOutside(got[i], real[i])) || !sameOutside(got[i], real[i]) {
				t.Fatalf("%s\n      got %+v\n uncached %+v", context, got[i], real[i])
			}
		}
	}
	return answered
}

// same compares all but who gave the answer.
func same(a, b algorithm.Verdict) bool {
	return sameOutside(a, b) && a.Charged == b.Charged && a.Before == b.Before && a.After == b.After && a.FullUntil.Equal(b.FullUntil)
}

// sameOutside compares what a caller of the service gets to see.
func sameOutside(a, b algorithm.Verdict) bool {
	return a.Over == b.Over && a.Remaining == b.Remaining && a.RetryAfter == b.RetryAfter && a.ResetAfter == b.ResetAfter
}

func TestReferee(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	for _, countBlocked := range []bool{false, true} {
		answered := 0
		for range 50 {
			script := make([]byte, 6*300)
			for i := range script {
				script[i] = byte(rnd.Uint32())
			}
			answered += play(t, script, countBlocked)
		}
		t.Logf("%d of %d hits answered by the cache", answered, 50*300)
		if answered < 200 {
			t.Error("the cache has hardly been used")
		}
	}
}

func FuzzCache(f *testing.F) {
	f.Add([]byte{0, 0, 1, 0, 3, 0, 0, 0, 1, 0, 3, 0, 0, 0, 1, 0, 3, 0, 0, 0, 1, 0, 1, 0}, false)
	f.Add([]byte{0, 2, 1, 0, 4, 6, 0, 2, 2, 0, 4, 6, 0, 0, 1, 0, 200, 0, 0, 0, 1, 0, 1, 0}, true)
	f.Fuzz(func(t *testing.T, script []byte, countBlocked bool) {
		if len(script) <= 6*500 {
			play(t, script, countBlocked)
		}
	})
}
