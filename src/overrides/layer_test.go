package overrides

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
	"ratelimit/testbed/testfiles"
)

const shopRules = `
domain: shop
descriptors:
  - key: user
    charge: path
    rate_limit: {unit: minute, requests_per_unit: 10}
    descriptors:
      - key: action
        rate_limit: {unit: minute, requests_per_unit: 3}
  - key: key
    rate_limits:
      - {name: fast, unit: second, requests_per_unit: 5}
      - {name: slow, unit: day, requests_per_unit: 500}
  - key: path
    value: /pay*
    share_threshold: true
    rate_limit: {unit: minute, requests_per_unit: 20}
  - key: ip
    count_by_prefix: {v4: 24}
    rate_limit: {unit: minute, requests_per_unit: 30}
`

// newRegistry returns a registry whose overrides are in memory, and set with them.
func newRegistry(tb testing.TB, set *rules.Set, now func() time.Time) (*Registry, *rules.Set) {
	tb.Helper()
	store, _, err := OpenFile("")
	if err != nil {
		tb.Fatal(err)
	}
	g := New(Config{Store: store, MaxOverrides: 1_000_000, Now: now})
	return g, g.Over(set)
}

func TestLimitsOfRequests(t *testing.T) {
	t.Parallel()
	now := epoch
	g, shop := newRegistry(t, load(t, shopRules), func() time.Time { return now })
	type step struct {
		edit       string // subject and limit; a rule in front of both, and - for unset
		descriptor string
		want       string
	}
	for i, s := range []step{
		{"", "user=eve", "10 per minute"},
		{"user=eve x10", "user=eve", "*100 per minute"},
		{"", "user=eve,action=pay", "*100 per minute, 3 per minute"},
		{"", "user=bob", "10 per minute"},
		{"user=eve,action=pay 7/hour", "user=eve,action=pay", "*100 per minute, *7 per hour"},
		{"user=eve,action=pay -", "user=eve,action=pay", "*100 per minute, 3 per minute"},
		{"user=e* 1", "user=eve", "*100 per minute"},
		{"user=eve -", "user=eve", "*1 per minute"},
		{"", "user=emma,action=pay", "*1 per minute, *1 per minute"},
		{"user=em* 2", "user=emma", "*2 per minute"},
		{"user=emma,* 4", "user=emma", "*4 per minute"},
		{"", "user=emma,action=pay", "*4 per minute, *4 per minute"},
		{"shop.key.fast key=k ban", "key=k", "*0 per second, 500 per day"},
		{"shop.key key=k2 x2", "key=k2", "*10 per second, *1000 per day"},
		{"shop.key.slow key=k4 ban", "key=k4", "5 per second, *0 per day"},
		{"shop.key.1 key=k5 ban", "key=k5", "*0 per second, 500 per day"},
		{"shop.key.2 key=k6 ban", "key=k6", "5 per second, 500 per day"},
		{"shop.key.none key=k3 ban", "key=k3", "5 per second, 500 per day"},
		{"path=/pay* 1", "path=/pay/now", "*1 per minute"},
		{`path="/pay*" 2`, "path=/pay/now", "*2 per minute"},
		{"ip=10.0.0.0/24 ban", "ip=10.0.0.77", "*0 per minute"},
		{"* 9", "ip=10.0.1.77", "*9 per minute"},
		{"* -", "ip=10.0.1.77", "30 per minute"},
	} {
		if words := strings.Fields(s.edit); len(words) > 0 {
			n := len(words)
			o := override(t, words[n-2], strings.Replace(words[n-1], "-", "ban", 1))
			if n == 3 {
				o.Rule = words[0]
			}
			o.Until = epoch.Add(time.Hour)
			commit(t, g, Edit{Override: o, Remove: words[n-1] == "-"})
		}
		if got := limitsOf(t, shop, s.descriptor); got != s.want {
			t.Errorf("step %d, %q: %s has %s, want %s", i, s.edit, s.descriptor, got, s.want)
		}
	}
	now = epoch.Add(time.Hour - 1)
	if got := limitsOf(t, shop, "key=k"); got != "*0 per second, 500 per day" {
		t.Error("just before the end:", got)
	}
	now = epoch.Add(time.Hour)
	if got := limitsOf(t, shop, "key=k"); got != "5 per second, 500 per day" {
		t.Error("at the end:", got)
	}
}

