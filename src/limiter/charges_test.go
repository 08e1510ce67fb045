package limiter_test

import (
	"slices"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

const chargeRules = `
domain: d
descriptors:
  - key: login
    rate_limits:
      - {unit: minute, requests_per_unit: 2}
      - {unit: day, requests_per_unit: 3, name: daily}
  - key: all
    on_reject: none
    rate_limits:
      - {unit: minute, requests_per_unit: 2}
      - {unit: day, requests_per_unit: 3}
  - key: trial
    shadow_mode: true
    rate_limits:
      - {unit: minute, requests_per_unit: 1}
      - {unit: day, requests_per_unit: 9}
  - key: user
    charge: path
    rate_limit: {unit: hour, requests_per_unit: 5}
    descriptors:
      - key: action
        value: trade
        rate_limit: {unit: minute, requests_per_unit: 2}
      - key: action
        value: look
      - key: action
        value: free
        rate_limit: {unlimited: true}
  - key: premium
    rate_limit: {unit: minute, requests_per_unit: 9, replaces: [{name: daily}]}
`

// A descriptor may be charged by several limits; the status tells of the one
// that binds.
func TestSeveralCharges(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  limiter.Config
		ask  []string
	}{
		{"a list", limiter.Config{}, []string{
			"login=a", "ok: ok 1/2",
			"login=a", "ok: ok 0/2",
			"login=a", "over: over 0/2", // counts in the day all the same
			"login=a", "over: over 0/3", // both refuse: the longer wait
			"login=b:3", "over: over 0/2",
			"login=c:2", "ok: ok 0/2",
			"login=c:2-", "ok: ok 2/2",
		}},
		{"all of a list or nothing", limiter.Config{}, []string{
			"all=a", "ok: ok 1/2",
			"all=a", "ok: ok 0/2",
			"all=a", "over: over 0/2",
			"all=a", "over: over 0/2", // the day has one left
		}},
		{"shadow", limiter.Config{}, []string{
			"trial=a", "ok: ok 0/1",
			"trial=a", "ok: ok 0/1", // it binds without refusing
		}},
		{"a path", limiter.Config{}, []string{
			"user=a", "ok: ok 4/5",
			"user=a,action=trade", "ok: ok 1/2",
			"user=a,action=trade", "ok: ok 0/2",
			"user=a,action=trade", "over: over 0/2", // the level above is charged
			"user=a,action=look", "ok: ok 0/5",
			"user=a,action=free", "over: over 0/5",
			"user=b,action=other", "ok: -",
		}},
		{"an item that is replaced", limiter.Config{}, []string{
			"login=a:3 premium=x", "over: over 0/2, ok 8/9",
			"login=a", "over: over 0/2", // the day has 2 left
		}},
		{"one group for the request", limiter.Config{ChargeAllOrNothing: true}, []string{
			"login=a user=x,action=trade", "ok: ok 1/2, ok 1/2",
			"login=a:2 user=x,action=trade", "over: over 0/2, ok 1/2",
			"login=a user=x,action=trade", "ok: ok 0/2, ok 0/2",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := start(t, tt.cfg)
			l.UseRules(load(t, chargeRules))
			play(t, l, tt.ask)
		})
	}
}

