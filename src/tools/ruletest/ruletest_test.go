package ruletest_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"ratelimit/src/frontend/rls"
	"ratelimit/src/tools/ruletest"
	"ratelimit/testbed/testfiles"
)

var update = flag.Bool("update", false, "write testdata/*.txt anew")

// golden holds cases to a file: "== name", the text of a file of tests, a line
// "-- want --", and what became of it.
func golden(t *testing.T, file string, outcome func(t *testing.T, text string) string) {
	t.Helper()
	data := testfiles.Read(t, file)
	intro, rest, _ := strings.Cut(string(data), "== ")
	out := strings.Builder{}
	out.WriteString(strings.TrimSpace(intro) + "\n")
	for one := range strings.SplitSeq(rest, "\n== ") {
		name, text, _ := strings.Cut(one, "\n")
		text, want, _ := strings.Cut(text, "-- want --\n")
		got := strings.TrimSpace(outcome(t, text))
		if got != strings.TrimSpace(want) && !*update {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, strings.TrimSpace(want))
		}
		fmt.Fprintf(&out, "\n== %s\n%s-- want --\n%s\n", name, text, got)
	}
	if *update {
		testfiles.Write(t, file, out.String())
	}
}

const someRules = `
domain: d
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 2, name: per-user}
    descriptors:
      - {key: path, rate_limits: [{unit: second, requests_per_unit: 1}, {unit: hour, requests_per_unit: 3, name: hourly}]}
  - key: user
    value: root
    rate_limit: {unlimited: true}
  - key: gold
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - {key: vip, rate_limit: {unit: day, requests_per_unit: 9, replaces: [{name: per-user}]}}
  - {key: customer, rate_limit: {unit: month, calendar: true, anchor_day: 15, time_zone: Europe/Berlin, requests_per_unit: 1}}
  - {key: call, rate_limit: {algorithm: concurrency, requests_per_unit: 1, hold: 30s, hold_id: id}}
`

// inDir goes to a directory with rules in rules/a.yaml, so that the places in
// messages do not depend on where the test runs.
func inDir(t *testing.T, text string) {
	t.Helper()
	t.Chdir(t.TempDir())
	if err := os.Mkdir("rules", 0o755); err != nil {
		t.Fatal(err)
	}
	testfiles.Write(t, filepath.Join("rules", "a.yaml"), text)
}

// testdata is where golden files are, seen from a test that left.
func testdata(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// All problems of a file are reported at once, with their places.
func TestProblems(t *testing.T) {
	file := testdata(t, "problems.txt")
	inDir(t, someRules)
	golden(t, file, func(t *testing.T, text string) string {
		_, problems := ruletest.Read("t_test.yaml", []byte(text))
		for _, p := range problems {
			if p.File == "" || p.Message == "" {
				t.Errorf("%v has no place, or no words", p)
			}
		}
		dir, err := os.Getwd()
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(problems.Error(), dir, "/here")
	})
}

// Results of tests that pass and of tests that fail.
func TestResults(t *testing.T) {
	file := testdata(t, "results.txt")
	inDir(t, someRules)
	golden(t, file, func(t *testing.T, text string) string {
		f, problems := ruletest.Read("t_test.yaml", []byte(text))
		if len(problems) > 0 {
			return problems.Error()
		}
		r := f.Run(t.Context(), nil)
		failed := slices.ContainsFunc(r.Tests, func(t ruletest.Test) bool { return !t.Passed })
		if failed != strings.Contains(r.Text(false), "FAIL") {
			t.Errorf("failed is %t in\n%s", failed, r.Text(false))
		}
		return r.Text(true)
	})
}

// A request in a file of tests is read as the same text is on /json.
func TestRequestsAreThoseOfJSON(t *testing.T) {
	inDir(t, someRules)
	for _, request := range []string{
		`{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"alex"}]}]}`,
		`{"domain":"d","hitsAddend":7,"descriptors":[{"entries":[{"key":"user"}]},{"entries":[{"value":"x"}]},{}]}`,
		`{"domain":"d","hits_addend":4294967295,"descriptors":[{"entries":[],"hitsAddend":"18446744073709551615"}]}`,
		`{"domain":"d","descriptors":[{"entries":[{"key":"a","value":"yes: no"}],"hits_addend":0,"isNegativeHits":true}]}`,
		`{"domain":"d","descriptors":[{"limit":{"requestsPerUnit":5,"unit":"HOUR","unit_multiplier":3},"is_negative_hits":false}]}`,
		`{"domain":"d","descriptors":[{"limit":{"unit":2},"hitsAddend":null,"entries":null}]}`,
	} {
		want, err := rls.ParseJSON([]byte(request))
		if err != nil {
			t.Fatal(err)
		}
		f, problems := ruletest.Read("t_test.yaml",
			[]byte("rules: rules\ntests: [{name: t, steps: [{request: "+request+"}]}]"))
		if len(problems) > 0 {
			t.Errorf("%s: %v", request, problems)
			continue
		}
		if got := f.FirstRequest(); fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
			t.Errorf("%s:\n got %+v\nwant %+v", request, got, want)
		}
	}
	for _, request := range []string{
		`{"domain":"d","descriptors":[{"entries":[{"key":["user"]}]}]}`,
		`{"domain":"d","descriptors":[{"entry":[]}]}`,
		`{"domain":"d","descriptors":[{}],"hitsAddend":4294967296}`,
		`{"domain":"d","descriptors":[{"hitsAddend":-1}]}`,
		`{"domain":"d","descriptors":{}}`,
		`{"domain":"d","descriptors":[{"limit":{"unit":"FORTNIGHT"}}]}`,
		`{"domain":"d","descriptors":[{"isNegativeHits":1}]}`,
	} {
		if _, err := rls.ParseJSON([]byte(request)); err == nil {
			t.Errorf("%s is good on /json", request)
		}
		if _, problems := ruletest.Read("t_test.yaml",
			[]byte("rules: rules\ntests: [{name: t, steps: [{request: "+request+"}]}]")); len(problems) == 0 {
			t.Errorf("%s is good in a file of tests", request)
		}
	}
}

