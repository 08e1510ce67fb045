package rules_test

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/yamlrules"
	"ratelimit/testbed/testfiles"
)

// FuzzYAML reads, compiles and asks whatever comes; nothing may panic, each
// problem has a place, and the same text gives the same result twice.
func FuzzYAML(f *testing.F) {
	testfiles.Seed(f)
	f.Add([]byte(utf16(true, "domain: d\n")))
	f.Add([]byte("rules: .\ntests: []\n"))
	f.Add([]byte("domain: d\n" + billionLaughs("name")))
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, problems, warnings := yamlrules.Parse("a.yaml", data)
		again, problems2, warnings2 := yamlrules.Parse("a.yaml", data)
		if !reflect.DeepEqual(cfg, again) || !reflect.DeepEqual(problems, problems2) ||
			!reflect.DeepEqual(warnings, warnings2) {
			t.Fatalf("two readings of %q differ", data)
		}
		if cfg == nil && len(problems) == 0 && !hasTests(data) {
			t.Fatalf("%q is neither good nor bad", data)
		}
		files := []filerules.File{{Name: "a.yaml", Data: data}}
		set, odd, err := filerules.Load(files, compile.Options{})
		set2, odd2, err2 := filerules.Load(files, compile.Options{})
		if fmt.Sprint(err) != fmt.Sprint(err2) || !reflect.DeepEqual(odd, odd2) {
			t.Fatalf("two loads of %q differ:\n%v %v\n%v %v", data, err, odd, err2, odd2)
		}
		if (err == nil) != (set != nil) || len(problems) > 0 && err == nil {
			t.Fatalf("%q: the set is %v, the error %v, the problems %v", data, set, err, problems)
		}
		for _, p := range append(append(problems, warnings...), odd...) {
			if p.File != "a.yaml" || p.Message == "" {
				t.Fatalf("%q: the problem %q has no file or no words", data, p)
			}
		}
		if err != nil {
			if !strings.HasPrefix(err.Error(), "a.yaml:") {
				t.Fatalf("%q: %v", data, err)
			}
			return
		}
		if cfg == nil {
			if n := len(set.Domains()); n > 0 {
				t.Fatalf("%q is a file of tests and has %d domains", data, n)
			}
			return
		}
		domain := set.Domain([]byte(cfg.Domain))
		if domain == nil || domain.Name != cfg.Domain {
			t.Fatalf("%q: no domain %q", data, cfg.Domain)
		}
		if !reflect.DeepEqual(outlineOf(set), outlineOf(set2)) {
			t.Fatalf("two loads of %q differ", data)
		}
		for i := range set.Rules() {
			checkRule(t, data, set, i)
		}
		for _, request := range [][]rules.Entry{nil, {{}}, {{data, data}}, {{nil, data}, {data, nil}}} {
			find(domain, request)
		}
	})
}

// requestFor has the rule's own words. It finds the rule, or a wildcard or an exact value before it; loose says that it
// may also find nothing.
func requestFor(r *rules.Rule) (request []rules.Entry, loose bool) {
	for _, name := range r.WordPath() {
		request = append(request, rules.Entry{Key: []byte(name)})
	}
	if r.ListSettings != nil {
		for _, p := range r.ListSettings.MatchPairs {
			request = append(request, rules.Entry{[]byte(p.Key), []byte(p.Pattern)})
		}
	}
	for _, level := range r.Path {
		request = append(request, rules.Entry{[]byte(level.Key()), []byte(level.SampleValue())})
		loose = loose || level.Value() == "" || level.Kind != rules.LevelValue
	}
	return request, loose
}

// checkRule checks rule i of a set that was read from data, and that a request finds it.
func checkRule(t *testing.T, data []byte, set *rules.Set, i int) {
	t.Helper()
	r, domain := set.Rules()[i], set.Domains()[0]
	if r.Index != i || !strings.HasPrefix(r.FullName, domain.Name+".") {
		t.Fatalf("%q: rule %d is %+v", data, i, r)
	}
	if !r.Unlimited && r.Limit.Validate() != nil {
		t.Fatalf("%q: rule %v: %v", data, r, r.Limit.Validate())
	}
	request, loose := requestFor(r)
	var scratch rules.SearchScratch
	got := domain.FindRule(request, &scratch)
	if again := find(domain, request); again != got {
		t.Fatalf("%q: %s finds %v and then %v", data, r.FullName, again, got)
	}
	all := charged(got)
	for _, canary := range scratch.Canaries {
		all = append(all, charged(canary)...)
	}
	if !loose && !slices.Contains(all, r) {
		t.Fatalf("%q: the words of %s find %v", data, r.FullName, all)
	}
	for i, one := range charged(got) {
		base := set.Rules()[one.Index]
		if one != base && base.LimitsFile == nil || len(one.Path) > len(got.Path) ||
			i > 0 && len(one.Path) < len(got.Limits[i-1].Path) {
			t.Fatalf("%q: charge %d of %s is %+v", data, i, got.FullName, one)
		}
	}
}

