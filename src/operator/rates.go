package operator

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"ratelimit/src/backend"
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
	page := ratesPage{
		Rates: Rates{
			Total: current.Total, Requests: current.Requests, Domains: domainRates(current, set),
			Unmatched: o.unmatched.List(),
		},
		RatesQuery: q,
		known:      make(map[metrics.RuleName]RuleRates), holds: o.registry.Holds(), leases: o.leases,
	}
	busiest := make([]metrics.RuleName, len(current.Rules))
	for i, r := range current.Rules {
		busiest[i] = metrics.RuleName{Domain: r.Domain, Rule: r.Rule}
		page.known[busiest[i]] = RuleRates{PerSecond: r.PerSecond}
	}
	return page.list(set, busiest, set.Rule)
}

// RatesAmong returns what Rates does, with the rates of sum, which are of several replicas. It also lists rules of sum
// that are not in force here.
func (o *Observer) RatesAmong(sum Rates, q RatesQuery) Rates {
	set := o.rules.Load()
	if set == nil {
		set = new(rules.Set)
	}
	page := ratesPage{
		Rates: Rates{
			Total: sum.Total, Requests: sum.Requests, Domains: slices.Clone(sum.Domains), Unmatched: sum.Unmatched,
		},
		RatesQuery: q,
		known:      make(map[metrics.RuleName]RuleRates), listsOthers: true,
	}
	byRate := slices.SortedFunc(slices.Values(sum.Rules), func(a, b RuleRates) int {
		return cmp.Or(cmp.Compare(b.Total(), a.Total()), compareTree(a.Domain, b.Domain), compareTree(a.Rule, b.Rule))
	})
	busiest := make([]metrics.RuleName, len(byRate))
	for i, r := range byRate {
		busiest[i] = metrics.RuleName{Domain: r.Domain, Rule: r.Rule}
		page.known[busiest[i]] = r
	}
	inForce := make(map[metrics.RuleName]*rules.Rule, len(set.Rules()))
	for _, r := range set.Rules() {
		inForce[metrics.NameOf(r)] = r
	}
	return page.list(set, busiest, func(domain, rule string) *rules.Rule {
		return inForce[metrics.RuleName{Domain: domain, Rule: rule}]
	})
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
	RatesQuery                                // list puts Search into lower case.
	known      map[metrics.RuleName]RuleRates // the rules that have decided something. Those in force here need no limit.
	holds      map[metrics.RuleName]*Holds    // of rules whose known rates have none; may be nil.
	leases     func(owner uint32) Leases      // of rules in force here; see Config. It may be nil.
	// listsOthers lists known rules that are not in force here.
	listsOthers bool
}

// listedRule is a rule of the list. rule is nil if it is not in force here.
type listedRule struct {
	metrics.RuleName
	rule *rules.Rule
}

// list fills in the page. busiest are the names of the known rules, the busiest first. find returns a rule of set, or
// nil.
func (p *ratesPage) list(set *rules.Set, busiest []metrics.RuleName, find func(domain, rule string) *rules.Rule) Rates {
	p.Search = strings.ToLower(p.Search)
	foreign := make(map[string][]listedRule) // by domain.
	for _, name := range busiest {
		r := listedRule{name, find(name.Domain, name.Rule)}
		if r.rule == nil {
			if !p.listsOthers {
				continue
			}
			foreign[name.Domain] = append(foreign[name.Domain], r)
		}
		if p.isBusyFirst(name) && p.matches(name.Rule) {
			p.add(r)
		}
	}
	domains := slices.Collect(maps.Keys(foreign))
	for _, d := range set.Domains() {
		domains = append(domains, d.Name)
	}
	slices.SortFunc(domains, compareTree)
	for _, d := range slices.Compact(domains) {
		var own []*rules.Rule
		if domain := set.Domain([]byte(d)); domain != nil {
			own = domain.Rules()
		}
		p.addOthers(own, foreign[d])
	}
	return p.Rates
}

func (p *ratesPage) matches(rule string) bool {
	return p.Search == "" || strings.Contains(strings.ToLower(rule), p.Search)
}

// isBusyFirst reports whether a rule is listed before those without decisions.
func (p *ratesPage) isBusyFirst(name metrics.RuleName) bool {
	return p.Order != OrderTree && p.known[name].Total() > 0
}

// add adds a rule that matches to the list.
func (p *ratesPage) add(r listedRule) {
	if p.MatchingRules++; p.MatchingRules <= p.Offset || len(p.Rules) == p.Limit {
		return
	}
	rates := p.known[r.RuleName]
	rates.Domain, rates.Rule = r.Domain, r.Rule
	if rates.Limit == "" && r.rule != nil {
		rates.Limit = limitText(r.rule)
	}
	rates.Holds = cmp.Or(rates.Holds, p.holds[r.RuleName])
	if p.leases != nil && r.rule != nil && r.rule.Counting == backend.Leased {
		l := p.leases(r.rule.Owner)
		rates.Leases = &l
	}
	p.Rules = append(p.Rules, rates)
}

// addOthers adds the matching rules of a domain that are not listed before, in OrderTree: those in force here, and
// foreign ones. It sorts them only if some of them are on the page.
func (p *ratesPage) addOthers(own []*rules.Rule, foreign []listedRule) {
	isLeftOut := func(name metrics.RuleName) bool {
		return len(p.known) > 0 && p.isBusyFirst(name) || !p.matches(name.Rule)
	}
	foreign = slices.DeleteFunc(foreign, func(r listedRule) bool { return isLeftOut(r.RuleName) })
	count := len(foreign)
	for _, r := range own {
		if !isLeftOut(metrics.NameOf(r)) {
			count++
		}
	}
	if p.MatchingRules+count <= p.Offset || len(p.Rules) == p.Limit {
		p.MatchingRules += count
		return
	}
	others := foreign
	for _, r := range own {
		if name := metrics.NameOf(r); !isLeftOut(name) {
			others = append(others, listedRule{name, r})
		}
	}
	slices.SortStableFunc(others, func(a, b listedRule) int { return compareTree(a.Rule, b.Rule) })
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
