package filerules

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/reload"
)

// randomFile returns the text of a file: good, with a warning, with a problem, or without rules.
func randomFile(r *rand.Rand) string {
	domain := []string{"a", "a.b", "c", "d", "d"}[r.IntN(5)]
	limit := fmt.Sprintf("rate_limit: {unit: %s, requests_per_unit: %d}", []string{"day", "hour"}[r.IntN(2)], r.IntN(3)+1)
	key := []string{"b.x", "x", "y", "z"}[r.IntN(4)]
	switch r.IntN(12) {
	case 0:
		return "domain: [" // not YAML
	case 1:
		return "tests: []\n"
	case 2:
		return "" // no domain
	case 3:
		return fmt.Sprintf("domain: %s\ndescriptors:\n- {key: %s, rate_limit: {unit: yeer, requests_per_unit: 1}}\n",
			domain, key)
	case 4:
		return fmt.Sprintf("domain: %s\nrules:\n- match: {k: %s}\n  %s\n- match: {}\n  %s\n", domain, key, limit, limit)
	case 5:
		return fmt.Sprintf("domain: %s\ndescriptors:\n- {key: %s, shadow_mode: true}\n- {key: w, value: 'v*', %s}\n- {key: "+
			"w, value: 'va*', %s}\n", domain, key, limit, limit)
	default:
		return fmt.Sprintf("domain: %s\ndescriptors:\n- {key: %s, %s}\n- {key: k, value: v%d, %s}\n", domain, key, limit,
			r.IntN(3), limit)
	}
}

// describeResult returns what a load says of the rules in force.
func describeResult(set *rules.Set, warnings rules.Problems) string {
	var text strings.Builder
	for _, d := range set.Domains() {
		fmt.Fprintln(&text, d.Name, d.DescriptorNames, set.Domain([]byte(d.Name)) == d)
	}
	for _, r := range set.Rules() {
		fmt.Fprintf(&text, "%v %s %+v %v\n", r.Pos, r.FullName, r.Limit, r.Replaces)
	}
	fmt.Fprintf(&text, "%s\n%v", set.OnlyOrderedListDomain(), warnings)
	return text.String()
}

// After any edits a Loader has the rules, warnings, problems and hash of a load of the same files that has not seen
// others before.
func TestIncremental(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		for _, cfg := range []reload.Config{{}, {AllOrNothing: true}, {Options: compile.Options{MergeDomains: true}}} {
			t.Run(fmt.Sprint(seed, cfg.AllOrNothing, cfg.Options.MergeDomains), func(t *testing.T) {
				t.Parallel()
				e := &edits{
					random: rand.New(rand.NewPCG(seed, 1)), cfg: cfg, texts: map[string]string{},
					versions: map[string]reload.Part{},
				}
				e.loader = reload.Loader{Config: cfg, Format: Format(), AllowPartialFirstLoad: seed%2 == 0}
				for range 40 {
					e.change()
					e.check(t)
				}
			})
		}
	}
}

// edits are files that change, and the Loader that loads them.
type edits struct {
	random   *rand.Rand
	cfg      reload.Config
	loader   reload.Loader
	texts    map[string]string
	versions map[string]reload.Part // all that was ever loaded, by name and digest.

	domains     map[string]*rules.Domain // those in force before.
	domainFiles map[string]string
}

// change writes or removes up to three files.
func (e *edits) change() {
	for range e.random.IntN(3) + 1 {
		name := fmt.Sprintf("%c.yaml", 'a'+e.random.IntN(6))
		if e.random.IntN(4) == 0 {
			delete(e.texts, name)
		} else {
			e.texts[name] = randomFile(e.random)
		}
	}
}

func versionOf(p reload.Part) string {
	return fmt.Sprintf("%s %x", p.Name, p.Digest)
}

func (e *edits) parts() (parts []reload.Part) {
	for name, text := range e.texts {
		p := reload.Part{Name: name, Data: []byte(text), Digest: reload.DigestOf([]byte(text))}
		parts, e.versions[versionOf(p)] = append(parts, p), p
	}
	slices.SortFunc(parts, func(a, b reload.Part) int { return strings.Compare(a.Name, b.Name) })
	return parts
}

// inForce returns the parts in force, with their Data.
func (e *edits) inForce() (parts []reload.Part) {
	for _, p := range e.loader.PartsInForce() {
		parts = append(parts, e.versions[versionOf(p)])
	}
	return parts
}

func (e *edits) check(t *testing.T) {
	t.Helper()
	parts := e.parts()
	fresh := reload.Loader{Config: e.cfg, Format: Format(), AllowPartialFirstLoad: e.loader.AllowPartialFirstLoad}
	if before := e.inForce(); len(before) > 0 {
		fresh.Load(before, nil, new(reload.Result))
	}
	var got, want reload.Result
	e.loader.Load(parts, nil, &got)
	fresh.Load(parts, nil, &want)
	if fmt.Sprint(got.Err) != fmt.Sprint(want.Err) || got.Hash != want.Hash || (got.Set == nil) != (want.Set == nil) {
		t.Fatalf("%q\ngot %+v\nwant %+v", e.texts, got, want)
	}
	_, _, err := reload.Compile(Format(), parts, e.cfg.Options)
	if fmt.Sprint(err) != fmt.Sprint(got.Err) {
		t.Fatalf("%q\ngot %v\nwant %v", e.texts, got.Err, err)
	}
	if got.Set == nil {
		return
	}
	set, warnings, err := reload.Compile(Format(), e.inForce(), e.cfg.Options)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := describeResult(got.Set, got.Warnings), describeResult(set, warnings); got != want {
		t.Fatalf("%q\ngot\n%s\nwant\n%s", e.texts, got, want)
	}
	e.checkSharing(t, got.Set)
}

// checkSharing fails if two rules have one index, or if a domain was compiled again although its files are the same.
func (e *edits) checkSharing(t *testing.T, set *rules.Set) {
	t.Helper()
	used := make([]bool, set.RuleSlots())
	for _, r := range set.Rules() {
		if used[r.Index] {
			t.Fatalf("two rules have the index %d", r.Index)
		}
		used[r.Index] = true
	}
	versions := make(map[string]string) // those of the files of each domain.
	for _, p := range e.inForce() {
		first, _, _ := strings.Cut(string(p.Data), "\n")
		versions[strings.TrimPrefix(first, "domain: ")] += versionOf(p)
	}
	domains := make(map[string]*rules.Domain)
	for _, d := range set.Domains() {
		if domains[d.Name] = d; e.domains[d.Name] != nil &&
			(e.domains[d.Name] == d) != (e.domainFiles[d.Name] == versions[d.Name]) {
			t.Fatalf("%s was compiled again: %v", d.Name, e.domains[d.Name] != d)
		}
	}
	e.domains, e.domainFiles = domains, versions
}
