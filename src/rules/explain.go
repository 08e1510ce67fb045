package rules

import (
	"slices"
	"strings"
)

// Walk is the search of one descriptor in a domain's rules, for people to read.
type Walk struct {
	// Steps are the levels of a tree in order, one for each entry, or word in a tree of limits, up to the first that has nothing for it.
	Steps []Step
	// Asked are the rules of an ordered list in order, up to the one that decides. At most 20 that do not match are listed; Unlisted
	// counts the others.
	Asked    []Asked
	Unlisted int
	Canaries []*Rule // what Find appends
	Rule     *Rule   // what Find returns
	End      End     // how the search ended
}

// End is how a search ended, in a word for programs.
type End string

const (
	EndRule    End = "rule"             // with a rule
	EndEmpty   End = "no_entries"       // the descriptor has no entries
	EndKey     End = "no_such_key"      // the level has no descriptor with the entry's key
	EndValue   End = "no_such_value"    // it has some, but none for the entry's value
	EndDeep    End = "rules_end_above"  // there are more entries than levels
	EndShort   End = "rules_are_deeper" // the descriptor has no limit, but there are descriptors below it
	EndNoLimit End = "no_rate_limit"    // the descriptor has no limit, and there are none below it
	EndNone    End = "no_rule_matches"  // no rule of an ordered list matches
)

// Asked is a rule of an ordered list and whether it matches.
type Asked struct {
	Rule    *Rule
	Matches bool
	// If it does not match, Unmet is the first pair for which the request has another value, or none.
	Unmet Pair
	Value []byte // nil: none
}

// Step is what one level has for one entry.
type Step struct {
	Entry Entry
	Word  bool // the step is a word of a path, which is the key of Entry
	// Candidates are the descriptors in the order in which they are tried: exact key and value, wildcards in file order, key alone.
	// Behind the one that was taken are only others that match too.
	Candidates []Candidate
	Taken      int // in Candidates; -1: none
	// Unlisted counts wildcards that do not match and are not in Candidates, which has at most 20 of these, and 40 in all.
	Unlisted int
	Siblings int // the number of keys on the level
	// If none was taken, Meant is the key (EndKey) or value (EndValue) that was probably meant, and Below the first descriptor with
	// the entry's key on a level below. Empty and nil if there is nothing like it.
	Meant string
	Below *Place
}

// Candidate is a descriptor that a step looks at.
type Candidate struct {
	Place
	How   How
	Tried bool // false: one before it was taken
	// Leads is the rule that the search would have ended at this way. It is set for candidates that match but were not taken, in a
	// search that ended without a rule.
	Leads *Rule

	node *node
}

// How is how a descriptor, or a condition of a rule, matches an entry.
type How uint8

const (
	Exact    How = iota // by key and value
	Wildcard            // by a `*` in either
	KeyAlone            // by the key, whatever the value
)

// String is a word for programs.
func (h How) String() string { return [...]string{"exact", "wildcard", "key"}[h] }

const (
	maxTried = 20     // how many wildcards that do not match a step lists
	maxMeant = 10_000 // how many names are compared with a misspelt one
	maxBelow = 10_000 // how many descriptors are searched for a key below
)

func (t *tree) explain(entries []Entry) *Walk {
	w := &Walk{End: EndEmpty, Steps: make([]Step, 0, min(len(entries), MaxDepth+1))}
	n := &t.root
	var joined []byte
	for i := range entries {
		if n.children == nil && i > 0 {
			w.End = EndDeep
			break
		}
		w.Steps = append(w.Steps, n.explain(&entries[i], &joined))
		step := &w.Steps[i]
		if step.Taken < 0 {
			w.End = n.missing(step)
			break
		}
		n = step.Candidates[step.Taken].node
		switch last := i == len(entries)-1; {
		case last && n.rule != nil:
			w.Rule, w.End = n.rule, EndRule
			return w
		case n.children == nil:
			w.End = EndNoLimit
		default:
			w.End = EndShort
		}
	}
	w.otherWays(entries, &joined)
	return w
}

// explain is child with a record of everything that it passes by.
func (n *node) explain(e *Entry, joined *[]byte) Step {
	s := Step{Entry: *e, Taken: -1}
	l := n.children
	if l == nil { // the root of an empty domain
		return s
	}
	s.Siblings = l.keys.len()
	k := l.keys.find(e.Key)
	if k != nil && len(e.Value) > 0 {
		if next := k.values.find(e.Value); next != nil {
			s.consider(next, Exact, true)
		}
	}
	if len(l.wildcards) > 0 {
		*joined = append(append(append((*joined)[:0], e.Key...), '_'), e.Value...)
		for i := range l.wildcards {
			w := &l.wildcards[i]
			// One that does not match is of interest if it may have been meant for this key.
			key := w.node.place().Key
			if matches := w.match(*joined); matches || key == string(e.Key) || strings.Contains(key, "*") {
				s.consider(w.node, Wildcard, matches)
			}
		}
	}
	if k != nil && k.any != nil {
		s.consider(k.any, KeyAlone, true)
	}
	return s
}

