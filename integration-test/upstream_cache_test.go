package integration

import (
	"fmt"
	"testing"
	"time"

	"ratelimit/testbed/redistest"
)

// withCache is a service's environment with a Redis of its own and the over-limit cache in front of it.
func withCache(t *testing.T, env ...string) []string {
	t.Helper()
	return append([]string{
		"REDIS_URL=" + redistest.Start(t, redistest.Options{}).Addr, "REDIS_TIMEOUT=5s",
		"LOCAL_CACHE_SIZE_IN_BYTES=1000000",
	}, env...)
}

const upstreamCacheRules = `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 1}}
- {key: b, rate_limit: {unit: year, requests_per_unit: 2}}
- {key: c, rate_limit: {unit: year, requests_per_unit: 3}}
`

// upstreamCacheSteps fill a, which the cache then knows, and b. The last request meets both, and c; all ends with what
// becomes of it.
func upstreamCacheSteps(all string) []step {
	const cached = "over_limit 1, over_limit_with_local_cache 1"
	return []step{
		{ask: "a", want: "OK 0/1 YEAR"},
		{ask: "a", want: "OVER_LIMIT 0/1 YEAR", counts: "a: total_hits 1, over_limit 1"},
		{ask: "b", times: 2, want: "OK 0/2 YEAR"},
		{
			ask: "a + b", want: "OVER_LIMIT 0/1 YEAR + OVER_LIMIT 0/2 YEAR",
			counts: "a: total_hits 1, " + cached + "; b: total_hits 1, over_limit 1",
		},
		{
			ask: "a + b + c", want: "OVER_LIMIT 0/1 YEAR + OVER_LIMIT 0/2 YEAR + OK 3/3 YEAR" + all,
			counts: "a: total_hits 1, " + cached + "; b: total_hits 1, " + cached + "; c: total_hits 1, within_limit 1",
		},
	}
}

// While the over-limit cache answers for one limit of a request, STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT charges
// nothing to the others.
func TestUpstreamCacheWithStop(t *testing.T) {
	t.Parallel()
	for env, all := range map[string]string{"QUOTA_MODE=false": "", "QUOTA_MODE=true": " -> OK"} {
		cases := []sentence{{
			name: "differs: the other limits are decided with the hits of the request, not with 0", rules: upstreamCacheRules,
			steps: upstreamCacheSteps(all),
		}}
		u := startUpstream(t, withCache(t, "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true", env), cases)
		t.Run(env+", "+cases[0].name, func(t *testing.T) { u.prove(t, 0, cases[0]) })
	}
}

// What the over-limit cache answers is in over_limit once, for rules of any depth, and has a metric of its own.
func TestUpstreamCacheInPrometheus(t *testing.T) {
	t.Parallel()
	cases := []sentence{{rules: `
descriptors:
- {key: one, rate_limit: {unit: year, requests_per_unit: 0}}
- {key: k, descriptors: [{key: two, rate_limit: {unit: year, requests_per_unit: 0}, descriptors: [{key: three, rate_limit: {unit: year, requests_per_unit: 0}}]}]}
`}}
	u := startUpstream(t, withCache(t, "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0", fastFlush), cases)
	for i, ask := range []string{"one=1", "k=1, two=1", "k=1, two=1, three=1"} {
		u.runStep(t, "grpc", "grpc0", i+1, step{ask: ask, times: 5, want: "OVER_LIMIT 0/0 YEAR"})
	}
	const limit = "ratelimit_service_rate_limit_"
	series{
		{"one level", limit + `over_limit{domain="grpc0",key1="one"}`, 5},
		{"its cache", limit + `grpc0_one_over_limit_with_local_cache`, 4},
		{"differs: two levels and those below: over_limit", limit + `over_limit{domain="grpc0",key1="k",key2="two"}`, 10},
		{"differs: the cache of two levels", limit + `grpc0_k_two_over_limit_with_local_cache`, 4},
		{"differs: the cache of three", limit + `grpc0_k_two_three_over_limit_with_local_cache`, 4},
	}.prove(t, u, "/metrics")
}

// Connections to Redis are opened when calls need them, and each attempt counts.
func TestUpstreamPoolFigures(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, redistest.Options{})
	rules := newRuleDir(t)
	rules.put(t, "d.yaml", ruleWithLimit("unit: year, requests_per_unit: 10"))
	u := startWith(t, rules, "REDIS_URL="+redis.Addr, "REDIS_TIMEOUT=5s")
	u.runStep(t, "grpc", "d", 1, step{ask: "a", want: "OK 9/10 YEAR"})
	const pool = "ratelimit.redis_pool."
	t.Run("differs: fewer connections than REDIS_POOL_SIZE", func(t *testing.T) {
		if stats := u.stats(t); stats[pool+"cx_active"] < 1 || stats[pool+"cx_active"] > 3 ||
			stats[pool+"cx_total"] < stats[pool+"cx_active"] {
			t.Errorf("after one call there are %d connections of %d", stats[pool+"cx_active"], stats[pool+"cx_total"])
		}
	})
	t.Run("differs: attempts that fail are in cx_total and cx_local_close", func(t *testing.T) {
		before := u.stats(t)
		redis.Kill()
		by(t, time.Now().Add(patience), "attempts are counted", func() error {
			if _, err := u.call(t, request("d", "a=1")); err == nil {
				t.Fatal("a call was answered without Redis")
			}
			stats := u.stats(t)
			opened, closed := stats[pool+"cx_total"]-before[pool+"cx_total"],
				stats[pool+"cx_local_close"]-before[pool+"cx_local_close"]
			if opened < 2 || closed != opened+before[pool+"cx_active"] || stats[pool+"cx_active"] != 0 {
				return fmt.Errorf("%d attempts, %d closed, %d open", opened, closed, stats[pool+"cx_active"])
			}
			return nil
		})
	})
}
