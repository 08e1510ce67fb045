package subjects

import (
	"hash/fnv"
	"math/rand/v2"
	"testing"

	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/testbed/limitertest"
)

// seededTracker returns a Tracker on the rules whose random numbers are always the same.
func seededTracker(t testing.TB, maxRules int, seed uint64, text string) (*Tracker, *rules.Set) {
	t.Helper()
	set := limitertest.Rules(t, text)
	tracker := New(maxRules)
	tracker.random = rand.New(rand.NewPCG(seed, 1)).Uint64
	tracker.hash = func(key []byte) uint64 {
		h := fnv.New64a()
		_, _ = h.Write(key)
		return (h.Sum64() ^ seed) * 0x9E3779B97F4A7C15 >> 7
	}
	tracker.UseRules(set)
	return tracker, set
}

// question is a request with one descriptor and its answer.
type question struct {
	req limiter.Request
	a   limiter.Answer
}

// newQuestion returns a request for the first rule of set.
func newQuestion(set *rules.Set, rule int) *question {
	q := new(question)
	r := set.Rules()[rule]
	q.req.Descriptors = []limiter.Descriptor{{Entries: []rules.Entry{{Key: []byte(r.Path[0].Key())}}}}
	q.a.RuleSet, q.a.Domain = set, set.Domain([]byte(r.Domain))
	q.a.Charges = []limiter.Charge{{Rule: r, RequestedAmount: 1, Verdict: new(backend.Verdict)}}
	m := rules.Match{Descriptor: r.Descriptor, Limits: []*rules.Rule{r}}
	q.a.Statuses = []limiter.Status{{Match: &m, Amount: 1, Charges: q.a.Charges}}
	return q
}

// set makes the question one of a subject.
func (q *question) set(value []byte, amount uint64, denied bool) {
	q.req.Descriptors[0].Entries[0].Value = value
	q.a.Charges[0].CounterKey, q.a.Charges[0].Over = value, denied
	q.a.Statuses[0].Amount, q.a.Charges[0].RequestedAmount, q.a.Over = amount, amount, denied
}

const twoRules = `
domain: d
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 10}
  - key: ip
    rate_limit: {unit: minute, requests_per_unit: 10}
`
