package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/src/settings"
)

var update = flag.Bool("update", false, "write the settings table of README.md anew")

func readme(t *testing.T) (path, text string) {
	t.Helper()
	path = filepath.Join(top, "README.md")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return path, string(data)
}

// settingsTables are those of README.md, by the name in the marks around them.
var settingsTables = map[string]func() []settings.Variable{
	"settings":          settings.Table,
	"settings of divvy": settings.DivvyTable,
}

func settingsMarkdown(table []settings.Variable) string {
	var b strings.Builder
	section := ""
	for _, v := range table {
		if v.Section != section {
			section = v.Section
			if section != table[len(table)-1].Section || section != table[0].Section { // else the chapter's title says it
				fmt.Fprintf(&b, "\n**%s**\n", section)
			}
			fmt.Fprint(&b, "\n| variable | type | default | meaning |\n|---|---|---|---|\n")
		}
		fallback := ""
		if v.Default != "" {
			fallback = "`" + v.Default + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", v.Name, v.Type, fallback, v.Meaning)
	}
	return b.String() + "\n"
}

func TestReadmeSettings(t *testing.T) {
	for name, declared := range settingsTables {
		path, text := readme(t)
		begin := "<!-- " + name + ": written by `make docs`, held to the code by a test -->\n"
		end := "<!-- end of " + name + " -->\n"
		before, rest, ok := strings.Cut(text, begin)
		table, after, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			t.Fatalf("the marks around the table of %s are gone", name)
		}
		want := settingsMarkdown(declared())
		if *update {
			if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if table != want {
			t.Errorf("the table of %s in README.md is not that of the code: run `make docs`", name)
		}
	}
}

// ruleExample is a block of YAML and the block of requests below it.
var ruleExample = regexp.MustCompile("(?s)```yaml\n(.*?)```\n(?:\n```text\n(.*?)```)?")

func TestReadmeRules(t *testing.T) {
	_, text := readme(t)
	examples := ruleExample.FindAllStringSubmatch(text, -1)
	if len(examples) < 8 {
		t.Fatalf("only %d examples found", len(examples))
	}
	for _, m := range examples {
		if isTests(m[1]) {
			continue
		}
		set, warnings, err := rules.Load([]rules.File{{Name: "limits.yaml", Data: []byte(m[1])}}, rules.Options{})
		if err != nil || len(warnings) > 0 {
			t.Errorf("%v %v in\n%s", err, warnings, m[1])
			continue
		}
		if m[2] == "" {
			t.Errorf("no requests below\n%s", m[1])
			continue
		}
		store, err := memory.New(memory.Config{})
		if err != nil {
			t.Fatal(err)
		}
		l := limiter.New(limiter.Config{Backend: store})
		l.Use(set)
		domain := set.Domains()[0].Name
		for line := range strings.Lines(strings.TrimSpace(m[2])) {
			askLine(t, l, domain, line)
		}
	}
}

// isTests tells a file of tests from one of rules.
func isTests(example string) bool { return strings.HasPrefix(example, "rules:") }

// The files of tests in README.md pass on the rules in it.
func TestReadmeTests(t *testing.T) {
	_, text := readme(t)
	dir := t.TempDir()
	for _, sub := range []string{"config", "tests"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	tests := 0
	for i, m := range ruleExample.FindAllStringSubmatch(text, -1) {
		name := filepath.Join(dir, "config", fmt.Sprintf("%d.yaml", i))
		if isTests(m[1]) {
			tests++
			name = filepath.Join(dir, "tests", fmt.Sprintf("%d_test.yaml", i))
		}
		if err := os.WriteFile(name, []byte(m[1]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if code, out, errOut := call(t, "ratelimit", "test", filepath.Join(dir, "tests")); code != 0 || tests == 0 {
		t.Errorf("%d files of tests, exit %d\n%s%s", tests, code, out, errOut)
	}
}

// Commands in README.md print what stands below them.
func TestReadmeCommands(t *testing.T) {
	_, text := readme(t)
	t.Chdir(top)
	found := regexp.MustCompile("(?s)```console\n\\$ (ratelimit [^\n]*)\n(.*?)```").FindAllStringSubmatch(text, -1)
	if len(found) < 3 {
		t.Fatalf("only %d commands found", len(found))
	}
	for _, m := range found {
		if _, out, errOut := call(t, strings.Fields(m[1])...); out+errOut != m[2] {
			t.Errorf("%s prints\n%s%s", m[1], out, errOut)
		}
	}
}

// askLine sends the request of a line as often as there are answers behind it.
func askLine(t *testing.T, l *limiter.Limiter, domain, line string) {
	t.Helper()
	ask, want, ok := strings.Cut(line, "->")
	if !ok {
		t.Errorf("no answers in %q", line)
	}
	req := limiter.Request{Domain: []byte(domain), Now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	for descriptor := range strings.SplitSeq(strings.TrimSpace(ask), " + ") {
		var d limiter.Descriptor
		for entry := range strings.SplitSeq(descriptor, ",") {
			key, value, _ := strings.Cut(strings.TrimSpace(entry), "=")
			d.Entries = append(d.Entries, rules.Entry{Key: []byte(key), Value: []byte(value)})
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	var got []string
	var a limiter.Answer
	for range strings.Fields(want) {
		if err := l.Check(t.Context(), &req, &a); err != nil {
			t.Fatal(err)
		}
		got = append(got, map[bool]string{false: "OK", true: "OVER_LIMIT"}[a.Over])
	}
	if strings.Join(got, " ") != strings.Join(strings.Fields(want), " ") {
		t.Errorf("%s: answered %q", strings.TrimSpace(line), got)
	}
}

// What the README shows `make run` to print is what it prints for the examples.
func TestReadmeTry(t *testing.T) {
	_, text := readme(t)
	set, problems := exampleRules(t)
	if problems != nil {
		t.Fatal(problems)
	}
	var out output
	suggest(&out, false, set, nil)
	for line := range strings.Lines(out.String()) {
		if line = strings.TrimSpace(line); strings.Contains(line, "curl") {
			line = strings.ReplaceAll(line, "localhost/json", "localhost:8080/json")
			if !strings.Contains(text, line) {
				t.Errorf("README.md does not show %s", line)
			}
		}
	}
}

// simulateExample is a file of requests, the command that replays it, one line
// of its output, folded, and the beginning of the table.
var simulateExample = regexp.MustCompile("(?s)\ncat > \\S+ <<'EOF'\n(.*?)EOF\nratelimit (simulate [^\n]*) < \\S+ > \\S+\n```.*?```json\n(.*?)```.*?```\n(rule .*?)```")

// The example of `ratelimit simulate` does what the README says.
func TestReadmeSimulate(t *testing.T) {
	_, text := readme(t)
	m := simulateExample.FindStringSubmatch(text)
	if m == nil {
		t.Fatal("the example was not found")
	}
	var out, errOut output
	root := command(stdio{&out, &errOut})
	root.SetIn(strings.NewReader(m[1]))
	t.Chdir(top)
	if code := execute(t.Context(), root, append([]string{"ratelimit"}, strings.Fields(m[2])...), &errOut); code != exitOK {
		t.Fatalf("exit %d: %s", code, errOut.String())
	}
	var folded bytes.Buffer
	if err := json.Compact(&folded, []byte(m[3])); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "\n"+strings.TrimSpace(folded.String())+"\n") {
		t.Errorf("no %s in\n%s", folded.String(), out.String())
	}
	if !strings.HasPrefix(errOut.String(), m[4]) {
		t.Errorf("got %s\nwant %s", errOut.String(), m[4])
	}
}

func exampleRules(t *testing.T) (*rules.Set, error) {
	t.Helper()
	var files []rules.File
	paths, err := filepath.Glob(filepath.Join(top, "examples", "ratelimit", "config", "*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, rules.File{Name: path, Data: data})
	}
	set, _, err := rules.Load(files, rules.Options{})
	return set, err
}

// Every make target and every file that the documents name exists.
func TestDocumentsNameWhatExists(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(top, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range []string{"README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/architecture.md"} {
		data, err := os.ReadFile(filepath.Join(top, doc))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("(?:`|\n)make ([a-z_]+)").FindAllStringSubmatch(string(data), -1) {
			if !strings.Contains(string(makefile), "\n"+m[1]+":") {
				t.Errorf("%s names `make %s`", doc, m[1])
			}
		}
		for _, m := range regexp.MustCompile("`((?:src|docs|examples|integration-test|tools)/[a-zA-Z0-9_./-]+)`").FindAllStringSubmatch(string(data), -1) {
			if _, err := os.Stat(filepath.Join(top, m[1])); err != nil {
				t.Errorf("%s names %s, which does not exist", doc, m[1])
			}
		}
	}
}
