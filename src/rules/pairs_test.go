//go:build !race

package rules_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"ratelimit/api"

	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/yamlrules"
	"ratelimit/testbed/testfiles"
)

// pairKey is a key of a rule file with a value that is not its default, and what it needs
// beside it to mean something.
type pairKey struct {
	place string // where it stands: descriptor, rate_limit
	name  string
	value string
	needs map[string]string // keys of the limit, or rate_limits
}

// label is the name of the key, or its value for the one without a window.
func (k pairKey) label() string {
	if k.value == "concurrency" {
		return k.value
	}
	return k.name
}

// pairKeys are all keys that may stand on a descriptor, on a rule of an ordered list or in
// a limit. Places: see pairFile.
var pairKeys = []pairKey{
	{"descriptor", "charge", "path", nil},
	{"descriptor", "on_reject", "none", map[string]string{"rate_limits": "several"}},
	{"descriptor", "shadow_mode", "true", nil},
	{"descriptor", "quota_mode", "true", nil},
	{"descriptor", "detailed_metric", "true", nil},
	{"descriptor", "value_to_metric", "true", nil},
	{"descriptor", "share_threshold", "true", nil},
	{"descriptor", "exact", "x*", nil},
	{"descriptor", "cidr", "10.0.0.0/8", nil},
	{"descriptor", "regex", "^x", nil},
	{"descriptor", "count_by_prefix", "{v4: 24}", nil},
	{"descriptor", "values_from", "values.txt", nil},
	{"descriptor", "limits_from", "limits.csv", nil},
	{"descriptor", "metadata", "{x: y}", nil},
	{"descriptor", "rate_limits", "several", nil},
	{"rate_limit", "unit", "hour", nil},
	{"rate_limit", "requests_per_unit", "7", nil},
	{"rate_limit", "unit_multiplier", "3", nil},
	{"rate_limit", "period", "90s", nil},
	{"rate_limit", "calendar", "true", map[string]string{"unit": "month"}},
	{"rate_limit", "time_zone", "Asia/Tokyo", map[string]string{"unit": "month", "calendar": "true"}},
	{"rate_limit", "anchor_day", "15", map[string]string{"unit": "month", "calendar": "true"}},
	{"rate_limit", "week_starts", "sunday", map[string]string{"unit": "week", "calendar": "true"}},
	{"rate_limit", "algorithm", "gcra", nil},
	{"rate_limit", "burst", "2", map[string]string{"algorithm": "gcra"}},
	{"rate_limit", "min_interval", "1s", map[string]string{"algorithm": "gcra"}},
	{"rate_limit", "count_blocked", "true", map[string]string{"algorithm": "gcra"}},
	{"rate_limit", "algorithm", "concurrency", map[string]string{"hold": "20s", "hold_id": "id"}},
	{"rate_limit", "hold", "30s", map[string]string{"hold_id": "id"}},
	{"rate_limit", "hold_id", "call", map[string]string{"hold": "20s"}},
	{"rate_limit", "unsettled", "release", map[string]string{"hold": "20s", "hold_id": "id"}},
	{"rate_limit", "reserve_on_check", "{estimate: 2, for: 20s}", nil},
	{"rate_limit", "on_store_failure", "deny", nil},
	{"rate_limit", "counting", "leased", nil},
	{"rate_limit", "on_contention", "refuse", map[string]string{"counting": "leased"}},
	{"rate_limit", "notify", "{at: [80]}", nil},
	{"rate_limit", "enforce_percent", "10", nil},
	{"rate_limit", "unlimited", "true", nil},
	{"rate_limit", "name", "limit", nil},
	{"rate_limit", "replaces", "[{name: other}]", nil},
}

// pairFile writes a domain with the keys. A descriptor that is compared has a wildcard, a
// limit, and a descriptor with a limit below it; the domain also has a limit named other.
func pairFile(ordered bool, keys ...pairKey) string {
	outer, limit := map[string]string{}, map[string]string{}
	for _, k := range keys {
		at := outer
		if k.place == "rate_limit" {
			at = limit
		}
		if k.name != "" {
			at[k.name] = k.value
		}
		if k.needs["rate_limits"] != "" {
			outer["rate_limits"] = "several"
		}
	}
	if limit["unlimited"] == "" {
		for _, k := range keys {
			for name, value := range k.needs {
				isHold := name == "hold" || name == "hold_id"
				if name != "rate_limits" && (!isHold || limit[name] == "") {
					limit[name] = value
				}
			}
		}
		if limit["requests_per_unit"] == "" && outer["limits_from"] == "" {
			limit["requests_per_unit"] = "5"
		}
		if limit["unit"] == "" && limit["period"] == "" && limit["algorithm"] != "concurrency" {
			limit["unit"] = "minute"
		}
	}
	write := func(m map[string]string) string {
		var list []string
		for name, value := range m {
			list = append(list, name+": "+value)
		}
		slices.Sort(list)
		return strings.Join(list, ", ")
	}
	if outer["rate_limits"] == "" {
		outer["rate_limit"] = "{" + write(limit) + "}"
	} else {
		outer["rate_limits"] = "[{" + write(limit) + "}, {algorithm: first_hit_window, unit: day, requests_per_unit: 99}]"
	}
	if ordered {
		outer["match"], outer["per"] = "{a: x*}", "[a]"
		return "domain: d\nrules:\n- {" + write(outer) + "}\n- {match: {}, rate_limit: {unit: day, requests_per_unit: 1, " +
			"name: other}}\n"
	}
	outer["key"] = "a"
	if outer["exact"]+outer["cidr"]+outer["regex"]+outer["count_by_prefix"]+outer["values_from"]+
		outer["limits_from"] == "" {
		outer["value"] = "x*"
	}
	outer["descriptors"] = "[{key: c, rate_limit: {unit: day, requests_per_unit: 1}}]"
	return "domain: d\ndescriptors:\n- {" + write(outer) + "}\n- {key: o, rate_limit: {unit: day, requests_per_unit: 1, " +
		"name: other}}\n"
}

