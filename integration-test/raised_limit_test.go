package integration

import (
	"fmt"
	"testing"

	"ratelimit/testbed/redistest"
)

// raisedLimit has rules and a data file: a rule limits one caller, and the file another.
type raisedLimit struct {
	*upstream
	rules ruleDir
	extra string // more of the rate_limit.
}

// set sets both limits, and waits until they are in force.
func (r *raisedLimit) set(t *testing.T, limit int) {
	t.Helper()
	r.rules.put(t, "tenants.csv", fmt.Sprintf("acme,%d\n", limit))
	r.rules.put(t, "d.yaml", fmt.Sprintf(`domain: d
descriptors:
- {key: user, rate_limit: {unit: year, requests_per_unit: %d%s}}
- {key: tenant, limits_from: tenants.csv, rate_limit: {unit: year%s}}
`, limit, r.extra, r.extra))
	if r.upstream == nil {
		return
	}
	soon(t, "the limits are in force", func() error {
		for _, entry := range []string{"user=other", "tenant=acme"} {
			answer := r.send(t, "json", "d", step{ask: entry + " [hits 0]"}).answer
			if got := answer.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit(); got != uint32(limit) {
				return fmt.Errorf("%s: the limit is %d, want %d", entry, got, limit)
			}
		}
		return nil
	})
}

// expect sends requests of both callers, and wants their answers in order.
func (r *raisedLimit) expect(t *testing.T, want ...string) {
	t.Helper()
	for _, entry := range []string{"user=al", "tenant=acme"} {
		for i, w := range want {
			if got := answerText(r.send(t, "json", "d", step{ask: entry}).answer); got != w {
				t.Errorf("request %d of %s: %q, want %q", i+1, entry, got, w)
			}
		}
	}
}

// A limit that is raised has room at once for all but what was admitted, although a fixed window counts refused hits.
// In a store that shares upstream's counters that needs count_blocked: false, as docs/algorithms.md says.
func TestRaisedLimitHasRoomAtOnce(t *testing.T) {
	t.Parallel()
	redis := func(t *testing.T) []string {
		return []string{"REDIS_URL=" + redistest.Start(t, redistest.Options{}).Addr, "REDIS_TIMEOUT=5s"}
	}
	for _, test := range []struct {
		name, extra string
		open        func(*testing.T) []string
		hasRoom     bool
	}{
		{"memory", "", func(*testing.T) []string { return nil }, true},
		{"redis", "", redis, false},
		{"redis without refused hits", ", count_blocked: false", redis, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := &raisedLimit{rules: newRuleDir(t), extra: test.extra}
			r.set(t, 1)
			r.upstream = startWith(t, r.rules, append(test.open(t), "RUNTIME_DEBOUNCE=10ms")...)
			r.expect(t, "OK 0/1 YEAR", "OVER_LIMIT 0/1 YEAR", "OVER_LIMIT 0/1 YEAR")
			r.set(t, 2)
			if !test.hasRoom {
				r.expect(t, "OVER_LIMIT 0/2 YEAR")
				return
			}
			r.expect(t, "OK 0/2 YEAR", "OVER_LIMIT 0/2 YEAR", "OVER_LIMIT 0/2 YEAR")
			r.set(t, 4)
			r.expect(t, "OK 1/4 YEAR", "OK 0/4 YEAR", "OVER_LIMIT 0/4 YEAR")
		})
	}
}
