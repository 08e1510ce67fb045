package rules

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// pairKey is a key of a rule file with a value that is not its default, and what it needs
// beside it to mean something.
type pairKey struct {
	place where
	name  string
	value string
	needs map[string]string // keys of the limit, or rate_limits
}

// pairKeys are all keys that may stand on a descriptor, on a rule of an ordered list or in
// a limit. Places: see pairFile.
var pairKeys = []pairKey{
	{atDescriptor, "charge", "path", nil},
	{atDescriptor, "on_reject", "none", map[string]string{"rate_limits": "several"}},
	{atDescriptor, "shadow_mode", "true", nil},
	{atDescriptor, "quota_mode", "true", nil},
	{atDescriptor, "detailed_metric", "true", nil},
	{atDescriptor, "value_to_metric", "true", nil},
	{atDescriptor, "share_threshold", "true", nil},
	{atDescriptor, "metadata", "{x: y}", nil},
	{atDescriptor, "rate_limits", "several", nil},
	{atLimit, "unit", "hour", nil},
	{atLimit, "requests_per_unit", "7", nil},
	{atLimit, "unit_multiplier", "3", nil},
	{atLimit, "period", "90s", nil},
	{atLimit, "algorithm", "gcra", nil},
	{atLimit, "burst", "2", map[string]string{"algorithm": "gcra"}},
	{atLimit, "min_interval", "1s", map[string]string{"algorithm": "gcra"}},
	{atLimit, "count_blocked", "true", map[string]string{"algorithm": "gcra"}},
	{atLimit, "on_store_failure", "deny", nil},
	{atLimit, "unlimited", "true", nil},
	{atLimit, "name", "limit", nil},
	{atLimit, "replaces", "[{name: other}]", nil},
}

// pairFile writes a domain with the keys. A descriptor that is compared has a wildcard, a
// limit, and a descriptor with a limit below it; the domain also has a limit named other.
func pairFile(ordered bool, keys ...pairKey) string {
	outer, limit := map[string]string{}, map[string]string{}
	for _, k := range keys {
		at := outer
		if k.place == atLimit {
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
				if name != "rate_limits" {
					limit[name] = value
				}
			}
		}
		if limit["requests_per_unit"] == "" {
			limit["requests_per_unit"] = "5"
		}
		if limit["unit"] == "" && limit["period"] == "" {
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
		return "domain: d\nrules:\n- {" + write(outer) + "}\n- {match: {}, rate_limit: {unit: day, requests_per_unit: 1, name: other}}\n"
	}
	outer["key"], outer["value"] = "a", "x*"
	outer["descriptors"] = "[{key: c, rate_limit: {unit: day, requests_per_unit: 1}}]"
	return "domain: d\ndescriptors:\n- {" + write(outer) + "}\n- {key: o, rate_limit: {unit: day, requests_per_unit: 1, name: other}}\n"
}

// compiledTo is all that a file means: its problems or warnings, or else its rules.
func compiledTo(text string) (said, rules string) {
	set, warnings, err := Load([]File{{"a.yaml", []byte(text)}}, Options{})
	switch {
	case err != nil:
		return "error: " + err.Error(), ""
	case len(warnings) > 0:
		said = "warning: " + warnings.Error()
	}
	var b strings.Builder
	_ = set.YAML(&b) // to memory
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
	var got strings.Builder
	for _, ordered := range []bool{false, true} {
		var keys []pairKey
		for _, k := range pairKeys {
			if onRule := slices.ContainsFunc(ruleKeys, func(r key[RuleConfig]) bool { return r.name == k.name }); !ordered || onRule || k.place == atLimit {
				keys = append(keys, k)
			}
		}
		for i, a := range keys {
			for _, b := range keys[i+1:] {
				said, both := compiledTo(pairFile(ordered, a, b))
				if said != "" {
					if !strings.Contains(said, "a.yaml:") {
						t.Errorf("%s x %s: no place in %s", a.name, b.name, said)
					}
					kind, text, _ := strings.Cut(said, ": a.yaml:")
					_, text, _ = strings.Cut(text, ": ")
					text, _, _ = strings.Cut(text, "\n")
					list := ""
					if ordered {
						list = "rules: "
					}
					fmt.Fprintf(&got, "%s%s x %s: %s: %s\n", list, a.name, b.name, kind, text)
					continue
				}
				// What one of them needs is there without it, too.
				_, withA := compiledTo(pairFile(ordered, a, pairKey{needs: b.needs}))
				_, withB := compiledTo(pairFile(ordered, b, pairKey{needs: a.needs}))
				if (both == withA && a.needs[b.name] == "") || (both == withB && b.needs[a.name] == "") {
					t.Errorf("%s x %s: one of them is silently void:\n%s", a.name, b.name, pairFile(ordered, a, b))
				}
			}
		}
	}
	want, err := os.ReadFile("testdata/pairs")
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("got:\n%swant:\n%s", got.String(), want)
	}
}

// Every key of a descriptor, of a rule and of a limit is in the table, but for those that
// say where it is.
func TestPairsHaveAllKeys(t *testing.T) {
	structure := []string{"key", "value", "rate_limit", "descriptors", "match", "per"}
	for name, places := range keys {
		if places&(atDescriptor|atRule|atLimit) == 0 || slices.Contains(structure, name) {
			continue
		}
		if !slices.ContainsFunc(pairKeys, func(k pairKey) bool { return k.name == name }) {
			t.Errorf("%s is in no pair", name)
		}
	}
}
