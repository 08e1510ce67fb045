package rules_test

import (
	"fmt"
	"strings"
	"testing"

	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
)

// enforcedFor returns for which of the users 0 to n-1 the rule of the file is enforced. The file has one rule, for the
// key user.
func enforcedFor(t *testing.T, file string, n int) []bool {
	t.Helper()
	set := limitertest.Load(t, []filerules.File{{Name: "d.yaml", Data: []byte(file)}})
	d := set.Domains()[0]
	var s rules.SearchScratch
	list := make([]bool, n)
	for i := range list {
		entries := []rules.Entry{{Key: []byte("user"), Value: fmt.Appendf(nil, "user-%d", i)}}
		r := d.FindRule(entries, &s)
		list[i] = r.Limits[0].IsEnforced(d, entries, &s)
	}
	return list
}

func count(list []bool) (n int) {
	for _, is := range list {
		if is {
			n++
		}
	}
	return n
}

// TestEnforcePercent checks for how many of 10,000 users a percentage enforces the limit: at 10 % it is 10 +- 1 %.
// Raising it only adds users.
func TestEnforcePercent(t *testing.T) {
	t.Parallel()
	const users = 10_000
	for _, form := range []string{
		"domain: d\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1, enforce_percent: %s}}]\n",
		"domain: d\nrules: [{match: {}, per: [user], rate_limit: {unit: day, requests_per_unit: 1, enforce_percent: %s}}]\n",
	} {
		before := make([]bool, users)
		for _, tt := range []struct {
			percent     string
			least, most int
		}{
			{"0", 0, 0}, {"0.5", 30, 70}, {"10", 900, 1100}, {"50", 4850, 5150}, {"99.9", 9970, 9999}, {"100", users, users},
		} {
			now := enforcedFor(t, fmt.Sprintf(form, tt.percent), users)
			if n := count(now); n < tt.least || n > tt.most {
				t.Errorf("%s %%: enforced for %d of %d, want %d to %d", tt.percent, n, users, tt.least, tt.most)
			}
			for i := range now {
				if before[i] && !now[i] {
					t.Errorf("raising it to %s %% takes user-%d out", tt.percent, i)
				}
			}
			before = now
		}
	}
}

// TestEnforcedCounters checks which of 20 users are enforced at 30 %. The texts are those of the first version: a
// counter must never change its side, neither with an upgrade nor with a change of the limit.
func TestEnforcedCounters(t *testing.T) {
	t.Parallel()
	const inTree, inList = "1 4 5 8 10 13", "5 8 9 11 13 18"
	for file, want := range map[string]string{
		"domain: d\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1, enforce_percent: 30}}]\n": inTree,
		"domain: d\ndescriptors: [{key: user, rate_limit: {algorithm: gcra, unit: hour, requests_per_unit: 7, name: x, " +
			"enforce_percent: 30}}]\n": inTree,
		"domain: d\ndescriptors: [{key: user, rate_limits: [{unit: day, requests_per_unit: 1, enforce_percent: 30}, {unit: " +
			"hour, requests_per_unit: 1}]}]\n": inTree,
		"domain: d\ndescriptors: [{key: 'us*', rate_limit: {unit: day, requests_per_unit: 1, enforce_percent: 30}}]\n": inTree,
		"domain: d\nrules: [{match: {user: '*'}, per: [user], rate_limit: {unit: day, requests_per_unit: 1, " +
			"enforce_percent: 30}}]\n": inList,
		"domain: d\nrules: [{match: {user: '*'}, per: [user], rate_limit: {algorithm: sliding_window, period: 9s, " +
			"requests_per_unit: 2, enforce_percent: 30}}]\n": inList,
	} {
		var got strings.Builder
		for i, is := range enforcedFor(t, file, 20) {
			if is {
				fmt.Fprintf(&got, "%d ", i)
			}
		}
		if strings.TrimSpace(got.String()) != want {
			t.Errorf("%s: enforced for %s, want %s", file, got.String(), want)
		}
	}
}
