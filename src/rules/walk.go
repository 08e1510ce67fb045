package rules

import (
	"fmt"
	"iter"
	"strings"
)

// Walk is the way of one descriptor through a domain's rules, for people to
// read. A request in service takes Find, or Meet.
type Walk struct {
	// Steps are the levels of a tree in order, one for each entry, in a tree of
	// limits for each word, up to the first for which nothing was there.
	Steps []Step
	// Asked are the rules of an ordered list in order, up to the one that
	// decides. Of those that do not match there are at most 20; Unlisted counts
	// the others.
	Asked    []Asked
	Unlisted int
	// Canaries are what Meet appends.
	Canaries []*Rule
	// Rule is what Find returns.
	Rule *Rule
	// End says how the walk ended: with a Rule, or why there is none.
	End End
}

// End is how a walk ended.
type End uint8

const (
	// EndRule: the last entry landed on a rule.
	EndRule End = iota
	// EndEmpty: the descriptor has no entries.
	EndEmpty
	// EndKey: the level has no descriptor with the entry's key.
	EndKey
	// EndValue: it has some, but none for the entry's value.
	EndValue
	// EndDeep: there are entries left, and no descriptors below the last one.
	EndDeep
	// EndShort: the last entry landed on a descriptor that has no limit of its
	// own, only descriptors below it.
	EndShort
	// EndNoLimit: nor has it those.
	EndNoLimit
	// EndNone: no rule of an ordered list matches.
	EndNone
)

// String is a word for programs.
func (e End) String() string {
	switch e {
	case EndRule:
		return "rule"
	case EndEmpty:
		return "no_entries"
	case EndKey:
		return "no_such_key"
	case EndValue:
		return "no_such_value"
	case EndDeep:
		return "rules_end_above"
	case EndShort:
		return "rules_are_deeper"
	case EndNoLimit:
		return "no_rate_limit"
	case EndNone:
		return "no_rule_matches"
	}
	return fmt.Sprintf("end %d", uint8(e))
}

// Asked is a rule of an ordered list that was asked whether it matches.
type Asked struct {
	Rule    *Rule
	Matches bool
	// If it does not, Unmet is the first pair for which the request has another
	// value, or none.
	Unmet Pair
	Value []byte // nil: none
}

// Step is what one level had for one entry.
type Step struct {
	Entry Entry
	// Word says that it is one of the words of a path, which is the key of Entry.
	Word bool
	// Candidates are the descriptors that come into question, in the order in
	// which they are tried: the exact key and value, wildcards in file order, the
	// key alone. Behind the one that was taken stand only those that match, too.
	Candidates []Candidate
	// Taken is the place in Candidates of the one that was taken; -1: none.
	Taken int
	// Unlisted counts the wildcards that were tried, did not match and are not in
	// Candidates, which has at most 20 of those, and of all at most 40.
	Unlisted int
	// Siblings counts the keys of the level.
	Siblings int
	// Where none was taken, Meant is the key (EndKey) or the value (EndValue) of
	// the level that was probably meant, and Below the first descriptor with the
	// entry's key further down; empty and nil if there is nothing like it.
	Meant string
	Below *Candidate
}

// Candidate is a descriptor that a step came to.
type Candidate struct {
	Pos
	Key   string // as configured
	Value string // empty: any value
	How   How
	// Tried says that it was asked; it was not if the one taken stands before it.
	Tried bool
	// Leads is the rule that the walk would have ended at this way. It is only
	// looked for where it matters: at candidates that match but were not taken,
	// in a walk that ended without a rule.
	Leads *Rule

	node *node
}

// How says by what a candidate comes into question.
type How uint8

const (
	// Exact: by key and value.
	Exact How = iota
	// Wildcard: by a `*` in either.
	Wildcard
	// KeyAlone: by the key; it has no value.
	KeyAlone
)

// String is a word for programs.
func (h How) String() string {
	switch h {
	case Exact:
		return "exact"
	case Wildcard:
		return "wildcard"
	case KeyAlone:
		return "key"
	}
	return fmt.Sprintf("how %d", uint8(h))
}

const (
	// maxTried bounds the wildcards without a match that a step lists.
	maxTried = 20
	// maxMeant names are looked at on one level for the one that was meant.
	maxMeant = 10_000
	// maxBelow descriptors are looked at for one that has the entry's key.
	maxBelow = 10_000
)

