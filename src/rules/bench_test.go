package rules_test

import (
	"fmt"
	"strings"
	"testing"

	"ratelimit/src/rules"
	"ratelimit/testbed/limitertest"
)

func BenchmarkFind(b *testing.B) {
	many := func(n int, format string) string {
		var lines strings.Builder
		for i := range n {
			fmt.Fprintf(&lines, format+"\n", i)
		}
		return lines.String()
	}
	for _, bench := range []struct{ name, outline, request, want string }{
		{"one", "a=b", "a=b", "a=b"},
		{"none", "a=b", "a=c", "none"},
		{"10,000 exact", many(10_000, "path=/v1/items/%d"), "path=/v1/items/7777", "path=/v1/items/7777"},
		{"100 wildcards, the last", many(100, "path=/v1/%d/*"), "path=/v1/99/items/7777", "path=/v1/99/*"},
		{"depth 4", "a=1\n  b=2\n    c\n      d=4", "a=1, b=2, c=3, d=4", "a=1/b=2/c/d=4"},
	} {
		b.Run(bench.name, func(b *testing.B) {
			d := compiled(b, bench.outline)
			request := entries(bench.request)
			if got := found(d, request); got != bench.want {
				b.Fatalf("found %s, want %s", got, bench.want)
			}
			var scratch rules.SearchScratch
			b.ReportAllocs()
			for b.Loop() {
				d.FindRule(request, &scratch)
			}
		})
	}
}

// TestFindAllocatesNothing once its scratch space has grown.
func TestFindAllocatesNothing(t *testing.T) {
	set := limitertest.Load(t, holdRules)
	_, files := dataDomain(t, dataRules, dataTexts)
	tree, list := set.Domain([]byte("tree")), set.Domain([]byte("list"))
	wildcards := compiled(t, "a=b\na=x*\na\n  c=*y*\n")
	var scratch rules.SearchScratch
	for _, tt := range []struct {
		d       *rules.Domain
		request string
	}{
		{wildcards, "a=b"},
		{wildcards, "a=xyz"},
		{wildcards, "a=c"},
		{wildcards, "a=d,c=xyz"},
		{wildcards, "z=z"},
		{files, "k=bad"},
		{files, "k=acme"},
		{files, "k=free"},
		{files, "k=missing"},
		{tree, "user=al,id=7,hold=settle"},
		{list, "user=al,id=7,hold=settle"},
	} {
		entries := parseEntries(tt.request)
		n := testing.AllocsPerRun(100, func() {
			if m := tt.d.FindRule(entries, &scratch); m != nil {
				if _, _, err := m.HoldOf(entries); err != nil {
					t.Error(err)
				}
			}
		})
		if n > 0 {
			t.Errorf("%s: %s: %v allocations", tt.d.Name, tt.request, n)
		}
	}
}