// compiledTo is all that a file means: its problems or warnings, or else its rules.
func compiledTo(text string) (said, list string) {
	files := withData([]filerules.File{{Name: "a.yaml", Data: []byte(text)}},
		map[string]string{"values.txt": "x\n", "limits.csv": "x,5\n"})
	set, warnings, err := filerules.Load(files, compile.Options{})
	switch {
	case err != nil:
		return "error: " + err.Error(), ""
	case len(warnings) > 0:
		said = "warning: " + warnings.Error()
	}
	var b strings.Builder
	_ = yamlrules.Write(&b, set) // to memory
	for _, line := range charges(set) {
		fmt.Fprintln(&b, line)
	}
	// Positions move with every key.
	var lines []string
	for line := range strings.Lines(b.String()) {
		if !strings.Contains(line, "at: ") {
			lines = append(lines, line)
		}
	}
	return said, strings.Join(lines, "")
}

// TestPairsOfKeys goes through all pairs of keys. Either both have their effect beside each
// other, or there is an error, or at least a warning, with its place. testdata/pairs holds the
// pairs of which one is said; the others must work.
func TestPairsOfKeys(t *testing.T) {
	t.Parallel()
	known := schemaKeys(t)
	var got strings.Builder
	for _, ordered := range []bool{false, true} {
		var keys []pairKey
		for _, k := range pairKeys {
			if _, onRule := known["rule"].Properties[k.name]; !ordered || onRule || k.place == "rate_limit" {
				keys = append(keys, k)
			}
		}
		for i, a := range keys {
			for _, b := range keys[i+1:] {
				if a.name == b.name {
					continue
				}
				said, both := compiledTo(pairFile(ordered, a, b))
				if said != "" {
					if !strings.Contains(said, "a.yaml:") {
						t.Errorf("%s x %s: no place in %s", a.label(), b.label(), said)
					}
					kind, text, _ := strings.Cut(said, ": a.yaml:")
					_, text, _ = strings.Cut(text, ": ")
					text, _, _ = strings.Cut(text, "\n")
					list := ""
					if ordered {
						list = "rules: "
					}
					fmt.Fprintf(&got, "%s%s x %s: %s: %s\n", list, a.label(), b.label(), kind, text)
					continue
				}
				// What one of them needs is there without it, too.
				_, withA := compiledTo(pairFile(ordered, a, pairKey{needs: b.needs}))
				_, withB := compiledTo(pairFile(ordered, b, pairKey{needs: a.needs}))
				if (both == withA && a.needs[b.name] == "") || (both == withB && b.needs[a.name] == "") {
					t.Errorf("%s x %s: one of them is silently void:\n%s", a.label(), b.label(), pairFile(ordered, a, b))
				}
			}
		}
	}
	want := testfiles.Read(t, "testdata/pairs")
	if got.String() != string(want) {
		t.Errorf("got:\n%swant:\n%s", got.String(), want)
	}
}

// Every key of a descriptor, of a rule and of a limit is in the table, but for those that
// say where it is.
func TestPairsHaveAllKeys(t *testing.T) {
	structure := []string{"key", "value", "rate_limit", "descriptors", "match", "per"}
	known := schemaKeys(t)
	for _, place := range []string{"descriptor", "rule", "rate_limit"} {
		for name := range known[place].Properties {
			if !slices.Contains(structure, name) &&
				!slices.ContainsFunc(pairKeys, func(k pairKey) bool { return k.name == name }) {
				t.Errorf("%s is in no pair", name)
			}
		}
	}
}

// schemaKeys are the places of rule files with their keys, by the JSON Schema.
func schemaKeys(t *testing.T) map[string]struct{ Properties map[string]any } {
	t.Helper()
	var schema struct {
		Definitions map[string]struct{ Properties map[string]any }
	}
	if err := json.Unmarshal(api.Schema, &schema); err != nil {
		t.Fatal(err)
	}
	return schema.Definitions
}
