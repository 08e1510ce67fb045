// Package replicas adds up what several replicas tell of themselves. The lists that it takes have an element for each
// replica, which is empty for one that did not answer; so have the shares that it returns.
package replicas

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"ratelimit/src/operator"
)

// Part is what one replica tells.
type Part struct {
	Address string
	IsThis  bool // marks the replica that adds up.
	// Err says why the replica is not in the sums. It begins with the address. If it is nil, the fields below are valid.
	Err         error
	State       operator.State
	Rates       operator.Rates
	Hot, Denied []operator.Subject
	Quotas      *operator.Quotas // nil if no proxy of the replica has any.
}

// Sum adds up what parts tell, with at most limit subjects of each kind. A process that several addresses reach counts
// once: Sum sets Err of the later parts.
func Sum(parts []Part, limit int) *operator.Sum {
	sameAs := make([]string, len(parts))
	for i := range parts {
		isSame := func(p Part) bool { return p.Err == nil && p.State.StartedAt.Equal(parts[i].State.StartedAt) }
		if at := slices.IndexFunc(parts[:i], isSame); at >= 0 && parts[i].Err == nil {
			sameAs[i] = parts[at].Address
			parts[i].Err = fmt.Errorf("%s: this is the replica at %s", parts[i].Address, sameAs[i])
		}
	}
	n := len(parts)
	rates, shares := make([]operator.Rates, n), make([]float64, n)
	hot, denied := make([][]operator.Subject, n), make([][]operator.Subject, n)
	var quotas []*operator.Quotas
	for i, p := range parts {
		if p.Err != nil {
			continue
		}
		rates[i], shares[i], hot[i], denied[i] = p.Rates, p.Rates.Total.Total(), p.Hot, p.Denied
		quotas = append(quotas, p.Quotas)
	}
	ToShares(shares)
	s := &operator.Sum{
		Rates: Rates(rates), Hot: Subjects(hot, limit), Denied: Subjects(denied, limit), Quotas: Quotas(quotas),
	}
	for i, p := range parts {
		r := operator.Replica{Address: p.Address, IsThis: p.IsThis, SameAs: sameAs[i]}
		if p.Err != nil {
			r.Error = p.Err.Error()
		} else {
			r.Share, r.Total, r.Requests, r.State = shares[i], p.Rates.Total, p.Rates.Requests, &p.State
		}
		s.Replicas = append(s.Replicas, r)
	}
	return s
}

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
	slices.SortStableFunc(sum.Domains, func(a, b operator.DomainRates) int { return cmp.Compare(b.Total(), a.Total()) })
	sum.MatchingRules = max(sum.MatchingRules, len(sum.Rules))
	return sum
}

