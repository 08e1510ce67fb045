package rules_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/match"
	"ratelimit/testbed/limitertest"
)

// orderedSet is a domain d of rules written as "a=b c=d per e canary name=x",
// each with a limit of its own, which tells it: 1 a day for the first.
func orderedSet(t testing.TB, lines ...string) (*rules.Set, error) {
	t.Helper()
	list := &compile.Positioned[[]compile.RuleConfig]{}
	for i, line := range lines {
		cfg := compile.RuleConfig{Match: &compile.Positioned[[]compile.MatchPairConfig]{}}
		cfg.Pos = rules.Pos{File: "a.yaml", Line: i + 1}
		cfg.RateLimit = &compile.RateLimitConfig{Unit: "day", RequestsPerUnit: uint64(i + 1)}
		line, per, _ := strings.Cut(line, " per ")
		for key := range strings.FieldsSeq(per) {
			cfg.PerKeys = append(cfg.PerKeys, compile.Positioned[string]{Value: key})
		}
		for word := range strings.FieldsSeq(line) {
			key, pattern, pair := strings.Cut(word, "=")
			switch {
			case word == "canary":
				cfg.ShadowMode = true
			case pair:
				cfg.Match.Value = append(cfg.Match.Value, compile.MatchPairConfig{Key: key, Pattern: pattern})
			}
		}
		list.Value = append(list.Value, cfg)
	}
	set, _, err := compile.Compile([]compile.DomainConfig{{Domain: "d", Rules: list}}, compile.Options{})
	return set, err
}

// findAll is the rules that a request finds, by their limits: canaries in front.
func findAll(d *rules.Domain, scratch *rules.SearchScratch, entries []rules.Entry) string {
	scratch.Canaries = nil
	rule := d.FindRule(entries, scratch)
	s := ""
	for _, r := range scratch.Canaries {
		s += fmt.Sprintf("(%d) ", r.Limits[0].Requests)
	}
	if rule == nil {
		return s + "-"
	}
	return s + fmt.Sprint(rule.Limits[0].Requests)
}

func TestOrderedList(t *testing.T) {
	for _, tt := range []struct {
		rules []string
		asked [][2]string // entries, and what they find
	}{
		{[]string{"method=GET path=/p/* ip=*", "method=GET path=/p/*", "path=*/x*y/*", "op=", "ip=*", ""}, [][2]string{
			{"method=GET,path=/p/1,ip=9", "1"},
			{"ip=9,path=/p/,method=GET,more=1", "1"},
			{"ip=,path=/p/1/2,method=GET", "1"}, // an empty value is one
			{"path=/p/1,method=GET", "2"},
			{"path=/p,method=GET", "6"},
			{"path=/P/1,method=GET", "6"},
			{"path=/a/x/by/c", "3"},
			{"path=/a/xy/", "3"},
			{"path=/a/xy", "6"}, // the end is the end
			{"op=", "4"},
			{"op=1", "6"},
			{"ip=1,op=", "4"},
			{"ip=1", "5"},
			{"", "6"},
			{"op=1,op=", "4"}, // the last one counts
			{"op=,op=1", "6"},
			{"path=/p/1,method=PUT,method=GET", "2"},
		}},
		{[]string{"a=*", "b=**", "c=x**y"}, [][2]string{
			{"d=1", "-"}, {"b=", "2"}, {"c=xy", "3"}, {"c=x*y", "3"}, {"c=xz", "-"}, {"a=,b=", "1"},
		}},
		{[]string{"a=1 canary", "a=* canary", "a=1 b=*", "a=1", "a=2 canary"}, [][2]string{
			{"a=1,b=1", "(1) (2) 3"}, {"a=1", "(1) (2) 4"}, {"a=2", "(2) 5"}, {"a=3", "2"}, {"b=1", "-"},
		}},
		{[]string{"a=1 canary", " canary"}, [][2]string{{"a=1", "(1) 2"}, {"a=2", "2"}}},
		{nil, [][2]string{{"a=1", "-"}, {"", "-"}}},
	} {
		set, err := orderedSet(t, tt.rules...)
		if err != nil {
			t.Fatal(tt.rules, err)
		}
		d := set.Domain([]byte("d"))
		var scratch rules.SearchScratch
		for _, ask := range tt.asked {
			entries := parseEntries(ask[0])
			if ask[0] == "" {
				entries = nil
			}
			if got := findAll(d, &scratch, entries); got != ask[1] {
				t.Errorf("%q: %s finds %s, want %s", tt.rules, ask[0], got, ask[1])
			}
			w := explain(d, entries)
			if r := d.FindRule(entries, &scratch); w.Found != r ||
				(w.Found == nil) != (w.EndReason == match.EndReasonNoRuleMatches) {
				t.Errorf("%q: %s is explained as %v %v, and finds %v", tt.rules, ask[0], w.Found, w.EndReason, r)
			}
		}
	}
	// A canary that matches everything, and is the last, answers.
	set, err := orderedSet(t, "a=1 canary", " canary")
	if err != nil {
		t.Fatal(err)
	}
	if first, last := set.Rules()[0],
		set.Rules()[1]; !first.ShadowMode || !first.ListSettings.IsCanary || last.ShadowMode || !last.ListSettings.IsCanary {
		t.Errorf("the rules are %v and %v", first, last)
	}
}

