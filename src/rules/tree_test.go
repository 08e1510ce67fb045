package rules_test

import (
	"fmt"
	"strings"
	"testing"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/match"
)

// compiled turns an outline into a domain: a line is "key" or "key=value",
// two spaces deeper than its parent; a line behind "-" has no limit.
func compiled(t testing.TB, outline string) *rules.Domain {
	t.Helper()
	var cfg compile.DomainConfig
	cfg.Domain, cfg.File = "d", "outline"
	levels := []*[]compile.DescriptorConfig{&cfg.Descriptors}
	for i, line := range strings.Split(strings.TrimSpace(outline), "\n") {
		line = strings.TrimLeft(line, "\t")
		text := strings.TrimLeft(line, " ")
		depth := (len(line) - len(text)) / 2
		d := compile.DescriptorConfig{LimitsConfig: compile.LimitsConfig{Pos: rules.Pos{"outline", i + 1, 1}}}
		if rest, without := strings.CutPrefix(text, "-"); without {
			text = rest
		} else {
			d.RateLimit = &compile.RateLimitConfig{Unit: "day", RequestsPerUnit: 1}
		}
		d.Key, d.Value, _ = strings.Cut(text, "=")
		list := levels[depth]
		*list = append(*list, d)
		levels = append(levels[:depth+1], &(*list)[len(*list)-1].Descriptors)
	}
	set, _, err := compile.Compile([]compile.DomainConfig{cfg}, compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return set.Domain([]byte("d"))
}

// entries reads "key=value, key=value".
func entries(request string) (list []rules.Entry) {
	for one := range strings.SplitSeq(request, ", ") {
		if key, value, ok := strings.Cut(one, "="); ok {
			list = append(list, rules.Entry{[]byte(key), []byte(value)})
		}
	}
	return list
}

// find returns what Find returns, without the canaries.
func find(d *rules.Domain, entries []rules.Entry) *rules.Match {
	var scratch rules.SearchScratch
	rule := d.FindRule(entries, &scratch)
	return rule
}

// explain explains the search for entries in d.
func explain(d *rules.Domain, entries []rules.Entry) *match.Record {
	return match.Explain(d, entries, new(rules.SearchScratch))
}

// found is the path of the rule that Find finds, "a=b/c", or "none".
func found(d *rules.Domain, request []rules.Entry) string {
	r := find(d, request)
	if explained := explain(d, request).Found; explained != r {
		return fmt.Sprintf("%v, but explained as %v", r, explained)
	}
	if r == nil {
		return "none"
	}
	var levels []string
	for _, level := range r.Path {
		text := level.Key()
		if level.Value() != "" {
			text += "=" + level.Value()
		}
		levels = append(levels, text)
	}
	return strings.Join(levels, "/")
}

// finding is a request, and what it finds.
type finding struct{ entries, want string }

// findTests are trees as outlines, and the paths of the rules that requests find in them.
var findTests = []struct {
	name    string
	outline string
	asked   []finding
}{
	{"exact, then the key alone", `
			a=b
			a
			B
			`, []finding{
		{"a=b", "a=b"},
		{"a=c", "a"},
		{"a=", "a"},
		{"a=bb", "a"},
		{"a=B", "a"},
		{"A=b", "none"},
		{"B=x", "B"},
		{"b=x", "none"},
		{"ab=", "none"},
		{"=b", "none"},
		{"=", "none"},
		{"", "none"},
	}},
	{"no key alone", `
			a=b
			`, []finding{
		{"a=b", "a=b"},
		{"a=", "none"},
		{"a=c", "none"},
	}},
	{"the depth must be the same", `
			a
			  b=1
			    c
			-x
			  y
			-z
			`, []finding{
		{"a=1", "a"},
		{"a=1, b=1", "a/b=1"},
		{"a=1, b=1, c=1", "a/b=1/c"},
		{"a=1, b=1, c=1, d=1", "none"},
		{"a=1, b=2", "none"},
		{"b=1", "none"},
		{"b=1, a=1", "none"}, // the order counts
		{"x=1", "none"},
		{"x=1, y=1", "x/y"},
		{"z=1", "none"},
		{"z=1, y=1", "none"},
	}},
	{"a branch is not left again", `
			-a=b
			  c=1
			-a=w*
			  c=2
			a
			  c
			`, []finding{
		{"a=b", "none"}, // though the key alone has a limit
		{"a=b, c=1", "a=b/c=1"},
		{"a=b, c=2", "none"},
		{"a=w, c=2", "a=w*/c=2"},
		{"a=w, c=3", "none"},
		{"a=x", "a"},
		{"a=x, c=3", "a/c"},
	}},
	{"exact before wildcard before key alone", `
			a
			a=b*
			a=bc
			`, []finding{
		{"a=bc", "a=bc"},
		{"a=bcd", "a=b*"},
		{"a=b", "a=b*"},
		{"a=c", "a"},
	}},
	{"wildcards in the order of the file, not the longest", `
			a=b*
			a=bcd*
			a=*e
			a=*
			`, []finding{
		{"a=bcde", "a=b*"},
		{"a=e", "a=*e"},
		{"a=be", "a=b*"},
		{"a=x", "a=*"},
		{"a=", "a=*"},
		{"ab=", "none"},
	}},
	{"several stars", `
			a=/*/x/*.png
			b=*middle*
			c=1**2
			d=*a*a*
			`, []finding{
		{"a=/u/x/y.png", "a=/*/x/*.png"},
		{"a=/u/v/x/y/z.png", "a=/*/x/*.png"},
		{"a=//x/.png", "a=/*/x/*.png"},
		{"a=/x/.png", "none"},
		{"a=/u/x.png", "none"},
		{"a=/u/x/y.png?", "none"},
		{"b=middle", "b=*middle*"},
		{"b=in the middle of it", "b=*middle*"},
		{"b=midle", "none"},
		{"c=12", "c=1**2"},
		{"c=1x2", "c=1**2"},
		{"c=1", "none"},
		{"d=aa", "d=*a*a*"},
		{"d=xaxax", "d=*a*a*"},
		{"d=a", "none"},
	}},
	{"parts do not overlap", `
			a=ab*ba
			b=*aab*
			`, []finding{
		{"a=abba", "a=ab*ba"},
		{"a=aba", "none"},
		{"b=aaab", "b=*aab*"},
		{"b=aaaab", "b=*aab*"},
		{"b=abab", "none"},
	}},
	{"a star in the key joins key and value", `
			star*
			*_x
			p*=q
			`, []finding{
		{"star=", "star*"},
		{"star=x", "star*"},
		{"stars=5", "star*"},
		{"star*=x", "star*"},
		{"tar=x", "*_x"},
		{"=x", "*_x"},
		{"t=a_x", "*_x"},
		{"p=q", "p*=q"},
		{"pp=r_q", "p*=q"},
		{"p=r", "none"},
	}},
	{"the joined text of wildcards crosses from key to value", `
			a=b_*
			`, []finding{
		{"a=b_c", "a=b_*"},
		{"a_b=c", "a=b_*"},
		{"a_b=", "a=b_*"},
	}},
	{"a star alone as key takes everything", `
			a=b
			*
			`, []finding{
		{"a=b", "a=b"},
		{"a=c", "*"},
		{"=", "*"},
		{"\xff=\x00", "*"},
	}},
	{"a star in a request is a byte like others", `
			a=e*
			a=ex*
			a=ex*t
			b=*
			b=\*
			`, []finding{
		{"a=ex*", "a=ex*"}, // exact
		{"a=ex*t", "a=ex*t"},
		{"a=ex*x", "a=e*"},
		{"a=exit", "a=e*"},
		{"b=*", "b=*"},
		{`b=\*`, `b=\*`},
		{`b=\x`, "b=*"},
	}},
	{"key and value apart", `
			a=b_c
			x_y=z
			p_q
			`, []finding{
		{"a=b_c", "a=b_c"},
		{"a_b=c", "none"},
		{"x_y=z", "x_y=z"},
		{"x=y_z", "none"},
		{"p_q=", "p_q"},
		{"p_q=1", "p_q"},
		{"p=q", "none"},
	}},
	{"both readings of one joined text", `
			a=b_c
			a_b=c
			a_b_c
			`, []finding{
		{"a=b_c", "a=b_c"},
		{"a_b=c", "a_b=c"},
		{"a_b_c=", "a_b_c"},
		{"a_b_c=1", "a_b_c"},
	}},
	{"any bytes", `
			a=é*
			b=*
			c
			`, []finding{
		{"a=é", "a=é*"},
		{"a=é\xff", "a=é*"},
		{"a=\xc3", "none"}, // half an é
		{"b=\xff\xfe\x00", "b=*"},
		{"b=\n", "b=*"},
		{"c=\xff", "c"},
		{"c\xff=", "none"},
		{"\xff=c", "none"},
	}},
	{"wildcards below wildcards", `
			-a=*
			  b=x*
			  b
			-c
			  *
			`, []finding{
		{"a=1, b=xy", "a=*/b=x*"},
		{"a=1, b=y", "a=*/b"},
		{"a=, b=", "a=*/b"},
		{"c=1, anything=1", "c/*"},
		{"c=1", "none"},
	}},
}

func TestFind(t *testing.T) {
	t.Parallel()
	for _, test := range findTests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := compiled(t, test.outline)
			for _, r := range test.asked {
				if got := found(d, entries(r.entries)); got != r.want {
					t.Errorf("%q finds %s, want %s", r.entries, got, r.want)
				}
			}
		})
	}
}

// One scratch buffer serves all calls, of any length, one after another.
func TestFindScratch(t *testing.T) {
	d := compiled(t, "a=*x*\na")
	var scratch rules.SearchScratch
	for _, value := range []string{"", strings.Repeat("y", 1000), "x", strings.Repeat("x", 5000), "y"} {
		want := "a"
		if strings.Contains(value, "x") {
			want = "*x*"
		}
		r := d.FindRule([]rules.Entry{{[]byte("a"), []byte(value)}}, &scratch)
		if r == nil || (r.Path[0].Value() == "*x*") != (want == "*x*") {
			t.Errorf("a=%.10q finds %v, want %s", value, r, want)
		}
	}
}

// An empty set is a good one.
func TestNoConfiguration(t *testing.T) {
	set, warnings, err := filerules.Load(nil, compile.Options{})
	if err != nil || len(warnings) > 0 || len(set.Domains()) != 0 || len(set.Rules()) != 0 || set.Domain(nil) != nil {
		t.Error(set, warnings, err)
	}
}
