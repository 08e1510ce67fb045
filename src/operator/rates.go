package operator

import (
	"cmp"
	"slices"
	"strings"

	"ratelimit/src/metrics"
	"ratelimit/src/operator/history"
	"ratelimit/src/rules"
)

// Rates returns the rates of all domains, and of the rules whose full name contains search, in any case. It leaves out
// the first offset rules and returns at most limit. Rules with decisions in the last ten seconds come first, the
// busiest ones first, then all others by name.
func (f *Figures) Rates(search string, offset, limit int) Rates {
	current, set := f.history.Current(), f.rules.Load()
	if set == nil {
		return Rates{Total: current.Total}
	}
	page := ratesPage{
		Rates:  Rates{Total: current.Total, Domains: domainRates(current, set)},
		search: strings.ToLower(search), offset: offset, limit: limit,
		known: make(map[metrics.RuleName]PerSecond), holds: f.registry.Holds(),
	}
	for _, r := range current.Rules {
		name := metrics.RuleName{Domain: r.Domain, Rule: r.Rule}
		page.known[name] = r.PerSecond
		if rule := set.Rule(r.Domain, r.Rule); rule != nil && isBusy(r.PerSecond) && page.matches(r.Rule) {
			page.add(rule)
		}
	}
	byName := func(a, b *rules.Domain) int { return strings.Compare(a.Name, b.Name) }
	for _, d := range slices.SortedFunc(slices.Values(set.Domains()), byName) {
		page.addIdle(d)
	}
	return page.Rates
}

func isBusy(p PerSecond) bool { return p.Admitted+p.Denied > 0 }

// domainRates returns the rates of the domains that have rates or rules.
func domainRates(current *history.Current, set *rules.Set) (list []DomainRates) {
	known := make(map[string]bool, len(current.Domains))
	for _, d := range current.Domains {
		known[d.Domain] = true
		list = append(list, DomainRates{Domain: d.Domain, PerSecond: d.PerSecond})
	}
	for _, d := range set.Domains() {
		if !known[d.Name] && len(d.Rules()) > 0 {
			list = append(list, DomainRates{Domain: d.Name})
		}
	}
	slices.SortFunc(list, func(a, b DomainRates) int {
		return cmp.Or(cmp.Compare(b.Admitted+b.Denied, a.Admitted+a.Denied), cmp.Compare(a.Domain, b.Domain))
	})
	return list
}

// ratesPage is a page of the list of rules.
type ratesPage struct {
	Rates
	search        string // in lower case.
	offset, limit int
	known         map[metrics.RuleName]PerSecond // the rates of the rules that have decided something.
	holds         map[metrics.RuleName]*Holds
}

func (p *ratesPage) matches(rule string) bool {
	return p.search == "" || strings.Contains(strings.ToLower(rule), p.search)
}

// add adds a rule that matches to the list.
func (p *ratesPage) add(rule *rules.Rule) {
	if p.MatchingRules++; p.MatchingRules > p.offset && len(p.Rules) < p.limit {
		name := metrics.NameOf(rule)
		p.Rules = append(p.Rules, RuleRates{
			Domain: rule.Domain, Rule: rule.FullName, Limit: rule.LimitText(), PerSecond: p.known[name], Holds: p.holds[name],
		})
	}
}

// addIdle adds the matching rules of a domain that had no decisions. It sorts them only if some of them are on the
// page.
func (p *ratesPage) addIdle(d *rules.Domain) {
	isLeftOut := func(r *rules.Rule) bool {
		return len(p.known) > 0 && isBusy(p.known[metrics.NameOf(r)]) || !p.matches(r.FullName)
	}
	count := 0
	for _, r := range d.Rules() {
		if !isLeftOut(r) {
			count++
		}
	}
	if p.MatchingRules+count <= p.offset || len(p.Rules) == p.limit {
		p.MatchingRules += count
		return
	}
	idle := slices.DeleteFunc(slices.Clone(d.Rules()), isLeftOut)
	slices.SortStableFunc(idle, func(a, b *rules.Rule) int { return strings.Compare(a.FullName, b.FullName) })
	for _, r := range idle {
		p.add(r)
	}
}
