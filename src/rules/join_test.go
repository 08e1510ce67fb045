package rules_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
)

// compileDomain returns a Set with one domain that has n rules.
func compileDomain(t *testing.T, name string, n int) *rules.Set {
	t.Helper()
	cfg := compile.DomainConfig{Domain: name}
	for i := range n {
		cfg.Descriptors = append(cfg.Descriptors, compile.DescriptorConfig{
			Key: fmt.Sprint("k", i), LimitsConfig: compile.LimitsConfig{RateLimit: &compile.RateLimitConfig{
				Unit:            "day",
				RequestsPerUnit: 1,
			}},
		})
	}
	set, _, err := compile.Compile([]compile.DomainConfig{cfg}, compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// Whatever Sets come and go, each rule and domain has an index of its own, below the number of slots, and earlier
// joined Sets keep theirs.
func TestJoiner(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	var j rules.Joiner
	sets := make([]*rules.Set, 10)
	most := 0
	for step := range 500 {
		n := random.IntN(20)
		sets[random.IntN(len(sets))] = compileDomain(t, fmt.Sprint("d", step), n)
		if random.IntN(4) == 0 {
			sets[random.IntN(len(sets))] = nil
		}
		var now []*rules.Set
		ruleCount, domainCount := 0, 0
		for _, s := range sets {
			if s != nil {
				now = append(now, s)
				ruleCount, domainCount = ruleCount+len(s.Rules()), domainCount+1
			}
		}
		all := j.Join(now)
		most = max(most, ruleCount)
		if len(all.Rules()) != ruleCount || len(all.Domains()) != domainCount || all.RuleSlots() > most {
			t.Fatalf("step %d: %d rules in %d slots, %d domains; want %d rules, %d domains", step, len(all.Rules()),
				all.RuleSlots(), len(all.Domains()), ruleCount, domainCount)
		}
		usedRules, usedDomains := make([]bool, all.RuleSlots()), make([]bool, all.DomainSlots())
		for _, r := range all.Rules() {
			if usedRules[r.Index] {
				t.Fatalf("step %d: two rules have the index %d", step, r.Index)
			}
			usedRules[r.Index] = true
		}
		for _, d := range all.Domains() {
			if usedDomains[d.Index] || all.Domain([]byte(d.Name)) != d {
				t.Fatalf("step %d: two domains have the index %d, or %s is not found", step, d.Index, d.Name)
			}
			usedDomains[d.Index] = true
		}
	}
}
