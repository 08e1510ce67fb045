package operator

import (
	"cmp"
	"slices"
	"strings"

	"ratelimit/src/metrics"
	"ratelimit/src/operator/history"
	"ratelimit/src/rules"
)

// Rates returns the rates of all domains, and those of the rules that q asks for. In OrderBusiest, rules with decisions
// in the last ten seconds come first, the busiest ones first, then all others in OrderTree.
func (o *Observer) Rates(q RatesQuery) Rates {
	current, set := o.history.Current(), o.rules.Load()
	if set == nil {
		return Rates{Total: current.Total, Requests: current.Requests}
	}
	q.Search = strings.ToLower(q.Search)
	page := ratesPage{
		Rates: Rates{
			Total: current.Total, Requests: current.Requests, Domains: domainRates(current, set),
			Unmatched: o.unmatched.List(),
		},
		RatesQuery: q,
		known:      make(map[metrics.RuleName]PerSecond), holds: o.registry.Holds(),
	}
	for _, r := range current.Rules {
		name := metrics.RuleName{Domain: r.Domain, Rule: r.Rule}
		page.known[name] = r.PerSecond
		if rule := set.Rule(r.Domain, r.Rule); rule != nil && page.isBusyFirst(name) && page.matches(r.Rule) {
			page.add(rule)
		}
	}
	byName := func(a, b *rules.Domain) int { return compareTree(a.Name, b.Name) }
	for _, d := range slices.SortedFunc(slices.Values(set.Domains()), byName) {
		page.addOthers(d)
	}
	return page.Rates
}

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
		return cmp.Or(cmp.Compare(b.Total(), a.Total()), cmp.Compare(a.Domain, b.Domain))
	})
	return list
}

// ratesPage is a page of the list of rules.
type ratesPage struct {
	Rates
	RatesQuery                                // with Search in lower case.
	known      map[metrics.RuleName]PerSecond // the rates of the rules that have decided something.
	holds      map[metrics.RuleName]*Holds
}

func (p *ratesPage) matches(rule string) bool {
	return p.Search == "" || strings.Contains(strings.ToLower(rule), p.Search)
}

// isBusyFirst reports whether a rule is listed before those without decisions.
func (p *ratesPage) isBusyFirst(name metrics.RuleName) bool {
	return p.Order != OrderTree && p.known[name].Total() > 0
}

// add adds a rule that matches to the list.
func (p *ratesPage) add(rule *rules.Rule) {
	if p.MatchingRules++; p.MatchingRules > p.Offset && len(p.Rules) < p.Limit {
		name := metrics.NameOf(rule)
		p.Rules = append(p.Rules, RuleRates{
			Domain: rule.Domain, Rule: rule.FullName, Limit: rule.LimitText(), PerSecond: p.known[name], Holds: p.holds[name],
		})
	}
}

// addOthers adds the matching rules of a domain that are not listed before, in OrderTree. It sorts them only if some of
// them are on the page.
func (p *ratesPage) addOthers(d *rules.Domain) {
	isLeftOut := func(r *rules.Rule) bool {
		return len(p.known) > 0 && p.isBusyFirst(metrics.NameOf(r)) || !p.matches(r.FullName)
	}
	count := 0
	for _, r := range d.Rules() {
		if !isLeftOut(r) {
			count++
		}
	}
	if p.MatchingRules+count <= p.Offset || len(p.Rules) == p.Limit {
		p.MatchingRules += count
		return
	}
	others := slices.DeleteFunc(slices.Clone(d.Rules()), isLeftOut)
	slices.SortStableFunc(others, func(a, b *rules.Rule) int { return compareTree(a.FullName, b.FullName) })
	for _, r := range others {
		p.add(r)
	}
}

// compareTree compares the names of rules so that those that extend a name with a dot follow it at once, and numbers
// are sorted by value: "a", "a.x_2", "a.x_10", "a-b".
func compareTree(a, b string) int {
	for a != "" && b != "" {
		if n, m := leadingDigits(a), leadingDigits(b); n > 0 && m > 0 {
			x, y := strings.TrimLeft(a[:n], "0"), strings.TrimLeft(b[:m], "0")
			if c := cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y), cmp.Compare(n, m)); c != 0 {
				return c
			}
			a, b = a[n:], b[m:]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(treeRank(a[0]), treeRank(b[0]))
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

// leadingDigits returns the number of digits that s starts with.
func leadingDigits(s string) int { return len(s) - len(strings.TrimLeft(s, "0123456789")) }

// treeRank returns the place of a byte in the order of compareTree: the dot comes first.
func treeRank(b byte) int {
	if b == '.' {
		return -1
	}
	return int(b)
}
