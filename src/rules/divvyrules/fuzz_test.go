package divvyrules_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/divvyrules"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/testfiles"
)

// FuzzINI and FuzzJSON read whatever comes: nothing panics, the same text gives
// the same result twice, what is wrong has a place, and what is right is a list
// that ends in a default.
func FuzzINI(f *testing.F) {
	seedDivvy(f, "ini")
	f.Add([]byte("[a=\"b]\" c]\ncreditLimit=\"1\"\nresetSeconds='1' # x\n[default]\ncreditLimit=0"))
	f.Fuzz(func(t *testing.T, data []byte) { readsDivvy(t, "d.ini", data, divvyrules.ParseINI) })
}

func FuzzJSON(f *testing.F) {
	seedDivvy(f, "json")
	f.Add([]byte(
		`{"overrides":[{"operation":{"a":1e999,"b":-0},"creditLimit":"1","resetSeconds":1}],"default":{"operation":{},"creditLimit":0}}`))
	f.Add([]byte(strings.Repeat("[", 1000)))
	f.Fuzz(func(t *testing.T, data []byte) { readsDivvy(t, "d.json", data, divvyrules.ParseJSON) })
}

func seedDivvy(f *testing.F, form string) {
	data := testfiles.Read(f, "../testdata/divvy.txt")
	for section := range strings.SplitSeq(string(data), "\n-- ") {
		if name, text, ok := strings.Cut(section, " --\n"); ok && strings.HasSuffix(name, "."+form) {
			f.Add([]byte(text))
		}
	}
	example := testfiles.Read(f, "../../../examples/divvy/example-config."+form)
	f.Add(example)
}

func readsDivvy(t *testing.T, name string, data []byte,
	parse func(string, []byte) (*compile.DomainConfig, rules.Problems, rules.Problems),
) {
	if len(data) > 5000 {
		return
	}
	cfg, problems, warnings := parse(name, data)
	again, problems2, warnings2 := parse(name, data)
	if !reflect.DeepEqual(cfg, again) || !reflect.DeepEqual(problems, problems2) ||
		!reflect.DeepEqual(warnings, warnings2) {
		t.Fatalf("two readings of %q differ", data)
	}
	lines := strings.Count(string(data), "\n") + 1
	for _, p := range append(slices.Clone(problems), warnings...) {
		if p.File != name || p.Message == "" || p.Line > lines || p.Line < 1 && !strings.Contains(p.Message, "YAML") {
			t.Fatalf("%q: the problem %q has no place or no words", data, p)
		}
	}
	set, _, err := filerules.Load([]filerules.File{{Name: name, Data: data}}, compile.Options{})
	var all rules.Problems
	switch {
	case err != nil && !errors.As(err, &all), len(problems) > 0 && err == nil:
		t.Fatalf("%q: %v, and the reader: %v", data, err, problems)
	case err != nil || cfg == nil || cfg.Rules == nil || cfg.Domain != "d":
		return
	}
	list := set.Rules()
	if n := len(list); n == 0 || len(list[n-1].ListSettings.MatchPairs) > 0 || list[n-1].ShadowMode {
		t.Fatalf("%q: there is no default: %v", data, list)
	}
	var scratch rules.SearchScratch
	for _, request := range [][]rules.Entry{nil, {{}}, {{Key: data, Value: data}}} {
		if rule := set.Domains()[0].FindRule(request, &scratch); rule == nil {
			t.Fatalf("%q: %q finds nothing", data, request)
		}
	}
}
