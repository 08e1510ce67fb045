package rules

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// FuzzYAML reads, compiles and asks whatever comes; nothing may panic, each
// problem has a place, and the same text gives the same result twice.
func FuzzYAML(f *testing.F) {
	seed(f)
	f.Add([]byte(utf16(true, "domain: d\n")))
	f.Add([]byte("rules: .\ntests: []\n"))
	f.Add([]byte("domain: d\n" + laughs("name")))
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, problems, warnings := ParseYAML("a.yaml", data)
		again, problems2, warnings2 := ParseYAML("a.yaml", data)
		if !reflect.DeepEqual(cfg, again) || !reflect.DeepEqual(problems, problems2) || !reflect.DeepEqual(warnings, warnings2) {
			t.Fatalf("two readings of %q differ", data)
		}
		if cfg == nil && len(problems) == 0 && !hasTests(data) {
			t.Fatalf("%q is neither good nor bad", data)
		}
		files := []File{{"a.yaml", data}}
		set, odd, err := Load(files, Options{})
		set2, odd2, err2 := Load(files, Options{})
		if fmt.Sprint(err) != fmt.Sprint(err2) || !reflect.DeepEqual(odd, odd2) {
			t.Fatalf("two loads of %q differ:\n%v %v\n%v %v", data, err, odd, err2, odd2)
		}
		if (err == nil) != (set != nil) || len(problems) > 0 && err == nil {
			t.Fatalf("%q: the set is %v, the error %v, the problems %v", data, set, err, problems)
		}
		for _, p := range append(append(problems, warnings...), odd...) {
			if p.File != "a.yaml" || p.What == "" {
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
		var joined []byte
		var scratch Scratch
		for i, r := range set.Rules() {
			if r.Index != i || !strings.HasPrefix(r.Key, cfg.Domain+".") {
				t.Fatalf("%q: rule %d is %+v", data, i, r)
			}
			if !r.Unlimited && r.Limit.Validate() != nil {
				t.Fatalf("%q: rule %v: %v", data, r, r.Limit.Validate())
			}
			// A request with the rule's own words meets it, or a wildcard or
			// an exact value that stands before it.
			var request []Entry
			wild := false
			for _, name := range r.Names() {
				request = append(request, Entry{Key: []byte(name)})
			}
			if r.Listed != nil {
				for _, p := range r.Listed.Match {
					request = append(request, Entry{[]byte(p.Key), []byte(p.Pattern)})
				}
			}
			for _, level := range r.Path {
				request = append(request, Entry{[]byte(level.Key()), []byte(level.Value())})
				wild = wild || level.Value() == ""
			}
			got, canaries := domain.Meet(request, &scratch, nil)
			if again := domain.Find(request, &joined); again != got {
				t.Fatalf("%q: %s finds %v and meets %v", data, r.Key, again, got)
			}
			met := charged(got)
			for _, canary := range canaries {
				met = append(met, charged(canary)...)
			}
			if !wild && !slices.Contains(met, r) {
				t.Fatalf("%q: the words of %s find %v", data, r.Key, met)
			}
			for i, one := range r.Charges {
				if one != set.Rules()[one.Index] || len(one.Path) > len(r.Path) || i > 0 && len(one.Path) < len(r.Charges[i-1].Path) {
					t.Fatalf("%q: charge %d of %s is %+v", data, i, r.Key, one)
				}
			}
		}
		for _, request := range [][]Entry{nil, {{}}, {{data, data}}, {{nil, data}, {data, nil}}} {
			domain.Find(request, &joined)
		}
	})
}

// seed adds the rule files of the tests and the examples.
func seed(f *testing.F) {
	for _, pattern := range []string{"testdata/*.txt", "../../examples/ratelimit/config/*.yaml"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, path := range paths {
			data, err := os.ReadFile(path)
			if err != nil {
				f.Fatal(err)
			}
			for one := range strings.SplitSeq(string(data), ".yaml --\n") {
				one, _, _ = strings.Cut(one, "\n-- ")
				f.Add([]byte(one))
			}
		}
	}
}

func outlineOf(set *Set) (lines []string) {
	for _, r := range set.Rules() {
		lines = append(lines, describe(r))
	}
	return append(lines, charges(set)...)
}

// charged are the rules that are charged where Find returns r.
func charged(r *Rule) []*Rule {
	switch {
	case r == nil:
		return nil
	case r.Charges == nil:
		return []*Rule{r}
	}
	return r.Charges
}

// latin1 makes one rune of each byte, so that regexp works on bytes.
func latin1(b string) string {
	runes := make([]rune, len(b))
	for i := range len(b) {
		runes[i] = rune(b[i])
	}
	return string(runes)
}

