package rules

import (
	"bytes"
	"slices"
	"strings"
)

// orderedList is an ordered list of rules: the first rule that matches decides. It ignores the order of a descriptor's entries; if a
// key comes twice, its last value counts.
//
// Each key that some rule names has a slot. A search first puts the request's values into their slots, so its time grows with
// entries + rules, not with entries * rules. Rules with an exact value are found by that value.
type orderedList struct {
	slotByKey     map[string]int    // slotByKey has the slot of each key that some rule names.
	rules         []orderedListRule // rules are in file order. The other fields hold indexes of rules.
	canaryIndexes []int             // canaryIndexes are the indexes of the rules that are canaries.
	// Each rule that is not a canary is in rulesByExactValue[slot][value] for one of its exact values, or in rulesWithoutExactValue if
	// it has none.
	rulesByExactValue      []map[string][]int
	rulesWithoutExactValue []int
}

type orderedListRule struct {
	rule                *Rule       // rule is nil if the rule has a problem.
	conditions          []condition // A request must match all conditions.
	isCanary            bool
	hasInvalidCondition bool // hasInvalidCondition is set if conditions lacks one because it has a problem.
}

// MatchPair is a key that a request must have and the pattern of its value. The pattern "*" matches any value, also an empty one; in
// other patterns each `*` matches any bytes.
type MatchPair struct {
	Key, Pattern string
}

// condition is a compiled MatchPair.
type condition struct {
	keySlot         int     // keySlot is the slot of the key, see orderedList.slotByKey.
	matchesAnyValue bool    // matchesAnyValue says that the pattern is "*".
	exactValue      []byte  // exactValue is the value without a `*`; nil if the pattern has one.
	valuePattern    pattern // valuePattern is the compiled pattern if it has a `*`.
}

func newCondition(slot int, text string) condition {
	if !strings.Contains(text, "*") {
		return condition{keySlot: slot, exactValue: []byte(text)}
	}
	return condition{keySlot: slot, matchesAnyValue: text == "*", valuePattern: compilePattern(text)}
}

// PatternMatches reports whether value matches the pattern of a MatchPair. A nil value, which means no entry, never matches.
func PatternMatches(pattern string, value []byte) bool {
	c := newCondition(0, pattern)
	return c.matches(value)
}

func (c *condition) matches(value []byte) bool {
	switch {
	case value == nil:
		return false
	case c.matchesAnyValue:
		return true
	case c.exactValue != nil:
		return bytes.Equal(value, c.exactValue)
	}
	return c.valuePattern.matches(value)
}

func (r *orderedListRule) matches(values [][]byte) bool {
	for i := range r.conditions {
		if c := &r.conditions[i]; !c.matches(values[c.keySlot]) {
			return false
		}
	}
	return true
}

// emptyValue replaces the nil value of an entry, because nil in a slot means that there is no entry.
var emptyValue = []byte{}

// valuesBySlot returns the values of entries by slot; nil for keys that the entries lack. It reuses the memory of values.
func (l *orderedList) valuesBySlot(values [][]byte, entries []Entry) [][]byte {
	values = slices.Grow(values[:0], len(l.slotByKey))[:len(l.slotByKey)]
	clear(values)
	for i := range entries {
		if slot, named := l.slotByKey[string(entries[i].Key)]; named {
			if values[slot] = entries[i].Value; values[slot] == nil {
				values[slot] = emptyValue
			}
		}
	}
	return values
}

// setValues sets the values that a search with s compares.
func (l *orderedList) setValues(s *SearchScratch, entries []Entry) {
	s.valuesBySlot, s.bytesOfValues = l.valuesBySlot(s.valuesBySlot, entries), 0
	for _, value := range s.valuesBySlot {
		s.bytesOfValues += len(value)
	}
}

