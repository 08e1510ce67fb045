package asrules

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"ratelimit/src/overrides"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
)

func load(text string) (*rules.Set, error) {
	set, _, err := filerules.Load([]filerules.File{{Name: "test.yaml", Data: []byte(text)}}, compile.Options{})
	return set, err
}

// changed returns set with overrides.
func changed(tb testing.TB, set *rules.Set, list ...overrides.Override) *rules.Set {
	tb.Helper()
	store, _, err := overrides.OpenFile("")
	if err != nil {
		tb.Fatal(err)
	}
	g := overrides.New(overrides.Config{Store: store, MaxOverrides: 100})
	for _, o := range list {
		if o, err = o.Canonical(); err != nil {
			tb.Fatal(err)
		}
		if _, err := g.Commit(tb.Context(), []overrides.Edit{{Override: o}}); err != nil {
			tb.Fatal(err)
		}
	}
	return g.Over(set)
}

func override(subject, limit string) overrides.Override {
	return overrides.Override{
		Domain: "shop", Subject: subject, Limit: limit, Reason: "ticket 123", Who: "anna",
		Until: time.Date(2099, 1, 2, 3, 4, 5, 0, time.UTC),
	}
}

func export(tb testing.TB, set *rules.Set, list []overrides.Override) string {
	tb.Helper()
	var b strings.Builder
	if err := Write(&b, set.Domain([]byte("shop")), list); err != nil {
		tb.Fatal(err)
	}
	return b.String()
}

func TestWrite(t *testing.T) {
	t.Parallel()
	const text = `
domain: shop
descriptors:
  - key: user
    charge: path
    metadata: {team: a}
    rate_limit: {unit: minute, requests_per_unit: 10, algorithm: gcra}
    descriptors:
      - key: action
        value: pay
        shadow_mode: true
        rate_limits: [{name: fast, unit: second, requests_per_unit: 3}, {unit: day, requests_per_unit: 30}]
      - key: ip
        cidr: [10.0.0.0/8]
        rate_limit: {unlimited: true}
  - key: path
    value: /a*
    share_threshold: true
    rate_limit: {unit: minute, requests_per_unit: 5}
`
	set, err := load(text)
	if err != nil {
		t.Fatal(err)
	}
	list := []overrides.Override{
		override("user=eve", "x10"), override("user=eve,action=pay", "ban"), override("path=/a/b", "7"),
		override("path=/a*", "8"), override(`path="/a*"`, "9"),
	}
	list[1].Rule = "shop.user.action_pay.fast"
	const want = `# Limits that were changed at run time. Put these descriptors in front of those of the rule file.
# One with the comment ` + "`replaces`" + ` stands for the descriptor at that place: remove that one.
# not written: path=/a/b, 7 by anna until 2099-01-02T03:04:05Z: ticket 123: its values share a counter in test.yaml:16:5
# not written: path=/a*, 8 by anna until 2099-01-02T03:04:05Z: ticket 123: descriptors of this key match by patterns, networks or files, which may match the same values
domain: "shop"
descriptors:
  # path="/a*": 9 by anna until 2099-01-02T03:04:05Z: ticket 123
  # replaces test.yaml:16:5
  - key: "path"
    value: "/a*"
    share_threshold: true
    rate_limit: {unit: "minute", requests_per_unit: 9}
    charge: leaf
    on_reject: each
  # user=eve: x10 by anna until 2099-01-02T03:04:05Z: ticket 123
  - key: "user"
    value: "eve"
    rate_limit: {algorithm: "gcra", unit: "minute", requests_per_unit: 100, burst: 99}
    charge: path
    on_reject: each
    metadata: {"team":"a"}
    descriptors:
      # user=eve,action=pay user.action_pay.fast: ban by anna until 2099-01-02T03:04:05Z: ticket 123
      - key: "action"
        value: "pay"
        rate_limits:
          - {unit: "second", requests_per_unit: 0, name: "fast"}
          - {unit: "day", requests_per_unit: 30}
        shadow_mode: true
      - key: "ip"
        cidr: ["10.0.0.0/8"]
        rate_limit: {unlimited: true}
`
	if got := export(t, changed(t, set, list...), list); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	} else if _, err := load(got); err != nil {
		t.Error(err)
	}
	list = list[:1]
	ordered, err := load("domain: shop\nrules:\n  - match: {}\n    per: [user]\n" +
		"    rate_limit: {unit: minute, requests_per_unit: 3}\n")
	if err != nil {
		t.Fatal(err)
	}
	got := export(t, changed(t, ordered, list...), list)
	if !strings.Contains(got, "# not written: user=eve, x10 by anna") {
		t.Error(got)
	}
	// No reason and no subject can become a rule.
	hostile := override(`user="a\u0085  - key: b\u2028\"#"`, "x10")
	hostile.Reason = "a\u0085domain: other\u2028descriptors: [{key: x}]\u2029"
	got = export(t, changed(t, set, hostile), []overrides.Override{hostile})
	again, err := load(got)
	if err != nil {
		t.Fatalf("%v\n%s", err, got)
	}
	if value := again.Rules()[0].Path[0].Value(); value != "a\u0085  - key: b\u2028\"#" {
		t.Errorf("%q\n%s", value, got)
	}
}

var (
	keys     = []string{"a", "b"}
	values   = []string{"x", "xy", "y", "z"}
	replaces = regexp.MustCompile(`# replaces test\.yaml:(\d+):`)
)

