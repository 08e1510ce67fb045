package limiter_test

import (
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/testbed/limitertest"
)

// callerRequest asks for amount units of a limit of two at once, one back each second.
func callerRequest(limit *algorithm.Limit, name string, amount uint64) limiter.Request {
	d := limiter.Descriptor{
		Entries: []rules.Entry{{Key: []byte("key"), Value: []byte(name)}}, HasAmount: true,
		Amount: amount,
	}
	return limiter.Request{Domain: []byte("caller"), Descriptors: []limiter.Descriptor{d}, CallerLimit: limit}
}

// A limit of the caller needs no rules, and is decided with other requests in one batch.
func TestCallerLimit(t *testing.T) {
	t.Parallel()
	store := limitertest.Store(t, memory.Config{})
	recorded := new(recorder)
	l := limiter.New(limiter.Config{Backend: store, KeyPrefix: "p:", Recorders: []limiter.Recorder{recorded}})
	two := &algorithm.Limit{Kind: algorithm.GCRA, Max: 1, Period: algorithm.MaxPeriod, Emission: time.Second, Burst: 1}
	three := &algorithm.Limit{Kind: algorithm.GCRA, Max: 1, Period: algorithm.MaxPeriod, Emission: time.Second, Burst: 2}
	ask := func(limit *algorithm.Limit, name string, amount uint64) *limiter.Item {
		m := limiter.Many{Now: epoch}
		req := callerRequest(limit, name, amount)
		item := addRequest(&m, &req)
		l.CheckMany(t.Context(), &m)
		return item
	}
	for i, step := range []struct {
		limit  *algorithm.Limit
		name   string
		amount uint64
		over   bool
		retry  time.Duration
	}{
		{two, "a", 2, false, 0},
		{two, "a", 1, true, time.Second},
		{two, "a", 3, true, algorithm.Never},
		{two, "b", 1, false, 0},
		{three, "a", 1, false, 0}, // The key alone names the counter.
		{three, "a", 1, true, time.Second},
	} {
		it := ask(step.limit, step.name, step.amount)
		if a := &it.Answer; it.Err != nil || a.Over != step.over || a.RetryAfter != step.retry || a.Domain != nil ||
			string(a.Charges[0].CounterKey) != "p:caller:"+step.name {
			t.Errorf("step %d: %v, over %t, retry %v, counter %s", i+1, it.Err, a.Over, a.RetryAfter, a.Charges[0].CounterKey)
		}
	}
	l.UseRules(load(t, testRules))
	m, req := limiter.Many{Now: epoch}, callerRequest(two, "c", 2)
	first, second := addRequest(&m, &req), addRequest(&m, parse("ip=1"))
	l.CheckMany(t.Context(), &m)
	if first.Err != nil || second.Err != nil || first.Answer.Over || second.Answer.Domain == nil {
		t.Errorf("in one batch: %v, %v", first.Err, second.Err)
	}
	var a limiter.Answer
	if err := l.DryRun(t.Context(), &req, &a); err != nil || a.Over {
		t.Errorf("a dry run: %v, over %t", err, a.Over) // The clock of the store is years after the batch.
	}
	if recorded.n != 8 {
		t.Errorf("%d requests are recorded", recorded.n)
	}
}
