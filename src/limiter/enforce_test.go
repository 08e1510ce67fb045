package limiter_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"ratelimit/src/backend/fallback"
	"ratelimit/src/backend/overlimit"
	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
)

// enforceRules enforce the limit of user for user-1 and not for user-0, see rules.TestEnforcedCounters. All others are
// enforced for no counter.
const enforceRules = `
domain: d
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 1, enforce_percent: 30}
  - key: none
    rate_limit: {unit: day, requests_per_unit: 1, enforce_percent: 0}
  - key: two
    rate_limits:
      - {unit: minute, requests_per_unit: 1, enforce_percent: 0}
      - {unit: day, requests_per_unit: 3}
  - key: joint
    on_reject: none
    rate_limits:
      - {unit: minute, requests_per_unit: 1, enforce_percent: 0}
      - {unit: day, requests_per_unit: 3}
  - key: team
    charge: path
    rate_limit: {unit: day, requests_per_unit: 2}
    descriptors:
      - key: member
        rate_limit: {unit: day, requests_per_unit: 1, enforce_percent: 0}
  - key: quota
    quota_mode: true
    rate_limit: {unit: day, requests_per_unit: 1, enforce_percent: 0}
  - key: full
    quota_mode: true
    rate_limit: {unit: day, requests_per_unit: 0}
  - key: call
    rate_limit: {algorithm: concurrency, requests_per_unit: 1, hold: 30s, hold_id: id, enforce_percent: 0}
  - key: banned
    rate_limit: {unit: day, requests_per_unit: 0, enforce_percent: 0}
`

const enforceList = `
domain: d
rules:
  - {match: {user: "*"}, per: [user], shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {match: {user: "*"}, per: [user], rate_limit: {unit: day, requests_per_unit: 1, enforce_percent: 30}}
  - {match: {}, rate_limit: {unit: day, requests_per_unit: 0}}
`

// TestEnforcePercent checks that a limit counts and never refuses for the counters that enforce_percent leaves out.
func TestEnforcePercent(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, rules string
		cfg         limiter.Config
		ask         []string // request, answer, request, answer ...
	}{
		{"one limit", enforceRules, limiter.Config{}, []string{
			"user=user-0", "ok: ok 0/1", "user=user-0", "ok: ok 0/1", "user=user-0:9", "ok: ok 0/1",
			"user=user-1", "ok: ok 0/1", "user=user-1", "over: over 0/1", "user=user-1 none=x", "over: over 0/1, ok 0/1",
			"banned=x", "ok: ok 0/0",
		}},
		{"other formats of keys", enforceRules, limiter.Config{EscapeKeys: true, KeyPrefix: "p:"}, []string{
			"user=user-0:2", "ok: ok 0/1", "user=user-1:2", "over: over 0/1",
		}},
		{"several limits", enforceRules, limiter.Config{}, []string{
			"two=a", "ok: ok 0/1", "two=a", "ok: ok 0/1", "two=a", "ok: ok 0/1", "two=a", "over: over 0/3",
		}},
		{"all or none", enforceRules, limiter.Config{}, []string{
			"joint=a", "ok: ok 0/1", "joint=a", "ok: ok 0/1", "joint=a", "ok: ok 0/1", "joint=a", "over: over 0/3",
		}},
		{"a path", enforceRules, limiter.Config{}, []string{
			"team=a,member=x", "ok: ok 0/1", "team=a,member=x", "ok: ok 0/2", "team=a,member=x", "over: over 0/2",
		}},
		{"all or nothing of a request", enforceRules, limiter.Config{ChargeAllOrNothing: true}, []string{
			"none=a user=user-1", "ok: ok 0/1, ok 0/1",
			"none=a full=x", "over: ok 0/1, over 0/0",
			"none=a two=b", "ok: ok 0/1, ok 0/1",
		}},
		{"quotas", enforceRules, limiter.Config{}, []string{
			"quota=a full=x", "ok: ok 0/1, over 0/0", "quota=a full=x", "ok: ok 0/1, over 0/0", "full=x", "over: over 0/0",
		}},
		{"holds", enforceRules, limiter.Config{}, []string{
			"call=a,id=1", "ok: ok 0/1", "call=a,id=2", "ok: ok 0/1", "call=a,id=1,hold=release", "ok: ok 1/1",
		}},
		{"an ordered list: the rule answers, and a canary counts beside it", enforceList, limiter.Config{}, []string{
			"user=user-0", "ok: ok 0/1", "user=user-0", "ok: ok 0/1",
			"user=user-5", "ok: ok 0/1", "user=user-5", "over: over 0/1", "x=y", "over: over 0/0",
		}},
	} {
		l := start(t, tt.cfg)
		l.UseRules(load(t, tt.rules))
		var a, dry limiter.Answer
		for i := 0; i < len(tt.ask); i += 2 {
			if err := l.DryRun(t.Context(), parse(tt.ask[i]), &dry); err != nil {
				t.Fatal(err)
			}
			if err := l.Check(t.Context(), parse(tt.ask[i]), &a); err != nil {
				t.Fatal(err)
			}
			if got := brief(&a); got != tt.ask[i+1] || dry.Over != a.Over {
				t.Errorf("%s: request %d, %s:\n got %s\nwant %s; a dry run is over: %t", tt.name, i/2+1, tt.ask[i], got,
					tt.ask[i+1], dry.Over)
			}
		}
	}
}