// A reload keeps overrides, also of rules whose limit is another one now, and those that do not fit have no effect.
func TestReload(t *testing.T) {
	t.Parallel()
	g, before := newRegistry(t, load(t, shopRules), nil)
	commit(t, g, set(override(t, "user=eve", "x10")), set(override(t, "user=bob", "5 burst 3")))
	const changed = "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {unit: hour, requests_per_unit: 7, algorithm: %s}\n"
	gcra := g.Over(load(t, fmt.Sprintf(changed, "gcra")))
	if got := limitsOf(t, gcra, "user=eve") + "; " + limitsOf(t, gcra, "user=bob"); got !=
		"*70 per hour, 70 at once; *5 per hour, 4 at once" {
		t.Error(got)
	}
	window := g.Over(load(t, fmt.Sprintf(changed, "fixed_window")))
	if got := limitsOf(t, window, "user=eve") + "; " + limitsOf(t, window, "user=bob"); got != "*70 per hour; 7 per hour" {
		t.Error(got)
	}
	if got := limitsOf(t, before, "user=eve"); got != "*100 per minute" {
		t.Error("a request that still has the old rules:", got)
	}
	added, removed := window.Changes(window.Adjusted(func(*rules.Domain) rules.Adjuster { return nil }))
	if len(added)+len(removed) > 0 {
		t.Errorf("adjusted rules are other rules: %d added, %d removed", len(added), len(removed))
	}
	if n := len(window.Domains()); n != 1 || window.Domains()[0] != window.Domain([]byte("shop")) {
		t.Error("the domains of the set differ from those that are found")
	}
}

// Limits from data files and rules of an ordered list can be replaced, canaries, too.
func TestFilesAndLists(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	testfiles.Write(t, filepath.Join(dir, "tenants.csv"), "acme,100\nbig,200\n")
	file := filepath.Join(dir, "rules.yaml")
	const text = "domain: shop\ndescriptors:\n  - key: tenant\n    limits_from: tenants.csv\n    rate_limit: {unit: minute}\n"
	testfiles.Write(t, file, text)
	files, _, err := filerules.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	tenants := limitertest.Load(t, files)
	g, shop := newRegistry(t, tenants, nil)
	commit(t, g, set(override(t, "tenant=acme", "x3")))
	if got := limitsOf(t, shop, "tenant=acme") + "; " + limitsOf(t, shop, "tenant=big"); got !=
		"*300 per minute; 200 per minute" {
		t.Error(got)
	}
	list := g.Over(load(t, `
domain: shop
rules:
  - name: canary
    match: {path: /pay*}
    per: [user]
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - name: pay
    match: {path: /pay*}
    per: [user]
    rate_limit: {unit: minute, requests_per_unit: 2}
  - name: all
    match: {}
    rate_limit: {unit: minute, requests_per_unit: 3}
`))
	commit(t, g, set(override(t, "user=eve", "x10")))
	if got := limitsOf(t, list, "path=/pay/1,user=eve"); got != "*20 per minute" {
		t.Error(got)
	}
	if got := limitsOf(t, list, "path=/other,user=eve"); got != "3 per minute" {
		t.Error(got)
	}
	var s rules.SearchScratch
	list.Domain([]byte("shop")).FindRule(entries(t, "path=/pay/1,user=eve"), &s)
	if len(s.Canaries) != 1 || s.Canaries[0].Limits[0].LimitText() != "10 per minute" {
		t.Errorf("canaries %+v", s.Canaries)
	}
}

// Copies of rules are bounded, and those of old rules are dropped.
func TestCopies(t *testing.T) {
	t.Parallel()
	g, shop := newRegistry(t, load(t, shopRules), nil)
	const users = maxCopies + 100
	for i := range users {
		commit(t, g, set(override(t, fmt.Sprintf("user=%d", i), fmt.Sprint(i))))
	}
	for i := range users {
		if got, want := limitsOf(t, shop, fmt.Sprintf("user=%d", i)), fmt.Sprintf("*%d per minute", i); got != want {
			t.Fatalf("user %d: %s", i, got)
		}
	}
	if g.copier.count != maxCopies {
		t.Errorf("%d copies", g.copier.count)
	}
	commit(t, g, unset(override(t, "user=7", "7")))
	if g.copier.count != maxCopies-1 {
		t.Errorf("%d copies after one was removed", g.copier.count)
	}
	g.Over(load(t, shopRules))
	if g.copier.count != 0 {
		t.Errorf("%d copies after a reload", g.copier.count)
	}
}