// block is the text of a descriptor at the top, and its line in the file.
type block struct {
	text string
	line int
}

// randomDescriptor returns the text of a descriptor and of those below it.
func randomDescriptor(r *rand.Rand, indent string, depth int) string {
	text := indent + "- key: " + keys[r.IntN(2)] + "\n"
	switch r.IntN(4) {
	case 0:
		text += indent + "  value: " + values[r.IntN(len(values))] + "\n"
	case 1:
		if r.IntN(3) == 0 {
			text += indent + "  value: x*\n"
			if r.IntN(2) == 0 {
				text += indent + "  share_threshold: true\n"
			}
		}
	}
	limit := fmt.Sprintf("{unit: minute, requests_per_unit: %d}", 1+r.IntN(90))
	switch r.IntN(4) {
	case 0:
	case 1:
		text += indent + "  rate_limits: [" + limit + ", {name: day, unit: day, requests_per_unit: 500}]\n"
	default:
		text += indent + "  rate_limit: " + limit + "\n"
	}
	if r.IntN(4) == 0 {
		text += indent + "  charge: " + []string{"path", "leaf"}[r.IntN(2)] + "\n"
	}
	if depth < 3 && r.IntN(3) > 0 {
		text += indent + "  descriptors:\n"
		for range 1 + r.IntN(2) {
			text += randomDescriptor(r, indent+"    ", depth+1)
		}
	}
	return text
}

func randomSubject(r *rand.Rand) string {
	var parts []string
	for range 1 + r.IntN(3) {
		parts = append(parts, keys[r.IntN(2)]+"="+values[r.IntN(len(values))])
	}
	return strings.Join(parts, ",") + []string{"", "", "*", ",*"}[r.IntN(4)]
}

// limitsOf returns the limits that a request with a descriptor is charged to.
func limitsOf(set *rules.Set, entries []rules.Entry) string {
	var s rules.SearchScratch
	s.Begin(context.Background())
	m := set.Domain([]byte("shop")).FindRule(entries, &s)
	if m == nil {
		return "none"
	}
	var parts []string
	for _, r := range m.Limits {
		parts = append(parts, r.LimitInWords())
	}
	return strings.Join(parts, ", ")
}

// The rules of a file with what Write writes have the same limits as the file with the overrides.
func TestSameLimits(t *testing.T) {
	t.Parallel()
	const wanted = 2000
	compared, differing := 0, 0
	for seed := uint64(0); compared < wanted; seed++ {
		if seed == 40*wanted {
			t.Fatalf("only %d of %d cases could be compared", compared, seed)
		}
		r := rand.New(rand.NewPCG(seed, 7))
		head := "domain: shop\n" + []string{"", "", "charge: path\n"}[r.IntN(3)] + "descriptors:\n"
		file, line := head, strings.Count(head, "\n")+1
		var blocks []block
		for range 1 + r.IntN(3) {
			text := randomDescriptor(r, "  ", 1)
			blocks = append(blocks, block{text, line})
			file, line = file+text, line+strings.Count(text, "\n")
		}
		set, err := load(file)
		if err != nil {
			continue // two descriptors are the same
		}
		var list []overrides.Override
		for range 1 + r.IntN(3) {
			list = append(list, override(randomSubject(r), []string{"x10", "x0.5", "ban", "777", "888/hour"}[r.IntN(5)]))
			if r.IntN(6) == 0 {
				list[len(list)-1] = override("*", "x2")
			}
			if all := set.Rules(); r.IntN(3) == 0 && len(all) > 0 {
				list[len(list)-1].Rule = all[r.IntN(len(all))].FullName
			}
		}
		with := changed(t, set, list...)
		exported := export(t, with, list)
		if _, err := load(exported); err != nil && !strings.Contains(exported, "descriptors: []") {
			t.Fatalf("seed %d: %v\n%s", seed, err, exported)
		}
		if strings.Contains(exported, "# not written") {
			continue
		}
		_, descriptors, _ := strings.Cut(exported, "descriptors:")
		merged := head + strings.TrimPrefix(strings.TrimPrefix(descriptors, " []"), "\n")
		replaced := make(map[int]bool)
		for _, found := range replaces.FindAllStringSubmatch(exported, -1) {
			n, _ := strconv.Atoi(found[1]) // The expression finds numbers only.
			replaced[n] = true
		}
		for _, b := range blocks {
			if !replaced[b.line] {
				merged += b.text
			}
		}
		again, err := load(merged)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s\n%s", seed, err, file, merged)
		}
		compared++
		for range 50 {
			var entries []rules.Entry
			for range 1 + r.IntN(4) {
				value := append([]string{"xq", "q"}, values...)[r.IntN(2+len(values))]
				entries = append(entries, rules.Entry{Key: []byte(keys[r.IntN(2)]), Value: []byte(value)})
			}
			got, want := limitsOf(again, entries), limitsOf(with, entries)
			if want != limitsOf(set, entries) {
				differing++
			}
			if got != want {
				t.Fatalf("seed %d: %s has %s, want %s\nfile:\n%s\noverrides: %+v\nmerged:\n%s", seed, entries, got, want, file,
					list, merged)
			}
		}
	}
	if differing < wanted {
		t.Errorf("only %d requests have other limits than before", differing)
	}
}