func outlineOf(set *rules.Set) (lines []string) {
	for _, r := range set.Rules() {
		lines = append(lines, describe(r))
	}
	return append(lines, charges(set)...)
}

// charged are the rules that are charged where Find returns m.
func charged(m *rules.Match) []*rules.Rule {
	if m == nil {
		return nil
	}
	return m.Limits
}

// lastLimit is the innermost limit of m; nil without m.
func lastLimit(m *rules.Match) *rules.Rule {
	if m == nil {
		return nil
	}
	return m.Limits[len(m.Limits)-1]
}

// FuzzFind builds a tree and a request from bytes, of so few different words
// that they are often the same, and holds Find to a walk over the tree as written.
func FuzzFind(f *testing.F) {
	f.Add([]byte("\x05\x11\x26\x03\x38\x41"), []byte("\x11\x22"))
	f.Add([]byte("abcdefghijklmnopqrstuvwxyz"), []byte("acb"))
	f.Add([]byte("\x00\x44\x88\xcc\x10\x54\x98\xdc\x20\x64\xa8\xec"), []byte("\xcc\x10"))
	f.Add([]byte("0123456789ABCDEF0123456789abcdef"), []byte("19"))
	f.Add([]byte("\x70\x54\x71\x84\x72\x05\x70\x24"), []byte("\x70\x71\x72")) // a path: one limit, two, none
	f.Fuzz(func(t *testing.T, tree, ask []byte) {
		if len(tree) > 200 || len(ask) > 8 {
			return
		}
		words := []string{"a", "b", "a_b", "*", "a*", "*b", "a_*", "", "b*a", "\xff", "ab", "b_a", "**", "_", "*_", "_*"}
		top := grow(tree, words)
		set, warnings, err := compile.Compile([]compile.DomainConfig{{Domain: "d", Descriptors: top}}, compile.Options{})
		if bad := unusable(top); (err != nil) != bad {
			t.Fatalf("%+v: %v, want an error: %t", top, err, bad)
		}
		if err != nil {
			return
		}
		var request []rules.Entry
		for _, b := range ask {
			request = append(request, rules.Entry{[]byte(words[b&15]), []byte(words[b>>4])})
		}
		var got []rules.Pos
		r := find(set.Domain([]byte("d")), request)
		for _, one := range charged(r) {
			got = append(got, one.Pos)
		}
		w := walker{request: request}
		w.walk(top)
		if !slices.Equal(got, w.charges) {
			t.Fatalf("%q in %+v is charged to %v, want %v", request, top, got, w.charges)
		}
		if r == nil {
			return
		}
		if r.ChargesAllOrNone != w.none {
			t.Fatalf("%q in %+v: all or none is %t", request, top, r.ChargesAllOrNone)
		}
		for _, w := range warnings {
			literal := slices.ContainsFunc(request,
				func(e rules.Entry) bool { return bytes.ContainsRune(slices.Concat(e.Key, e.Value), '*') })
			if !literal && w.Line == r.Pos.Line && strings.HasPrefix(w.Message, "no request can match") {
				t.Fatalf("%q in %+v finds what was warned of: %v", request, top, w)
			}
		}
	})
}

