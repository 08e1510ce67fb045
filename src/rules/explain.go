package rules

import (
	"slices"
	"strings"
)

// Walk records how Find searched a domain for one descriptor. Its JSON tags are those of explain's report.
type Walk struct {
	// Steps are the levels of a tree in order: one for each entry, or for each word in a tree of limits. The last step may have
	// found nothing. Empty for an ordered list.
	Steps []Step
	// Tried are the rules of an ordered list in order, up to the one that decides. It has at most 20 rules that do not match;
	// Unlisted counts the others.
	Tried    []TriedRule
	Unlisted int
	Canaries []*Rule // the canaries that Find appends
	Rule     *Rule   // the rule that Find returns; nil for none
	End      End     // why the search ended
}

// End is why a search ended.
type End string

const (
	EndRule    End = "rule"             // it found a rule
	EndEmpty   End = "no_entries"       // the descriptor has no entries
	EndKey     End = "no_such_key"      // the level has no descriptor with the entry's key
	EndValue   End = "no_such_value"    // the level has the key, but not with the entry's value
	EndDeep    End = "rules_end_above"  // the request has more entries than the tree has levels
	EndShort   End = "rules_are_deeper" // the descriptor has no limit, but descriptors below it
	EndNoLimit End = "no_rate_limit"    // the descriptor has no limit and no descriptors below it
	EndNone    End = "no_rule_matches"  // no rule of an ordered list matches
)

// Outcome is what the search did with a descriptor or rule.
type Outcome string

const (
	Taken   Outcome = "taken"    // the search went on below this descriptor
	Behind  Outcome = "behind"   // the descriptor matches, but the search had taken an earlier one
	NoMatch Outcome = "no_match" // the descriptor or rule does not match
	Decides Outcome = "decides"  // the rule of an ordered list answers
	Canary  Outcome = "canary"   // the rule of an ordered list is charged, and another one answers
)

// TriedRule is a rule of an ordered list that the search tried.
type TriedRule struct {
	Rule    string  `json:"rule"` // its Key
	At      string  `json:"at"`   // its Pos
	Outcome Outcome `json:"outcome"`
	// If the rule does not match, Key and Pattern are its first pair that the request does not match.
	Key     string  `json:"key,omitempty"`
	Pattern string  `json:"pattern,omitempty"`
	Value   *string `json:"value,omitempty"` // the request's value for Key; nil if it has none
}

// EntryText is an Entry as text.
type EntryText struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// Text returns e as text.
func (e Entry) Text() EntryText { return EntryText{string(e.Key), string(e.Value)} }

// Step is the search of one level for one entry.
type Step struct {
	Entry EntryText `json:"entry"`
	Word  bool      `json:"word,omitempty"` // the level is one of a tree of limits, and Entry.Key is the word
	// Candidates are in the order in which the search tries them: exact key and value, wildcards in file order, key alone. Those
	// behind the taken one all match.
	Candidates []Candidate `json:"candidates"`
	// Unlisted counts wildcards that do not match and are not in Candidates: it has at most 20 of these, and at most 40 in all.
	Unlisted int `json:"unlisted"`
	Taken    int `json:"-"` // the index of the taken candidate; -1 for none
	Siblings int `json:"-"` // the number of keys on the level
	// Meant is a suggestion if no candidate matched: the similar key (EndKey) or value (EndValue) that the caller probably
	// meant. It is empty if none is similar.
	Meant string `json:"-"`
	// Below is the first descriptor on a lower level that has the entry's key. It is set with EndKey; nil for none.
	Below *Place `json:"-"`
}

// Candidate is a descriptor that the search compared with an entry.
type Candidate struct {
	Key     string  `json:"key"`
	Value   string  `json:"value"` // empty: any value
	At      string  `json:"at"`    // file:line:col
	How     How     `json:"how"`
	Outcome Outcome `json:"outcome"`
	// Leads is the key of the rule that the search would have found through this candidate. It is set only if the candidate is
	// Behind and the search found no rule.
	Leads string `json:"leads,omitempty"`

	node *node
}

func newCandidate(at Place, how How, outcome Outcome) Candidate {
	return Candidate{Key: at.Key, Value: at.Value, At: at.Pos.String(), How: how, Outcome: outcome}
}

// How is the way in which a descriptor is compared with an entry.
type How string

const (
	Exact    How = "exact"    // key and value are equal
	Wildcard How = "wildcard" // key_value matches a pattern with `*`
	KeyAlone How = "key"      // the key is equal; the value does not matter
)

const (
	maxUnmatched  = 20     // most candidates or rules listed that do not match
	maxSuggested  = 10_000 // most names compared with a misspelt one
	maxBelowNodes = 10_000 // most descriptors searched for a key on lower levels
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
	w.setLeads(entries, &joined)
	return w
}

