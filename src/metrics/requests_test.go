package metrics

import (
	"slices"
	"testing"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
)

// A request is one request, however many limits it has. A denial by on_store_failure is none of a limit.
func TestRequests(t *testing.T) {
	t.Parallel()
	set := load(t, testRules)
	r := New(Config{NearRatio: 0.8})
	r.UseRules(set)
	record := func(times int, req *limiter.Request, change func(*limiter.Answer)) {
		for range times {
			a := answer(set, 0, 0, 1)
			a.Statuses = append(a.Statuses, answer(set, 1, 0, 1).Statuses...)
			change(a)
			r.Record(req, a)
		}
	}
	record(1, ask, func(*limiter.Answer) {})
	record(2, ask, func(a *limiter.Answer) { a.Over = true })
	record(3, ask, func(a *limiter.Answer) { a.Fallback = backend.FallbackAllow })
	record(4, ask, func(a *limiter.Answer) { a.Over, a.Fallback = true, backend.FallbackDeny })
	record(5, ask, func(a *limiter.Answer) { a.Over, a.Statuses[1].StoreFailed = true, true })
	record(6, ask, func(a *limiter.Answer) { a.Domain = nil })
	record(7, &limiter.Request{CallerLimit: new(algorithm.Limit)}, func(a *limiter.Answer) { a.Over = true })
	record(8, ask, func(a *limiter.Answer) { a.Statuses[0].CallerLeft = true }) // nothing became of these
	want := []string{
		"/admitted=6", "/denied=7", "d/admitted=1", "d/admitted_without_store=3", "d/denied=2",
		"d/denied_without_store=4", "d/failed=5",
	}
	if got := native(r, "ratelimit_requests_total"); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
