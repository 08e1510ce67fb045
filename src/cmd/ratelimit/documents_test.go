package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/settings"
	"ratelimit/src/tools/command"
	"ratelimit/src/tools/suggest"
	"ratelimit/testbed/limitertest"
	"ratelimit/testbed/testfiles"
)

var update = flag.Bool("update", false, "write the tables of settings and testdata/help.txt anew")

// document reads a file by its path in the repository.
func document(t *testing.T, name string) string {
	t.Helper()
	data := testfiles.Read(t, filepath.Join(projectRoot, name))
	return string(data)
}

// documents returns the paths of README.md and of all pages under docs.
func documents(t *testing.T) []string {
	t.Helper()
	names := []string{"README.md"}
	err := filepath.WalkDir(filepath.Join(projectRoot, "docs"), func(path string, _ os.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".md" {
			path, err = filepath.Rel(projectRoot, path)
			names = append(names, filepath.ToSlash(path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// settingsTables are the generated tables: the page, the name in the marks around them, and the sections that the page
// has, separated by commas. Without sections it has all variables.
var settingsTables = []struct {
	page, name string
	variables  func() []settings.Variable
	sections   string
}{
	{"docs/settings.md", "settings", settings.Table, "Logs, Operator's page, Limiting, Answers, Shutdown"},
	{"docs/settings-ports.md", "settings", settings.Table, "Listeners, TLS, Divvy, RESP"},
	{"docs/notifications.md", "settings", settings.Table, "Notifications"},
	{"docs/settings-rules.md", "settings", settings.Table, "Rules, Rules over xDS"},
	{"docs/settings-stores.md", "settings", settings.Table, "Redis, Memcached, When the store does not answer"},
	{"docs/settings-statistics.md", "settings", settings.Table, "Statistics, OpenTelemetry"},
	{"docs/migrating-from-divvy.md", "settings of divvy", settings.DivvyTable, ""},
}

// settingsMarkdown is the table of a page. Variables in a row that are as for the first server share a line.
func settingsMarkdown(table []settings.Variable) string {
	const likeFirst = "as for the first"
	var b strings.Builder
	section := ""
	for i, v := range table {
		if v.Section != section {
			section = v.Section
			if section != table[len(table)-1].Section || section != table[0].Section { // else the chapter's title says it
				fmt.Fprintf(&b, "\n**%s**\n", section)
			}
			fmt.Fprint(&b, "\n| variable | type | default | meaning |\n|---|---|---|---|\n")
		}
		if strings.HasPrefix(v.Meaning, likeFirst) {
			if i == 0 || !strings.HasPrefix(table[i-1].Meaning, likeFirst) {
				fmt.Fprint(&b, "| ")
			}
			if fmt.Fprintf(&b, "`%s`", v.Name); i+1 < len(table) && strings.HasPrefix(table[i+1].Meaning, likeFirst) {
				fmt.Fprint(&b, ", ")
			} else {
				fmt.Fprintf(&b, " | | | %s |\n", likeFirst)
			}
			continue
		}
		fallback := ""
		if v.Default != "" {
			fallback = "`" + v.Default + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", v.Name, v.Type, fallback, v.Meaning)
	}
	return b.String() + "\n"
}

// Each variable is in the table of exactly one page.
func TestSettingsTables(t *testing.T) {
	pages := make(map[string]int)
	for _, table := range settingsTables {
		text := document(t, table.page)
		begin := "<!-- " + table.name + ": written by `make docs`, held to the code by a test -->\n"
		end := "<!-- end of " + table.name + " -->\n"
		before, rest, ok := strings.Cut(text, begin)
		got, after, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			t.Fatalf("%s: the marks around the table of %s are gone", table.page, table.name)
		}
		variables := table.variables()
		if sections := strings.Split(table.sections, ", "); table.sections != "" {
			variables = slices.DeleteFunc(variables,
				func(v settings.Variable) bool { return !slices.Contains(sections, v.Section) })
		}
		for _, v := range variables {
			pages[table.name+" "+v.Name]++
		}
		want := settingsMarkdown(variables)
		if *update {
			if err := os.WriteFile(filepath.Join(projectRoot, table.page), []byte(before+begin+want+end+after),
				0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if got != want {
			t.Errorf("the table of %s in %s is not that of the code: run `make docs`", table.name, table.page)
		}
	}
	for name, n := range pages {
		if n != 1 {
			t.Errorf("%s is on %d pages, want 1: see settingsTables", name, n)
		}
	}
	for _, v := range settings.Table() {
		if pages["settings "+v.Name] == 0 {
			t.Errorf("%s is on no page: add its section, %s, to settingsTables", v.Name, v.Section)
		}
	}
}

// yamlExample is a block of YAML, and the block of requests below it, if any.
var yamlExample = regexp.MustCompile("(?s)```yaml\n(.*?)```\n(?:\n```text\n(.*?)```)?")

// A yaml block in a document is a rule file or a file of tests; other YAML is in yml
// blocks.
const (
	ruleFile = iota
	testFile
)

// yamlBlock is a block of YAML of a document.
type yamlBlock struct {
	page     string
	kind     int
	text     string
	requests string // lines of requests and their answers; only below a rule file
}

// examples returns the rule files and files of tests in all documents, by page.
func examples(t *testing.T) map[string][]yamlBlock {
	t.Helper()
	found := make(map[string][]yamlBlock)
	for _, page := range documents(t) {
		for _, m := range yamlExample.FindAllStringSubmatch(document(t, page), -1) {
			e := yamlBlock{page: page, kind: ruleFile, text: m[1], requests: m[2]}
			first := ""
			for line := range strings.Lines(e.text) {
				if first = strings.TrimSpace(line); first != "" && !strings.HasPrefix(first, "#") {
					break
				}
			}
			switch key, _, _ := strings.Cut(first, ":"); key {
			case "domain", "schema":
			case "rules":
				e.kind = testFile
			default:
				t.Errorf("%s: a block of yaml begins with %q; call it yml if it is no rule file and no file of tests", page, first)
				continue
			}
			found[page] = append(found[page], e)
		}
	}
	return found
}

// Rule files load without a warning, and requests below them are answered as the
// document says. A rule file without requests has a file of tests on its page.
func TestDocumentsRules(t *testing.T) {
	count := 0
	for page, list := range examples(t) {
		tested := slices.ContainsFunc(list, func(e yamlBlock) bool { return e.kind == testFile })
		for _, e := range list {
			if e.kind != ruleFile {
				continue
			}
			count++
			set, warnings, err := filerules.Load(readWithData(t, filerules.File{Name: "limits.yaml", Data: []byte(e.text)}),
				compile.Options{})
			if err != nil || len(warnings) > 0 {
				t.Errorf("%s: %v %v in\n%s", page, err, warnings, e.text)
				continue
			}
			if e.requests == "" {
				if !tested {
					t.Errorf("%s: no requests below, and no tests on the page, for\n%s", page, e.text)
				}
				continue
			}
			store := limitertest.Store(t, memory.Config{})
			l := limiter.New(limiter.Config{Backend: store})
			l.UseRules(set)
			for line := range strings.Lines(strings.TrimSpace(e.requests)) {
				askLine(t, l, set.Domains()[0].Name, line)
			}
		}
	}
	if count < 20 {
		t.Errorf("only %d rule files found", count)
	}
}

// readWithData returns a rule file with the data files of examples/tenants, if it refers to any.
func readWithData(t *testing.T, f filerules.File) []filerules.File {
	t.Helper()
	if len(filerules.DataFiles(f)) == 0 {
		return []filerules.File{f}
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(projectRoot, "examples", "tenants", "rules"))); err != nil {
		t.Fatal(err)
	}
	testfiles.Write(t, filepath.Join(dir, "tenants.yaml"), f.Data)
	files, _, err := filerules.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// Files of tests pass on the rule files of their page.
func TestDocumentsTests(t *testing.T) {
	pages := 0
	for page, list := range examples(t) {
		if !slices.ContainsFunc(list, func(e yamlBlock) bool { return e.kind == testFile }) {
			continue
		}
		pages++
		dir := t.TempDir()
		for i, e := range list {
			sub, name := "rules", fmt.Sprintf("%d.yaml", i)
			if e.kind == testFile {
				sub, name = "tests", fmt.Sprintf("%d_test.yaml", i)
			}
			if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
				t.Fatal(err)
			}
			testfiles.Write(t, filepath.Join(dir, sub, name), e.text)
		}
		if code, out, errOut := call(t, "ratelimit", "test", filepath.Join(dir, "tests")); code != 0 {
			t.Errorf("%s: exit %d\n%s%s", page, code, out, errOut)
		}
	}
	if pages < 2 {
		t.Errorf("only %d pages with files of tests", pages)
	}
}

// Commands in console blocks print the lines below them.
func TestDocumentsCommands(t *testing.T) {
	count := 0
	pages := documents(t)
	texts := make([]string, len(pages))
	for i, page := range pages {
		texts[i] = document(t, page)
	}
	t.Chdir(projectRoot)
	for i, page := range pages {
		for _, m := range regexp.MustCompile("(?s)```console\n\\$ (ratelimit [^\n]*)\n(.*?)```").FindAllStringSubmatch(
			texts[i], -1) {
			count++
			if _, out, errOut := call(t, strings.Fields(m[1])...); out+errOut != m[2] {
				t.Errorf("%s: %s prints\n%s%s", page, m[1], out, errOut)
			}
		}
	}
	if count < 3 {
		t.Fatalf("only %d commands found", count)
	}
}

// askLine sends the request of a line once for each answer behind it.
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

// The README shows what `make run` prints for the example rules.
func TestReadmeTry(t *testing.T) {
	text := document(t, "README.md")
	set, problems := exampleRules(t)
	if problems != nil {
		t.Fatal(problems)
	}
	var out sharedBuffer
	suggest.Print(&out, false, set, nil, nil)
	for line := range strings.Lines(out.String()) {
		if line = strings.TrimSpace(line); strings.Contains(line, "curl") {
			line = strings.ReplaceAll(line, "localhost/json", "localhost:8080/json")
			if !strings.Contains(text, line) {
				t.Errorf("README.md does not show %s", line)
			}
		}
	}
}

// simulateExample matches a file of requests, the command that replays it, one line of its
// output, wrapped, and the start of the table.
var simulateExample = regexp.MustCompile("(?s)\ncat > \\S+ <<'EOF'\n(.*?)EOF\nratelimit (simulate [^\n]*) < \\S+ > \\S+\n```.*?```json\n(.*?)```.*?```\n(rule .*?)```")

// The example of `ratelimit simulate` does what docs/tools.md says.
func TestDocumentsSimulate(t *testing.T) {
	m := simulateExample.FindStringSubmatch(document(t, "docs/tools.md"))
	if m == nil {
		t.Fatal("the example was not found")
	}
	t.Chdir(projectRoot)
	code, out, errOut := callWithInput(t, m[1], append([]string{"ratelimit"}, strings.Fields(m[2])...)...)
	if code != command.ExitOK {
		t.Fatalf("exit %d: %s", code, errOut)
	}
	var folded bytes.Buffer
	if err := json.Compact(&folded, []byte(m[3])); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, "\n"+strings.TrimSpace(folded.String())+"\n") {
		t.Errorf("no %s in\n%s", folded.String(), out)
	}
	if !strings.HasPrefix(errOut, m[4]) {
		t.Errorf("got %s\nwant %s", errOut, m[4])
	}
}

func exampleRules(t *testing.T) (*rules.Set, error) {
	t.Helper()
	var files []filerules.File
	paths, err := filepath.Glob(filepath.Join(projectRoot, "examples", "ratelimit", "config", "*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, path := range paths {
		data := testfiles.Read(t, path)
		files = append(files, filerules.File{Name: path, Data: data})
	}
	set, _, err := filerules.Load(files, compile.Options{})
	return set, err
}

// Every make target and every file that the documents name exists.
func TestDocumentsNameWhatExists(t *testing.T) {
	makefile := testfiles.Read(t, filepath.Join(projectRoot, "Makefile"))
	for _, doc := range append(documents(t), "CONTRIBUTING.md", "SECURITY.md", "deploy/helm/ratelimit/README.md") {
		data := document(t, doc)
		for _, m := range regexp.MustCompile("(?:`|\n)make ([a-z0-9_-]+)").FindAllStringSubmatch(data, -1) {
			if !strings.Contains(string(makefile), "\n"+m[1]+":") {
				t.Errorf("%s names `make %s`", doc, m[1])
			}
		}
		for _, m := range regexp.MustCompile(
			"`((?:src|testbed|docs|deploy|examples|integration-test|tools)/[a-zA-Z0-9_./-]+)`").FindAllStringSubmatch(data, -1) {
			_, err := os.Stat(filepath.Join(projectRoot, m[1]))
			if _, room := os.Stat(filepath.Join(projectRoot, "src", m[1])); err != nil &&
				(doc != "docs/architecture.md" || room != nil) {
				t.Errorf("%s names %s, which does not exist", doc, m[1])
			}
		}
	}
}

// The largest documents, in bytes, and how many words all pages under docs have together.
const (
	maxReadme = 8 << 10
	maxPage   = 25 << 10
	maxWords  = 60_000
)

// No document is too long, nor are all pages together, and docs/README.md links to every page.
func TestDocumentsAreShortAndListed(t *testing.T) {
	index, words := document(t, "docs/README.md"), 0
	for _, page := range documents(t) {
		most := maxPage
		if page == "README.md" {
			most = maxReadme
		} else {
			words += len(strings.Fields(document(t, page)))
		}
		if n := len(document(t, page)); n > most {
			t.Errorf("%s has %d bytes; at most %d", page, n, most)
		}
		name := strings.TrimPrefix(page, "docs/")
		if name != "README.md" && !strings.Contains(index, "]("+name+")") {
			t.Errorf("docs/README.md does not list %s", page)
		}
	}
	if words > maxWords {
		t.Errorf("all pages under docs have %d words; at most %d", words, maxWords)
	}
}

// Links between documents lead to files and headings that exist.
func TestDocumentsLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	count := 0
	for _, page := range append(documents(t), "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md",
		"deploy/helm/ratelimit/README.md") {
		for _, m := range link.FindAllStringSubmatch(withoutCode(document(t, page)), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			count++
			name, anchor, _ := strings.Cut(m[1], "#")
			target := page
			if name != "" {
				target = filepath.ToSlash(filepath.Join(filepath.Dir(page), name))
			}
			if _, err := os.Stat(filepath.Join(projectRoot, target)); err != nil {
				t.Errorf("%s links to %s, and %s does not exist", page, m[1], target)
				continue
			}
			if anchor != "" && !slices.Contains(anchors(document(t, target)), anchor) {
				t.Errorf("%s links to %s, and %s has no such heading", page, m[1], target)
			}
		}
	}
	if count < 50 {
		t.Errorf("only %d links found", count)
	}
}

// withoutCode returns the text without its fenced blocks.
func withoutCode(text string) string {
	return regexp.MustCompile("(?ms)^```.*?^```").ReplaceAllString(text, "")
}

// anchors returns what GitHub calls the headings of a document: lower case,
// without punctuation, blanks as hyphens, and -1, -2 … behind a repeated name.
func anchors(text string) []string {
	var list []string
	times := make(map[string]int)
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(withoutCode(text), -1) {
		name := strings.ReplaceAll(regexp.MustCompile(`[^\p{L}\p{N}_ -]`).ReplaceAllString(strings.ToLower(m[1]), ""),
			" ", "-")
		if n := times[name]; n > 0 {
			list = append(list, fmt.Sprintf("%s-%d", name, n))
		} else {
			list = append(list, name)
		}
		times[name]++
	}
	return list
}

func TestAnchors(t *testing.T) {
	got := anchors("# Divvy's protocol\n```sh\n# no heading\n```\n## One, `two`\n## A\n## A\n")
	if want := []string{"divvys-protocol", "one-two", "a", "a-1"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
