package rules_test

import (
	"fmt"
	"strings"
	"testing"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/match"
)

// dataDomain compiles one rule file, of the domain d, with its data files.
func dataDomain(t testing.TB, text string, data map[string]string) (*rules.Set, *rules.Domain) {
	t.Helper()
	set, _, err := filerules.Load(withData([]filerules.File{{Name: "a.yaml", Data: []byte(text)}}, data),
		compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return set, set.Domain([]byte("d"))
}

const dataRules = `
domain: d
descriptors:
- {key: k, value: exact, rate_limit: {unit: day, requests_per_unit: 1, name: exact}}
- {key: k, value: "b*", rate_limit: {unit: day, requests_per_unit: 1, name: wildcard}}
- {key: k, regex: "^r", rate_limit: {unit: day, requests_per_unit: 1, name: regex}}
- {key: k, cidr: 10.0.0.0/8, rate_limit: {unit: day, requests_per_unit: 1, name: cidr}}
- {key: k, rate_limit: {unit: day, requests_per_unit: 1, name: alone}}
- {key: k, values_from: banned.txt, rate_limit: {unit: day, requests_per_unit: 0, name: banned}}
- key: k
  limits_from: tenants.csv
  rate_limit: {unit: hour, algorithm: gcra, name: tenants}
  descriptors:
  - {key: below, rate_limit: {unit: day, requests_per_unit: 1, name: below}}
- {key: k, values_from: late.txt, rate_limit: {unit: day, requests_per_unit: 1, name: late}}
`

var dataTexts = map[string]string{
	"banned.txt":  "exact\nbad\n10.0.0.1\nradish\nboth\n",
	"tenants.csv": "both,1\nacme,5\nbig,7,20\nfree,unlimited\nzero,0\nacme2,5\n",
	"late.txt":    "late\nacme\n",
}

func TestFindRuleOfDataFiles(t *testing.T) {
	t.Parallel()
	set, d := dataDomain(t, dataRules, dataTexts)
	for _, tt := range []struct{ value, want string }{
		{"exact", "exact: 1 per day"}, // an exact value goes before files
		{"bad", "banned: 0 per day"},
		{"10.0.0.1", "banned: 0 per day"}, // files go before networks,
		{"10.0.0.2", "cidr: 1 per day"},
		{"radish", "banned: 0 per day"}, // regular expressions,
		{"red", "regex: 1 per day"},
		{"bold", "wildcard: 1 per day"}, // and wildcards
		{"both", "banned: 0 per day"},   // the first file decides
		{"acme", "tenants: 5 per hour, 5 at once"},
		{"acme2", "tenants: 5 per hour, 5 at once"},
		{"big", "tenants: 7 per hour, 21 at once"}, // not the wildcard b*
		{"zero", "tenants: 0 per hour, 0 at once"},
		{"free", "tenants: unlimited"},
		{"late", "late: 1 per day"},
		{"acme ", "alone: 1 per day"},
		{"", "alone: 1 per day"},
	} {
		m := find(d, entries("k="+tt.value))
		r := m.OwnLimit()
		got := fmt.Sprintf("%s: %s", r.Name, r.LimitText())
		if explained := explain(d, entries("k="+tt.value)).Found; got != tt.want || explained != m ||
			r.LimitsFile != nil {
			t.Errorf("%s: %s, explained as %v; want %s", tt.value, got, explained, tt.want)
		}
	}
	one, other := find(d, entries("k=acme")).OwnLimit(), find(d, entries("k=big")).OwnLimit()
	if base := set.Rules()[one.Index]; base.Name != "tenants" || other.Index != one.Index ||
		other.FullName != base.FullName ||
		base.LimitsFile == nil {
		t.Errorf("%+v, %+v and %+v", base, one, other)
	}
	if a, b := find(d, entries("k=acme, below=x")), find(d, entries("k=free, below=x")); a == nil || a != b {
		t.Errorf("below are %v and %v", a, b)
	}
	const line = "d.k_tenants.csv: unit=HOUR limits_from=tenants.csv (6 values, 5 limits), shadow_mode: false, " +
		"quota_mode: false, algorithm: gcra"
	if base := set.Rules()[one.Index]; base.String() != line || base.LimitText() != "as in tenants.csv per hour" {
		t.Errorf("%v, %s", base, base.LimitText())
	}
}

func TestExplainDataFiles(t *testing.T) {
	t.Parallel()
	_, d := dataDomain(t, dataRules, dataTexts)
	for _, tt := range []struct{ value, want string }{
		{"late", "values_from banned.txt no_match not_in_file, limits_from tenants.csv no_match not_in_file, values_from " +
			"late.txt taken late.txt:1, key  behind"},
		{"acme", "values_from banned.txt no_match not_in_file, limits_from tenants.csv taken tenants.csv:2, values_from " +
			"late.txt behind late.txt:2, key  behind"},
	} {
		var got []string
		for _, c := range explain(d, entries("k="+tt.value)).Steps[0].Candidates {
			if c.MatchKind == match.MatchWildcard || c.MatchKind == match.MatchCIDR || c.MatchKind == match.MatchRegex {
				continue
			}
			got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s %s%s", c.MatchKind, c.Value, c.Outcome, c.Reason,
				c.DataLine)))
		}
		if text := strings.Join(got, ", "); text != tt.want {
			t.Errorf("%s: %s; want %s", tt.value, text, tt.want)
		}
	}
}

