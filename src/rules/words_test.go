package rules_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/match"
)

const treeText = `
schema:
  user:
    children:
      "*":
        limits: [15, 30, 60]
        children:
          trade: {limits: [5, 10, 15]}
          "*": {children: {now: {limits: [1, 1, 1]}}}
      eve:
        children:
          trade: {limits: [0, 1, 1]}
  "*": {limits: [0, 1, 3600]}
`

// The levels that a path of words is charged to, with their keys; the tag ends
// at the bar.
func TestTreeOfLimits(t *testing.T) {
	set, _, err := filerules.Load([]filerules.File{{Name: "conf/my_limits.yaml", Data: []byte(treeText)}},
		compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	d := set.Domain([]byte("my_limits"))
	const alex = "my%5Flimits_user_alex_|"
	for _, tt := range []struct{ asked, want string }{
		{"user=alex", "user.* " + alex},
		{"user=,alex=", "user.* " + alex},
		{"user=alex,trade=", "user.* " + alex + "; user.*.trade " + alex + "trade_"},
		{"user=,alex=trade", "user.* " + alex + "; user.*.trade " + alex + "trade_"},
		// the walk ends, the levels above count
		{"user=alex,trade=x,y=z", "user.* " + alex + "; user.*.trade " + alex + "trade_"},
		{"user=alex,look=", "user.* " + alex},
		{"user=alex,look=now", "user.* " + alex + "; user.*.*.now " + alex + "look_now_"},
		{"user=alex,look=later", "user.* " + alex},
		{"user=eve", ""}, // a name hides `*`
		{"user=eve,look=now", ""},
		{"user=eve,trade=", "user.eve.trade my%5Flimits_user_eve_trade_|"},
		{"user=*", "user.* my%5Flimits_user_*_|"},
		{"user=", ""},
		{"ip=1_2", "* my%5Flimits_ip_|"},
		{"=x", "* my%5Flimits__|"}, // the first word is empty
		{"user=a:b_c", "user.* my%5Flimits_user_a%3Ab%5Fc_|"},
	} {
		entries := parseEntries(tt.asked)
		var got []string
		for _, escape := range []bool{false, true} {
			got = nil
			keys := rules.KeyFormat{EscapeKeys: escape}
			for _, r := range charged(find(d, entries)) {
				key, tag := keys.AppendKey(nil, d, r, entries)
				got = append(got, strings.TrimPrefix(r.FullName, "my_limits.")+" "+string(key[:tag])+"|"+string(key[tag:]))
			}
			if s := strings.Join(got, "; "); s != tt.want {
				t.Errorf("%s: charged to %s, want %s", tt.asked, s, tt.want)
			}
		}
		if w := explain(d, entries); w.Found != find(d, entries) {
			t.Errorf("%s is explained as %v", tt.asked, w.Found)
		}
	}
}

// fuzzWords are so few that the words of trees and requests are often the same.
var fuzzWords = []string{"a", "b", "*", "a_b", ":", "%", "c", "ab"}

// growWords builds a level of a tree of limits. Each byte is a node with a word, or ends the level.
func growWords(tree *[]byte, depth int) (list []compile.LimitNodeConfig) {
	for len(*tree) > 0 {
		b := (*tree)[0]
		*tree = (*tree)[1:]
		if b&7 == 7 && depth > 0 {
			return list
		}
		cfg := compile.LimitNodeConfig{Word: fuzzWords[b&7]}
		if b&8 != 0 {
			cfg.Limit = &compile.RateLimitConfig{
				RequestsPerUnit: 1,
				Algorithm:       &compile.Positioned[string]{Value: "gcra"},
				Period:          &compile.Positioned[time.Duration]{Value: time.Duration(b)*time.Second + time.Second},
				Burst:           &compile.Positioned[uint64]{Value: 1},
			}
		}
		if b&16 != 0 {
			cfg.Children = growWords(tree, depth+1)
		}
		if !slices.ContainsFunc(list, func(o compile.LimitNodeConfig) bool { return o.Word == cfg.Word }) {
			list = append(list, cfg)
		}
	}
	return list
}

// FuzzWords builds a tree of limits and a path from bytes, of so few different
// words that they are often the same, and holds Find to a walk over the tree as written. Two
// paths have one key exactly if their words are the same.
func FuzzWords(f *testing.F) {
	f.Add([]byte("\x05\x11\x26\x03\x38\x41\x93\xa2\xb1"), []byte("\x11\x22\x01"))
	f.Add([]byte("abcdefghijklmnopqrstuvwxyz"), []byte("acb"))
	f.Fuzz(func(t *testing.T, tree, ask []byte) {
		if len(tree) > 100 || len(ask) > 8 {
			return
		}
		top := growWords(&tree, 0)
		set, _, err := compile.Compile([]compile.DomainConfig{{
			Domain:    "d",
			LimitTree: &compile.Positioned[[]compile.LimitNodeConfig]{Value: top},
		}}, compile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		d := set.Domain([]byte("d"))
		var entries []rules.Entry
		var path []string
		for _, b := range ask {
			e := rules.Entry{Key: []byte(fuzzWords[b&7])}
			path = append(path, fuzzWords[b&7])
			if b&64 != 0 {
				e.Value = []byte(fuzzWords[b>>3&7])
				path = append(path, fuzzWords[b>>3&7])
			}
			entries = append(entries, e)
		}
		var want []string
		children := top
		for i := range path {
			at := slices.IndexFunc(children, func(c compile.LimitNodeConfig) bool { return c.Word == path[i] })
			if at < 0 {
				at = slices.IndexFunc(children, func(c compile.LimitNodeConfig) bool { return c.Word == "*" })
			}
			if at < 0 {
				break
			}
			if l := children[at].Limit; l != nil {
				want = append(want, fmt.Sprintf("%q %d", path[:i+1], l.Period.Value/time.Second))
			}
			children = children[at].Children
		}
		// The same path with each word an entry of its own.
		var apart []rules.Entry
		for _, word := range path {
			apart = append(apart, rules.Entry{Key: []byte(word)})
		}
		var got []string
		keys, tags := make(map[string]bool), make(map[string]bool)
		for i, r := range charged(find(d, entries)) {
			key, tag := (&rules.KeyFormat{}).AppendKey(nil, d, r, entries)
			again, tag2 := (&rules.KeyFormat{}).AppendKey(nil, d, r, apart)
			if string(key) != string(again) || tag != tag2 || find(d, apart) != find(d, entries) {
				t.Fatalf("%q and %q are kept under %s and %s", entries, apart, key, again)
			}
			parts := strings.Split(strings.TrimSuffix(strings.TrimPrefix(string(key), "d_"), "_"), "_")
			for j := range parts {
				for text, written := range map[string]string{"%5F": "_", "%3A": ":"} {
					parts[j] = strings.ReplaceAll(parts[j], text, written)
				}
				parts[j] = strings.ReplaceAll(parts[j], "%25", "%")
			}
			got = append(got, fmt.Sprintf("%q %d", parts, int(r.Limit.Period.Seconds())))
			keys[string(key)], tags[string(key[:tag])] = true, true
			if len(keys) != i+1 || len(tags) != 1 {
				t.Fatalf("%q: keys %v, tags %v", entries, keys, tags)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%q is charged to %v, want %v", path, got, want)
		}
		if w := explain(d, entries); w.Found != find(d, entries) ||
			(w.Found == nil) == (w.EndReason == match.EndReasonRuleFound) {
			t.Fatalf("%q is explained as %v %v", path, w.Found, w.EndReason)
		}
	})
}
