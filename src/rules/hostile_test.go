//go:build !race

package rules_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
)

// hostileTest is a file, and the beginning of what loading it says.
type hostileTest struct{ name, data, want string }

func hostileTests() []hostileTest {
	big := strings.Repeat("v", 1<<20)
	head := "domain: d\ndescriptors:\n"
	limit := "  rate_limit: {unit: day, requests_per_unit: 1}\n"
	return []hostileTest{
		{
			"a billion laughs where nothing is read", "domain: d\n" + billionLaughs("name"),
			"a.yaml:2:32: the aliases of the file stand for more than 1000000 values; use fewer aliases, or several files",
		},
		{
			"a billion laughs of descriptors", head + "- key: n\n  descriptors: [" + bomb(9) + "]\n",
			"a.yaml:4:158: the aliases of the file stand for more than 1000000 values; use fewer aliases, or several files",
		},
		{
			"10,000 lists", "domain: d\ndescriptors: " + nested(9998, "[", "]"),
			"a.yaml:2:15: a descriptor is a list, not a map; write `- key: ...`",
		},
		{
			"10,001 lists", "domain: d\ndescriptors: " + nested(10001, "[", "]"),
			"a.yaml:2:10014: not YAML: exceeded max depth of 10000",
		},
		{
			"10,000 lists where nothing is read", "domain: d\nvalue: " + nested(9998, "[", "]"),
			"a.yaml:2:9: an item of the list is a list, not a map; remove it",
		},
		{
			"10,000 maps where nothing is read", "domain: d\nvalue: " + nested(9998, "{key: ", "}"),
			"warning: a.yaml:2:1: value has no effect in the file; move it or remove it",
		},
		{
			"10,000 lists, never closed", "domain: d\nvalue: " + nested(9998, "[", ""),
			"a.yaml:2:8: not YAML: did not find expected node content",
		},
		{"10,000 maps as keys", "domain: d\n? " + nested(4000, "{? ", "}"), "a.yaml:2:3: the key \"\" is a map, not text"},
		{
			"4,999 levels of descriptors", "domain: d\ndescriptors: " + nested(4999, "[{key: a, descriptors: ", "}]"),
			"a.yaml:2:2315: descriptors are nested more than 100 levels deep; use fewer levels; a request needs an entry for " +
				"each",
		},
		{
			"10,000 levels of descriptors", "domain: d\ndescriptors: " + nested(10000, "[{key: a, descriptors: ", "}]"),
			"a.yaml:2:115014: not YAML: exceeded max depth of 10000",
		},
		{"a value of a megabyte", head + "- key: a\n  value: " + big + "\n" + limit, "a.yaml:3:3 d.a_vvvv"},
		{"a key of a megabyte", head + "- key: " + big + "\n" + limit, "a.yaml:3:3 d.vvvv"},
		{
			"a wildcard of a megabyte", head + "- {key: a, value: '*'}\n- {key: a, value: '" + strings.Repeat("a*",
				1<<19) + "'}\n",
			"warning: a.yaml:4:3: no request can match \"a_" + strings.Repeat("a*",
				29) + "\"... (1048578 bytes): the wildcard \"a_*\" at a.yaml:3:3 takes all",
		},
		{
			"a unit of a megabyte", head + "- {key: a, rate_limit: {unit: " + big + "}}\n",
			"a.yaml:3:31: unit \"" + big[:60] + "\"... (1048576 bytes) is not known; write second",
		},
		{"a field name of a megabyte", "? " + big + "\n: d\n", "a.yaml:1:1: the domain is missing or empty"},
		{
			"a key of half a megabyte on 100 levels",
			head + "- key: &k " + big[1<<19:] + "\n  descriptors: " + nested(99, "[{key: *k, descriptors: ", "}]"),
			"a.yaml:4:737: the names of the rules, with the levels above them, are longer than 256 MB together; use fewer " +
				"levels or shorter values",
		},
		{
			"10,000 limits of one descriptor",
			head + "- key: a\n  rate_limits:\n" + strings.Repeat("  - {unit: day, requests_per_unit: 1}\n", 10_000),
			"a.yaml:4:3: what matches is charged to more than 100 limits; use fewer\n",
		},
		{
			"100,000 wrong lines", head + strings.Repeat("- 5\n", 100_000),
			"a.yaml:3:3: a descriptor is a whole number, not a map; write `- key: ...`\na.yaml:4:3:",
		},
		{"a megabyte of remarks", strings.Repeat("# x\n", 1<<18) + head + oneRule, "a.yaml:262147:3 d.a: 1 per DAY"},
		{"a megabyte of nothing", strings.Repeat("\n", 1<<20) + head + oneRule, "a.yaml:1048579:3 d.a: 1 per DAY"},
		{
			"20,000 rules that are the same",
			"domain: d\nrules:\n" + strings.Repeat("- {match: {a: b}, rate_limit: {unlimited: true}}\n", 20_000),
			"a.yaml:4:3: rule {a=b} is unreachable: {a=b} at a.yaml:3:3 matches first",
		},
		{
			"a rule by 50,000 keys", "domain: d\nrules: [{match: {" + numbered(50_000,
				"k%d: v, ") + "}, rate_limit: {unlimited: true}}]\n",
			"a.yaml:2:10: the rule matches by more than 100 keys; use fewer",
		},
		{
			"20,000 rules by a key each", "domain: d\nrules: [" + numbered(20_000,
				"{match: {k%d: v}, rate_limit: {unlimited: true}}, ") + "]\n",
			"a.yaml:2:9 d.k0_v: unlimited",
		},
		{
			"a tree of 2,000 levels", "schema: " + strings.Repeat("{a: {children: ",
				2000) + "{a: {limits: [1, 1, 1]}}" + strings.Repeat("}}", 2000) + "\n",
			"a.yaml:1:1510: the tree is more than 100 levels deep; use fewer levels; a request needs a word for each",
		},
		{
			"65,536 anchors", head + strings.Repeat("- &a {key: a}\n", 1<<16),
			"a.yaml:4:3: descriptor \"a\" is already defined at a.yaml:3:3",
		},
	}
}

