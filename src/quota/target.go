package quota

import (
	"bytes"
	"context"
	"slices"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// SortEntries sorts the entries of a bucket by key, which is the order in which they match rules.
func SortEntries(entries []rules.Entry) {
	slices.SortStableFunc(entries, func(a, b rules.Entry) int { return bytes.Compare(a.Key, b.Key) })
}

// Target is what the units of a bucket are charged to.
type Target struct {
	// RuleSet is the rule set that the target comes from. When another one is in force, the target must be found again.
	RuleSet *rules.Set
	Match   *rules.Match // what the entries match; nil if no rule does.
	// Hits has a hit for each limit that applies. They are one group, without an operation and an amount. Limits in shadow
	// mode have NoVeto. Hits is empty if nothing limits the entries. The target owns the keys.
	Hits  []backend.Hit
	Rules []*rules.Rule // has the rule of each hit.
}

// FindTarget returns what units for the entries of a domain are charged to, by the rules of l that are in force. Its
// errors are those of Limiter.Check.
func FindTarget(l *limiter.Limiter, domain []byte, entries []rules.Entry) (Target, error) {
	var a limiter.Answer
	req := limiter.Request{Domain: domain, Descriptors: []limiter.Descriptor{{Entries: entries}}, IgnoresHolds: true}
	if err := l.Prepare(context.Background(), l.Rules(), &req, &a, a.OwnBatch(&req)); err != nil {
		return Target{}, err
	}
	t := Target{RuleSet: a.RuleSet, Match: a.Statuses[0].Match, Hits: a.Hits()}
	for i := range t.Hits {
		h := &t.Hits[i]
		h.Key, h.Op, h.GroupID, h.Atomic = bytes.Clone(h.Key), algorithm.Look, 0, false
		h.NoVeto = h.NoVeto || l.ShadowMode() || a.Charges[i].IsCanary
		t.Rules = append(t.Rules, a.Charges[i].Rule)
	}
	return t, nil
}

// isReplaced reports whether the entries of the domain match something else now, by the same rule set: with a limit
// that was changed at run time, or with one that is not changed any more.
func (t *Target) isReplaced(domain []byte, entries []rules.Entry) bool {
	d := t.RuleSet.Domain(domain)
	if d == nil || !d.IsOverridden() && !slices.ContainsFunc(t.Rules, func(r *rules.Rule) bool { return r.Overridden }) {
		return false
	}
	var scratch rules.SearchScratch
	return d.FindRule(entries, &scratch) != t.Match
}

// sameCounters reports whether t and other are charged to the same counters.
func (t *Target) sameCounters(other *Target) bool {
	return slices.EqualFunc(t.Hits, other.Hits, func(a, b backend.Hit) bool {
		return bytes.Equal(a.Key, b.Key) && a.Limit.Window() == b.Limit.Window()
	})
}

// CountedRules returns the rules that count what proxies decide: those of Hits, else the unlimited rule that matches,
// else none.
func (t *Target) CountedRules() []*rules.Rule {
	if len(t.Rules) == 0 && t.Match != nil && t.Match.OwnLimit() != nil {
		return t.Match.Limits[len(t.Match.Limits)-1:] // The own limit is the last.
	}
	return t.Rules
}

// Division says how the units of a bucket are divided among proxies, while nothing is used.
type Division struct {
	// Action is units, allow_all or deny_all. The other fields are set for units only.
	Action        string  `json:"action,omitempty"`
	AtOnce        uint64  `json:"at_once,omitempty"`         // how many units the limits give at once.
	RatePerSecond float64 `json:"rate_per_second,omitempty"` // how many units the limits give in the long run.
	NewProxyUnits uint64  `json:"new_proxy_units,omitempty"` // what a proxy gets whose demand is not known.
	IdleUnits     uint64  `json:"idle_units,omitempty"`      // what all proxies without demand keep together.
}

// DivisionOf returns how the units of target are divided.
func DivisionOf(target Target) Division {
	b := bucket{terms: termsOf(target.Hits)}
	if b.terms.action != AssignUnits {
		return Division{Action: b.terms.action.String()}
	}
	q := quantities{terms: b.terms, floor: b.floor()}
	return Division{q.action.String(), q.capacity, q.rate, newcomerUnits(q.capacity, &q), q.floor}
}
