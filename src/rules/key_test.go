package rules_test

import (
	"bytes"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
)

// How keys are written, with their tags in braces.
func TestKeys(t *testing.T) {
	const text = `
domain: "d_{1}"
descriptors:
- key: a
  rate_limit: {unit: day, requests_per_unit: 1}
  descriptors:
  - {key: b, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: path, value: /f/*_*, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 1}}
- key: top
  value: x_*
  share_threshold: true
  descriptors:
  - {key: b, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: "st*", share_threshold: true, rate_limit: {unit: day, requests_per_unit: 1}}
`
	set := limitertest.Load(t, []filerules.File{{Name: "a.yaml", Data: []byte(text)}})
	d := set.Domain([]byte("d_{1}"))
	plain, escape := rules.KeyFormat{Prefix: "p_"}, rules.KeyFormat{Prefix: "p_", EscapeKeys: true}
	for _, tt := range []struct{ entries, plain, escaped string }{
		{"", "{p_d_{1}_}", "{p_d%5F%7B1%7D_}"},
		{"a=1", "{p_d_{1}_a_1_}", "{p_d%5F%7B1%7D_a_1_}"},
		{"a=", "{p_d_{1}_a__}", "{p_d%5F%7B1%7D_a__}"},
		{"a=x_b_y", "{p_d_{1}_a_x_b_y_}", "{p_d%5F%7B1%7D_a_x%5Fb%5Fy_}"},
		{"a=x,b=y", "{p_d_{1}_a_x_}b_y_", "{p_d%5F%7B1%7D_a_x_}b_y_"},
		{"a=%_{}|:", "{p_d_{1}_a_%_{}|:_}", "{p_d%5F%7B1%7D_a_%25%5F%7B%7D%7C%3A_}"},
		{"a=\x00\n\x1f \x7f", "{p_d_{1}_a_\x00\n\x1f \x7f_}", "{p_d%5F%7B1%7D_a_%00%0A%1F %7F_}"},
		{"a=é\xff*/-", "{p_d_{1}_a_é\xff*/-_}", "{p_d%5F%7B1%7D_a_é\xff*/-_}"},
		{"a=1,path=/f/1_2", "{p_d_{1}_a_1_}path_/f/*_*_", "{p_d%5F%7B1%7D_a_1_}path_path:/f/*%5F*_"},
		{"top=x_1,b=2", "{p_d_{1}_top_x_*_}b_2_", "{p_d%5F%7B1%7D_top_top:x%5F*_}b_2_"},
		{"start=1", "{p_d_{1}_start_st*_}", "{p_d%5F%7B1%7D_start_st*:_}"},
		// of a limit that came with the request
		{"no_rule=1_2,b=3", "{p_d_{1}_no_rule_1_2_}b_3_", "{p_d%5F%7B1%7D_no%5Frule_1%5F2_}b_3_"},
	} {
		var request []rules.Entry
		if tt.entries != "" {
			request = parseEntries(tt.entries)
		}
		rule := lastLimit(find(d, request))
		for _, side := range []struct {
			keys *rules.KeyFormat
			want string
		}{{&plain, tt.plain}, {&escape, tt.escaped}} {
			const before = "what is there"
			got, tag := side.keys.AppendKey([]byte(before), d, rule, request)
			got = bytes.TrimPrefix(got, []byte(before))
			if shown := fmt.Sprintf("{%s}%s", got[:tag], got[tag:]); shown != side.want {
				t.Errorf("%q:\n got %q\nwant %q", tt.entries, shown, side.want)
			}
		}
	}
}

