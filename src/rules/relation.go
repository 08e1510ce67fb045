package rules

import (
	"math"
	"slices"
	"strings"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// Relation compares the rules of a candidate Set with the live Set, which is in force. It tells which candidate rules
// count the same hits as a live rule, and which use the counters of a live rule for other hits. It is computed once,
// when one of the Sets changes, and is immutable.
type Relation struct {
	// The tables of candidate domains and rules are indexed by Domain.Index and Rule.Index.
	sameDomains    []bool  // the live domain has the same rules
	sameRules      []*Rule // the live rule whose counters get the same hits; nil for none
	sharesCounters []bool  // a live rule uses some counters of the rule
	// countsAll and liveCountsAll are set for each Rule.Index whose counts do not depend on the limit's number, its modes
	// or other rules.
	countsAll, liveCountsAll []bool
}

// NewRelation compares two Sets.
func NewRelation(live, candidate *Set) *Relation {
	r := &Relation{
		sameDomains: make([]bool, candidate.DomainSlots()), sameRules: make([]*Rule, candidate.RuleSlots()),
		sharesCounters: make([]bool, candidate.RuleSlots()),
		countsAll:      make([]bool, candidate.RuleSlots()), liveCountsAll: make([]bool, live.RuleSlots()),
	}
	counters := make(map[counterSet]bool) // the counters of live rules, as far as counterSetOf tells them
	for _, d := range live.domains {
		replaced := d.allReplacedNames()
		for _, rule := range d.rules {
			if c, ok := counterSetOf(rule); ok {
				counters[c] = true
			}
			r.liveCountsAll[rule.Index] = rule.countsAllHits(&replaced)
		}
	}
	var content contentComparer
	for _, d := range candidate.domains {
		replaced := d.allReplacedNames()
		for _, rule := range d.rules {
			if c, ok := counterSetOf(rule); ok {
				r.sharesCounters[rule.Index] = counters[c]
			}
			r.countsAll[rule.Index] = rule.countsAllHits(&replaced)
		}
		if other := live.Domain([]byte(d.Name)); other != nil {
			if r.sameDomains[d.Index] = content.isEqual(other, d); !r.sameDomains[d.Index] {
				r.pairListRules(other, d, &content)
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
func (r *Relation) pairListRules(live, candidate *Domain, content *contentComparer) {
	if live.HasReplacingRules || candidate.HasReplacingRules {
		return
	}
	for i := range min(len(live.ListRules), len(candidate.ListRules)) {
		was, is := live.ListRules[i], candidate.ListRules[i]
		if !content.isEqual(was, is) {
			return
		}
		for j, limit := range is.Limits {
			if limit.PeerKey == nil { // A later rule may have the same one.
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

// countsOnlyExactMatches reports whether a counter of r gets exactly the hits whose descriptor it counts, whatever
// other rules the domain has. So r is in a tree of descriptors, values do not share counters, descriptors below are not
// charged to r, and no rule replaces it. replaced has the names that rules of the domain replace.
func (r *Rule) countsOnlyExactMatches(replaced *ReplacedNames) bool {
	return !replaced.IsReplaced(r) && r.ListSettings == nil && r.Words == nil && !r.HasChargePath && !r.hasDerivedValue
}

// countsAllHits reports whether r counts all hits that countsOnlyExactMatches means: refused hits count, which a lease
// need not tell the store, and no other limit keeps hits from being counted.
func (r *Rule) countsAllHits(replaced *ReplacedNames) bool {
	return !r.Unlimited && r.Limit.Kind == algorithm.FixedWindow && r.Limit.CountBlocked && r.Limit.Hold == 0 &&
		r.Counting == backend.Exact && !r.ChargesAllOrNone && r.countsOnlyExactMatches(replaced)
}

// counterSet identifies the counters of a rule. Two rules share all their counters if their counterSets are equal, and
// else none.
type counterSet struct {
	domain, text string
	window       algorithm.Window
}

// counterSetOf returns the counterSet of r. ok is false if r has none: a request tells whether it shares a counter.
func counterSetOf(r *Rule) (c counterSet, ok bool) {
	switch {
	case r.Unlimited:
		return c, false
	case r.PeerKey != nil: // Such keys do not have the domain.
		return counterSet{"", r.PeerKey.Start + r.PeerKey.End, r.Limit.Window()}, true
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

// HasSameVerdicts reports whether both matches of a descriptor get the same verdicts. Then their limits are the same,
// and the counters get the same hits under both Sets, unless the whole request is charged all or none. live may be nil.
func (r *Relation) HasSameVerdicts(live, candidate *Match) bool {
	if live == nil || live.QuotaMode != candidate.QuotaMode || live.ChargesAllOrNone != candidate.ChargesAllOrNone {
		return false
	}
	return slices.EqualFunc(live.Limits, candidate.Limits, func(l, c *Rule) bool { return r.sameRules[c.Index] == l })
}

// HasSameCounts reports whether the limits of both matches of a descriptor have the same counts. Then each candidate
// limit has a live limit with the same windows, and only numbers or modes differ. It does not hold if the whole request
// is charged all or none. live may be nil.
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

// SharesCounters reports whether a live limit uses the counters of a candidate limit, whatever the request. If not, and
// the limit is in a tree, the request tells: a live limit uses the counter if the entries lead to that limit, too.
func (r *Relation) SharesCounters(candidate *Rule) bool { return r.sharesCounters[candidate.Index] }

// SampleHash returns a hash of the counter of r for a request's entries in d, by which a sample of counters is chosen.
// r is as for KeyFormat.AppendKey. The hash depends on the same things as IsEnforced, but is independent of the hash
// there. The limits of a match are all in the sample, or none: callers pass the first of them. A rule with one counter
// for all requests has math.MaxUint64: such a counter costs most, and leaves a sample first.
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
