package rules

import (
	"bytes"
	"slices"
	"strings"
)

// orderedList is an ordered list of rules: the first that matches decides. It ignores the order of a descriptor's entries; if a key
// comes twice, its last value counts.
//
// Each key that some rule names has a slot. A search first puts the request's values into their slots, so its time grows with
// entries + rules, not with entries * rules. Rules with an exact value are found by that value.
type orderedList struct {
	slots    map[string]int // the slot of each key that some rule names
	rules    []orderedRule  // in file order; the integers below are indexes into it
	canaries []int          // compared one by one
	// Each rule that is not a canary is in byValue[slot][value] for one of its exact values, or in others if it has none.
	byValue []map[string][]int
	others  []int
}

type orderedRule struct {
	rule       *Rule       // nil if the rule has a problem
	want       []condition // all of them must match
	canary     bool
	incomplete bool // a problem left conditions out of want
}

// Pair is a key that a request must have and the pattern of its value. The pattern "*" matches any value, also an empty one; in other
// patterns each `*` matches any bytes.
type Pair struct {
	Key, Pattern string
}

// condition is a compiled Pair.
type condition struct {
	slot  int // of the key, see orderedList.slots
	kind  conditionKind
	exact []byte  // the value, for exactValue
	glob  pattern // for wildcardValue
}

type conditionKind uint8

const (
	exactValue conditionKind = iota
	wildcardValue
	anyValue
)

func newCondition(slot int, text string) condition {
	switch {
	case text == "*":
		return condition{slot: slot, kind: anyValue}
	case strings.Contains(text, "*"):
		return condition{slot: slot, kind: wildcardValue, glob: compilePattern(text)}
	}
	return condition{slot: slot, kind: exactValue, exact: []byte(text)}
}

// PatternMatches reports whether value matches the pattern of a Pair. A nil value, which means no entry, never matches.
func PatternMatches(pattern string, value []byte) bool {
	c := newCondition(0, pattern)
	return c.matches(value)
}

func (c *condition) matches(value []byte) bool {
	switch {
	case value == nil:
		return false
	case c.kind == anyValue:
		return true
	case c.kind == exactValue:
		return bytes.Equal(value, c.exact)
	}
	return c.glob.match(value)
}

func (r *orderedRule) matches(values [][]byte) bool {
	for i := range r.want {
		if c := &r.want[i]; !c.matches(values[c.slot]) {
			return false
		}
	}
	return true
}

// empty replaces the nil value of an entry, because nil in a slot means that there is no entry.
var empty = []byte{}

// fill returns the values of entries by slot; nil for keys that the entries lack. It reuses the memory of values.
func (l *orderedList) fill(values [][]byte, entries []Entry) [][]byte {
	values = slices.Grow(values[:0], len(l.slots))[:len(l.slots)]
	clear(values)
	for i := range entries {
		if slot, wanted := l.slots[string(entries[i].Key)]; wanted {
			if values[slot] = entries[i].Value; values[slot] == nil {
				values[slot] = empty
			}
		}
	}
	return values
}

func (l *orderedList) find(entries []Entry, s *Scratch, canaries []*Rule) (*Rule, []*Rule) {
	s.values = l.fill(s.values, entries)
	best := l.decides(s.values)
	var last *Rule // the last canary
	for _, i := range l.canaries {
		if i > best {
			break
		}
		if !l.rules[i].matches(s.values) {
			continue
		}
		if last != nil {
			canaries = append(canaries, last)
		}
		last = l.rules[i].rule
	}
	if best == len(l.rules) {
		return last, canaries
	}
	if last != nil {
		canaries = append(canaries, last)
	}
	return l.rules[best].rule, canaries
}

// decides returns the index of the first rule that matches and is not a canary; len(l.rules) if there is none.
func (l *orderedList) decides(values [][]byte) int {
	best := l.first(l.others, values, len(l.rules))
	for slot, rules := range l.byValue {
		if rules != nil && values[slot] != nil {
			best = l.first(rules[string(values[slot])], values, best)
		}
	}
	return best
}

// first returns the first index in list whose rule matches, or best if that is smaller or no rule matches. list is in ascending order.
func (l *orderedList) first(list []int, values [][]byte, best int) int {
	for _, i := range list {
		if i >= best {
			break
		}
		if l.rules[i].matches(values) {
			return i
		}
	}
	return best
}

// slot returns the slot of a key, and adds one if the key has none.
func (l *orderedList) slot(key string) int {
	if l.slots == nil {
		l.slots = make(map[string]int)
	}
	slot, known := l.slots[key]
	if !known {
		slot = len(l.slots)
		l.slots[key] = slot
		l.byValue = append(l.byValue, nil)
	}
	return slot
}

// index fills canaries, byValue and others when all rules are in the list. A rule goes under the one of its exact values that the
// fewest rules have.
func (l *orderedList) index() {
	type value struct {
		slot int
		text string
	}
	wanted := make(map[value]int)
	for i := range l.rules {
		for _, c := range l.rules[i].want {
			if c.kind == exactValue {
				wanted[value{c.slot, string(c.exact)}]++
			}
		}
	}
	for i := range l.rules {
		if l.rules[i].incomplete {
			continue
		}
		if l.rules[i].canary {
			l.canaries = append(l.canaries, i)
			continue
		}
		best, fewest := value{}, 0
		for _, c := range l.rules[i].want {
			v := value{c.slot, string(c.exact)}
			if n := wanted[v]; c.kind == exactValue && (fewest == 0 || n < fewest) {
				best, fewest = v, n
			}
		}
		if fewest == 0 {
			l.others = append(l.others, i)
			continue
		}
		if l.byValue[best.slot] == nil {
			l.byValue[best.slot] = make(map[string][]int)
		}
		l.byValue[best.slot][best.text] = append(l.byValue[best.slot][best.text], i)
	}
}

// unreachable returns the first rule before rule i that matches every request that rule i matches; ok is false if there is none. It
// searches the list with i's patterns as values: a `*` in a value is only matched by a `*` in a pattern.
func (l *orderedList) unreachable(i int, match []Pair, s *Scratch) (by int, ok bool) {
	entries := make([]Entry, len(match))
	for j, p := range match {
		entries[j] = Entry{[]byte(p.Key), []byte(p.Pattern)}
	}
	s.values = l.fill(s.values, entries)
	by = l.decides(s.values)
	return by, by < i
}
