package metrics

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/reload"
)

// fleet loads versions of the rules of several domains, which keep the rules of the domains that do not change.
type fleet struct{ loader reload.Loader }

func newFleet() *fleet { return &fleet{reload.Loader{Format: filerules.Format()}} }

// load loads a file for each of domains: "a x y" has the rules a.x and a.y.
func (f *fleet) load(t *testing.T, domains ...string) *rules.Set {
	t.Helper()
	var files []filerules.File
	for _, text := range domains {
		keys := strings.Fields(text)
		text = "domain: " + keys[0] + "\ndescriptors:\n"
		for _, key := range keys[1:] {
			text += fmt.Sprintf("- {key: %s, rate_limit: {unit: day, requests_per_unit: 10}}\n", key)
		}
		files = append(files, filerules.File{Name: keys[0] + ".yaml", Data: []byte(text)})
	}
	var out reload.Result
	if f.loader.Load(files, nil, &out); out.Err != nil {
		t.Fatal(out.Err)
	}
	return out.Set
}

// record records a decision of set on the rule with the full name.
func record(t *testing.T, r *Registry, set *rules.Set, rule string) {
	t.Helper()
	for i, candidate := range set.Rules() {
		if candidate.FullName == rule {
			hit(r, set, i, "v")
			return
		}
	}
	t.Fatalf("no rule %s", rule)
}

// decided returns the rules with counters, as "name=admitted", with a - if they are removed.
func decided(r *Registry) (list []string) {
	for _, s := range r.knownStats() {
		if s.name.Rule == "" {
			continue // a domain
		}
		text := fmt.Sprintf("%s=%d", s.name.Rule, s.decisions().Admitted)
		if !s.removedAt.IsZero() {
			text += "-"
		}
		list = append(list, text)
	}
	slices.Sort(list)
	return list
}

// A rule has counters from its first decision on, also if a reload replaced its rules during the request.
func TestCountersStartWithTheFirstDecision(t *testing.T) {
	t.Parallel()
	f, r := newFleet(), New(Config{NearRatio: 0.8})
	var sets []*rules.Set
	for _, step := range []struct {
		load    string // the domains of a reload, with commas between them; empty for none.
		set     int    // the number of the set that decides.
		decides string
		want    string
	}{
		{load: "a x y,b x", want: ""},
		{set: 0, decides: "a.x", want: "a.x=1"},
		{set: 0, decides: "a.x", want: "a.x=2"},
		{load: "a x y z,b x,c x", want: "a.x=2"},
		{set: 0, decides: "a.y", want: "a.x=2 a.y=1"}, // The domain changed.
		{set: 1, decides: "a.y", want: "a.x=2 a.y=2"},
		{set: 0, decides: "b.x", want: "a.x=2 a.y=2 b.x=1"}, // The domain is the same.
		{set: 1, decides: "b.x", want: "a.x=2 a.y=2 b.x=2"},
		{load: "b x,d q", want: "a.x=2- a.y=2- b.x=2"},
		{set: 1, decides: "c.x", want: "a.x=2- a.y=2- b.x=2 c.x=1-"}, // The rule is gone.
		{set: 1, decides: "c.x", want: "a.x=2- a.y=2- b.x=2 c.x=2-"},
		{set: 0, decides: "a.y", want: "a.x=2- a.y=2- b.x=2 c.x=2-"}, // This set is older than the last two.
		{set: 2, decides: "d.q", want: "a.x=2- a.y=2- b.x=2 c.x=2- d.q=1"},
		{load: "c x,a y", want: "a.x=2- a.y=2 b.x=2- c.x=2 d.q=1-"},
		{set: 3, decides: "a.y", want: "a.x=2- a.y=3 b.x=2- c.x=2 d.q=1-"},
	} {
		if step.load != "" {
			sets = append(sets, f.load(t, strings.Split(step.load, ",")...))
			r.UseRules(sets[len(sets)-1])
		} else {
			record(t, r, sets[step.set], step.decides)
		}
		if got := strings.Join(decided(r), " "); got != step.want {
			t.Fatalf("%+v: got %s", step, got)
		}
	}
}

// Many goroutines decide the first time by rules that reloads replace: each decision is counted once.
func TestFirstDecisionsDuringReloads(t *testing.T) {
	t.Parallel()
	const domains, goroutines = 50, 4
	f, r := newFleet(), New(Config{NearRatio: 0.8})
	texts := make([]string, domains)
	for i := range texts {
		texts[i] = fmt.Sprintf("d%d x", i)
	}
	first := f.load(t, texts...)
	for i := range texts {
		texts[i] += " y"
	}
	r.UseRules(first)
	second := f.load(t, texts...)
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for i := range domains {
				hit(r, first, i, "v")
				r.ForEachDecisions(func(string, string, Decisions) {})
			}
		})
	}
	r.UseRules(second)
	wg.Wait()
	var got, want []string
	for i := range domains {
		want = append(want, fmt.Sprintf("d%d.x=%d", i, goroutines))
	}
	slices.Sort(want)
	if got = decided(r); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

// A request that began before a reload decides the first time by a rule that was unlimited then and is limited now.
func TestFirstDecisionByARuleThatWasUnlimited(t *testing.T) {
	t.Parallel()
	old := load(t, "domain: d\ndescriptors: [{key: a, rate_limit: {unlimited: true}}]")
	now := load(t, "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 10}}]")
	r := New(Config{NearRatio: 0.8})
	r.UseRules(old)
	r.UseRules(now)
	r.Record(ask, &limiter.Answer{
		RuleSet: old, Domain: old.Domains()[0],
		Statuses: []limiter.Status{{Match: matchOf(old.Rules()[0])}},
	})
	hit(r, now, 0, "v")
	if got, want := strings.Join(decided(r), " "), "d.a=2"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := total(r); !slices.Equal(got, []string{"d.a=1"}) {
		t.Errorf("got %q", got)
	}
}