// docs/tools-reference.md has the keys of the files.
func TestKeysAreDocumented(t *testing.T) {
	data := testfiles.Read(t, "../../../docs/tools-reference.md")
	_, keys, _ := strings.Cut(string(data), "\n| key of a test file |")
	keys, _, _ = strings.Cut(keys, "\n\n")
	_, problems := ruletest.Read("t_test.yaml", []byte(`
rules: rules
x: 1
tests: [{name: a, x: 1, steps: [{ask: "d: user=1", x: 1, statuses: [{code: OK, x: 1}]}]}]
`))
	known := regexp.MustCompile(`known in [a-z ]+: (.*)`).FindAllStringSubmatch(problems.Error(), -1)
	if len(known) != 4 {
		t.Fatalf("got %v", problems)
	}
	for _, m := range known {
		for name := range strings.SplitSeq(m[1], ", ") {
			if !strings.Contains(keys, "`"+name+"`") {
				t.Errorf("docs/tools-reference.md does not have the key %s", name)
			}
		}
	}
}

// FuzzRead reads and runs whatever comes. Nothing panics, and each problem has
// a place.
func FuzzRead(f *testing.F) {
	for _, name := range []string{
		"testdata/problems.txt", "testdata/results.txt",
		"../../../examples/ratelimit/tests/messages_test.yaml",
		"../../../examples/ratelimit/tests/billing-months_test.yaml",
	} {
		data := testfiles.Read(f, name)
		for one := range strings.SplitSeq(string(data), "\n== ") {
			_, text, _ := strings.Cut(one, "\n")
			text, _, _ = strings.Cut(text, "-- want --\n")
			f.Add([]byte(text))
		}
		f.Add(bytes.ReplaceAll(data, []byte("../config"), []byte("rules")))
	}
	dir := f.TempDir()
	testfiles.Write(f, filepath.Join(dir, "rules"), someRules)
	times := regexp.MustCompile(`\d{4,}`) // what takes long finds nothing, nor does reading a whole disk
	f.Fuzz(func(t *testing.T, data []byte) {
		if times.Match(data) || len(data) > 2000 || bytes.Contains(data, []byte("..")) ||
			bytes.Contains(data, []byte(": /")) {
			return
		}
		file, problems := ruletest.Read(filepath.Join(dir, "t_test.yaml"), data)
		if (file == nil) == (len(problems) == 0) {
			t.Fatalf("the file is %v, the problems are %v", file, problems)
		}
		for _, p := range problems {
			if p.File == "" || p.Message == "" {
				t.Fatalf("%v has no place, or no words", p)
			}
		}
		if file == nil {
			return
		}
		r := file.Run(t.Context(), nil)
		if len(r.Problems) > 0 {
			t.Fatalf("%q was read, and then %v", data, r.Problems)
		}
		_ = r.Text(true)
	})
}