// Which of several charges is Status.BindingCharge.
func TestWhatBinds(t *testing.T) {
	charge := func(kind algorithm.Kind, remaining uint64, wait, reset time.Duration, over bool) limiter.Charge {
		return limiter.Charge{
			Rule: &rules.Rule{Limit: algorithm.Limit{Kind: kind}}, Over: over,
			Verdict: &backend.Verdict{Outcome: algorithm.Outcome{
				Over: over || wait != 0, Remaining: remaining, RetryAfter: wait,
				ResetAfter: reset,
			}},
		}
	}
	canary := func(c limiter.Charge) limiter.Charge {
		c.IsCanary = true
		return c
	}
	const fixed, gcra, second, never = algorithm.FixedWindow, algorithm.GCRA, time.Second, algorithm.Never
	for _, tt := range []struct {
		name        string
		charges     []limiter.Charge
		binding     int
		wait, until time.Duration
	}{
		{"nothing", nil, -1, 0, 0},
		{"none that is passed over", []limiter.Charge{
			canary(charge(gcra, 0, second, second, false)),
			charge(gcra, 3, 0, 2*second, false),
		}, 1, 0, 2 * second},
		{"nothing else", []limiter.Charge{canary(charge(gcra, 0, second, second, false))}, -1, 0, 0},
		{
			"the fewest remaining",
			[]limiter.Charge{charge(gcra, 3, 0, 9*second, false), charge(gcra, 2, 0, second, false)},
			1,
			0, 9 * second,
		},
		{
			"the first of equals",
			[]limiter.Charge{charge(gcra, 2, 0, second, false), charge(gcra, 2, 0, 2*second, false)},
			0,
			0, 2 * second,
		},
		{"refusing before remaining", []limiter.Charge{
			charge(gcra, 0, 0, 90*second, false),
			charge(gcra, 0, second, 9*second, true),
		}, 1, second, second},
		{"the longest wait", []limiter.Charge{
			charge(gcra, 0, 2*second, 2*second, true),
			charge(gcra, 0, 3*second, 3*second, true), charge(gcra, 0, second, 99*second, true),
		}, 1, 3 * second, 3 * second},
		{"never is the longest", []limiter.Charge{
			charge(gcra, 0, 90*second, 90*second, true),
			charge(gcra, 0, never, second, true),
		}, 1, never, 90 * second},
		{
			"a shadow that is over binds and does not refuse",
			[]limiter.Charge{charge(gcra, 1, 0, second, false), charge(gcra, 0, 5*second, 7*second, false)},
			1, 0, 7 * second,
		},
		{"microseconds", []limiter.Charge{charge(gcra, 1, 0, second+1, false)}, 0, 0, second + time.Microsecond},
		{"seconds of fixed windows", []limiter.Charge{
			charge(fixed, 1, 0, second+1, false),
			charge(gcra, 5, 0, second+1, false),
		}, 0, 0, 2 * second},
	} {
		st := limiter.Status{Charges: tt.charges}
		limiter.Summarize(&st)
		binding := slices.IndexFunc(tt.charges,
			func(c limiter.Charge) bool { return st.BindingCharge != nil && c.Rule == st.BindingCharge.Rule })
		if binding != tt.binding || st.RetryAfter != tt.wait || st.ResetAfter != tt.until {
			t.Errorf("%s: binding %d, wait %v, until %v; want %d, %v, %v", tt.name, binding, st.RetryAfter, st.ResetAfter,
				tt.binding, tt.wait, tt.until)
		}
	}
}

// The wait of a request follows from those of its descriptors: all must pass that refuse
// by themselves, and of the quotas, if all are over, any one.
func TestRetryAfter(t *testing.T) {
	const second, never = time.Second, algorithm.Never
	ok := limiter.Status{}
	over := func(wait time.Duration) limiter.Status { return limiter.Status{Over: true, RetryAfter: wait} }
	quota := func(st limiter.Status) limiter.Status {
		st.InQuotaMode = true
		return st
	}
	for _, tt := range []struct {
		name     string
		statuses []limiter.Status
		over     bool
		want     time.Duration
	}{
		{"none", []limiter.Status{ok, ok}, false, 0},
		{"the longest", []limiter.Status{over(7 * second), over(5 * second), ok}, true, 7 * second},
		{"never is the longest", []limiter.Status{over(7 * second), over(never)}, true, never},
		{"a quota that is over is like any other", []limiter.Status{ok, quota(over(5 * second)), quota(ok)}, false, 0},
		{"all quotas over", []limiter.Status{quota(over(3 * second)), quota(over(5 * second))}, true, 3 * second},
		{
			"a quota that is over beside one that is not",
			[]limiter.Status{over(8 * second), quota(over(900 * second)), quota(ok)},
			true, 8 * second,
		},
		{
			"a quota that never passes beside one that does",
			[]limiter.Status{over(8 * second), quota(over(never)), quota(ok)},
			true, 8 * second,
		},
		{
			"all quotas over and another limit",
			[]limiter.Status{over(8 * second), quota(over(900 * second)), quota(over(never))},
			true, 900 * second,
		},
		{"quotas that never pass", []limiter.Status{quota(over(never)), quota(over(never))}, true, never},
	} {
		a := limiter.Answer{Statuses: tt.statuses}
		limiter.Combine(&a)
		if a.Over != tt.over || a.RetryAfter != tt.want {
			t.Errorf("%s: over %t, retry after %v; want %t, %v", tt.name, a.Over, a.RetryAfter, tt.over, tt.want)
		}
	}
}