// What counters are kept under: it tells rules by what they match, count by and
// allow, and by nothing else.
func TestOrderedKeys(t *testing.T) {
	const text = `
domain: d_%_d
rules:
  - {match: {path: /a_b, ip: "*"}, per: [ip, user], shadow_mode: true, rate_limit: {algorithm: first_hit_window, period: 90s, requests_per_unit: 3}}
  - {match: {path: /a_b, ip: "*"}, per: [ip, user], rate_limit: {algorithm: first_hit_window, period: 90s, requests_per_unit: 3, name: label}}
  - match: {path: x}
    rate_limits:
    - {algorithm: gcra, unit: hour, requests_per_unit: 3, burst: 9, min_interval: 1ms}
    - {algorithm: sliding_window, unit: hour, requests_per_unit: 3, count_blocked: true}
  - {match: {}, per: [user], rate_limit: {unit: day, requests_per_unit: 3}}
`
	// Another order, of pairs, too, without the name, and with a rule more.
	const moved = `
domain: d_%_d
rules:
  - match: {path: x}
    rate_limits:
    - {algorithm: gcra, unit: hour, requests_per_unit: 3, burst: 9, min_interval: 1ms}
    - {algorithm: sliding_window, unit: hour, requests_per_unit: 3, count_blocked: true}
  - {match: {path: /a_b, user: me}, rate_limit: {unlimited: true}}
  - {match: {ip: "*", path: /a_b}, per: [ip, user], shadow_mode: true, rate_limit: {algorithm: first_hit_window, period: 1m30s, requests_per_unit: 3}, metadata: {a: b}}
  - {match: {ip: "*", path: /a_b}, per: [ip, user], rate_limit: {algorithm: first_hit_window, period: 1m30s, requests_per_unit: 3}}
  - {match: {}, per: [user], rate_limit: {unit: day, requests_per_unit: 3}}
`
	request := parseEntries("path=/a_b,ip=:_1,ip={%}")
	const prefix = "d%5F%25%5Fd_:"
	counter := prefix + "ip_*_path_/a%5Fb_:ip_%7B%25%7D_user__|:3/1m30s_first_hit_window_"
	want := []string{
		counter + "twin:2_", counter,
		prefix + "path_x_:|:3/1h_gcra_burst:9_min:1ms_",
		prefix + "path_x_:|:3/1h_sliding_window_blocked:true_",
		prefix + ":user__|:3/24h_fixed_window_",
	}
	slices.Sort(want)
	for _, text := range []string{text, moved} {
		set := limitertest.Load(t, []filerules.File{{Name: "a.yaml", Data: []byte(text)}})
		for _, escape := range []bool{false, true} {
			keys := rules.KeyFormat{Prefix: "p", EscapeKeys: escape}
			var got []string
			for _, r := range set.Rules() {
				if r.Unlimited {
					continue
				}
				key, tag := keys.AppendKey([]byte("x"), set.Domain([]byte("d_%_d")), r, request)
				got = append(got, string(key[2:tag+1])+"|"+string(key[tag+1:]))
				if twin := strings.Contains(string(key), "twin"); twin != r.ShadowMode {
					t.Errorf("%s is kept under %s", r.FullName, key)
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
	}
	// A limit that a request brings has a key of its own.
	set := limitertest.Load(t, []filerules.File{{Name: "a.yaml", Data: []byte(text)}})
	var keys rules.KeyFormat
	if key, _ := keys.AppendKey(nil, set.Domain([]byte("d_%_d")), nil,
		request); string(key) != "d%5F%25%5Fd_path_/a%5Fb_ip_%3A%5F1_ip_%7B%25%7D_" {
		t.Errorf("a limit of a request is kept under %s", key)
	}
}

// FuzzOrderedList builds a list and a request from bytes, of so few different
// words that they are often the same, and holds Find and Explain to a regular expression for
// each pattern, asked one after the other. What is said to be out of reach must
// be, and nothing else that one rule hides.
func FuzzOrderedList(f *testing.F) {
	f.Add([]byte("\x05\x11\x26\x03\x38\x41"), []byte("\x11\x22"))
	f.Add([]byte("abcdefghijklmnopqrstuvwxyz"), []byte("acb"))
	f.Add([]byte("\x00\x44\x88\xcc\x10\x54\x98\xdc\x20\x64\xa8\xec"), []byte("\xcc\x10"))
	f.Fuzz(func(t *testing.T, list, ask []byte) {
		if len(list) > 50 || len(ask) > 8 {
			return
		}
		patterns := []string{
			"", "*", "a", "a*", "*b", "a*b", "**", "*a*", "ab", "b*a*", "*ba", "b", "ab*", "a**b",
			"*ab*a", "bb",
		}
		keys := []string{"k", "l", "m", "_"}
		lines := []string{""}
		for _, b := range list {
			last := &lines[len(lines)-1]
			key := keys[b>>4&3] + "="
			if b>>6 == 3 || strings.Contains(*last, key) {
				if b&1 == 1 {
					*last += " canary"
				}
				lines = append(lines, "")
				continue
			}
			*last = " " + key + patterns[b&15] + *last
		}
		set, err := orderedSet(t, lines...)
		hidden := hiddenRules(lines, patterns)
		if (err != nil) != (len(hidden) > 0) {
			t.Fatalf("%q: %v, and %v are hidden", lines, err, hidden)
		}
		if err != nil {
			for _, i := range hidden {
				if !strings.Contains(err.Error(), fmt.Sprintf("a.yaml:%d: rule ", i+1)) {
					t.Fatalf("%q: %d is hidden: %v", lines, i, err)
				}
			}
			if n := strings.Count(err.Error(), "is unreachable"); n != len(hidden) {
				t.Fatalf("%q: %d rules are hidden, not %v: %v", lines, n, hidden, err)
			}
			return
		}
		var request []rules.Entry
		for _, b := range ask {
			values := []string{"", "a", "b", "ab", "ba", "aab", "bba", "*", "abab", "a*", "bb", "aa", "c", "bab", "aba", "acb"}
			request = append(request, rules.Entry{[]byte(keys[b>>4&3]), []byte(values[b&15])})
		}
		want := ""
		answer := -1
		for i, line := range lines {
			if !matchesSlowly(line, request) {
				continue
			}
			if answer >= 0 {
				want += fmt.Sprintf("(%d) ", answer+1)
			}
			if answer = i; !strings.Contains(line, "canary") {
				break
			}
		}
		if answer >= 0 {
			want += fmt.Sprint(answer + 1)
		} else {
			want += "-"
		}
		d := set.Domain([]byte("d"))
		var scratch rules.SearchScratch
		if got := findAll(d, &scratch, request); got != want {
			t.Fatalf("%q: %q finds %s, want %s", lines, request, got, want)
		}
		w := explain(d, request)
		scratch.Canaries = nil
		rule := d.FindRule(request, &scratch)
		if w.Found != rule || fmt.Sprint(w.ChargedCanaries) != fmt.Sprint(scratch.Canaries) {
			t.Fatalf("%q: %q is explained by %v %v", lines, request, w.ChargedCanaries, w.Found)
		}
	})
}

// slow is a pattern as a regular expression.
func slow(pattern string) *regexp.Regexp {
	return regexp.MustCompile(`\A` + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, `(?s:.*)`) + `\z`)
}

func matchesSlowly(line string, request []rules.Entry) bool {
	for word := range strings.FieldsSeq(line) {
		key, pattern, pair := strings.Cut(word, "=")
		if !pair {
			continue
		}
		matches := false
		for _, e := range request {
			if string(e.Key) == key {
				matches = slow(pattern).MatchString(string(e.Value))
			}
		}
		if !matches {
			return false
		}
	}
	return true
}

// short are all texts of up to 6 of three letters, one of which no pattern has.
var short = func() (all []string) {
	all = []string{""}
	for i := 0; len(all[i]) < 6; i++ {
		for _, c := range "abc" {
			all = append(all, all[i]+string(c))
		}
	}
	return all
}()

// coveredBy tells, for all pairs of patterns, whether the first matches all short
// texts that the second does: by trying them.
func coveredBy(patterns []string) map[[2]string]bool {
	covered := make(map[[2]string]bool)
	for _, p := range patterns {
		for _, q := range patterns {
			all, wide, narrow := true, slow(p), slow(q)
			for _, text := range short {
				all = all && (!narrow.MatchString(text) || wide.MatchString(text))
			}
			covered[[2]string{p, q}] = all
		}
	}
	return covered
}

var coveredOnce map[[2]string]bool

// hiddenRules are those which an earlier one that decides leaves nothing.
func hiddenRules(lines, patterns []string) (hidden []int) {
	if coveredOnce == nil {
		coveredOnce = coveredBy(patterns)
	}
	pairs := func(line string) map[string]string {
		m := make(map[string]string)
		for word := range strings.FieldsSeq(line) {
			if key, pattern, pair := strings.Cut(word, "="); pair {
				m[key] = pattern
			}
		}
		return m
	}
	for i := range lines {
		narrow := pairs(lines[i])
		for j := range i {
			if strings.Contains(lines[j], "canary") {
				continue
			}
			all := true
			for key, p := range pairs(lines[j]) {
				q, ok := narrow[key]
				all = all && ok && coveredOnce[[2]string{p, q}]
			}
			if all {
				hidden = append(hidden, i)
				break
			}
		}
	}
	return hidden
}