// grow builds a tree from bytes, two for each descriptor, of sixteen words.
func grow(tree []byte, words []string) []compile.DescriptorConfig {
	rest := tree
	var build func(depth int) []compile.DescriptorConfig
	build = func(depth int) (list []compile.DescriptorConfig) {
		for len(rest) >= 2 && len(list) < 6 {
			d := compile.DescriptorConfig{Key: words[rest[0]&15], Value: words[rest[0]>>4]}
			d.Pos = rules.Pos{"a.yaml", len(tree) - len(rest) + 1, 0}
			what := rest[1]
			rest = rest[2:]
			switch {
			case what&0x81 == 0:
				d.RateLimit = &compile.RateLimitConfig{Unit: "day"}
			case what&1 == 0:
				d.RateLimits = &compile.Positioned[[]compile.RateLimitConfig]{Pos: d.Pos, Value: []compile.RateLimitConfig{
					{Pos: rules.Pos{"a.yaml", d.Line, 1}, Unit: "day"},
					{Pos: rules.Pos{"a.yaml", d.Line, 2}, Unit: "hour"},
				}}
			}
			switch what & 0x30 {
			case 0x10:
				d.ChargeMode = &compile.Positioned[string]{Pos: d.Pos, Value: "path"}
			case 0x20:
				d.ChargeMode = &compile.Positioned[string]{Pos: d.Pos, Value: "leaf"}
			}
			switch what & 0x44 {
			case 0x40:
				d.OnReject = &compile.Positioned[string]{Pos: d.Pos, Value: "none"}
			case 0x44:
				d.OnReject = &compile.Positioned[string]{Pos: d.Pos, Value: "each"}
			}
			if what&2 == 0 && depth < 3 {
				d.Descriptors = build(depth + 1)
			}
			d.ShareThreshold = what&8 == 0 && strings.Contains(rules.LevelName(d.Key, d.Value), "*")
			list = append(list, d)
			if what&4 == 0 && depth > 0 {
				break
			}
		}
		return list
	}
	return build(0)
}

// unusable reports whether a key is missing or a descriptor is there twice.
func unusable(list []compile.DescriptorConfig) bool {
	for i, d := range list {
		if d.Key == "" || unusable(d.Descriptors) {
			return true
		}
		for _, e := range list[:i] {
			if d.Key == e.Key && d.Value == e.Value {
				return true
			}
		}
	}
	return false
}

// walker finds by the words of the documentation what a request is charged to.
type walker struct {
	request    []rules.Entry
	path, none bool
	charges    []rules.Pos
}

func (w *walker) walk(level []compile.DescriptorConfig) {
	if len(w.request) == 0 {
		w.charges = nil
		return
	}
	key, value := string(w.request[0].Key), string(w.request[0].Value)
	step := func(is func(d compile.DescriptorConfig) bool) *compile.DescriptorConfig {
		for i := range level {
			if is(level[i]) {
				return &level[i]
			}
		}
		return nil
	}
	d := step(func(d compile.DescriptorConfig) bool { return value != "" && d.Key == key && d.Value == value })
	if d == nil {
		d = step(func(d compile.DescriptorConfig) bool {
			text := d.Key
			if d.Value != "" {
				text += "_" + d.Value
			}
			return strings.Contains(text, "*") && glob(text, key+"_"+value)
		})
	}
	if d == nil {
		d = step(func(d compile.DescriptorConfig) bool { return d.Key == key && d.Value == "" })
	}
	if d == nil {
		w.charges = nil
		return
	}
	if d.ChargeMode != nil {
		w.path = d.ChargeMode.Value == "path"
	}
	if d.OnReject != nil {
		w.none = d.OnReject.Value == "none"
	}
	if !w.path {
		w.charges = nil
	}
	if d.RateLimit != nil {
		w.charges = append(w.charges, d.Pos)
	}
	if d.RateLimits != nil {
		for _, item := range d.RateLimits.Value {
			w.charges = append(w.charges, item.Pos)
		}
	}
	if w.request = w.request[1:]; len(w.request) > 0 {
		if !w.path {
			w.charges = nil
		}
		w.walk(d.Descriptors)
	}
}

// glob tries everything that a star may stand for.
func glob(pattern, text string) bool {
	if pattern == "" {
		return text == ""
	}
	if pattern[0] == '*' {
		for i := range len(text) + 1 {
			if glob(pattern[1:], text[i:]) {
				return true
			}
		}
		return false
	}
	return text != "" && text[0] == pattern[0] && glob(pattern[1:], text[1:])
}

// hasTests reads data as files of tests are read.
func hasTests(data []byte) bool {
	v, _ := yamlrules.ReadValue("a.yaml", data)
	return v != nil && slices.ContainsFunc(v.Fields, func(f yamlrules.Field) bool { return f.Name == "tests" })
}
