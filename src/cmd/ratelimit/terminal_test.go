package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"ratelimit/testbed/testfiles"
)

// Names and texts of files cannot control the terminal, whichever command prints them: not by escape sequences, and not
// by an end of a line that begins a false one.
func TestFilesDoNotControlTheTerminal(t *testing.T) {
	t.Parallel()
	const hostile = "x\x1b[31m\u009b2J\u202e\nok: 1 file, 1 domain, 1 rule, 0 warnings\xff"
	dir := t.TempDir()
	write := func(path, text string) string {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		testfiles.Write(t, path, text)
		return path
	}
	const texts = `"d\e[31m\u009b\n\u202e"`
	good := filepath.Dir(write("good/"+hostile+".yaml", `domain: `+texts+`
descriptors:
- {key: `+texts+`, value: `+texts+`, name: `+texts+`, rate_limit: {unit: day, requests_per_unit: 5, name: `+texts+`}}
`))
	bad := filepath.Dir(write("bad/"+hostile+".yaml",
		"domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: "+texts+", requests_per_unit: 1}}\n"))
	empty := filepath.Dir(write("empty/empty.yaml", "domain: e\n"))
	failing := write("failing"+hostile+"_test.yaml",
		"rules: good\ntests:\n- name: "+texts+"\n  steps: [{ask: 'd: a=b', expect: OVER_LIMIT}]\n")
	broken := write("broken"+hostile+"_test.yaml", "rules: good\ntests:\n- name: "+texts+"\n  "+texts+": 1\n")
	for _, args := range [][]string{
		{"check", good},
		{"check", bad},
		{"check", "--format", "json", bad},
		{"check", "--format", "github", bad},
		{"check", filepath.Join(dir, hostile)},
		{"diff", empty, good},
		{"diff", good, empty},
		{"diff", "--format", "json", empty, good},
		{"diff", "--format", "markdown", empty, good},
		{"diff", bad, good},
		{"test", failing},
		{"test", "--json", failing},
		{"test", "--format", "github", failing},
		{"test", broken},
		{"explain", "--config", good, "--domain", "d\x1b[31m\u009b\n\u202e", "--descriptors", "a=b"},
		{"simulate", "--config", good, filepath.Join(dir, hostile)},
		{hostile},
	} {
		var out bytes.Buffer
		code := run(t.Context(), commands(&out, &out), append([]string{"ratelimit"}, args...))
		text := out.String()
		if i := strings.IndexFunc(text, func(r rune) bool {
			return r != '\n' && r != '\t' && !unicode.IsPrint(r)
		}); i >= 0 || !utf8.ValidString(text) {
			t.Errorf("%q: at byte %d of\n%q", args, i, text)
		}
		if code != 0 && strings.Contains(text, "\nok: 1 file, 1 domain, 1 rule, 0 warnings") && args[0] == "check" {
			t.Errorf("%q prints a false line:\n%s", args, text)
		}
	}
}
