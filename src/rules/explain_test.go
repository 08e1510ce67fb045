package rules_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/match"
)

// tell is a walk in short: per step "line how" of each candidate, the taken one
// in brackets, those that were not asked behind a bar; then how it ended.
func tell(w *match.Record) string {
	var b strings.Builder
	for i := range w.Steps {
		s := &w.Steps[i]
		barred := false
		for j := range s.Candidates {
			c := &s.Candidates[j]
			if c.Outcome == match.OutcomeEarlierTaken && !barred {
				barred = true
				b.WriteString("| ")
			}
			text := fmt.Sprintf("%s %v", lineOf(c.Position), c.MatchKind)
			if (j == s.TakenIndex) != (c.Outcome == match.OutcomeSearchedBelow) {
				b.WriteString("taken? ")
			}
			if j == s.TakenIndex {
				text = "[" + text + "]"
			}
			if c.LeadsToRule != "" {
				text += " to " + c.LeadsToRule
			}
			b.WriteString(text + " ")
		}
		if s.UnlistedCount > 0 {
			fmt.Fprintf(&b, "and %d ", s.UnlistedCount)
		}
		b.WriteString("/ ")
	}
	b.WriteString(string(w.EndReason))
	if n := len(w.Steps); n > 0 {
		if last := &w.Steps[n-1]; last.SuggestedText != "" {
			b.WriteString(" meant " + last.SuggestedText)
		}
		if last := &w.Steps[n-1]; last.SameKeyBelow != nil {
			fmt.Fprintf(&b, " below %d", last.SameKeyBelow.Pos.Line)
		}
	}
	return b.String()
}

// lineOf returns the line of a place.
func lineOf(at string) string { return strings.Split(at, ":")[1] }

func TestExplain(t *testing.T) {
	for _, tt := range []struct {
		outline string
		asked   [][2]string
	}{
		{`
			path=/avatars/*.png
			path=/avatars/me.png
			path=/*
			path
			  user
			-tenant
			  -path=/search
			    user=alex
			    user=alec
			-empty
			`, [][2]string{
			{"path=/avatars/me.png", "[2 exact] | 1 wildcard 3 wildcard 4 key / rule"},
			{"path=/avatars/1.png", "[1 wildcard] | 3 wildcard 4 key / rule"},
			{"path=/index", "1 wildcard [3 wildcard] | 4 key / rule"},
			{"path=index", "1 wildcard 3 wildcard [4 key] / rule"},
			{"path=/*", "[3 exact] | 4 key / rule"}, // the text of the wildcard is an exact value, too
			{"path=/index, user=1", "1 wildcard [3 wildcard] | 4 key to d.path.user / rules_end_above"},
			{"path=x, user=1", "1 wildcard 3 wildcard [4 key] / [5 key] / rule"},
			{"", "no_entries"},
			{"pathe=x", "/ no_such_key meant path"},
			{"PATH=x", "/ no_such_key meant path"},
			{"user=x", "/ no_such_key below 5"},
			{"tenant=x", "[6 key] / rules_are_deeper"},
			{"tenant=x, path=/searc", "[6 key] / / no_such_value meant /search"},
			{"tenant=x, path=/home", "[6 key] / / no_such_value"},
			{"tenant=x, path=/search", "[6 key] / [7 exact] / rules_are_deeper"},
			{"tenant=x, path=/search, user=Alex", "[6 key] / [7 exact] / / no_such_value meant alex"},
			{"tenant=x, path=/search, user=alexx", "[6 key] / [7 exact] / / no_such_value meant alex"},
			{"tenant=x, path=/search, user=alex", "[6 key] / [7 exact] / [8 exact] / rule"},
			{"tenant=x, path=/search, user=alex, y=1, z=1", "[6 key] / [7 exact] / [8 exact] / rules_end_above"},
			{"empty=x", "[10 key] / no_rate_limit"},
			{"empty=x, y=z", "[10 key] / rules_end_above"},
			{"nothing=like it", "/ no_such_key"},
		}},
		{`
			-a*
			  x=1
			-ab
			  x=2
			-ab=*
			  x=3
			`, [][2]string{
			{"ab=1, x=3", "[1 wildcard] | 5 wildcard to d.ab_*.x_3 3 key / / no_such_value"},
			{"ab=1, x=2", "[1 wildcard] | 5 wildcard 3 key to d.ab.x_2 / / no_such_value"},
			{"a*=1, x=1", "[1 wildcard] / [2 exact] / rule"}, // the same one by its key alone is not listed again
			{"b=1", "1 wildcard / no_such_key"},
		}},
		{`
			b*a
			`, [][2]string{
			{"b*a=a", "[1 wildcard] / rule"},
			{"b*a=*", "1 wildcard [1 key] / rule"}, // b*a does not match b*a_*
		}},
	} {
		d := compiled(t, tt.outline)
		for _, a := range tt.asked {
			if got := tell(explain(d, entries(a[0]))); got != a[1] {
				t.Errorf("%s:\n got %s\nwant %s", a[0], got, a[1])
			}
			found(d, entries(a[0]))
		}
	}
}