// Explain goes the way of Find and notes what was there. It does more than Find
// on every level, and allocates; a fuzz target holds the two to each other.
func (d *Domain) Explain(entries []Entry) *Walk {
	if d.list != nil {
		return d.list.explain(entries)
	}
	if d.words != nil {
		return d.words.explain(entries)
	}
	w := &Walk{Steps: make([]Step, 0, min(len(entries), MaxDepth+1))}
	n := &d.root
	var joined []byte
	for i := range entries {
		if n.leaf() && i > 0 {
			w.End = EndDeep
			break
		}
		step := n.explain(&entries[i], &joined)
		w.Steps = append(w.Steps, step)
		if step.Taken < 0 {
			w.End = n.missing(&w.Steps[i])
			break
		}
		n = step.Candidates[step.Taken].node
		if i == len(entries)-1 {
			w.Rule = n.rule
		}
	}
	switch {
	case w.Rule != nil || w.End != EndRule:
	case len(entries) == 0:
		w.End = EndEmpty
	case n.leaf():
		w.End = EndNoLimit
	default:
		w.End = EndShort
	}
	if w.Rule == nil {
		w.otherWays(entries, &joined)
	}
	return w
}

// explain asks one rule after the other.
func (l *orderedList) explain(entries []Entry) *Walk {
	w := &Walk{End: EndNone}
	values := l.fill(nil, entries)
	missed := 0
	for i := range l.rules {
		r := &l.rules[i]
		a := Asked{Rule: r.rule, Matches: true}
		for j := range r.want {
			if value := values[r.want[j].slot]; a.Matches && !r.want[j].met(value) {
				a.Matches, a.Unmet, a.Value = false, r.rule.Listed.Match[j], value
			}
		}
		if !a.Matches {
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

// leaf reports whether there are no descriptors below n.
func (n *node) leaf() bool { return n.children == nil }

// explain is child, with all that child passes by.
func (n *node) explain(e *Entry, joined *[]byte) Step {
	s := Step{Entry: *e, Taken: -1}
	l := n.children
	if l == nil { // the root of an empty domain
		return s
	}
	s.Siblings = l.keys.len()
	consider := func(next *node, how How, matches bool) {
		for i := range s.Candidates {
			// A wildcard's own text is an exact value, too, and its key a key alone.
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
		at := next.place()
		s.Candidates = append(s.Candidates, Candidate{
			Pos: at.Pos, Key: at.key, Value: at.value, How: how, Tried: tried, node: next,
		})
	}
	k := l.keys.find(e.Key)
	if k != nil && len(e.Value) > 0 {
		if next := k.values.find(e.Value); next != nil {
			consider(next, Exact, true)
		}
	}
	if len(l.wildcards) > 0 {
		*joined = append(append(append((*joined)[:0], e.Key...), '_'), e.Value...)
		for i := range l.wildcards {
			w := &l.wildcards[i]
			if matches := w.match(*joined); matches || concerns(w.node.place().key, e.Key) {
				consider(w.node, Wildcard, matches)
			}
		}
	}
	if k != nil && k.any != nil {
		consider(k.any, KeyAlone, true)
	}
	return s
}

// concerns reports whether a wildcard with that key, in which a `*` may stand, may have
// been meant for entries with the key of a request.
func concerns(wildcard string, key []byte) bool {
	return wildcard == string(key) || strings.Contains(wildcard, "*")
}

// missing says why n has nothing for the entry of s, and what may have been
// meant.
func (n *node) missing(s *Step) End {
	if n.children == nil {
		return EndKey
	}
	keys := &n.children.keys
	if k := keys.find(s.Entry.Key); k != nil {
		if k.values.len() <= maxMeant {
			s.Meant = Near(string(s.Entry.Value), k.values.names())
		}
		return EndValue
	}
	if keys.len() <= maxMeant {
		s.Meant = Near(string(s.Entry.Key), keys.names())
	}
	left := maxBelow
	s.Below = n.below(string(s.Entry.Key), &left)
	return EndKey
}

// below is the first descriptor in file order that has the key, under one of
// those of n; nil if it has none, or is too large to look at.
func (n *node) below(key string, left *int) (first *Candidate) {
	take := func(next *node) {
		if at := next.place(); first == nil || at.before(first.Pos) {
			first = &Candidate{Pos: at.Pos, Key: at.key, Value: at.value, node: next}
		}
	}
	var look func(n *node, depth int)
	look = func(n *node, depth int) {
		if n.children == nil {
			return
		}
		for name, k := range n.children.keys.all() {
			for next := range k.nodes() {
				if *left--; *left < 0 {
					return
				}
				if name == key && depth > 0 {
					take(next)
				}
				look(next, depth+1)
			}
		}
	}
	look(n, 0)
	if *left < 0 {
		return nil // else it would be another one each time
	}
	return first
}

// before reports whether p stands before other in the order of the files.
func (p place) before(other Pos) bool {
	if p.File != other.File {
		return p.File < other.File
	}
	return p.Line < other.Line || p.Line == other.Line && p.Col < other.Col
}

// nodes are all descriptors of the key, in no order.
func (k *keyed) nodes() iter.Seq[*node] {
	return func(yield func(*node) bool) {
		if k.any != nil && !yield(k.any) {
			return
		}
		for _, next := range k.values.all() {
			if !yield(next) {
				return
			}
		}
	}
}

// otherWays finds out where the candidates would have led that match but were
// not taken.
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