// TestHostile is about files that are meant to hurt. Each must be answered
// with a clear word, or taken, without much memory; want is the beginning of
// the outcome.
func TestHostile(t *testing.T) {
	for _, test := range hostileTests() {
		t.Run(test.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got := outcome([]filerules.File{{Name: "a.yaml", Data: []byte(test.data)}}, compile.Options{})
			runtime.ReadMemStats(&after)
			if !strings.HasPrefix(got, test.want) {
				t.Errorf("got %.300q, want %.300q", got, test.want)
			}
			if mb := (after.TotalAlloc - before.TotalAlloc) >> 20; mb > 300 {
				t.Errorf("allocated %d MB", mb)
			}
			if len(got) > 3<<20 {
				t.Errorf("the outcome has %d bytes", len(got))
			}
		})
	}
}

// TestHostileDivvy is the same about files of divvy.
func TestHostileDivvy(t *testing.T) {
	t.Parallel()
	const rule = `{"operation":{"q":1},"creditLimit":1,"resetSeconds":1},`
	for _, test := range []struct{ name, file, data, want string }{
		{
			"a section of 50,000 keys", "a.ini", "[" + numbered(50_000, "k%d=v ") + "]\n",
			"a.ini:1:598: the section has more than 100 keys; use fewer",
		},
		{"20,000 sections", "a.ini", numbered(20_000,
			"[k=%d]\ncreditLimit=1\nresetSeconds=1\n") + "[default]\ncreditLimit=0\n", "a.ini:1:1 a.k_0: 1 per SECOND"},
		{
			"a megabyte of keys", "a.ini", "[default]\n" + numbered(100_000, "k%d = v\n") + "creditLimit=0\n",
			"a.ini:1:1 a.default: 0 per SECOND",
		},
		{
			"a section that never ends", "a.ini", "[" + strings.Repeat("a", 1<<20),
			"a.ini:1:1048578: the section has no end; add a `]`",
		},
		{
			"an operation of 50,000 keys", "a.json",
			`{"overrides":[{"operation":{` + numbered(50_000,
				`"k%d":1,`) + `"x":1},"creditLimit":1,"resetSeconds":1}],"default":{"operation":{},"creditLimit":0}}`,
			"a.json:1:15: the rule matches by more than 100 keys; use fewer",
		},
		{
			"20,000 rules in a line", "a.json", `{"overrides":[` + strings.Repeat(rule, 20_000) + `7]}`,
			"a.json:1:70: rule {\"q\":1} is unreachable: {\"q\":1} at a.json:1:15 matches first",
		},
		{"a map in a map in a map", "a.json", strings.Repeat(`{"a":`, 500_000), "a.json:1:50001: not JSON: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := outcome([]filerules.File{{Name: test.file, Data: []byte(test.data)}},
				compile.Options{}); !strings.HasPrefix(got, test.want) {
				t.Errorf("got %.300q, want %.300q", got, test.want)
			}
		})
	}
}

// numbered is form with the numbers below n, one behind the other.
func numbered(n int, form string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, form, i)
	}
	return b.String()
}

func nested(depth int, open, end string) string {
	return strings.Repeat(open, depth) + strings.Repeat(end, depth) + "\n"
}

// bomb is n descriptors that share the list of children of the one before, ten
// times each.
func bomb(n int) string {
	below := "[]"
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "{key: n%d, descriptors: &b%d [", i, i)
		for j := range 10 {
			fmt.Fprintf(&b, "{key: k%d, descriptors: %s}, ", j, below)
		}
		b.WriteString("]}, ")
		below = fmt.Sprintf("*b%d", i)
	}
	return b.String()
}