// A canary's fallback decides nothing.
func TestFallback(t *testing.T) {
	charge := func(f backend.Fallback, canary bool) limiter.Charge {
		return limiter.Charge{IsCanary: canary, Verdict: &backend.Verdict{Fallback: f}}
	}
	for _, tt := range []struct {
		charges []limiter.Charge
		want    backend.Fallback
	}{
		{nil, backend.FallbackError},
		{[]limiter.Charge{charge(backend.FallbackAllow, true), charge(backend.FallbackError, false)}, backend.FallbackError},
		{[]limiter.Charge{
			charge(backend.FallbackAllow, true), charge(backend.FallbackLocal, false),
			charge(backend.FallbackDeny, false),
		}, backend.FallbackLocal},
	} {
		st := limiter.Status{Charges: tt.charges}
		limiter.Summarize(&st)
		a := limiter.Answer{Statuses: []limiter.Status{{}, st}}
		limiter.Combine(&a)
		if st.Fallback != tt.want || a.Fallback != tt.want {
			t.Errorf("%+v: %v and %v, want %v", tt.charges, st.Fallback, a.Fallback, tt.want)
		}
	}
}

// A refusal that charged nothing tells what a smaller request could still take, but for
// fixed windows, of which callers expect 0.
func TestRefusedRemaining(t *testing.T) {
	s := watch(t)
	l := start(t, limiter.Config{Backend: s})
	l.UseRules(load(t, `
domain: d
descriptors:
  - {key: bucket, rate_limit: {algorithm: gcra, unit: hour, requests_per_unit: 5}}
  - {key: first, rate_limit: {algorithm: first_hit_window, unit: hour, requests_per_unit: 5}}
  - {key: log, rate_limit: {algorithm: sliding_window, unit: hour, requests_per_unit: 5}}
  - {key: apart, rate_limit: {algorithm: sliding_window, unit: hour, requests_per_unit: 5, min_interval: 1m}}
  - {key: estimate, rate_limit: {algorithm: sliding_window_counter, unit: hour, requests_per_unit: 5}}
  - {key: fixed, rate_limit: {unit: hour, requests_per_unit: 5}}
  - {key: all, on_reject: none, rate_limits: [{algorithm: gcra, unit: hour, requests_per_unit: 5}, {unit: hour, requests_per_unit: 5}]}
`))
	for _, tt := range []struct {
		key  string
		want uint64
	}{{"bucket", 3}, {"first", 3}, {"log", 3}, {"apart", 3}, {"estimate", 3}, {"fixed", 0}, {"all", 3}} {
		var a limiter.Answer
		req := parse(tt.key + "=x")
		for _, hits := range []uint64{2, 4} {
			req.DefaultAmount = hits
			if err := l.Check(t.Context(), req, &a); err != nil {
				t.Fatal(err)
			}
		}
		if got := a.Statuses[0].Charges[0].Verdict.Remaining; !a.Over || got != tt.want {
			t.Errorf("%s: over %t, %d remaining, want %d", tt.key, a.Over, got, tt.want)
		}
	}
}
