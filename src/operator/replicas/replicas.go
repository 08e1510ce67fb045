// Package replicas adds up what several replicas tell of themselves. The lists that it takes have an element for each
// replica, which is empty for one that did not answer; so have the shares that it returns.
package replicas

import (
	"cmp"
	"slices"
	"strings"

	"ratelimit/src/operator"
)

// Rates returns the sums of rates, with the shares of the replicas in each rule. A rule whose limit differs has all its
// limits.
func Rates(list []operator.Rates) operator.Rates {
	sum := operator.Rates{Domains: []operator.DomainRates{}, Rules: []operator.RuleRates{}}
	type ruleName struct{ domain, rule string }
	domains, rules := make(map[string]int), make(map[ruleName]int)
	for i, r := range list {
		sum.Total, sum.Requests = add(sum.Total, r.Total), addRequests(sum.Requests, r.Requests)
		sum.MatchingRules = max(sum.MatchingRules, r.MatchingRules)
		sum.Unmatched = addUnmatched(sum.Unmatched, r.Unmatched)
		for _, d := range r.Domains {
			at, known := domains[d.Domain]
			if !known {
				at = len(sum.Domains)
				domains[d.Domain], sum.Domains = at, append(sum.Domains, operator.DomainRates{Domain: d.Domain})
			}
			sum.Domains[at].PerSecond = add(sum.Domains[at].PerSecond, d.PerSecond)
		}
		for _, rule := range r.Rules {
			name := ruleName{rule.Domain, rule.Rule}
			at, known := rules[name]
			if !known {
				at = len(sum.Rules)
				rules[name], sum.Rules = at, append(sum.Rules, operator.RuleRates{
					Domain: rule.Domain, Rule: rule.Rule, Shares: make([]float64, len(list)),
				})
			}
			addRule(&sum.Rules[at], i, rule)
		}
	}
	for _, r := range sum.Rules {
		ToShares(r.Shares)
	}
	sum.MatchingRules = max(sum.MatchingRules, len(sum.Rules))
	return sum
}

// add returns a + b.
func add(a, b operator.PerSecond) operator.PerSecond {
	return operator.PerSecond{
		Admitted: a.Admitted + b.Admitted, Denied: a.Denied + b.Denied, Near: a.Near + b.Near, Shadow: a.Shadow + b.Shadow,
		Fallback: a.Fallback + b.Fallback, Failed: a.Failed + b.Failed, Unmatched: a.Unmatched + b.Unmatched,
	}
}

// addRequests returns a + b.
func addRequests(a, b operator.RequestsPerSecond) operator.RequestsPerSecond {
	return operator.RequestsPerSecond{
		Admitted: a.Admitted + b.Admitted, Denied: a.Denied + b.Denied, Fallback: a.Fallback + b.Fallback,
		Failed: a.Failed + b.Failed,
	}
}

// addUnmatched returns the sums of traffic without a rule, in the order of operator.State.
func addUnmatched(a, b []operator.Unmatched) []operator.Unmatched {
	for _, x := range b {
		i, known := slices.BinarySearchFunc(a, x, operator.CompareUnmatched)
		if !known {
			a = slices.Insert(a, i, x)
			continue
		}
		sum := &a[i]
		sum.Descriptors += x.Descriptors
		if x.FirstAt.Before(sum.FirstAt) {
			sum.FirstAt = x.FirstAt
		}
		if x.LastAt.After(sum.LastAt) {
			sum.LastAt = x.LastAt
		}
	}
	return a
}

// addRule adds the rates that replica i has of the rule.
func addRule(sum *operator.RuleRates, i int, r operator.RuleRates) {
	sum.PerSecond = add(sum.PerSecond, r.PerSecond)
	sum.Shares[i] = r.Total()
	if !slices.Contains(strings.Split(sum.Limit, limitSeparator), r.Limit) {
		sum.Limit = strings.TrimPrefix(sum.Limit+limitSeparator+r.Limit, limitSeparator)
	}
	if h := r.Holds; h != nil {
		old := cmp.Or(sum.Holds, new(operator.Holds))
		sum.Holds = &operator.Holds{
			Open: old.Open + h.Open, Expired: old.Expired + h.Expired, Charged: old.Charged + h.Charged,
		}
	}
}

// limitSeparator separates the limits of a rule that differs between replicas, as it does during a change of the rules.
const limitSeparator = " or "

// ToShares divides amounts by their sum. Without amounts all shares are 0.
func ToShares(amounts []float64) {
	var sum float64
	for _, a := range amounts {
		sum += a
	}
	for i := range amounts {
		if sum > 0 {
			amounts[i] /= sum
		}
	}
}

// Subjects returns the sums of the hits of subjects, with the shares of the replicas: at most limit, those with most
// hits first.
func Subjects(lists [][]operator.Subject, limit int) []operator.Subject {
	type name struct{ domain, rule, subject string }
	sums, known := []operator.Subject{}, make(map[name]int)
	for i, list := range lists {
		for _, s := range list {
			key := name{s.Domain, s.Rule, s.Subject}
			at, isKnown := known[key]
			if !isKnown {
				at = len(sums)
				known[key], sums = at, append(sums, operator.Subject{
					Domain: s.Domain, Rule: s.Rule, Subject: s.Subject, Shares: make([]float64, len(lists)),
				})
			}
			sums[at].Hits += s.Hits
			sums[at].PerSecond += s.PerSecond
			sums[at].Shares[i] = float64(s.Hits)
		}
	}
	for _, s := range sums {
		ToShares(s.Shares)
	}
	slices.SortStableFunc(sums, func(a, b operator.Subject) int {
		return cmp.Or(cmp.Compare(b.Hits, a.Hits), cmp.Compare(b.PerSecond, a.PerSecond), cmp.Compare(a.Subject, b.Subject))
	})
	return sums[:min(limit, len(sums))]
}