func TestAllocate(t *testing.T) {
	g, shop := newRegistry(t, load(t, shopRules), nil)
	commit(t, g, set(override(t, "user=eve", "x10")), set(override(t, "user=al*", "x10")), set(override(t, "key=k", "x3")))
	var s rules.SearchScratch
	d := shop.Domain([]byte("shop"))
	for _, descriptor := range []string{
		"user=bob", "user=eve", "user=alex", "user=alex,action=pay", "key=k", "path=/pay", "ip=10.0.0.7",
	} {
		list := entries(t, descriptor)
		if n := testing.AllocsPerRun(100, func() { d.FindRule(list, &s) }); n > 0 {
			t.Errorf("%s: %v allocations", descriptor, n)
		}
	}
}

// 100,000 overrides take at most 200 bytes each, also those of a process that has no other store.
func TestMemory(t *testing.T) {
	set := load(t, shopRules)
	const n = 100_000
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for _, name := range []string{"shared store", "own store"} {
		own, _, err := OpenFile("")
		if err != nil {
			t.Fatal(err)
		}
		g := New(Config{Store: None(nil), MaxOverrides: 1})
		g.Over(set)
		before := heap()
		d := &Delta{}
		for i := range n {
			v := Versioned{override(t, fmt.Sprintf("user=customer-%08d", i), "x10"), uint64(i + 1)}
			if d.Set = append(d.Set, v); name == "own store" {
				own.kept.put(v)
			}
			if len(d.Set) == 1000 {
				g.mu.Lock()
				g.use(d, false)
				g.mu.Unlock()
				d = &Delta{}
			}
		}
		if each := float64(heap()-before) / n; each > 200 {
			t.Errorf("%s: %.0f bytes each", name, each)
		} else {
			t.Logf("%s: %.0f bytes each", name, each)
		}
		runtime.KeepAlive(g)
		runtime.KeepAlive(own)
	}
}

// BenchmarkFindRule compares the search of rules without overrides with the one where 100,000 other subjects have some.
func BenchmarkFindRule(b *testing.B) {
	set := load(b, shopRules)
	g, adjusted := newRegistry(b, set, nil)
	none := New(Config{Store: None(nil), MaxOverrides: 1}).Over(set)
	for i := range 100 {
		var edits []Edit
		for j := range 1000 {
			edits = append(edits, Edit{Override: override(b, fmt.Sprintf("user=customer-%08d", 1000*i+j), "x10")})
		}
		commit(b, g, edits...)
	}
	var lists [1024][]rules.Entry
	for i := range lists {
		lists[i] = entries(b, fmt.Sprintf("user=stranger-%08d", i))
	}
	for _, c := range []struct {
		name string
		set  *rules.Set
	}{{"plain", set}, {"no overrides", none}, {"100,000 overrides", adjusted}} {
		d := c.set.Domain([]byte("shop"))
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			var s rules.SearchScratch
			i := 0
			for b.Loop() {
				d.FindRule(lists[i%len(lists)], &s)
				i++
			}
		})
	}
}

// Apply applies overrides whenever they end, and says which one is wrong.
func TestApply(t *testing.T) {
	t.Parallel()
	shop, past := load(t, shopRules), override(t, "user=eve", "x10")
	past.Until = epoch.Add(-time.Hour)
	changed, err := Apply(shop, []Override{past, override(t, "user=al*", "ban")})
	if err != nil {
		t.Fatal(err)
	}
	if got := limitsOf(t, changed, "user=eve") + "; " + limitsOf(t, changed, "user=alex") + "; " +
		limitsOf(t, shop, "user=eve"); got != "*100 per minute; *0 per minute; 10 per minute" {
		t.Error(got)
	}
	_, err = Apply(shop, []Override{past, {Domain: "shop", Subject: "user=eve", Limit: "many"}})
	if err == nil || !strings.HasPrefix(err.Error(), "changed limit 2: limit: the limit \"many\" is not a number") {
		t.Error(err)
	}
}
