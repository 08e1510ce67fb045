package match

import (
	"bytes"
	"slices"
	"strings"

	"ratelimit/src/rules"
	"ratelimit/src/rules/wildcard"
)

// List is an ordered list of rules: the first rule that matches decides. It ignores the order of a descriptor's
// entries; if a key comes twice, its last value counts.
//
// Each key that some rule names has a slot. A search first puts the request's values into their slots, so its time
// grows with entries + rules, not with entries * rules. Rules with an exact value are found by that value.
type List struct {
	SlotByKey     map[string]int // the slot of each key that some rule names
	Rules         []ListRule     // in file order. The other fields hold indexes of rules
	canaryIndexes []int          // the indexes of the rules that are canaries
	// Each rule that is not a canary is in rulesByExactValue[slot][value] for one of its exact values, or in
	// WithoutExactValue if it has none.
	rulesByExactValue []map[string][]int
	WithoutExactValue []int
}

type ListRule struct {
	Match      *rules.Match // nil if the rule has a problem
	Conditions []Condition  // A request must match all conditions.
	IsCanary   bool
	IsInvalid  bool // set if Conditions lacks one because it has a problem
}

// Condition is a compiled MatchPair.
type Condition struct {
	keySlot         int              // the slot of the key, see List.SlotByKey
	matchesAnyValue bool             // the pattern is "*"
	exactValue      []byte           // the value without a `*`; nil if the pattern has one
	valuePattern    wildcard.Pattern // the compiled pattern if it has a `*`
}

func NewCondition(slot int, text string) Condition {
	if !strings.Contains(text, "*") {
		return Condition{keySlot: slot, exactValue: []byte(text)}
	}
	return Condition{keySlot: slot, matchesAnyValue: text == "*", valuePattern: wildcard.Compile(text)}
}

func (c *Condition) matches(value []byte) bool {
	switch {
	case value == nil:
		return false
	case c.matchesAnyValue:
		return true
	case c.exactValue != nil:
		return bytes.Equal(value, c.exactValue)
	}
	return c.valuePattern.Matches(value)
}

func (r *ListRule) matches(values [][]byte) bool {
	for i := range r.Conditions {
		if c := &r.Conditions[i]; !c.matches(values[c.keySlot]) {
			return false
		}
	}
	return true
}

// emptyValue replaces the nil value of an entry, because nil in a slot means that there is no entry.
var emptyValue = []byte{}

// setValues sets the values that a search with s compares: those of entries by slot; nil for keys that they lack.
func (l *List) setValues(s *rules.SearchScratch, entries []rules.Entry) {
	values := slices.Grow(s.ValuesBySlot[:0], len(l.SlotByKey))[:len(l.SlotByKey)]
	clear(values)
	for i := range entries {
		if slot, named := l.SlotByKey[string(entries[i].Key)]; named {
			if values[slot] = entries[i].Value; values[slot] == nil {
				values[slot] = emptyValue
			}
		}
	}
	s.ValuesBySlot, s.BytesOfValues = values, 0
	for _, value := range values {
		s.BytesOfValues += len(value)
	}
}

func (l *List) FindRule(entries []rules.Entry, s *rules.SearchScratch) *rules.Match {
	l.setValues(s, entries)
	decides := l.decidingIndex(s)
	var lastCanary *rules.Match
	for _, i := range l.canaryIndexes {
		if i > decides || !s.Bounds.AllowsText(s.BytesOfValues) {
			break
		}
		if !l.Rules[i].matches(s.ValuesBySlot) {
			continue
		}
		if lastCanary != nil {
			s.Canaries = append(s.Canaries, lastCanary)
		}
		lastCanary = l.Rules[i].Match
	}
	if decides == len(l.Rules) {
		return lastCanary
	}
	if lastCanary != nil {
		s.Canaries = append(s.Canaries, lastCanary)
	}
	return l.Rules[decides].Match
}

// decidingIndex returns the index of the first rule that matches and is not a canary; len(l.rules) if there is none.
// The values are those of setValues.
func (l *List) decidingIndex(s *rules.SearchScratch) int {
	best := l.firstMatchIndex(l.WithoutExactValue, s, len(l.Rules))
	for slot, rules := range l.rulesByExactValue {
		if value := s.ValuesBySlot[slot]; rules != nil && value != nil {
			best = l.firstMatchIndex(rules[string(value)], s, best)
		}
	}
	return best
}

// firstMatchIndex returns the first index in list, which is in ascending order, whose rule matches. It returns best if
// that is less.
func (l *List) firstMatchIndex(list []int, s *rules.SearchScratch, best int) int {
	for _, i := range list {
		if i >= best || !s.Bounds.AllowsText(s.BytesOfValues) {
			break
		}
		if l.Rules[i].matches(s.ValuesBySlot) {
			return i
		}
	}
	return best
}

// SlotOfKey returns the slot of a key, and adds one if the key has none.
func (l *List) SlotOfKey(key string) int {
	slot, known := l.SlotByKey[key]
	if !known {
		slot = len(l.SlotByKey)
		l.SlotByKey[key] = slot
		l.rulesByExactValue = append(l.rulesByExactValue, nil)
	}
	return slot
}

// BuildIndexes fills canaryIndexes, rulesByExactValue and WithoutExactValue from rules. Of the exact values of a rule
// it takes the one that the fewest rules have.
func (l *List) BuildIndexes() {
	type value struct {
		slot int
		text string
	}
	rulesWith := make(map[value]int)
	for i := range l.Rules {
		for _, c := range l.Rules[i].Conditions {
			if c.exactValue != nil {
				rulesWith[value{c.keySlot, string(c.exactValue)}]++
			}
		}
	}
	for i := range l.Rules {
		if l.Rules[i].IsInvalid {
			continue
		}
		if l.Rules[i].IsCanary {
			l.canaryIndexes = append(l.canaryIndexes, i)
			continue
		}
		best, fewest := value{}, 0
		for _, c := range l.Rules[i].Conditions {
			v := value{c.keySlot, string(c.exactValue)}
			if n := rulesWith[v]; c.exactValue != nil && (fewest == 0 || n < fewest) {
				best, fewest = v, n
			}
		}
		if fewest == 0 {
			l.WithoutExactValue = append(l.WithoutExactValue, i)
			continue
		}
		if l.rulesByExactValue[best.slot] == nil {
			l.rulesByExactValue[best.slot] = make(map[string][]int)
		}
		l.rulesByExactValue[best.slot][best.text] = append(l.rulesByExactValue[best.slot][best.text], i)
	}
}

// FirstHidingRule returns the first rule before rule i that matches every request that rule i matches; ok is false if
// there is none. It searches the list with the patterns of rule i as values, because only a `*` in a pattern matches a
// `*` in a value.
func (l *List) FirstHidingRule(i int, match []rules.MatchPair, s *rules.SearchScratch) (by int, ok bool) {
	entries := make([]rules.Entry, len(match))
	for j, p := range match {
		entries[j] = rules.Entry{Key: []byte(p.Key), Value: []byte(p.Pattern)}
	}
	l.setValues(s, entries)
	by = l.decidingIndex(s)
	return by, by < i
}
