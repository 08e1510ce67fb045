package limiter

import (
	"bytes"
	"context"
	"slices"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/rules"
)

// QuotaTarget is what the units of a quota are charged to. A front end that takes units in advance finds it once and
// charges it often.
type QuotaTarget struct {
	// RuleSet is the rule set that the target comes from. When another one is in force, the target must be found again.
	RuleSet *rules.Set
	// Match is what the entries match; nil if no rule does.
	Match *rules.Match
	// Hits has a hit for each limit that applies. They are one group, without an operation and an amount. Limits in shadow
	// mode have NoVeto. Hits is empty if nothing limits the entries. The target owns the keys.
	Hits []backend.Hit
	// Rules has the rule of each hit.
	Rules []*rules.Rule
}

// SameCounters reports whether t and other are charged to the same counters.
func (t *QuotaTarget) SameCounters(other *QuotaTarget) bool {
	return slices.EqualFunc(t.Hits, other.Hits, func(a, b backend.Hit) bool {
		return bytes.Equal(a.Key, b.Key) && a.Limit.Window() == b.Limit.Window()
	})
}

// FindQuota returns what units for the entries of a domain are charged to, by the rules in force. Its errors are those
// of Check.
func (l *Limiter) FindQuota(domain []byte, entries []rules.Entry) (QuotaTarget, error) {
	var a Answer
	req := Request{Domain: domain, Descriptors: []Descriptor{{Entries: entries}}, IgnoresHolds: true}
	if err := l.Prepare(context.Background(), l.Rules(), &req, &a, a.OwnBatch(&req)); err != nil {
		return QuotaTarget{}, err
	}
	t := QuotaTarget{RuleSet: a.RuleSet, Match: a.Statuses[0].Match, Hits: a.Hits()}
	for i := range t.Hits {
		h := &t.Hits[i]
		h.Key, h.Op, h.GroupID, h.Atomic = bytes.Clone(h.Key), algorithm.Look, 0, false
		h.NoVeto = h.NoVeto || l.cfg.ShadowMode || a.Charges[i].IsCanary
		t.Rules = append(t.Rules, a.Charges[i].Rule)
	}
	return t, nil
}
