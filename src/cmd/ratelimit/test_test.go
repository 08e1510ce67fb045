package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"ratelimit/src/tools/ruletest"
)

func TestTestCommand(t *testing.T) {
	t.Chdir(t.TempDir())
	writeFile(t, "rules/a.yaml", oneRule)
	writeFile(t, "rules/other/notes.md", "no rules")
	writeFile(t, "bad-rules/a.yaml", "domain: d\ndescriptors:\n- kez: a\n")
	writeFile(t, "good/a_test.yaml",
		"rules: ../rules\ntests:\n- {name: two pass, steps: [{ask: 'd: ip=1', expect: [OK, OK, OVER_LIMIT]}]}\n- {name: "+
			"others pass, steps: [{ask: 'd: x=1', expect: OK}]}\n")
	writeFile(t, "good/deep/b_test.yml",
		"rules: ../../rules/a.yaml\ntests: [{name: one passes, steps: [{ask: 'd: ip=1', expect: OK}]}]\n")
	writeFile(t, "good/c.yaml", "is: no test\n")
	writeFile(t, "fails/a_test.yaml",
		"rules: ../rules\ntests: [{name: three pass, steps: [{ask: 'd: ip=1', times: 3, expect: OK}]}]\n")
	writeFile(t, "bad/a_test.yaml", "rules: ../rules\ntests: [{nam: x, steps: []}]\n")
	writeFile(t, "bad/b_test.yaml", "rules: ../bad-rules\ntests: [{name: x, steps: [{ask: 'd: ip=1'}]}]\n")
	writeFile(t, "beside/rules.yaml", oneRule)
	writeFile(t, "beside/rules_test.yaml",
		"rules: .\ntests: [{name: beside, steps: [{ask: 'd: ip=1', expect: [OK, OK, OVER_LIMIT]}]}]\n")
	for _, tt := range []struct {
		args string
		code int
		want []string
	}{
		{"good", 0, []string{"ok    good/a_test.yaml  2 tests, 4 requests\nok    good/deep/b_test.yml  1 test, 1 request\n"}},
		{"-v good", 0, []string{"--- PASS: two pass (3 requests)\n--- PASS: others pass (1 request)\nok    good/a_test.yaml"}},
		{
			"good/a_test.yaml good good/deep", 0,
			[]string{"ok    good/a_test.yaml  2 tests, 4 requests\nok    good/deep/b_test.yml  1 test, 1 request\n"},
		},
		{"good -run others|one", 0, []string{
			"good/a_test.yaml  1 test, 1 request",
			"good/deep/b_test.yml  1 test, 1 request",
		}},
		{"good --run nothing", 0, []string{"good/a_test.yaml  no tests to run", "no test has a name that matches nothing"}},
		{"beside", 0, []string{"ok    beside/rules_test.yaml  1 test, 3 requests\n"}},
		{"fails", 1, []string{
			"--- FAIL: three pass (fails/a_test.yaml:2:9)\n    fails/a_test.yaml:2:36: at 0s, d: ip=1, " +
				"request 3 of 3\n        answer: got OVER_LIMIT, want OK\n      because\n",
			"          rule d.ip (rules/a.yaml:4:5): 2 per year", "now 2 used, 0 left: is over",
			"FAIL  fails/a_test.yaml  1 of 1 test failed\n",
		}},
		{"good fails", 1, []string{"ok    good/", "FAIL  fails/"}},
		{"good fails bad", 2, []string{
			"ok    good/", "FAIL  fails/",
			"error: bad/a_test.yaml:2:10: unknown key \"nam\"; did you mean `name`?",
			"error: bad/a_test.yaml:2:25: the test has no steps", "BAD   bad/a_test.yaml  2 problems",
			"error: bad-rules/a.yaml:3:3: unknown key \"kez\"", "BAD   bad/b_test.yaml  1 problem",
		}},
		{"good fails bad --format github", 2, []string{
			"ok    good/a_test.yaml  2 tests, 4 requests\n",
			"::error file=fails/a_test.yaml,line=2,col=36::test \"three pass\" failed%0A    fails/a_test.yaml:2:36: at 0s, d: " +
				"ip=1, request 3 of 3%0A        answer: got OVER_LIMIT, want OK%0A      because%0A",
			"\nFAIL  fails/a_test.yaml  1 of 1 test failed\n",
			"::error file=bad/a_test.yaml,line=2,col=10::unknown key \"nam\"; did you mean `name`?\n",
			"::error file=bad-rules/a.yaml,line=3,col=3::unknown key \"kez\"",
		}},
		{"good --format html", 2, []string{"--format html: write text, json or github"}},
		{"rules", 2, []string{"error: rules: there are no tests here; name them *_test.yaml, or name the file itself"}},
		{"good/c.yaml", 2, []string{"unknown key \"is\""}},
		{"nowhere", 2, []string{"nowhere does not exist", "BAD   nowhere  1 problem"}},
		{"", 2, []string{"name files of tests"}},
		{"good --run (", 2, []string{"--run: error parsing regexp"}},
	} {
		code, out, errOut := call(t, append([]string{"ratelimit", "test"}, strings.Fields(tt.args)...)...)
		if code != tt.code {
			t.Errorf("%s: exit %d, want %d\n%s%s", tt.args, code, tt.code, out, errOut)
		}
		rest := out + errOut
		for _, want := range tt.want {
			at := strings.Index(rest, want)
			if at < 0 {
				t.Errorf("%s: no %q in\n%s%s", tt.args, want, out, errOut)
				break
			}
			rest = rest[at+len(want):]
		}
	}
	if code, out, errOut := call(t, "ratelimit", "check", "beside"); code != 0 ||
		!strings.Contains(out, "1 domain, 1 rule, 0 warnings") {
		t.Errorf("check with tests beside the rules: exit %d\n%s%s", code, out, errOut)
	}
	code, out, _ := call(t, "ratelimit", "test", "good", "fails", "bad", "--json")
	sum := new(ruletest.Summary)
	dec := json.NewDecoder(strings.NewReader(out))
	dec.DisallowUnknownFields()
	if err := dec.Decode(sum); err != nil || code != 2 {
		t.Fatalf("exit %d, %v in\n%s", code, err, out)
	}
	if sum.Passed != 3 || sum.Failed != 1 || sum.Bad != 2 || len(sum.Files) != 5 {
		t.Errorf("got %+v", sum)
	}
	failure := sum.Files[2].Tests[0].Failures[0]
	if failure.Failed != 1 || failure.Repetition != 3 || failure.Explanation.Descriptors[0].Rule != "d.ip" {
		t.Errorf("got %+v", failure)
	}
	again, err := json.MarshalIndent(sum, "", "  ")
	if err != nil || !reflect.DeepEqual(string(again)+"\n", out) {
		t.Errorf("what is printed is not what is documented: %v\n%s", err, out)
	}
}

// The tests of the example rules pass.
func TestExampleTests(t *testing.T) {
	for _, example := range []string{"ratelimit", "tenants"} {
		if code, out, errOut := call(t, "ratelimit", "test",
			filepath.Join(projectRoot, "examples", example, "tests")); code != 0 || !strings.HasPrefix(out, "ok    ") {
			t.Errorf("%s: exit %d\n%s%s", example, code, out, errOut)
		}
	}
}

// writeFile writes a file and makes its directory.
func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
