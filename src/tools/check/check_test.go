package check

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
	"ratelimit/testbed/testfiles"
)

func TestCompileAllDocuments(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		what  string
		files []filerules.File
		want  string
	}{
		{
			"good documents behind the first",
			[]filerules.File{{Name: "a.yaml", Data: []byte(`domain: d
descriptors:
- {key: a, rate_limit: {unit: day, requests_per_unit: 1}}
---
domain: e
descriptors:
- {key: path, value: "^/api/.*$", rate_limit: {unit: day, requests_per_unit: 1}}
---
# nothing
`)}},
			"a.yaml:3:3 d.a: unit=DAY requests_per_unit=1, shadow_mode: false, quota_mode: false\n" +
				"warning: a.yaml:4:1: only the first document of a file is read; put it into a file of its own\n" +
				"warning: a.yaml:7:3: the value \"^/api/.*$\" looks like a regular expression, and matches only as it is written: " +
				"`*` stands for any text, all else for itself; write `regex: '^/api/.*$'` instead of value, or `value: " +
				"\"/api/*\"`, which is faster\n",
		},
		{
			"what is wrong in documents behind the first",
			[]filerules.File{
				{Name: "a.yaml", Data: []byte(`domain: d
descriptors:
- {key: a, rate_limit: {unit: day, requests_per_unit: 1}}
---
domain: e
descriptors:
- {key: a, rate_limt: {unit: day, requests_per_unit: 1}}
---
descriptors:
- {key: a, rate_limit: {unit: decade, requests_per_unit: 1}}
`)},
				{Name: "b.yaml", Data: []byte("domain: f\n---\ndomain: [\n")},
			},
			"a.yaml:7:12: unknown key \"rate_limt\"; did you mean `rate_limit`?\n" +
				"a.yaml:9:1: the domain is missing or empty; add `domain: <name>`, the name that callers ask for\n" +
				"a.yaml:10:31: unit \"decade\" is not known; write second, minute, hour, day, week, month or year\n" +
				"b.yaml:3: not YAML: did not find expected node content; look at the indentation, and for a bracket or a quote " +
				"that is not closed\n",
		},
	} {
		t.Run(tt.what, func(t *testing.T) {
			t.Parallel()
			set, warnings, err := filerules.LoadAllDocuments(tt.files, compile.Options{})
			got := ""
			if err != nil {
				got = err.Error() + "\n"
			} else {
				for _, r := range set.Rules() {
					got += fmt.Sprintf("%v %v\n", r.Pos, r)
				}
			}
			for _, w := range warnings {
				got += fmt.Sprintf("warning: %v\n", w)
			}
			if got != tt.want {
				t.Errorf("got:\n%swant:\n%s", got, tt.want)
			}
		})
	}
}

func TestRegexLines(t *testing.T) {
	t.Parallel()
	const text = `domain: d
descriptors:
- {key: a, regex: x, descriptors: [{key: b, regex: y}, {key: b, regex: z}, {key: c, regex: z}]}
- {key: a, regex: y}
- {key: "*", value: "*", descriptors: [{key: b, regex: x}, {key: b, regex: y}, {key: b, regex: z}]}
`
	files := []filerules.File{
		{Name: "a.yaml", Data: []byte(text)},
		{Name: "b.yaml", Data: []byte("domain: e\ndescriptors: [{key: a}]\n")},
	}
	set := limitertest.Load(t, files)
	// The entry a=1 is compared with x and y. Then the wildcard matches, and b=1 is compared with three.
	const want = `[domain "d": a descriptor is compared with at most 5 regular expressions]`
	if got := fmt.Sprint((&Result{Set: set}).RegexLines()); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A warning tells of each limit that a 32-bit field cannot show, and --strict accepts it.
func TestWarnLarge(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.yaml": `domain: d
descriptors:
- {key: a, rate_limit: {unit: month, requests_per_unit: 4294967295}}
- {key: b, rate_limit: {unit: month, requests_per_unit: 4294967296}}
- {key: c, rate_limit: {unit: hour, requests_per_unit: 1000000000, algorithm: gcra, burst: 4294967295}}
- {key: d, limits_from: plans.csv, rate_limit: {unit: month}}
`,
		"plans.csv": "free,1000\nteam,100000000000\nbank,281474976710656\n",
	} {
		testfiles.Write(t, filepath.Join(dir, name), text)
	}
	r := Load([]string{dir}, compile.Options{})
	r.judgeRules([]string{dir}, true)
	if r.Set == nil {
		t.Fatalf("%v, %v", r.Problems, r.Warnings)
	}
	var got []string
	for _, w := range r.Warnings {
		got = append(got, strings.ReplaceAll(fmt.Sprint(w.Pos, " ", w.Message), dir+"/", ""))
	}
	want := []string{
		"a.yaml:4:3 Envoy's answers have 32 bits, and show a limit of 4294967296 as 4294967295",
		"a.yaml:5:3 Envoy's answers have 32 bits, and show a limit of 4294967296 as 4294967295",
		"plans.csv:3:6 Envoy's answers have 32 bits, and show a limit of 281474976710656 as 4294967295",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