// A limit of a file is charged with those above it, and holds of a file have their names.
func TestDataFilesBesideOtherKeys(t *testing.T) {
	t.Parallel()
	_, d := dataDomain(t, `
domain: d
descriptors:
- key: a
  charge: path
  rate_limit: {unit: day, requests_per_unit: 9}
  descriptors:
  - {key: k, limits_from: f.csv, rate_limit: {unit: hour}}
  - {key: s, values_from: f.csv, share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: h, limits_from: f.csv, rate_limit: {algorithm: concurrency, hold: 30s, hold_id: id}}
`, map[string]string{"f.csv": "x,1\ny,2\nz,unlimited\n"})
	for value, want := range map[string]string{
		"x": "9 per day + 1 per hour", "y": "9 per day + 2 per hour",
		"z": "9 per day + unlimited",
	} {
		var got []string
		for _, r := range find(d, entries("a=1, k="+value)).Limits {
			got = append(got, r.LimitText())
		}
		if text := strings.Join(got, " + "); text != want {
			t.Errorf("%s: %s; want %s", value, text, want)
		}
	}
	shared := find(d, entries("a=1, s=x,1"))
	for format, want := range map[rules.KeyFormat]string{
		{}:                 "d_a_1_s_f.csv_",
		{EscapeKeys: true}: "d_a_1_s_s:values_from:f.csv_",
	} {
		if key, _ := format.AppendKey(nil, d, shared.Limits[1], entries("a=1, s=x,1")); string(key) != want {
			t.Errorf("%s; want %s", key, want)
		}
	}
	for value, limit := range map[string]string{
		"x": "1 at a time, each for at most 30s",
		"y": "2 at a time, each for at most 30s", "z": "unlimited",
	} {
		request := entries("h=" + value + ", id=7, hold=release")
		r := find(d, request)
		if r == nil || r.OwnLimit().LimitText() != limit {
			t.Fatalf("%s: %v", value, r)
		}
		if name, action, err := r.HoldOf(request); string(name) != "7" || action != rules.ReleaseHold || err != nil {
			t.Errorf("%s: %s, %v, %v", value, name, action, err)
		}
		if _, _, err := r.HoldOf(entries("h=" + value)); (err == nil) != (value == "z") {
			t.Errorf("%s without the name of a hold: %v", value, err)
		}
	}
}