// explain returns the search of the level below n for an entry. It takes the node that child returns.
func (n *node) explain(e *Entry, joined *[]byte) Step {
	s := Step{Entry: e.Text(), Candidates: []Candidate{}, Taken: -1}
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

// consider adds next as a candidate, unless it is there already or the lists are full. The first one that matches is taken.
func (s *Step) consider(next *node, how How, matches bool) {
	for i := range s.Candidates {
		// The text of a wildcard is also an exact value, and its key may be a key alone.
		if c := &s.Candidates[i]; c.node == next && c.Outcome != NoMatch {
			return
		}
	}
	outcome := NoMatch
	switch {
	case matches && s.Taken < 0:
		outcome, s.Taken = Taken, len(s.Candidates)
	case s.Taken >= 0:
		if !matches || len(s.Candidates) >= 2*maxUnmatched {
			return
		}
		outcome = Behind
	case len(s.Candidates) >= maxUnmatched:
		s.Unlisted++
		return
	}
	c := newCandidate(next.place(), how, outcome)
	c.node = next
	s.Candidates = append(s.Candidates, c)
}

// missing returns why the level below n has no descriptor for the entry of s. It sets Meant and Below of s.
func (n *node) missing(s *Step) End {
	if n.children == nil {
		return EndKey
	}
	keys := &n.children.keys
	if k := keys.find([]byte(s.Entry.Key)); k != nil {
		s.Meant = k.values.near(s.Entry.Value)
		return EndValue
	}
	s.Meant, s.Below = keys.near(s.Entry.Key), n.below(s.Entry.Key)
	return EndKey
}

// near returns the name in t that a caller probably meant by name; empty if none is near or t has over 10,000 names.
func (t *table[V]) near(name string) string {
	if t.len() > maxSuggested {
		return ""
	}
	names := make([]string, 0, t.len())
	for name := range t.all() {
		names = append(names, name)
	}
	return Near(name, slices.Values(names))
}

// below returns the first descriptor in file order that has the key and is at least two levels below n. It returns nil if there is
// none, or if over 10,000 descriptors would have to be searched.
func (n *node) below(key string) (first *Place) {
	left := maxBelowNodes
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
		return nil // maps have no order, so the first 10,000 differ from call to call
	}
	return first
}

// setLeads sets Leads of the candidates that are Behind.
func (w *Walk) setLeads(entries []Entry, joined *[]byte) {
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
			if n != nil && n.rule != nil {
				s.Candidates[j].Leads = n.rule.Key
			}
		}
	}
}

func (l *orderedList) explain(entries []Entry) *Walk {
	w := &Walk{Steps: []Step{}, End: EndNone}
	values := l.fill(nil, entries)
	unmatched := 0
	decides := -1 // the index in w.Tried of w.Rule
	for i := range l.rules {
		r := &l.rules[i]
		tried := TriedRule{Rule: r.rule.Key, At: r.rule.Pos.String(), Outcome: Decides}
		failed := slices.IndexFunc(r.want, func(c condition) bool { return !c.matches(values[c.slot]) })
		if failed >= 0 {
			if unmatched++; unmatched > maxUnmatched {
				w.Unlisted++
				continue
			}
			tried.Outcome = NoMatch
			tried.Key, tried.Pattern = r.rule.Listed.Match[failed].Key, r.rule.Listed.Match[failed].Pattern
			if value := values[r.want[failed].slot]; value != nil {
				tried.Value = new(string(value))
			}
			w.Tried = append(w.Tried, tried)
			continue
		}
		if w.Rule != nil {
			w.Canaries = append(w.Canaries, w.Rule)
			w.Tried[decides].Outcome = Canary
		}
		decides = len(w.Tried)
		w.Tried = append(w.Tried, tried)
		w.Rule, w.End = r.rule, EndRule
		if !r.canary {
			break
		}
	}
	return w
}

func (t *wordTree) explain(entries []Entry) *Walk {
	w := &Walk{Steps: []Step{}, End: EndShort}
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

// explain returns the search of the level below n for a word.
func (n *wordNode) explain(word []byte) Step {
	s := Step{Entry: EntryText{Key: string(word)}, Word: true, Candidates: []Candidate{}, Taken: -1, Siblings: n.children.len()}
	outcome := Taken
	if named := n.children.find(word); named != nil {
		s.Candidates = append(s.Candidates, newCandidate(Place{Pos: named.place, Key: string(word)}, Exact, outcome))
		s.Taken, outcome = 0, Behind
	}
	if n.other != nil {
		s.Candidates = append(s.Candidates, newCandidate(Place{Pos: n.other.place, Key: "*"}, Wildcard, outcome))
		s.Taken = 0
		s.Siblings++
	}
	if s.Taken < 0 {
		s.Meant = n.children.near(string(word))
	}
	return s
}
