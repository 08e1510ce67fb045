//go:build !race

package rules_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
)

// The warning of unsorted keys comes if, and only if, no bucket gets to the limit of a chain of descriptors: all
// buckets of some keys and values are tried. Wildcards also match entries whose key ends at another underscore than
// that of the rule.
func TestKeyOrderAgainstAllBuckets(t *testing.T) {
	t.Parallel()
	levels := []string{
		"key: a", "key: b", "key: ab", "key: a_b", `key: "a*"`, `key: "*"`, `key: "b_*"`,
		`key: a, value: "x*"`, `key: a_b, value: "*"`, "key: b, value: y",
	}
	keys := []string{
		"", "\x00", "a", "a\x00", "a_b", "a_b_", "a_b_\x00", "a_x", "a_x\x00", "aa", "ab", "ab\x00",
		"ab\x00\x00", "b", "b\x00", "b\x00\x00", "b_", "b__", "c", "d",
	}
	values := []string{"", "x", "y", "b_x"}
	random := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		chain := make([]string, 1+random.IntN(3))
		for i := range chain {
			chain[i] = levels[random.IntN(len(levels))]
		}
		text := "domain: d\nquota_buckets: true\ndescriptors: [{" + strings.Join(chain, ", descriptors: [{") +
			", rate_limit: {unit: day, requests_per_unit: 1}" + strings.Repeat("}]", len(chain)) + "\n"
		set, warnings, err := filerules.Load([]filerules.File{{Name: "a.yaml", Data: []byte(text)}}, compile.Options{})
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		warned := slices.ContainsFunc(warnings,
			func(p rules.Problem) bool { return strings.Contains(p.Message, "no quota bucket can match") })
		if bucket := findBucket(set.Domains()[0], keys, values, len(chain), nil); warned == (bucket != "") {
			t.Errorf("%s: the warning is %t, and the bucket %q gets there", text, warned, bucket)
		}
	}
}

// findBucket returns a bucket of n entries, which begins with entries, that some rule of the domain matches; empty if
// there is none.
func findBucket(d *rules.Domain, keys, values []string, n int, entries []rules.Entry) string {
	if len(entries) == n {
		if r := d.FindRule(entries, new(rules.SearchScratch)); r != nil {
			return fmt.Sprintf("%q", entries)
		}
		return ""
	}
	for _, key := range keys {
		if len(entries) > 0 && key <= string(entries[len(entries)-1].Key) {
			continue
		}
		for _, value := range values {
			if bucket := findBucket(d, keys, values, n,
				append(entries, rules.Entry{Key: []byte(key), Value: []byte(value)})); bucket != "" {
				return bucket
			}
		}
	}
	return ""
}