// FuzzWildcard holds patterns to the same patterns written as a regexp, and
// "covers" to its promise.
func FuzzWildcard(f *testing.F) {
	f.Add("a*b", "ab", "a*xb")
	f.Add("*", "", "**")
	f.Add("ab*ba", "aba", "ab*ba")
	f.Add("*aab*", "aaab", "*aaab*")
	f.Add("1*2*3", "1223", "1*23")
	f.Add("k_*.png", "k_\xff.png", "k_\n*.png")
	f.Add("a**.b", "a*xb", "a*.b")
	f.Fuzz(func(t *testing.T, p, text, q string) {
		if !strings.Contains(p, "*") || len(p) > 100 || len(text) > 1000 || len(q) > 100 {
			return
		}
		parts := strings.Split(latin1(p), "*")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		oracle := regexp.MustCompile(`\A` + strings.Join(parts, `(?s:.*)`) + `\z`)
		pattern := compilePattern(p)
		for _, s := range []string{text, q, strings.ReplaceAll(p, "*", text), strings.ReplaceAll(q, "*", text)} {
			if got, want := pattern.match([]byte(s)), oracle.MatchString(latin1(s)); got != want {
				t.Fatalf("%q matches %q: %t, want %t", p, s, got, want)
			}
		}
		if !strings.Contains(q, "*") || !pattern.covers(q) {
			return
		}
		narrow := compilePattern(q)
		for _, s := range []string{text, strings.ReplaceAll(q, "*", text), strings.ReplaceAll(q, "*", ""), strings.ReplaceAll(q, "*", p)} {
			if narrow.match([]byte(s)) && !pattern.match([]byte(s)) {
				t.Fatalf("%q covers %q, but only the latter matches %q", p, q, s)
			}
		}
	})
}

// FuzzFind builds a tree and a request from bytes, of so few different words
// that they meet, and holds Find to a walk over the tree as written.
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
		set, warnings, err := Compile([]DomainConfig{{Domain: "d", Descriptors: top}}, Options{})
		if bad := unusable(top); (err != nil) != bad {
			t.Fatalf("%+v: %v, want an error: %t", top, err, bad)
		}
		if err != nil {
			return
		}
		var request []Entry
		for _, b := range ask {
			request = append(request, Entry{[]byte(words[b&15]), []byte(words[b>>4])})
		}
		var joined []byte
		var got []Pos
		r := set.Domain([]byte("d")).Find(request, &joined)
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
		if r.AllOrNone != w.none {
			t.Fatalf("%q in %+v: all or none is %t", request, top, r.AllOrNone)
		}
		for _, w := range warnings {
			literal := slices.ContainsFunc(request, func(e Entry) bool { return bytes.ContainsRune(slices.Concat(e.Key, e.Value), '*') })
			if !literal && w.Line == r.Pos.Line && strings.HasPrefix(w.What, "no request can match") {
				t.Fatalf("%q in %+v finds what was warned of: %v", request, top, w)
			}
		}
	})
}

// grow builds a tree from bytes, two for each descriptor, of sixteen words.
func grow(tree []byte, words []string) []DescriptorConfig {
	rest := tree
	var build func(depth int) []DescriptorConfig
	build = func(depth int) (list []DescriptorConfig) {
		for len(rest) >= 2 && len(list) < 6 {
			d := DescriptorConfig{
				Pos: Pos{"a.yaml", len(tree) - len(rest) + 1, 0},
				Key: words[rest[0]&15], Value: words[rest[0]>>4],
			}
			what := rest[1]
			rest = rest[2:]
			switch {
			case what&0x81 == 0:
				d.RateLimit = &RateLimitConfig{Unit: "day"}
			case what&1 == 0:
				d.RateLimits = &Placed[[]RateLimitConfig]{d.Pos, []RateLimitConfig{
					{Pos: Pos{"a.yaml", d.Line, 1}, Unit: "day"},
					{Pos: Pos{"a.yaml", d.Line, 2}, Unit: "hour"},
				}}
			}
			switch what & 0x30 {
			case 0x10:
				d.Charge = &Placed[string]{d.Pos, "path"}
			case 0x20:
				d.Charge = &Placed[string]{d.Pos, "leaf"}
			}
			switch what & 0x44 {
			case 0x40:
				d.OnReject = &Placed[string]{d.Pos, "none"}
			case 0x44:
				d.OnReject = &Placed[string]{d.Pos, "each"}
			}
			if what&2 == 0 && depth < 3 {
				d.Descriptors = build(depth + 1)
			}
			d.ShareThreshold = what&8 == 0 && strings.Contains(composite(&d), "*")
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
func unusable(list []DescriptorConfig) bool {
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
	request    []Entry
	path, none bool
	charges    []Pos
}

func (w *walker) walk(level []DescriptorConfig) {
	if len(w.request) == 0 {
		w.charges = nil
		return
	}
	key, value := string(w.request[0].Key), string(w.request[0].Value)
	step := func(is func(d DescriptorConfig) bool) *DescriptorConfig {
		for i := range level {
			if is(level[i]) {
				return &level[i]
			}
		}
		return nil
	}
	d := step(func(d DescriptorConfig) bool { return value != "" && d.Key == key && d.Value == value })
	if d == nil {
		d = step(func(d DescriptorConfig) bool {
			text := d.Key
			if d.Value != "" {
				text += "_" + d.Value
			}
			return strings.Contains(text, "*") && glob(text, key+"_"+value)
		})
	}
	if d == nil {
		d = step(func(d DescriptorConfig) bool { return d.Key == key && d.Value == "" })
	}
	if d == nil {
		w.charges = nil
		return
	}
	if d.Charge != nil {
		w.path = d.Charge.Value == "path"
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
	v, _ := ReadValue("a.yaml", data)
	if v == nil {
		return false
	}
	fields, _ := v.Fields()
	return slices.ContainsFunc(fields, func(f Field) bool { return f.Name == "tests" })
}
