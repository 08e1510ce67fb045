package estimates

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/testbed/limitertest"
)

const ruleText = `
domain: d
descriptors:
- {key: user, rate_limit: {unit: hour, requests_per_unit: 10000, reserve_on_check: {for: 1m}}}
- {key: fixed, rate_limit: {unit: hour, requests_per_unit: 10000, reserve_on_check: {estimate: 5, for: 1m}}}
`

func load(t testing.TB) *rules.Set {
	t.Helper()
	return limitertest.Rules(t, ruleText)
}

// charge returns a charge of units to the counter of the rule, and its answer.
func charge(r *rules.Rule, counter string, units uint64) *limiter.Answer {
	return &limiter.Answer{Charges: []limiter.Charge{{
		Rule: r, Algorithm: &r.Limit, Op: algorithm.Force, CounterKey: []byte(counter), RequestedAmount: units,
		Verdict: new(backend.Verdict),
	}}}
}

// The estimate is that of the counter or of the rule, or 0.
func TestEstimate(t *testing.T) {
	set := load(t)
	user, fixed := set.Rules()[0], set.Rules()[1]
	l := New()
	estimate := func(counter string) uint64 { return l.Estimate(&charge(user, counter, 0).Charges[0]) }
	for _, s := range []struct {
		counter string
		charged []uint64 // before
		want    uint64
	}{
		{"a", nil, 0},
		{"a", []uint64{800}, 800},
		{"a", []uint64{80}, 710},
		{"a", []uint64{900, 900}, 900},
		{"b", nil, 895}, // 900 is in the bucket from 768 to 895, or the one behind it
	} {
		if s.charged == nil {
			l.UseRules(set)
		}
		for _, units := range s.charged {
			l.Record(nil, charge(user, s.counter, units))
			l.Record(nil, charge(fixed, s.counter, 1)) // teaches nothing
		}
		if got := estimate(s.counter); got != s.want && s.counter != "b" || s.counter == "b" && (got < 895 || got > 1100) {
			t.Errorf("%s after %v: %d, want %d", s.counter, s.charged, got, s.want)
		}
	}
	l.UseRules(new(rules.Set))
	if got := estimate("c"); got != 0 {
		t.Errorf("without the rule: %d", got)
	}
}

// The estimate of a rule is at least what 95 % of its charges use, and at most a quarter above.
func TestHistory(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, scale := range []float64{1, 100, 1e6, 1e12} {
		var h history
		var all []uint64
		for range 4000 {
			units := uint64(scale * math.Exp(rnd.NormFloat64()))
			h.add(units)
			all = append(all, units)
		}
		slices.Sort(all)
		want, got := float64(all[len(all)*95/100]), float64(h.high.Load())
		if got < want*0.95-1 || got > want*1.35+1 {
			t.Errorf("scale %g: %g, want about %g", scale, got, want)
		}
	}
}

// Buckets follow each other, and each has its end.
func TestBuckets(t *testing.T) {
	for units := uint64(0); units <= algorithm.MaxAmount; units += 1 + units/7 {
		b := bucketOf(units)
		if end := bucketEnd(b); end < units || bucketOf(end) != b || bucketOf(end+1) != b+1 {
			t.Fatalf("%d is in bucket %d, which ends at %d", units, b, end)
		}
	}
}

func TestEstimateDoesNotAllocate(t *testing.T) {
	set := load(t)
	l := New()
	l.UseRules(set)
	a := charge(set.Rules()[0], "a", 7)
	l.Record(nil, a)
	if n := testing.AllocsPerRun(100, func() {
		l.Record(nil, a)
		l.Estimate(&a.Charges[0])
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