// consider adds a candidate, within the bounds.
func (s *Step) consider(next *node, how How, matches bool) {
	for i := range s.Candidates {
		// The text of a wildcard is also an exact value, and its key may be a key alone.
		if c := &s.Candidates[i]; c.node == next && (i == s.Taken || !c.Tried) {
			return
		}
	}
	tried := s.Taken < 0
	switch {
	case matches && tried:
		s.Taken = len(s.Candidates)
	case !tried && (!matches || len(s.Candidates) >= 2*maxTried):
		return
	case !matches && len(s.Candidates) >= maxTried:
		s.Unlisted++
		return
	}
	s.Candidates = append(s.Candidates, Candidate{Place: next.place(), How: how, Tried: tried, node: next})
}

// missing returns why n has nothing for the entry of s, and sets what may have been meant.
func (n *node) missing(s *Step) End {
	if n.children == nil {
		return EndKey
	}
	keys := &n.children.keys
	if k := keys.find(s.Entry.Key); k != nil {
		s.Meant = k.values.near(s.Entry.Value)
		return EndValue
	}
	s.Meant, s.Below = keys.near(s.Entry.Key), n.below(string(s.Entry.Key))
	return EndKey
}

// near returns the name that was probably meant; empty if there is none, or too much to search.
func (t *table[V]) near(name []byte) string {
	if t.len() > maxMeant {
		return ""
	}
	names := make([]string, 0, t.len())
	for name := range t.all() {
		names = append(names, name)
	}
	return Near(string(name), slices.Values(names))
}

// below is the first descriptor in file order that has the key, below a child of n; nil if there is none, or too much to search.
func (n *node) below(key string) (first *Place) {
	left := maxBelow
	var search func(n *node, depth int)
	search = func(n *node, depth int) {
		if n.children == nil {
			return
		}
		for name, k := range n.children.keys.all() {
			for next := range k.nodes() {
				if left--; left < 0 {
					return
				}
				if at := next.place(); name == key && depth > 0 && (first == nil || at.compare(first.Pos) < 0) {
					first = &at
				}
				search(next, depth+1)
			}
		}
	}
	search(n, 0)
	if left < 0 {
		return nil // else it would be another one each time
	}
	return first
}

// otherWays finds where candidates would have led that match but were not taken.
func (w *Walk) otherWays(entries []Entry, joined *[]byte) {
	for i := range w.Steps {
		s := &w.Steps[i]
		if s.Taken < 0 {
			return
		}
		for j := s.Taken + 1; j < len(s.Candidates); j++ {
			n := s.Candidates[j].node
			for e := i + 1; e < len(entries) && n != nil; e++ {
				n = n.child(&entries[e], joined)
			}
			if n != nil {
				s.Candidates[j].Leads = n.rule
			}
		}
	}
}

// explain asks one rule after the other.
func (l *orderedList) explain(entries []Entry) *Walk {
	w := &Walk{End: EndNone}
	values := l.fill(nil, entries)
	missed := 0
	for i := range l.rules {
		r := &l.rules[i]
		a := Asked{Rule: r.rule}
		unmet := slices.IndexFunc(r.want, func(c condition) bool { return !c.matches(values[c.slot]) })
		if a.Matches = unmet < 0; !a.Matches {
			a.Unmet, a.Value = r.rule.Listed.Match[unmet], values[r.want[unmet].slot]
			if missed++; missed > maxTried {
				w.Unlisted++
				continue
			}
		}
		w.Asked = append(w.Asked, a)
		if !a.Matches {
			continue
		}
		if w.Rule != nil {
			w.Canaries = append(w.Canaries, w.Rule)
		}
		w.Rule, w.End = r.rule, EndRule
		if !r.canary {
			break
		}
	}
	return w
}

func (t *wordTree) explain(entries []Entry) *Walk {
	w := &Walk{End: EndShort}
	if len(entries) == 0 {
		w.End = EndEmpty
	}
	n := &t.root
	for word := range words(entries) {
		s := n.explain(word)
		w.Steps = append(w.Steps, s)
		if s.Taken < 0 {
			w.End = EndKey
			break
		}
		n = n.next(word)
	}
	if w.Rule = n.rule; w.Rule != nil {
		w.End = EndRule
	}
	return w
}

// explain is the step from n by a word.
func (n *wordNode) explain(word []byte) Step {
	s := Step{Entry: Entry{Key: word}, Word: true, Taken: -1, Siblings: n.children.len()}
	named := n.children.find(word)
	if named != nil {
		s.Taken = 0
		s.Candidates = append(s.Candidates, Candidate{Place: Place{Pos: named.place, Key: string(word)}, How: Exact, Tried: true})
	}
	if n.other != nil {
		s.Siblings++
		s.Taken = 0
		s.Candidates = append(s.Candidates, Candidate{Place: Place{Pos: n.other.place, Key: "*"}, How: Wildcard, Tried: named == nil})
	}
	if s.Taken < 0 {
		s.Meant = n.children.near(word)
	}
	return s
}
