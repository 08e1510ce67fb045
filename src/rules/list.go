package rules

import (
	"bytes"
	"slices"
	"strings"
)

// orderedList is an ordered list of rules: the first that matches decides. The entries of a descriptor are a set to it; of equal keys
// the last one counts.
//
// Values are looked up once, into slots, so a request costs time for its entries plus the rules, not for their product. Rules that
// want an exact value are found by it.
type orderedList struct {
	slots    map[string]int // of each key that some rule wants
	rules    []orderedRule  // in order
	canaries []int          // asked one by one
	// Rules that decide are found by one of their exact values, for each slot, or are among the others.
	byValue []map[string][]int
	others  []int
}

type orderedRule struct {
	rule       *Rule // nil: it has a problem
	want       []condition
	canary     bool
	incomplete bool // want is not all that was written
}

// Pair is a key that a request must have and the pattern of its value: `*` for any value, also an empty one, a text with `*` for any
// bytes, or the value itself.
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

// PatternMatches reports whether value matches the pattern of a Pair. No pattern matches nil, which is no value.
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

// empty is the value of an entry without one; nil is no entry.
var empty = []byte{}

// fill puts the values of entries into the slots.
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

// decides returns the first rule that matches and is no canary; the number of rules if there is none.
func (l *orderedList) decides(values [][]byte) int {
	best := l.first(l.others, values, len(l.rules))
	for slot, rules := range l.byValue {
		if rules != nil && values[slot] != nil {
			best = l.first(rules[string(values[slot])], values, best)
		}
	}
	return best
}

// first returns the first of list that matches, or best if that is smaller.
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

// slot is the place of a key's value.
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

// index makes the list searchable once all rules are in it. A rule that decides is kept under the exact value that the fewest rules
// want.
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

// masked returns the rule before i that takes all that i would match, if there is one. A `*` of a later pattern can only be matched by
// a `*` of an earlier one, so a rule that matches the later patterns as values matches all that they do.
func (l *orderedList) masked(i int, match []Pair, s *Scratch) (by int, ok bool) {
	entries := make([]Entry, len(match))
	for j, p := range match {
		entries[j] = Entry{[]byte(p.Key), []byte(p.Pattern)}
	}
	s.values = l.fill(s.values, entries)
	by = l.decides(s.values)
	return by, by < i
}
