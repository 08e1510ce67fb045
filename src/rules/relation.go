package rules

import (
	"slices"
	"strings"

	"ratelimit/src/algorithm"
)

// Relation tells how the rules of a candidate Set relate to those of the live Set, which is in force: which candidate rules count the
// same hits as a live rule, and which would share counters with live rules although they do not. It is computed once, when one of the Sets
// changes. It is immutable.
type Relation struct {
	sameDomains    []bool  // sameDomains says for each candidate Domain.Index that the live domain has the same rules.
	twins          []*Rule // twins has for each candidate Rule.Index the live rule whose counters get the same hits; nil for none.
	sharesCounters []bool  // sharesCounters says for each candidate Rule.Index that some counters of the rule are those of a live rule.
}

// NewRelation compares two Sets whose keys k writes.
func NewRelation(live, candidate *Set, k *KeyFormat) *Relation {
	r := &Relation{
		sameDomains: make([]bool, candidate.DomainSlots()), twins: make([]*Rule, candidate.RuleSlots()), sharesCounters: make([]bool, candidate.RuleSlots()),
	}
	counters := make(map[counterSet]bool) // counters has the counters of live rules, as far as counterSetOf tells them.
	liveRules := make(map[ruleName][]*Rule)
	for _, rule := range live.rules {
		if c, ok := counterSetOf(rule, k); ok {
			counters[c] = true
		}
		name := ruleName{rule.Domain, rule.FullName}
		liveRules[name] = append(liveRules[name], rule)
	}
	var content contentComparer
	for _, d := range candidate.domains {
		other := live.Domain([]byte(d.Name))
		if other == nil {
			continue
		}
		if r.sameDomains[d.Index] = content.isEqual(other, d); r.sameDomains[d.Index] {
			continue
		}
		if list, isList := d.matcher.(*orderedList); isList && !d.HasReplacingRules && !other.HasReplacingRules {
			if otherList, isList := other.matcher.(*orderedList); isList {
				r.addListTwins(otherList, list, k, &content)
			}
		}
	}
	for _, rule := range candidate.rules {
		if c, ok := counterSetOf(rule, k); ok {
			r.sharesCounters[rule.Index] = counters[c]
		}
		d := candidate.Domain([]byte(rule.Domain))
		if r.sameDomains[d.Index] || !rule.countsOnlyExactMatches(d) {
			continue
		}
		for _, other := range liveRules[ruleName{rule.Domain, rule.FullName}] {
			if other.countsOnlyExactMatches(live.Domain([]byte(rule.Domain))) && content.isEqual(other, rule) {
				r.twins[rule.Index] = other
			}
		}
	}
	return r
}

// ruleName names a rule. Several rules of a Set may have the same name.
type ruleName struct{ domain, fullName string }

// addListTwins adds the twins in an ordered list: the rules before the first difference between both lists. The same requests get there.
func (r *Relation) addListTwins(live, candidate *orderedList, k *KeyFormat, content *contentComparer) {
	for i := range min(len(live.rules), len(candidate.rules)) {
		if !content.isEqual(&live.rules[i], &candidate.rules[i]) {
			return
		}
		others := live.rules[i].rule.LimitsToCharge()
		for j, limit := range candidate.rules[i].rule.LimitsToCharge() {
			if !k.WritesDivvyKey(limit) { // A later rule may share a counter of divvy's form.
				r.twins[limit.Index] = others[j]
			}
		}
	}
}

// countsOnlyExactMatches reports whether the counters of r get the hits of exactly those requests whose descriptor is that of the counter,
// whatever other rules the domain d has. It is true in a tree of descriptors if a counter is not shared by several values, and not charged
// by requests that go on to levels below.
func (r *Rule) countsOnlyExactMatches(d *Domain) bool {
	return !d.HasReplacingRules && r.ListSettings == nil && r.wordPath == nil && !r.HasChargePath && !r.mergesValues()
}

// mergesValues reports whether requests with different values share a counter of r, outside of ordered lists.
func (r *Rule) mergesValues() bool { return r.hasSharedLevel }

// counterSet identifies the counters of rules of which it is known, without a request, that they share all or none of their counters.
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
		return counterSet{"", r.ListSettings.divvyKeyFormat.constantText(), r.Limit.Window()}, true
	case r.ListSettings != nil:
		return counterSet{r.Domain, r.ListSettings.keyFormat.constantText(), r.Limit.Window()}, true
	case !r.mergesValues():
		return c, false
	}
	var text strings.Builder
	for i := range r.Path {
		l := &r.Path[i]
		if l.ShareThreshold {
			text.WriteString(l.levelName)
		} else {
			text.WriteString(l.Key())
		}
		text.WriteByte(0)
	}
	return counterSet{r.Domain, text.String(), r.Limit.Window()}, true
}

// IsSameDomain reports whether the live domain of that name has the same rules as the candidate domain d.
func (r *Relation) IsSameDomain(d *Domain) bool { return r.sameDomains[d.Index] }

// HasSameVerdicts reports whether the verdicts of the live rule are those of the candidate rule, for a descriptor that leads to both. Then
// the limits are the same, and their counters get the same hits under both Sets, unless the whole request is charged all or none. Both
// rules are those that FindRule returned.
func (r *Relation) HasSameVerdicts(live, candidate *Rule) bool {
	if live == nil || live.QuotaMode != candidate.QuotaMode || live.ChargesAllOrNone != candidate.ChargesAllOrNone {
		return false
	}
	if live.ChargedLimits == nil && candidate.ChargedLimits == nil { // Most rules.
		return r.twins[candidate.Index] == live
	}
	return slices.EqualFunc(live.LimitsToCharge(), candidate.LimitsToCharge(), func(l, c *Rule) bool { return r.twins[c.Index] == l })
}

// SharesCounters reports whether the counters of a candidate limit are those of a live limit, whatever the request. If it is false, and the
// limit is in a tree, the request tells: a live limit has the counter if the entries lead to it as well.
func (r *Relation) SharesCounters(candidate *Rule) bool { return r.sharesCounters[candidate.Index] }