// FuzzEscapedKey reads an escaped key back into the parts it was made of, so no
// two descriptors have one key.
func FuzzEscapedKey(f *testing.F) {
	f.Add("d", "a", "x_b_y", "", "", uint8(1))
	f.Add("d", "a", "x", "b", "y", uint8(2))
	f.Add("d_a", "%5F", "%", "{}", "|fw:60:0", uint8(2))
	f.Add("\xff\x00", "", "", "é\x7f", "\r\n", uint8(2))
	f.Fuzz(func(t *testing.T, domain, key1, value1, key2, value2 string, n uint8) {
		set, _, err := compile.Compile([]compile.DomainConfig{{Domain: domain}}, compile.Options{})
		if err != nil {
			return // an empty name
		}
		parts := []string{domain, key1, value1, key2, value2}[:1+2*(n%3)]
		var entries []rules.Entry
		for i := 1; i < len(parts); i += 2 {
			entries = append(entries, rules.Entry{[]byte(parts[i]), []byte(parts[i+1])})
		}
		keys := rules.KeyFormat{Prefix: "p", EscapeKeys: true}
		key, tag := keys.AppendKey(nil, set.Domain([]byte(domain)), nil, entries)
		if bytes.ContainsAny(key, "{}|:") || bytes.ContainsFunc(key, func(r rune) bool { return r < 0x20 || r == 0x7f }) {
			t.Fatalf("%q: %q", parts, key)
		}
		var got []string
		for part := range strings.SplitSeq(strings.TrimSuffix(string(key[1:]), "_"), "_") {
			text, err := url.PathUnescape(part)
			if err != nil {
				t.Fatalf("%q: %q: %v", parts, key, err)
			}
			got = append(got, text)
		}
		if !slices.Equal(got, parts) {
			t.Fatalf("%q: %q reads %q", parts, key, got)
		}
		want, _ := keys.AppendKey(nil, set.Domain([]byte(domain)), nil, entries[:min(len(entries), 1)])
		if !bytes.Equal(key[:tag], want) {
			t.Fatalf("%q: the tag of %q is %q, want %q", parts, key, key[:tag], want)
		}
	})
}

// FuzzSharedKeys builds a tree from bytes, whose wildcards may share their
// thresholds, and asks it for every entry there is behind two beginnings: what
// has one escaped key is one descriptor, or one rule's and differs only where
// values share.
func FuzzSharedKeys(f *testing.F) {
	f.Add([]byte("\x21\x01\x30\x01"), []byte{}, []byte{0x21})
	f.Add([]byte("\x03\x00\x21\x06\x12\x06"), []byte{0x21}, []byte{0x03})
	f.Add([]byte("0123456789ABCDEF0123456789abcdef"), []byte{0x10}, []byte{0x20})
	f.Fuzz(func(t *testing.T, tree, one, other []byte) {
		if len(tree) > 100 || len(one) > 3 || len(other) > 3 {
			return
		}
		words := []string{"", "a", "b", "a*", "*", "a_b", "b*", "a_b*", "*_", "_", ":", "a:b*", "%3A", "*:*", "b_*", "a:a*"}
		set, _, err := compile.Compile([]compile.DomainConfig{{Domain: "d", Descriptors: grow(tree, words)}},
			compile.Options{})
		if err != nil {
			return // a descriptor twice, or without a key
		}
		d, keys := set.Domain([]byte("d")), rules.KeyFormat{EscapeKeys: true}
		type asked struct {
			rule    *rules.Rule
			entries []rules.Entry
		}
		seen := make(map[string][]asked)
		entry := func(b byte) rules.Entry { return rules.Entry{[]byte(words[b&15]), []byte(words[b>>4])} }
		for _, beginning := range [][]byte{one, other} {
			for last := range 256 {
				var request []rules.Entry
				for _, b := range append(slices.Clone(beginning), byte(last)) {
					request = append(request, entry(b))
				}
				rule := find(d, request)
				for _, r := range append([]*rules.Rule{nil}, charged(rule)...) { // nil: the request brings a limit
					key, _ := keys.AppendKey(nil, d, r, request)
					a := asked{r, request}
					if r != nil {
						a.entries = request[:len(r.Path)]
					}
					for _, b := range seen[string(key)] {
						if !oneCounter(a.rule, b.rule, a.entries, b.entries) {
							t.Fatalf("%q of %v and %q of %v are both %q", a.entries, a.rule, b.entries, b.rule, key)
						}
					}
					seen[string(key)] = append(seen[string(key)], a)
				}
			}
		}
	})
}

// oneCounter says whether two descriptors may be counted as one.
func oneCounter(r, s *rules.Rule, a, b []rules.Entry) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !bytes.Equal(a[i].Key, b[i].Key) {
			return false
		}
		if bytes.Equal(a[i].Value, b[i].Value) {
			continue
		}
		if r == nil || s == nil || &r.Path[0] != &s.Path[0] || !r.Path[i].ShareThreshold { // items of one list have one path
			return false
		}
	}
	return true
}
