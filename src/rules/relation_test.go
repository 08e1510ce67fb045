package rules_test

import (
	"strings"
	"testing"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/divvyrules"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
)

var loadText = limitertest.Rules

// The relation of two rules that a descriptor leads to: "same" if their verdicts are the same, "counts" if only their
// counts are, "shared" if their counters are the same whatever the request, else "own".
func TestRelation(t *testing.T) {
	t.Parallel()
	const perMinute, two = "rate_limit: {unit: minute, requests_per_unit: 1}",
		"rate_limit: {unit: minute, requests_per_unit: 2}"
	const other = "  - {key: other, " + perMinute + "}\n" // Only one of the two versions has it, so the domains differ.
	tree := func(text string) string { return "domain: d\ndescriptors:\n" + text }
	list := func(rules ...string) string { return "domain: d\nrules:\n  - " + strings.Join(rules, "\n  - ") + "\n" }
	const pay, all = `{match: {path: /pay}, per: [user], ` + perMinute + `}`,
		`{match: {user: "*"}, per: [user], ` + perMinute + `}`
	for _, tt := range []struct{ name, live, candidate, ask, want string }{
		{
			"the same limit", tree("  - {key: user, " + perMinute + "}\n" + other), tree("  - {key: user, " + perMinute + "}"),
			"user=1", "same",
		},
		{
			"another number", tree("  - {key: user, " + perMinute + "}"), tree("  - {key: user, " + two + "}"), "user=1",
			"counts",
		},
		{
			"shadow mode", tree("  - {key: user, " + perMinute + "}"),
			tree("  - {key: user, shadow_mode: true, " + perMinute + "}"), "user=1", "counts",
		},
		{
			"another window", tree("  - {key: user, " + perMinute + "}"),
			tree("  - {key: user, rate_limit: {unit: hour, requests_per_unit: 1}}"), "user=1", "own",
		},
		{
			"an exception", tree("  - {key: user, " + perMinute + "}"),
			tree("  - {key: user, " + perMinute + "}\n  - {key: user, value: bot, " + two + "}"),
			"user=bot", "counts",
		},
		{
			"leased", tree("  - {key: user, " + perMinute + "}\n" + other),
			tree("  - {key: user, rate_limit: {unit: minute, requests_per_unit: 1, counting: leased}}"), "user=1", "same",
		},
		{
			"another number, leased", tree("  - {key: user, rate_limit: {unit: minute, requests_per_unit: 1, counting: leased}}"),
			tree("  - {key: user, " + two + "}"), "user=1", "own",
		},
		{
			"refused hits do not count", tree("  - {key: user, " + perMinute + "}"),
			tree("  - {key: user, rate_limit: {unit: minute, requests_per_unit: 2, count_blocked: false}}"), "user=1", "own",
		},
		{
			"all or none", tree("  - key: user\n    rate_limits: [{unit: minute, requests_per_unit: 1}, {unit: day, " +
				"requests_per_unit: 2}]\n"),
			tree("  - key: user\n    on_reject: none\n    rate_limits: [{unit: minute, requests_per_unit: 1}, {unit: day, " +
				"requests_per_unit: 2}]"), "user=1", "own",
		},
		{
			"one of several limits", tree("  - key: user\n    rate_limits: [{unit: minute, requests_per_unit: 1}, {unit: day, " +
				"requests_per_unit: 2}]\n"),
			tree("  - key: user\n    rate_limits: [{unit: minute, requests_per_unit: 3}, {unit: day, requests_per_unit: 2}]"),
			"user=1", "counts",
		},
		{
			"one limit less", tree("  - key: user\n    rate_limits: [{unit: minute, requests_per_unit: 1}, {unit: day, " +
				"requests_per_unit: 2}]\n"),
			tree("  - {key: user, " + two + "}"), "user=1", "counts",
		},
		{
			"another metadata", tree("  - {key: user, metadata: {a: 1}, " + perMinute + "}"),
			tree("  - {key: user, metadata: {a: 2}, " + perMinute + "}"),
			"user=1", "counts",
		},
		{
			"levels below are charged", tree("  - key: user\n    charge: path\n    " + perMinute + "\n" + other),
			tree("  - key: user\n    charge: path\n    " + perMinute + "\n    descriptors: [{key: path, " + two + "}]"),
			"user=1", "own",
		},
		{
			"values share a counter", tree("  - {key: user, value: \"a*\", share_threshold: true, " + perMinute + "}\n" + other),
			tree("  - {key: user, value: \"a*\", share_threshold: true, " + perMinute + "}"), "user=ab", "shared",
		},
		{
			"other values share a counter",
			tree("  - {key: user, value: \"a*\", share_threshold: true, " + perMinute + "}\n" + other),
			tree("  - {key: user, value: \"ab*\", share_threshold: true, " + perMinute + "}"), "user=ab", "own",
		},
		{
			"networks share a counter", tree("  - {key: ip, count_by_prefix: {v4: 24}, " + perMinute + "}"),
			tree("  - {key: ip, count_by_prefix: {v4: 24}, " + two + "}\n  - {key: ip, cidr: 10.0.0.0/28, " + two + "}"),
			"ip=10.0.0.77", "shared",
		},
		{
			"another rule is replaced", tree("  - {key: user, " + perMinute + "}\n  - {key: ip, rate_limit: {unit: day, " +
				"requests_per_unit: 1, replaces: [{name: x}]}}"),
			tree("  - {key: user, " + perMinute + "}"), "user=1", "same",
		},
		{
			"the rule is replaced",
			tree("  - {key: user, rate_limit: {unit: day, requests_per_unit: 1, name: x}}\n  - {key: ip, rate_limit: {unit: " +
				"day, requests_per_unit: 1, replaces: [{name: x}]}}"),
			tree("  - {key: user, rate_limit: {unit: day, requests_per_unit: 1, name: x}}"), "user=1", "own",
		},
		{
			"several limits",
			tree("  - key: user\n    rate_limits: [{unit: minute, requests_per_unit: 1}, {unit: day, requests_per_unit: 2}]\n" + other),
			tree("  - key: user\n    rate_limits: [{unit: minute, requests_per_unit: 1}, {unit: day, requests_per_unit: 2}]"),
			"user=1", "same",
		},
		{
			"one limit more", tree("  - key: user\n    rate_limits: [{unit: minute, requests_per_unit: 1}]\n"),
			tree("  - key: user\n    rate_limits: [{unit: minute, requests_per_unit: 1}, {unit: day, requests_per_unit: 2}]"),
			"user=1", "own",
		},
		{"before the first difference of a list", list(pay, all), list(pay), "path=/pay,user=1", "same"},
		{"behind it", list(pay, all), list(all), "user=1", "shared"},
		{"another limit in a list", list(all), list(strings.Replace(all, "unit: 1", "unit: 2", 1)), "user=1", "own"},
		{
			"unlimited", tree("  - {key: user, rate_limit: {unlimited: true}}\n" + other),
			tree("  - {key: user, rate_limit: {unlimited: true}}"), "user=1", "same",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			live, candidate := loadText(t, tt.live), loadText(t, tt.candidate)
			r := rules.NewRelation(live, candidate)
			var entries []rules.Entry
			for pair := range strings.SplitSeq(tt.ask, ",") {
				key, value, _ := strings.Cut(pair, "=")
				entries = append(entries, rules.Entry{Key: []byte(key), Value: []byte(value)})
			}
			find := func(s *rules.Set) *rules.Match {
				rule := s.Domain([]byte("d")).FindRule(entries, new(rules.SearchScratch))
				return rule
			}
			was, is, got := find(live), find(candidate), "own"
			switch {
			case r.HasSameVerdicts(was, is):
				got = "same"
			case r.HasSameCounts(was, is):
				got = "counts"
			case r.SharesCounters(is.Limits[0]):
				got = "shared"
			}
			if got != tt.want || r.IsSameDomain(candidate.Domain([]byte("d"))) {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// TestRelationOfPeerKeys checks that a rule with the key of another program has no equal, not even before the first
// difference of two lists: a later rule may have the same key.
func TestRelationOfPeerKeys(t *testing.T) {
	t.Parallel()
	load := func(text string) *rules.Set {
		set, _, err := filerules.Load([]filerules.File{{Name: "d.yaml", Data: []byte(text)}},
			compile.Options{PeerKey: divvyrules.PeerKey})
		if err != nil {
			t.Fatal(err)
		}
		return set
	}
	const first = "domain: d\nrules:\n" +
		"  - {match: {a: x}, rate_limit: {algorithm: first_hit_window, unit: day, requests_per_unit: 1}}\n"
	live, candidate := load(first), load(first+"  - {match: {}, rate_limit: {unit: day, requests_per_unit: 1}}\n")
	r := rules.NewRelation(live, candidate)
	if was, is := live.Rules()[0], candidate.Rules()[0]; is.PeerKey == nil || !r.SharesCounters(is) ||
		r.HasSameVerdicts(live.Domain([]byte("d")).ListRules[0], candidate.Domain([]byte("d")).ListRules[0]) {
		t.Errorf("%v and %v have the same verdicts, or share no counter", was, is)
	}
}

// Domains are compared by all that their files say, except where they say it.
func TestSameDomains(t *testing.T) {
	t.Parallel()
	const text = "domain: d\ndescriptors:\n" +
		"  - {key: user, value: \"a*\", rate_limit: {unit: month, requests_per_unit: 1, calendar: true, time_zone: " +
		"Europe/Berlin}}\n" +
		"  - {key: ip, rate_limits: [{unit: minute, requests_per_unit: 1}, {unit: day, requests_per_unit: 2}], " +
		"descriptors: [{key: path}]}\n" +
		"  - {key: a}\n  - {key: b}\n  - {key: c}\n  - {key: d}\n  - {key: e}\n  - {key: f}\n  - {key: g, metadata: {a: " +
		"[1, {b: c}]}, rate_limit: {unit: day, requests_per_unit: 3}}\n"
	same := func(candidate string) bool {
		live, next := loadText(t, text), loadText(t, candidate)
		return rules.NewRelation(live, next).IsSameDomain(next.Domain([]byte("d")))
	}
	if !same(text) || !same("# a comment\n\n"+text) {
		t.Error("the same domain differs")
	}
	if leased := strings.Replace(text, "domain: d\n", "domain: d\ncounting: leased\non_contention: refuse\n", 1); !same(leased) {
		t.Error("a leased domain, which has the same counters, differs")
	}
	for _, change := range [][2]string{
		{"value: \"a*\"", "value: \"b*\""},
		{"Berlin", "Paris"},
		{"calendar: true, time_zone: Europe/Berlin", ""},
		{"unit: day", "unit: hour"},
		{"key: path", "key: p"},
		{"b: c", "b: d"},
		{"{key: f}", "{key: h}"},
		{"  - {key: a}\n", ""},
		{"requests_per_unit: 3", "requests_per_unit: 4"},
		{"requests_per_unit: 3", "requests_per_unit: 3, on_store_failure: allow"},
	} {
		if changed := strings.Replace(text, change[0], change[1], 1); changed == text || same(changed) {
			t.Errorf("%s -> %s: the domain is said to be the same", change[0], change[1])
		}
	}
}
