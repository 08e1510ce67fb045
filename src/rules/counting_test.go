package rules_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"ratelimit/src/backend"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
)

// TestCountingOfDataFiles checks that a limit of a file is leased as its rule is, if it can be.
func TestCountingOfDataFiles(t *testing.T) {
	t.Parallel()
	const rule = "domain: d\ncounting: %s\ndescriptors:\n- key: k\n  limits_from: tenants.csv\n" +
		"  rate_limit: {unit: hour, algorithm: gcra, on_contention: refuse%s}\n"
	data := map[string]string{"tenants.csv": "many,9\nburst,1,8\nsteady,9,0\nfew,3\nfree,unlimited\n"}
	for _, text := range []string{fmt.Sprintf(rule, "exact", ", counting: leased"), fmt.Sprintf(rule, "leased", "")} {
		set, d := dataDomain(t, text, data)
		if base := set.Rules()[0]; base.Counting != backend.Leased || base.WhyExact != "" {
			t.Errorf("%s: the rule is %v, %s", text, base.Counting, base.WhyExact)
		}
		for value, want := range map[string]string{
			"many":   "leased refuse ",
			"burst":  "leased refuse ",
			"steady": "exact wait gcra needs a burst: a lease is taken from the bucket",
			"few":    "exact wait a limit of 3 is too small: each lease would have one unit",
			"free":   "exact wait ",
		} {
			r := find(d, entries("k="+value)).OwnLimit()
			if got := fmt.Sprint(r.Counting, " ", r.OnContention, " ", r.WhyExact); got != want {
				t.Errorf("%s: got %s, want %s", value, got, want)
			}
		}
	}
}

// TestCountingKeepsCounters checks that leased and exact replicas have the same keys, so that they share counters.
func TestCountingKeepsCounters(t *testing.T) {
	t.Parallel()
	keys := func(text, counting, ask string) (list []string) {
		opt := compile.Options{}
		opt.Counting, _ = backend.Countings.Parse(counting)
		set, _, err := filerules.Load([]filerules.File{{Name: "d.yaml", Data: []byte(text)}}, opt)
		if err != nil {
			t.Fatal(err)
		}
		d := set.Domain([]byte("d"))
		for _, r := range find(d, entries(ask)).Limits {
			if r.Counting.String() != counting {
				t.Errorf("%s: %s is %v", text, r.FullName, r.Counting)
			}
			key, tag := new(rules.KeyFormat).AppendKey(nil, d, r, entries(ask))
			list = append(list, fmt.Sprintf("%s %d", key, tag))
		}
		return list
	}
	for ask, text := range map[string]string{
		"k=a":      "domain: d\ndescriptors: [{key: k, rate_limits: [{unit: day, requests_per_unit: 9}, {unit: hour, requests_per_unit: 9}]}]",
		"k=b, l=1": "domain: d\nrules: [{match: {k: b}, per: [l], rate_limit: {algorithm: gcra, unit: day, requests_per_unit: 9}}]",
		"w=x":      "schema: {w: {limits: [9, 9, 60], children: {x: {limits: [9, 9, 60]}}}}",
	} {
		exact, leased := keys(text, "exact", ask), keys(text, "leased", ask)
		if len(exact) == 0 || !slices.Equal(exact, leased) {
			t.Errorf("%s: exact %s, leased %s", text, strings.Join(exact, " "), strings.Join(leased, " "))
		}
	}
}
