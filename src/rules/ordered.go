package rules

import (
	"bytes"
	"slices"
)

// Pair is a key and the pattern that its value has to match: `*` for any value,
// also an empty one, a text with `*` in it that stands for any bytes, or else
// the value itself. The key has to be there in any case.
type Pair struct {
	Key, Pattern string
}

// orderedList is the rules of a domain that stand in an order: the first that
// matches decides. A descriptor is a set to it; of equal keys the last counts.
//
// Values are looked up once, into slots, so that what a request costs grows with
// its entries plus the rules, not with their product. Rules that ask for a value
// itself are found by it: see add.
type orderedList struct {
	slots map[string]int // of each key that some rule asks for
	rules []orderedRule  // in order
	// canaries, in shadow mode, are asked one by one, those that decide only if
	// they can match: they are in byValue, of a slot, or among the others.
	canaries []int
	byValue  []map[string][]int
	others   []int
}

type orderedRule struct {
	rule   *Rule // nil: what is wrong with it was noted
	want   []condition
	canary bool
	bad    bool // what it matches is not what was written
}

// condition is a Pair, compiled.
type condition struct {
	slot  int
	how   How
	exact []byte
	glob  pattern
}

// PatternMatches reports whether value matches the pattern of a Pair; nil is no value, which no pattern matches.
func PatternMatches(pattern string, value []byte) bool {
	c := newCondition(0, pattern)
	return c.met(value)
}

// met reports whether value, nil for none, is as c wants it.
func (c *condition) met(value []byte) bool {
	switch {
	case value == nil:
		return false
	case c.how == KeyAlone:
		return true
	case c.how == Exact:
		return bytes.Equal(value, c.exact)
	}
	return c.glob.match(value)
}

func (r *orderedRule) matches(values [][]byte) bool {
	for i := range r.want {
		if c := &r.want[i]; !c.met(values[c.slot]) {
			return false
		}
	}
	return true
}

// empty is the value of an entry that has none: nil is no entry.
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

// decides returns the first rule that decides, canaries passed over; the number
// of rules if none does.
func (l *orderedList) decides(values [][]byte) int {
	best := l.first(l.others, values, len(l.rules))
	for slot, rules := range l.byValue {
		if rules != nil && values[slot] != nil {
			best = l.first(rules[string(values[slot])], values, best)
		}
	}
	return best
}

// first is the first of list that matches, if it stands before best.
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

// find returns the rule that answers, nil for none, and appends the canaries
// before it. Where none decides, the last canary answers.
func (l *orderedList) find(values [][]byte, canaries []*Rule) (*Rule, []*Rule) {
	best := l.decides(values)
	var last *Rule
	for _, i := range l.canaries {
		if i > best {
			break
		}
		if !l.rules[i].matches(values) {
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

// index makes the list ready, once all rules are in it. Each that decides is
// kept under that value it asks for which the fewest others do.
func (l *orderedList) index() {
	type value struct {
		slot int
		text string
	}
	asked := make(map[value]int)
	for i := range l.rules {
		for _, c := range l.rules[i].want {
			if c.how == Exact {
				asked[value{c.slot, string(c.exact)}]++
			}
		}
	}
	for i := range l.rules {
		if l.rules[i].bad {
			continue
		}
		if l.rules[i].canary {
			l.canaries = append(l.canaries, i)
			continue
		}
		best, fewest := value{}, 0
		for _, c := range l.rules[i].want {
			v := value{c.slot, string(c.exact)}
			if n := asked[v]; c.how == Exact && (fewest == 0 || n < fewest) {
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

// masked returns the rule before i that takes all that i would match, if there
// is one. A `*` of a later pattern can only be taken up by one of an earlier
// pattern, so a rule that matches the later patterns as if they were values
// matches all that they do, and no other does.
func (l *orderedList) masked(i int, match []Pair, values *[][]byte) (by int, ok bool) {
	as := make([]Entry, len(match))
	for j, p := range match {
		as[j] = Entry{[]byte(p.Key), []byte(p.Pattern)}
	}
	*values = l.fill(*values, as)
	by = l.decides(*values)
	return by, by < i
}