// TestEnforcePercentOnReplicas checks that two replicas with a store each, one of which restarts, enforce the limit for
// the same users.
func TestEnforcePercentOnReplicas(t *testing.T) {
	t.Parallel()
	const users = 2000
	refused := func() (list [users]bool) {
		l := start(t, limiter.Config{})
		l.UseRules(load(t, strings.Replace(enforceRules, "enforce_percent: 30", "enforce_percent: 10", 1)))
		var a limiter.Answer
		for i := range list {
			if err := l.Check(t.Context(), parse(fmt.Sprintf("user=%d:2", i)), &a); err != nil {
				t.Fatal(err)
			}
			list[i] = a.Over
		}
		return list
	}
	first, n := refused(), 0
	for _, is := range first {
		if is {
			n++
		}
	}
	if first != refused() || n < users*8/100 || n > users*12/100 {
		t.Errorf("%d of %d are enforced, and on another replica others: %t", n, users, first != refused())
	}
}

// TestUnenforcedWithoutStore checks that neither a store that fails nor the over-limit cache refuses for a counter that
// is not enforced.
func TestUnenforcedWithoutStore(t *testing.T) {
	t.Parallel()
	s := watch(t)
	store, err := fallback.New(s, fallback.Config{})
	if err != nil {
		t.Fatal(err)
	}
	l := start(t, limiter.Config{Backend: overlimit.New(store, overlimit.MinBytes)})
	l.UseRules(load(t, strings.Replace(enforceRules, "domain: d", "domain: d\non_store_failure: deny", 1)))
	for i, step := range []struct {
		ask, want string
		err       error
		cached    bool
	}{
		{"user=user-0:2", "ok: ok 0/1", nil, false},
		{"user=user-0", "ok: ok 0/1", nil, true},
		{"user=user-1:2", "over: over 0/1", nil, false},
		{"user=user-1", "over: over 0/1", nil, true},
		{"none=a", "ok: ok 0/1", errors.New("gone"), false},
		{"two=a", "over: over 0/3", errors.New("gone"), false},
	} {
		s.err = step.err
		var a limiter.Answer
		if err := l.Check(t.Context(), parse(step.ask), &a); err != nil {
			t.Fatal(err)
		}
		if got := brief(&a); got != step.want || a.Charges[0].Verdict.Cached != step.cached {
			t.Errorf("step %d, %s: %s, from the cache %t; want %s and %t", i, step.ask, got, a.Charges[0].Verdict.Cached,
				step.want, step.cached)
		}
	}
}

// TestUnenforcedIsCounted checks what metrics say of counters that are not enforced.
func TestUnenforcedIsCounted(t *testing.T) {
	t.Parallel()
	counters := metrics.New(metrics.Config{})
	l, set := start(t, limiter.Config{Recorders: []limiter.Recorder{counters}}), load(t, enforceRules)
	counters.UseRules(set)
	l.UseRules(set)
	for _, ask := range []string{
		"user=user-0", "user=user-0", "user=user-0", "user=user-1", "user=user-1",
		"user=user-0:1-", "none=x:2",
	} {
		if err := l.Check(t.Context(), parse(ask), new(limiter.Answer)); err != nil {
			t.Fatal(err)
		}
	}
	got := make(map[string]int64)
	for _, f := range counters.Figures() {
		if len(f.Labels) > 3 && f.Labels[1] == "d" {
			got[strings.TrimPrefix(f.MetricName, "ratelimit_")+" "+strings.Join(f.Labels[3:], " ")] = f.Value
		}
	}
	for _, s := range counters.Stats() {
		if strings.HasSuffix(s.Name, "d.user.over_limit") || strings.HasSuffix(s.Name, "d.user.shadow_mode") {
			got[s.Name[strings.Index(s.Name, "d."):]] = int64(s.Value)
		}
	}
	for name, want := range map[string]int64{
		"unenforced_decisions_total user": 3, "unenforced_decisions_total none": 1,
		"decisions_total user outcome near": 2, "decisions_total user outcome shadow": 2,
		"decisions_total user outcome over":     1,
		"decisions_total user outcome refunded": 1, "decisions_total none outcome shadow": 1,
		"d.user.over_limit": 3, "d.user.shadow_mode": 2,
	} {
		if got[name] != want {
			t.Errorf("%s: %d, want %d; all: %v", name, got[name], want, got)
		}
	}
}
