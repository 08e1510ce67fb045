package rules_test

import (
	"slices"
	"strings"
	"testing"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
	"ratelimit/testbed/testfiles"
)

func loadFile(t testing.TB, path string) (*rules.Set, rules.Problems) {
	t.Helper()
	data := testfiles.Read(t, path)
	set, warnings, err := filerules.Load([]filerules.File{{Name: path, Data: data}}, compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return set, warnings
}

// lists is what the ordered lists of a set say, without their places.
func lists(set *rules.Set) (lines []string) {
	for _, r := range set.Rules() {
		unplaced := *r
		unplaced.Pos = rules.Pos{}
		lines = append(lines, describe(&unplaced)+" "+rules.KeyParts(r))
	}
	return lines
}

// The two forms of the example are the same rules, and divvy itself reads them
// alike.
func TestDivvyExamples(t *testing.T) {
	ini, warnings := loadFile(t, "../../examples/divvy/example-config.ini")
	json, more := loadFile(t, "../../examples/divvy/example-config.json")
	if len(warnings)+len(more) > 0 {
		t.Errorf("warnings: %v %v", warnings, more)
	}
	if a, b := lists(ini), lists(json); !slices.Equal(a, b) || len(a) != 7 {
		t.Errorf("the rules are not the same:\n%s\n\n%s", strings.Join(a, "\n"), strings.Join(b, "\n"))
	}
	d := ini.Domain([]byte("example-config"))
	if d == nil {
		t.Fatal("the domain is not the name of the file")
	}
	var scratch rules.SearchScratch
	for ask, want := range map[string]string{
		"path=/printers/plotter,method=POST,user=rosa": "0",
		"path=/printers/a4,method=POST,user=rosa":      "20",
		"path=/cookies/special,method=POST,ip=1":       "(3) 10",
		"path=/cookies/special,method=POST,user=rosa":  "(3) 1000",
		"path=/cookies/oat,method=POST,user=ada":       "10",
		"path=/cakes/birthday,method=POST,user=ada":    "1",
		"path=/cakes/birthday,method=GET":              "0",
	} {
		if got := findAll(d, &scratch, parseEntries(ask)); got != want {
			t.Errorf("%s finds %s, want %s", ask, got, want)
		}
	}
}

// A rule of divvy's is one of an ordered list in YAML.
func TestDivvyIsAnOrderedList(t *testing.T) {
	const yaml = `
domain: kitchen
rules:
  - match: {method: GET, path: /pantry/*, ip: "*"}
    per: [ip]
    shadow_mode: true
    rate_limit: {name: pantry, algorithm: first_hit_window, requests_per_unit: 3, period: 3600s}
    metadata: {comment: tins}
  - match: {user: ada}
    rate_limit: {unlimited: true, requests_per_unit: 5}
  - match: {}
    rate_limit: {requests_per_unit: 0, period: 1s, algorithm: first_hit_window}
`
	const ini = `
[path=/pantry/* method=GET ip=*]
creditLimit=3
resetSeconds=3600
actorField=ip
matchPolicy=canary
label=pantry
comment=tins
[user=ada]
creditLimit=5
resetSeconds=0
[default]
creditLimit=0
`
	a := limitertest.Load(t, []filerules.File{{Name: "a.yaml", Data: []byte(yaml)}})
	b := limitertest.Load(t, []filerules.File{{Name: "kitchen.ini", Data: []byte(ini)}})
	if !slices.Equal(lists(a), lists(b)) {
		t.Errorf("the rules are not the same:\n%s\n\n%s", strings.Join(lists(a), "\n"), strings.Join(lists(b), "\n"))
	}
	if r := b.Rules()[1]; !r.Unlimited || r.Requests != 5 {
		t.Errorf("an unlimited rule tells callers of %d", r.Requests)
	}
}
