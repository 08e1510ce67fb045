package top

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"

	"ratelimit/src/operator"
	"ratelimit/src/operator/debugport"
	"ratelimit/src/operator/output"
)

// The names of --sort.
const (
	sortAdmitted = "admitted"
	sortDenied   = "denied"
	sortName     = "name"
)

// filter says what a snapshot has.
type filter struct {
	window   string // of the subjects: operator.WindowMinute, WindowHour or WindowDay
	domain   string // empty for all domains
	rule     string // the full name of a rule; empty for all rules
	subjects int    // how many subjects of each kind are listed at most
}

// snapshot is what the service does at one moment. Its JSON is the output of --json.
type snapshot struct {
	Address string             `json:"address"` // of several replicas: their list.
	Window  string             `json:"window"`  // of the subjects
	State   operator.State     `json:"state"`   // of several replicas: of the first that answers.
	Rates   operator.Rates     `json:"rates"`
	Denied  []operator.Subject `json:"denied"`
	Hot     []operator.Subject `json:"hot"`
	// Replicas has an element for each address, if there are several. Rates and subjects are their sums then.
	Replicas []operator.Replica `json:"replicas,omitempty"`
}

// fetch asks the service for a snapshot. If the service has no such domain or rule, the error lists some.
func fetch(ctx context.Context, c *debugport.Client, f filter) (*snapshot, error) {
	s := &snapshot{Address: c.Address, Window: f.window, Denied: []operator.Subject{}, Hot: []operator.Subject{}}
	if err := c.Get(ctx, "/api/state", nil, &s.State); err != nil {
		return nil, err
	}
	search := url.Values{"search": {cmp.Or(f.rule, f.domain)}, "limit": {strconv.Itoa(operator.MaxListed)}}
	if err := c.Get(ctx, "/api/rates", search, &s.Rates); err != nil {
		return nil, err
	}
	domain, err := s.applyFilter(f)
	if err != nil || f.rule != "" && domain == "" {
		return s, err
	}
	for _, top := range []struct {
		kind string
		list *[]operator.Subject
	}{{operator.TopDenied, &s.Denied}, {operator.TopHot, &s.Hot}} {
		q := operator.TopQuery{Kind: top.kind, Window: f.window, Domain: domain, Rule: f.rule, Limit: f.subjects}
		if err := c.Get(ctx, "/api/top", q.Values(), top.list); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// applyFilter removes the rates of other domains and rules than those of f. It returns the domain of f, or that of its
// rule. In its first second a service has no rates, so the domain of a rule is not known, which is no error.
func (s *snapshot) applyFilter(f filter) (domain string, err error) {
	if f.domain == "" && f.rule == "" {
		return "", nil
	}
	var known []string
	for _, d := range s.Rates.Domains {
		known = append(known, d.Domain)
	}
	domain = f.domain
	if len(known) == 0 {
		return domain, nil
	}
	if domain != "" && !slices.Contains(known, domain) {
		return "", fmt.Errorf("--domain %s: there is no such domain; the service has %s", output.Printable(domain),
			output.First(known, 10))
	}
	s.Rates.Rules = slices.DeleteFunc(s.Rates.Rules, func(r operator.RuleRates) bool {
		return domain != "" && r.Domain != domain || f.rule != "" && r.Rule != f.rule
	})
	if f.rule != "" {
		if len(s.Rates.Rules) == 0 {
			return "", fmt.Errorf("--rule %s: there is no such rule; /rlconfig on the debug port lists the names, such as "+
				"DOMAIN.KEY_VALUE", output.Printable(f.rule))
		}
		domain = s.Rates.Rules[0].Domain
	}
	isOther := func(x operator.Unmatched) bool { return domain != "" && x.Domain != domain }
	s.Rates.Unmatched = slices.DeleteFunc(s.Rates.Unmatched, isOther)
	s.State.Unmatched = slices.DeleteFunc(s.State.Unmatched, isOther)
	s.Rates.MatchingRules = len(s.Rates.Rules)
	s.Rates.Domains = slices.DeleteFunc(s.Rates.Domains, func(d operator.DomainRates) bool { return d.Domain != domain })
	return domain, nil
}

// sort sorts domains and rules by a name of --sort. Equal ones are sorted by name.
func (s *snapshot) sort(by string) {
	slices.SortFunc(s.Rates.Domains, func(a, b operator.DomainRates) int {
		return cmp.Or(compareRates(by, a.PerSecond, b.PerSecond), cmp.Compare(a.Domain, b.Domain))
	})
	slices.SortFunc(s.Rates.Rules, func(a, b operator.RuleRates) int {
		return cmp.Or(compareRates(by, a.PerSecond, b.PerSecond), cmp.Compare(a.Domain, b.Domain),
			cmp.Compare(a.Rule, b.Rule))
	})
}

// compareRates returns a negative number if a is listed before b.
func compareRates(by string, a, b operator.PerSecond) int {
	switch by {
	case sortAdmitted:
		return cmp.Or(cmp.Compare(b.Admitted, a.Admitted), cmp.Compare(b.Denied, a.Denied))
	case sortDenied:
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(b.Admitted, a.Admitted))
	}
	return 0
}

// cut keeps the first limit domains and rules.
func (s *snapshot) cut(limit int) {
	s.Rates.Domains = s.Rates.Domains[:min(limit, len(s.Rates.Domains))]
	s.Rates.Rules = s.Rates.Rules[:min(limit, len(s.Rates.Rules))]
}
