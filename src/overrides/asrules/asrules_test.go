package asrules

import (
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
}

// No reason and no subject can become a rule.
func TestHostileTexts(t *testing.T) {
	t.Parallel()
	set, err := load("domain: shop\ndescriptors:\n  - {key: user, rate_limit: {unit: minute, requests_per_unit: 3}}\n")
	if err != nil {
		t.Fatal(err)
	}
	hostile := override(`user="a\u0085  - key: b\u2028\"#"`, "x10")
	hostile.Reason = "a\u0085domain: other\u2028descriptors: [{key: x}]\u2029"
	got := export(t, changed(t, set, hostile), []overrides.Override{hostile})
	again, err := load(got)
	if err != nil {
		t.Fatalf("%v\n%s", err, got)
	}
	if value := again.Rules()[0].Path[0].Value(); value != "a\u0085  - key: b\u2028\"#" {
		t.Errorf("%q\n%s", value, got)
	}
}

// Of an ordered list all rules are written. Subjects that a rule counts by more keys come in front of those that lack
// some.
func TestWriteList(t *testing.T) {
	t.Parallel()
	set, err := load(`
domain: shop
on_reject: none
rules:
  - match: {path: /health}
    rate_limit: {unlimited: true}
  - match: {path: /pay*}
    per: [user]
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 2, name: strict}
  - match: {path: /pay*, user: "*"}
    per: [user]
    metadata: {team: a}
    rate_limits: [{unit: minute, requests_per_unit: 5, algorithm: gcra}, {unit: day, requests_per_unit: 100}]
  - match: {}
    per: [user, ip]
    rate_limit: {unit: minute, requests_per_unit: 3}
`)
	if err != nil {
		t.Fatal(err)
	}
	list := []overrides.Override{
		override("user=eve", "x10"), override("user=al*", "ban"), override("path=/health", "7/second"),
		override(`user="a*"`, "9"),
	}
	list[3].Rule = "shop.default"
	const head = "# The rules of the domain with the limits that were changed at run time. Put them in place of those of the\n" +
		"# rule file.\n"
	const want = head + `domain: "shop"
rules:
  # path=/health: 7/second by anna until 2099-01-02T03:04:05Z: ticket 123
  - match: {"path":"/health"}
    rate_limit: {unit: "second", requests_per_unit: 7}
    on_reject: none
# not written: user=eve, x10 by anna until 2099-01-02T03:04:05Z: ticket 123: test.yaml:7:5 is in shadow mode, and would count these requests, too
# not written: user=al*, ban by anna until 2099-01-02T03:04:05Z: ticket 123: test.yaml:7:5 is in shadow mode, and would count these requests, too
  - match: {"path":"/pay*"}
    per: ["user"]
    rate_limit: {unit: "minute", requests_per_unit: 2, name: "strict"}
    on_reject: none
    shadow_mode: true
  # user=eve: x10 by anna until 2099-01-02T03:04:05Z: ticket 123
  - match: {"path":"/pay*","user":"eve"}
    per: ["user"]
    rate_limits:
      - {algorithm: "gcra", unit: "minute", requests_per_unit: 50, burst: 49}
      - {unit: "day", requests_per_unit: 1000}
    on_reject: none
    metadata: {"team":"a"}
  # user=al*: ban by anna until 2099-01-02T03:04:05Z: ticket 123
  - match: {"path":"/pay*","user":"al*"}
    per: ["user"]
    rate_limits:
      - {algorithm: "gcra", unit: "minute", requests_per_unit: 0, burst: 0}
      - {unit: "day", requests_per_unit: 0}
    on_reject: none
    metadata: {"team":"a"}
  - match: {"path":"/pay*","user":"*"}
    per: ["user"]
    rate_limits:
      - {algorithm: "gcra", unit: "minute", requests_per_unit: 5, burst: 4}
      - {unit: "day", requests_per_unit: 100}
    on_reject: none
    metadata: {"team":"a"}
# not written: user="a*", 9 by anna until 2099-01-02T03:04:05Z: ticket 123: test.yaml:15:5: the subject has a * in its text
  # user=al*: ban by anna until 2099-01-02T03:04:05Z: ticket 123
  - match: {"ip":"*","user":"al*"}
    per: ["user","ip"]
    rate_limit: {unit: "minute", requests_per_unit: 0}
    on_reject: none
  - match: {"ip":"*","user":"*"}
    per: ["user","ip"]
    rate_limit: {unit: "minute", requests_per_unit: 3}
    on_reject: none
  # user=eve: x10 by anna until 2099-01-02T03:04:05Z: ticket 123
  - match: {"user":"eve"}
    per: ["user","ip"]
    rate_limit: {unit: "minute", requests_per_unit: 30}
    on_reject: none
  # user=al*: ban by anna until 2099-01-02T03:04:05Z: ticket 123
  - match: {"user":"al*"}
    per: ["user","ip"]
    rate_limit: {unit: "minute", requests_per_unit: 0}
    on_reject: none
  - match: {}
    per: ["user","ip"]
    rate_limit: {unit: "minute", requests_per_unit: 3}
    on_reject: none
`
	if got := export(t, changed(t, set, list...), list); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	} else if _, err := load(got); err != nil {
		t.Error(err)
	}
}