func (l *orderedList) findRule(entries []Entry, s *SearchScratch, canaries []*Rule) (*Rule, []*Rule) {
	l.setValues(s, entries)
	decides := l.decidingIndex(s)
	var lastCanary *Rule
	for _, i := range l.canaryIndexes {
		if i > decides || !s.bounds.allowsText(s.bytesOfValues) {
			break
		}
		if !l.rules[i].matches(s.valuesBySlot) {
			continue
		}
		if lastCanary != nil {
			canaries = append(canaries, lastCanary)
		}
		lastCanary = l.rules[i].rule
	}
	if decides == len(l.rules) {
		return lastCanary, canaries
	}
	if lastCanary != nil {
		canaries = append(canaries, lastCanary)
	}
	return l.rules[decides].rule, canaries
}

// decidingIndex returns the index of the first rule that matches and is not a canary; len(l.rules) if there is none.
// The values are those of setValues.
func (l *orderedList) decidingIndex(s *SearchScratch) int {
	best := l.firstMatchIndex(l.rulesWithoutExactValue, s, len(l.rules))
	for slot, rules := range l.rulesByExactValue {
		if value := s.valuesBySlot[slot]; rules != nil && value != nil {
			best = l.firstMatchIndex(rules[string(value)], s, best)
		}
	}
	return best
}

// firstMatchIndex returns the first index in list, which is in ascending order, whose rule matches. It returns best if that is less.
func (l *orderedList) firstMatchIndex(list []int, s *SearchScratch, best int) int {
	for _, i := range list {
		if i >= best || !s.bounds.allowsText(s.bytesOfValues) {
			break
		}
		if l.rules[i].matches(s.valuesBySlot) {
			return i
		}
	}
	return best
}

// slotOfKey returns the slot of a key, and adds one if the key has none.
func (l *orderedList) slotOfKey(key string) int {
	slot, known := l.slotByKey[key]
	if !known {
		slot = len(l.slotByKey)
		l.slotByKey[key] = slot
		l.rulesByExactValue = append(l.rulesByExactValue, nil)
	}
	return slot
}

// buildIndexes fills canaryIndexes, rulesByExactValue and rulesWithoutExactValue from rules. Of the exact values of a rule it takes the
// one that the fewest rules have.
func (l *orderedList) buildIndexes() {
	type value struct {
		slot int
		text string
	}
	rulesWith := make(map[value]int)
	for i := range l.rules {
		for _, c := range l.rules[i].conditions {
			if c.exactValue != nil {
				rulesWith[value{c.keySlot, string(c.exactValue)}]++
			}
		}
	}
	for i := range l.rules {
		if l.rules[i].hasInvalidCondition {
			continue
		}
		if l.rules[i].isCanary {
			l.canaryIndexes = append(l.canaryIndexes, i)
			continue
		}
		best, fewest := value{}, 0
		for _, c := range l.rules[i].conditions {
			v := value{c.keySlot, string(c.exactValue)}
			if n := rulesWith[v]; c.exactValue != nil && (fewest == 0 || n < fewest) {
				best, fewest = v, n
			}
		}
		if fewest == 0 {
			l.rulesWithoutExactValue = append(l.rulesWithoutExactValue, i)
			continue
		}
		if l.rulesByExactValue[best.slot] == nil {
			l.rulesByExactValue[best.slot] = make(map[string][]int)
		}
		l.rulesByExactValue[best.slot][best.text] = append(l.rulesByExactValue[best.slot][best.text], i)
	}
}

// firstHidingRule returns the first rule before rule i that matches every request that rule i matches; ok is false if there is none. It
// searches the list with the patterns of rule i as values, because only a `*` in a pattern matches a `*` in a value.
func (l *orderedList) firstHidingRule(i int, match []MatchPair, s *SearchScratch) (by int, ok bool) {
	entries := make([]Entry, len(match))
	for j, p := range match {
		entries[j] = Entry{[]byte(p.Key), []byte(p.Pattern)}
	}
	l.setValues(s, entries)
	by = l.decidingIndex(s)
	return by, by < i
}
