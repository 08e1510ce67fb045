package rules

import (
	"math"
	"slices"
	"strings"

	"ratelimit/src/algorithm"
)

// Relation tells how the rules of a candidate Set relate to those of the live Set, which is in force: which candidate
// rules count the same hits as a live rule, and which would share counters with live rules although they do not. It is
// computed once, when one of the Sets changes. It is immutable.
type Relation struct {
	// The tables of candidate domains and rules are indexed by Domain.Index and Rule.Index.
	sameDomains    []bool  // the live domain has the same rules
	sameRules      []*Rule // the live rule whose counters get the same hits; nil for none
	sharesCounters []bool  // some counters of the rule are those of a live rule
	// countsAll and liveCountsAll say for each Rule.Index that the counts do not depend on the limit's number, modes or
	// other rules.
	countsAll, liveCountsAll []bool
}

// NewRelation compares two Sets whose keys k writes.
func NewRelation(live, candidate *Set, k *KeyFormat) *Relation {
	r := &Relation{
		sameDomains: make([]bool, candidate.DomainSlots()), sameRules: make([]*Rule, candidate.RuleSlots()),
		sharesCounters: make([]bool, candidate.RuleSlots()),
		countsAll:      make([]bool, candidate.RuleSlots()), liveCountsAll: make([]bool, live.RuleSlots()),
	}
	counters := make(map[counterSet]bool) // the counters of live rules, as far as counterSetOf tells them
	for _, d := range live.domains {
		replaced := d.allReplacedNames()
		for _, rule := range d.rules {
			if c, ok := counterSetOf(rule, k); ok {
				counters[c] = true
			}
			r.liveCountsAll[rule.Index] = rule.countsAllHits(&replaced)
		}
	}
	var content contentComparer
	for _, d := range candidate.domains {
		replaced := d.allReplacedNames()
		for _, rule := range d.rules {
			if c, ok := counterSetOf(rule, k); ok {
				r.sharesCounters[rule.Index] = counters[c]
			}
			r.countsAll[rule.Index] = rule.countsAllHits(&replaced)
		}
		if other := live.Domain([]byte(d.Name)); other != nil {
			if r.sameDomains[d.Index] = content.isEqual(other, d); !r.sameDomains[d.Index] {
				r.pairListRules(other, d, k, &content)
				r.pairExactRules(other, d, &content)
			}
		}
	}
	return r
}

// allReplacedNames returns the names that some rule of d replaces.
func (d *Domain) allReplacedNames() (names ReplacedNames) {
	for _, r := range d.rules {
		names.AddReplacedBy(r)
	}
	return names
}

// pairListRules pairs the rules of two ordered lists before the first difference: both lists send them the same
// requests.
func (r *Relation) pairListRules(live, candidate *Domain, k *KeyFormat, content *contentComparer) {
	if live.HasReplacingRules || candidate.HasReplacingRules {
		return
	}
	for i := range min(len(live.ListRules), len(candidate.ListRules)) {
		was, is := live.ListRules[i], candidate.ListRules[i]
		if !content.isEqual(was, is) {
			return
		}
		for j, limit := range is.Limits {
			if !k.WritesDivvyKey(limit) { // A later rule may share a counter of divvy's form.
				r.sameRules[limit.Index] = was.Limits[j]
			}
		}
	}
}

// pairExactRules pairs equal rules whose counters get the same hits, whatever other rules there are.
func (r *Relation) pairExactRules(live, candidate *Domain, content *contentComparer) {
	exact := make(map[string][]*Rule) // by FullName, which several rules may have
	replaced := live.allReplacedNames()
	for _, rule := range live.rules {
		if rule.countsOnlyExactMatches(&replaced) {
			exact[rule.FullName] = append(exact[rule.FullName], rule)
		}
	}
	replaced = candidate.allReplacedNames()
	for _, rule := range candidate.rules {
		if !rule.countsOnlyExactMatches(&replaced) {
			continue
		}
		for _, other := range exact[rule.FullName] {
			if content.isEqual(other, rule) {
				r.sameRules[rule.Index] = other
			}
		}
	}
}

// countsOnlyExactMatches reports whether the counters of r get the hits of exactly those requests whose descriptor is
// that of the counter, whatever other rules the domain has. replaced are the limits that other rules replace. It is
// true in a tree of descriptors if a counter is not shared by several values, and not charged by requests that go on to
// levels below.
func (r *Rule) countsOnlyExactMatches(replaced *ReplacedNames) bool {
	return !replaced.IsReplaced(r) && r.ListSettings == nil && r.Words == nil && !r.HasChargePath && !r.hasDerivedValue
}