// A level may have a thousand wildcards; a reader wants few of them.
func TestExplainIsBounded(t *testing.T) {
	outline := strings.Builder{}
	for i := range 1000 {
		fmt.Fprintf(&outline, "path=/%d/*\n", i)
	}
	for i := range 100 { // all of them match everything
		fmt.Fprintf(&outline, "path=%s\n", strings.Repeat("*", i+1))
	}
	d := compiled(t, outline.String()+"path\n")
	s := explain(d, entries("path=x")).Steps[0]
	const most = 20 // that do not match are listed
	if len(s.Candidates) != 2*most || s.TakenIndex != most || s.UnlistedCount != 1000-most {
		t.Errorf("%d candidates, the taken one is %d, %d not listed", len(s.Candidates), s.TakenIndex, s.UnlistedCount)
	}
	if lineOf(s.Candidates[s.TakenIndex].Position) != "1001" ||
		s.Candidates[s.TakenIndex+1].Outcome != match.OutcomeEarlierTaken {
		t.Errorf("taken was %+v, then comes %+v", s.Candidates[s.TakenIndex], s.Candidates[s.TakenIndex+1])
	}
}

func TestNear(t *testing.T) {
	for _, tt := range []struct{ word, known, want string }{
		{"user", "users use name", "use"},
		{"usre", "user", "user"},
		{"USER", "usr user", "user"},
		{"User", "USER user", "USER"},
		{"user", "user", ""},
		{"ab", "ac", ""},
		{"ab", "AB", "AB"},
		{"alex", "maria", ""},
		{"10.0.0.8", "10.0.0.7", ""},
		{"v1", "v2", ""},
		{"/api/v1", "/api/v2", ""},
		{"/api/v1", "/spi/v1", "/spi/v1"},
		{"", "a abc", ""},
		{"message-type", "message_type", "message_type"},
	} {
		known := slices.Values(strings.Fields(tt.known))
		if got := rules.NearestWord(tt.word, known); got != tt.want {
			t.Errorf("%q among %q: got %q, want %q", tt.word, tt.known, got, tt.want)
		}
	}
}

// FuzzExplain holds the walk that is explained to the one that decides, on
// random trees, and what it says to the tree as written.
func FuzzExplain(f *testing.F) {
	f.Add([]byte("\x05\x11\x26\x03\x38\x41"), []byte("\x11\x22"))
	f.Add([]byte("abcdefghijklmnopqrstuvwxyz"), []byte("acb"))
	f.Add([]byte("\x00\x44\x88\xcc\x10\x54\x98\xdc\x20\x64\xa8\xec"), []byte("\xcc\x10"))
	f.Add([]byte("0123456789ABCDEF0123456789abcdef"), []byte("19"))
	f.Fuzz(func(t *testing.T, tree, ask []byte) {
		if len(tree) > 200 || len(ask) > 8 {
			return
		}
		words := []string{"a", "b", "a_b", "*", "a*", "*b", "a_*", "", "b*a", "\xff", "abc", "abd", "**", "_", "*_", "ABC"}
		top := grow(tree, words)
		set, _, err := compile.Compile([]compile.DomainConfig{{Domain: "d", Descriptors: top}}, compile.Options{})
		if err != nil {
			return
		}
		var request []rules.Entry
		for _, b := range ask {
			request = append(request, rules.Entry{[]byte(words[b&15]), []byte(words[b>>4])})
		}
		d := set.Domain([]byte("d"))
		w := explain(d, request)
		if again := explain(d, request); tell(w) != tell(again) {
			t.Fatalf("two walks differ:\n%s\n%s", tell(w), tell(again))
		}
		if got := find(d, request); got != w.Found || (w.Found == nil) == (w.EndReason == match.EndReasonRuleFound) {
			t.Fatalf("%q in %+v finds %v, explained as %v: %s", request, top, got, w.Found, tell(w))
		}
		level := top
		for i := range w.Steps {
			s := &w.Steps[i]
			keys := make(map[string]bool)
			for _, cfg := range level {
				keys[cfg.Key] = true
			}
			if s.LevelKeyCount != len(keys) || s.SuggestedText != "" && s.TakenIndex >= 0 ||
				s.SuggestedText == s.Entry.Key && w.EndReason == match.EndReasonNoSuchKey && s.SuggestedText != "" {
				t.Fatalf("step %d of %s has %d keys and meant %q, the level is %+v", i, tell(w), s.LevelKeyCount,
					s.SuggestedText, level)
			}
			if w.EndReason == match.EndReasonNoSuchKey && i == len(w.Steps)-1 && (keys[s.Entry.Key] || s.TakenIndex >= 0) {
				t.Fatalf("%s, but the key %q is there", tell(w), s.Entry.Key)
			}
			for j, c := range s.Candidates {
				at := slices.IndexFunc(level, func(cfg compile.DescriptorConfig) bool { return cfg.Pos.String() == c.Position })
				if at < 0 || level[at].Key != c.Key || level[at].Value != c.Value {
					t.Fatalf("candidate %d of step %d in %s is not on its level", j, i, tell(w))
				}
			}
			if s.TakenIndex < 0 {
				if i != len(w.Steps)-1 {
					t.Fatalf("%s goes on after nothing", tell(w))
				}
				break
			}
			taken := s.Candidates[s.TakenIndex]
			level = level[slices.IndexFunc(level,
				func(cfg compile.DescriptorConfig) bool { return cfg.Pos.String() == taken.Position })].Descriptors
		}
		if b := w.Steps; len(b) > 0 && b[len(b)-1].SameKeyBelow != nil {
			path := b[len(b)-1].SameKeyBelow.Path
			if key := path[len(path)-1].Key(); !slices.Contains(slices.Collect(maps.Keys(keysOf(top))), key) {
				t.Fatalf("%s: there is no key %q", tell(w), key)
			}
		}
	})
}

func keysOf(list []compile.DescriptorConfig) map[string]bool {
	keys := make(map[string]bool)
	for _, cfg := range list {
		keys[cfg.Key] = true
		maps.Copy(keys, keysOf(cfg.Descriptors))
	}
	return keys
}