// add returns a + b.
func add(a, b operator.PerSecond) operator.PerSecond {
	return operator.PerSecond{
		Admitted: a.Admitted + b.Admitted, Denied: a.Denied + b.Denied, Near: a.Near + b.Near, Shadow: a.Shadow + b.Shadow,
		Fallback: a.Fallback + b.Fallback, Failed: a.Failed + b.Failed, Unmatched: a.Unmatched + b.Unmatched,
		LeaseMisses: a.LeaseMisses + b.LeaseMisses,
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
	if l := r.Leases; l != nil {
		old := cmp.Or(sum.Leases, new(operator.Leases))
		sum.Leases = &operator.Leases{
			Counters: old.Counters + l.Counters, Contended: old.Contended + l.Contended, Held: old.Held + l.Held,
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

// History returns the sums of histories. Each step of the sum has the steps of all that are nearest in time. The sum
// ends where the first of them ends, because a replica that has not told its newest step is not idle.
func History(list []operator.History) (sum operator.History) {
	if len(list) == 0 {
		return sum
	}
	step := time.Duration(list[0].StepSeconds) * time.Second
	end := func(h operator.History) time.Time { return h.Start.Add(time.Duration(len(h.Admitted)) * step) }
	sum.Start, sum.StepSeconds = list[0].Start, list[0].StepSeconds
	last := end(list[0])
	for _, h := range list[1:] {
		if h.Start.Before(sum.Start) {
			sum.Start = h.Start
		}
		if e := end(h); e.Before(last) {
			last = e
		}
	}
	steps := max(0, nearestStep(last.Sub(sum.Start), step))
	sums := sum.Lists()
	for _, total := range sums {
		*total = make([]float64, steps)
	}
	for _, h := range list {
		offset := nearestStep(h.Start.Sub(sum.Start), step)
		for i, rates := range h.Lists() {
			for j, rate := range *rates {
				if at := offset + j; at >= 0 && at < steps {
					(*sums[i])[at] += rate
				}
			}
		}
	}
	return sum
}

// nearestStep returns how many steps a time is.
func nearestStep(d, step time.Duration) int { return int(math.Round(float64(d) / float64(step))) }

// Quotas returns the sums of quotas: the buckets with the proxies of all replicas, those with most demand first. It
// returns nil if all are nil.
func Quotas(list []*operator.Quotas) (sum *operator.Quotas) {
	type name struct{ domain, bucket string }
	known := make(map[name]int)
	var others []uint64 // of the buckets of sum: the proxies of all replicas, as one of them counts.
	for _, q := range list {
		if q == nil {
			continue
		}
		if sum == nil {
			sum = new(operator.Quotas)
		}
		sum.Total = addTotals(sum.Total, q.Total)
		for _, b := range q.Buckets {
			key := name{b.Domain, b.Bucket}
			at, isKnown := known[key]
			if !isKnown {
				at = len(sum.Buckets)
				known[key], others, sum.Buckets = at, append(others, 0), append(sum.Buckets, operator.QuotaBucket{
					Domain: b.Domain, Bucket: b.Bucket, Rule: b.Rule, Limits: b.Limits, Action: b.Action,
				})
			}
			addBucket(&sum.Buckets[at], b)
			others[at] = max(others[at], uint64(b.ProxyCount)+b.OtherProxyCount)
		}
		sum.MatchingBuckets = max(sum.MatchingBuckets, q.MatchingBuckets)
	}
	if sum == nil {
		return nil
	}
	for i := range sum.Buckets { // The proxies of the replicas that are in the sum are not others.
		b := &sum.Buckets[i]
		b.OtherProxyCount = others[i] - min(others[i], uint64(b.ProxyCount))
	}
	sum.MatchingBuckets = max(sum.MatchingBuckets, len(sum.Buckets))
	slices.SortStableFunc(sum.Buckets, func(a, b operator.QuotaBucket) int {
		return cmp.Compare(b.DemandPerSecond, a.DemandPerSecond)
	})
	return sum
}

// addTotals returns a + b. A bucket that several replicas have counts once for each.
func addTotals(a, b operator.QuotaTotals) operator.QuotaTotals {
	return operator.QuotaTotals{
		Proxies: a.Proxies + b.Proxies, Buckets: a.Buckets + b.Buckets,
		DemandPerSecond: a.DemandPerSecond + b.DemandPerSecond,
		Units:           a.Units + b.Units, LeftUnits: a.LeftUnits + b.LeftUnits,
		ShortBuckets: a.ShortBuckets + b.ShortBuckets, Unfairness: max(a.Unfairness, b.Unfairness),
	}
}

// addBucket adds what a replica tells of a bucket, but the number of other proxies.
func addBucket(sum *operator.QuotaBucket, b operator.QuotaBucket) {
	if b.Action == "units" { // Those of other replicas may have nothing assigned yet.
		sum.Action = b.Action
	}
	sum.DemandPerSecond += b.DemandPerSecond
	sum.Units += b.Units
	sum.ShortSeconds, sum.Unfairness = max(sum.ShortSeconds, b.ShortSeconds), max(sum.Unfairness, b.Unfairness)
	sum.LeftUnits, sum.LeftSeconds = sum.LeftUnits+b.LeftUnits, max(sum.LeftSeconds, b.LeftSeconds)
	sum.ProxyCount += b.ProxyCount
	sum.Proxies = append(sum.Proxies, b.Proxies...)
	slices.SortStableFunc(sum.Proxies, func(a, b operator.QuotaProxy) int {
		return cmp.Compare(b.DemandPerSecond, a.DemandPerSecond)
	})
}