// countsAllHits reports whether the counts of r are the number of hits of those requests that countsOnlyExactMatches
// means: refused hits count, and no other limit keeps hits from being counted.
func (r *Rule) countsAllHits(replaced *ReplacedNames) bool {
	return !r.Unlimited && r.Limit.Kind == algorithm.FixedWindow && r.Limit.CountBlocked && r.Limit.Hold == 0 &&
		!r.ChargesAllOrNone && r.countsOnlyExactMatches(replaced)
}

// counterSet identifies the counters of rules of which it is known, without a request, that they share all or none of
// their counters.
type counterSet struct {
	domain, text string
	window       algorithm.Window
}

// counterSetOf returns the counterSet of r; ok is false if only the request tells with which rules r shares a counter.
func counterSetOf(r *Rule, k *KeyFormat) (c counterSet, ok bool) {
	switch {
	case r.Unlimited:
		return c, false
	case k.WritesDivvyKey(r): // Such keys do not have the domain.
		return counterSet{"", r.divvyKey.constantText(), r.Limit.Window()}, true
	case r.ListSettings != nil:
		return counterSet{r.Domain, r.listKey.constantText(), r.Limit.Window()}, true
	case !r.hasDerivedValue: // Each value has a counter.
		return c, false
	}
	var text strings.Builder
	for i := range r.Path {
		l := &r.Path[i]
		if l.ShareThreshold {
			text.WriteString(l.name)
		} else {
			text.WriteString(l.Key())
		}
		text.WriteByte(0)
	}
	return counterSet{r.Domain, text.String(), r.Limit.Window()}, true
}

// IsSameDomain reports whether the live domain of that name has the same rules as the candidate domain d.
func (r *Relation) IsSameDomain(d *Domain) bool { return r.sameDomains[d.Index] }

// HasSameVerdicts reports whether the verdicts of the live rule are those of the candidate rule, for a descriptor that
// leads to both. Then the limits are the same, and their counters get the same hits under both Sets, unless the whole
// request is charged all or none. Both rules are those that FindRule returned.
func (r *Relation) HasSameVerdicts(live, candidate *Match) bool {
	if live == nil || live.QuotaMode != candidate.QuotaMode || live.ChargesAllOrNone != candidate.ChargesAllOrNone {
		return false
	}
	return slices.EqualFunc(live.Limits, candidate.Limits, func(l, c *Rule) bool { return r.sameRules[c.Index] == l })
}

// HasSameCounts reports whether the counters of the candidate match would have the counts of those of the live match,
// for a descriptor that leads to both: each candidate limit then has a live limit with the same windows, and only the
// number or a mode differs. It is false if the whole request is charged all or none. Both are what FindRule returned.
func (r *Relation) HasSameCounts(live, candidate *Match) bool {
	if live == nil || live.HoldIDKey != "" || candidate.HoldIDKey != "" {
		return false
	}
	for _, c := range candidate.Limits {
		same := func(l *Rule) bool { return r.liveCountsAll[l.Index] && l.Limit.Window() == c.Limit.Window() }
		if !r.countsAll[c.Index] || !slices.ContainsFunc(live.Limits, same) {
			return false
		}
	}
	return true
}

// SharesCounters reports whether the counters of a candidate limit are those of a live limit, whatever the request. If
// it is false, and the limit is in a tree, the request tells: a live limit has the counter if the entries lead to it as
// well.
func (r *Relation) SharesCounters(candidate *Rule) bool { return r.sharesCounters[candidate.Index] }

// SampleHash returns a hash of the counter that a request's entries have in d, by which a sample of the counters of r
// is chosen. r is as for KeyFormat.AppendKey. The hash depends on the same as IsEnforced, and is independent of the
// hash there. All limits that one descriptor is charged to are in the sample, or none: r is the first of them, whose
// counter the counters of the others tell. It is math.MaxUint64 for a rule with one counter for all requests: such a
// counter costs most, and leaves a sample first.
func SampleHash(d *Domain, r *Rule, entries []Entry, s *SearchScratch) uint64 {
	if r != nil && r.HasOneCounter() {
		return math.MaxUint64
	}
	_, high := hashCounterName(d, r, entries, s)
	return high
}

// HasOneCounter reports whether all requests that r matches share a counter.
func (r *Rule) HasOneCounter() bool {
	switch {
	case r.ListSettings != nil:
		return len(r.ListSettings.PerKeys) == 0
	case r.Words != nil:
		return !slices.Contains(r.Words.Names, "*")
	}
	return !slices.ContainsFunc(r.Path, func(l Level) bool { return !l.ShareThreshold && !l.HasOneValue() })
}
