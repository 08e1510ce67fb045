package reload_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/reload"
)

// testSource is one of several sources of rules, which loads YAML texts.
type testSource struct {
	*reload.Source
	loader  reload.Loader
	reloads int
	outcome string // the domains of all sources after the last load, and its problems.
}

func newTestSource(sources *reload.Sources, name string) *testSource {
	s := &testSource{Source: sources.Add(name)}
	s.Reload = func() { s.reloads++ }
	s.loader = reload.Loader{AllowPartialFirstLoad: true, Format: filerules.Format()}
	s.loader.Source = s.Source
	s.loader.OnLoad = func(l reload.Result) {
		var domains []string
		if l.Set != nil {
			for _, d := range l.Set.Domains() {
				domains = append(domains, d.Name)
			}
		}
		slices.Sort(domains)
		s.outcome = strings.Join(domains, " ")
		if l.Err != nil {
			s.outcome += " refused: " + l.Err.Error()
		}
	}
	return s
}

// load loads a file for each domain, named after the source and the domain. The domain "!" is a mistake.
func (s *testSource) load(domains ...string) string {
	var parts []reload.Part
	for _, d := range domains {
		parts = append(parts, reload.Part{
			Name: s.Name + "/" + d + ".yaml",
			Data: fmt.Appendf(nil, "domain: %s\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]", d),
		})
	}
	defer s.loader.BeginLoad()()
	var out reload.Result
	s.loader.Load(parts, nil, &out)
	s.loader.OnLoad(out)
	return s.outcome
}

func TestSources(t *testing.T) {
	t.Parallel()
	var all reload.Sources
	a, b := newTestSource(&all, "A"), newTestSource(&all, "B")
	conflict := func(at, domain, owner, other string) string {
		return fmt.Sprintf(" refused: %s/%s.yaml:1:1: domain %q is in two sources of rules: %s has it already, so it is "+
			"not taken from %s; remove it from one of them", at, domain, domain, owner, other)
	}
	for i, step := range []struct {
		source  *testSource
		domains string
		want    string
		reloads int // of both sources, in this step
	}{
		{a, "web api", "api web", 0},
		{b, "jobs", "api jobs web", 0},
		{b, "jobs api", conflict("B", "api", "A", "B"), 0},
		{b, "mail api", "api mail web" + conflict("B", "api", "A", "B"), 0}, // the rest of B goes on changing
		{a, "web api more", "api mail more web", 0},                         // so does A
		{a, "web", "mail web", 1},
		{b, "mail api", "api mail web", 0},
		{a, "web api", conflict("A", "api", "B", "A"), 0}, // B is the first one now
		{b, "", "web", 1},
		{a, "web api", "api web", 0},
		{b, "x", "api web x", 0},
	} {
		before := a.reloads + b.reloads
		if got := step.source.load(strings.Fields(step.domains)...); got != step.want {
			t.Errorf("step %d: got\n%s, want\n%s", i+1, got, step.want)
		}
		if got := a.reloads + b.reloads - before; got != step.reloads {
			t.Errorf("step %d: %d reloads, want %d", i+1, got, step.reloads)
		}
	}
}

// Of sources that load the same domain at the same time exactly one gets it.
func TestSourcesRace(t *testing.T) {
	t.Parallel()
	for range 20 {
		var all reload.Sources
		sources := []*testSource{newTestSource(&all, "A"), newTestSource(&all, "B"), newTestSource(&all, "C")}
		var done sync.WaitGroup
		for _, s := range sources {
			done.Go(func() { s.load("same", "of-"+s.Name) })
		}
		done.Wait()
		refused := 0
		for _, s := range sources {
			if strings.Contains(s.outcome, "is in two sources") {
				refused++
			}
		}
		if refused != 2 {
			t.Fatalf("%d sources are refused", refused)
		}
	}
}
