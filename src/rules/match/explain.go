package match

import (
	"slices"
	"strings"

	"ratelimit/src/rules"
)

// Explain searches like Domain.FindRule and returns a record of the search for people. It is slower than FindRule and
// allocates.
func Explain(d *rules.Domain, entries []rules.Entry) *Record {
	return ExplainWithin(d, entries, new(rules.SearchScratch))
}

// ExplainWithin is Explain within the bounds of s.Begin. The record is not valid if s.Err then returns an error. A
// search for people takes more work than FindRule, because it compares descriptors behind the one that matches, too.
func ExplainWithin(d *rules.Domain, entries []rules.Entry, s *rules.SearchScratch) *Record {
	return d.Matcher.(explainer).explain(entries, s)
}

// explainer is what all matchers of this package are.
type explainer interface {
	explain(entries []rules.Entry, scratch *rules.SearchScratch) *Record
}

// Record records how FindRule searched a domain for one descriptor. Its JSON tags are those of explain's report.
type Record struct {
	// Steps are the levels of a tree in order: one for each entry, or for each word in a tree of limits. The last step may
	// have found nothing. An ordered list has no Steps.
	Steps []Step
	// TriedRules are the rules of an ordered list in order, up to the one that decides. At most 20 of them do not match;
	// UnlistedCount counts the others that do not.
	TriedRules      []TriedRule
	UnlistedCount   int
	ChargedCanaries []*rules.Match // those that FindRule appends
	// HoldIDKey is the key of the entry that names a hold. It is set with EndReasonWrongHold, and with
	// EndReasonTooManyEntries if the rule where the rules end has holds.
	HoldIDKey string
	Found     *rules.Match // the result of FindRule; nil for no rule
	EndReason EndReason
}

// EndReason tells why a search ended.
type EndReason string

const (
	EndReasonRuleFound EndReason = "rule"        // The search found a rule.
	EndReasonNoEntries EndReason = "no_entries"  // The descriptor has no entries.
	EndReasonNoSuchKey EndReason = "no_such_key" // The level has no descriptor with the entry's key.
	// The level has the entry's key, but not with the entry's value.
	EndReasonNoSuchValue    EndReason = "no_such_value"
	EndReasonTooManyEntries EndReason = "rules_end_above"  // The request has more entries than the tree has levels.
	EndReasonTooFewEntries  EndReason = "rules_are_deeper" // The last descriptor has no limit, but descriptors below it.
	// The last descriptor has neither a limit nor descriptors below it.
	EndReasonNoRateLimit EndReason = "no_rate_limit"
	// The last entries are about a hold, but not as Match.HoldOf needs them.
	EndReasonWrongHold     EndReason = "wrong_hold"
	EndReasonNoRuleMatches EndReason = "no_rule_matches" // No rule of the ordered list matches.
)

// CandidateOutcome is what the search did with a descriptor or rule.
type CandidateOutcome string

const (
	OutcomeSearchedBelow CandidateOutcome = "taken"    // The search went on below this descriptor.
	OutcomeEarlierTaken  CandidateOutcome = "behind"   // The descriptor matches, but the search had taken an earlier one.
	OutcomeNoMatch       CandidateOutcome = "no_match" // The descriptor or rule does not match.
	OutcomeRuleDecides   CandidateOutcome = "decides"  // The rule of an ordered list decides the request.
	OutcomeCanaryCharged CandidateOutcome = "canary"   // The rule of an ordered list is charged, and another rule decides.
)

// TriedRule is a rule of an ordered list that the search tried.
type TriedRule struct {
	RuleName string           `json:"rule"` // the FullName of the rule
	Position string           `json:"at"`   // the position of the rule as file:line:col
	Outcome  CandidateOutcome `json:"outcome"`
	// If the rule does not match, FailedKey and FailedPattern are its first pair that the request does not match, and
	// RequestValue is the request's value for FailedKey; nil if the request has no such key.
	FailedKey     string  `json:"key,omitempty"`
	FailedPattern string  `json:"pattern,omitempty"`
	RequestValue  *string `json:"value,omitempty"`
}

// Step is the search of one level for one entry.
type Step struct {
	Entry  rules.EntryText `json:"entry"`
	IsWord bool            `json:"word,omitempty"` // set in a tree of limits, where Entry.Key is the word
	// Candidates are in the order in which the search tries them: exact key and value, files in file order, networks from
	// the longest, regular expressions and then wildcards in file order, key alone. All candidates behind the taken one
	// match.
	Candidates []Candidate `json:"candidates"`
	// UnlistedCount counts descriptors that do not match and are not in Candidates, which has at most 20 of these, and at
	// most 40 in all.
	UnlistedCount int `json:"unlisted"`
	TakenIndex    int `json:"-"` // the index of the taken candidate; -1 for none
	LevelKeyCount int `json:"-"` // the number of keys on the level
	// SuggestedText is the known key (EndReasonNoSuchKey) or value (EndReasonNoSuchValue) that the caller probably meant;
	// empty if none is similar.
	SuggestedText string `json:"-"`
	// SameKeyBelow is the first descriptor on a lower level that has the entry's key. It is set with EndReasonNoSuchKey;
	// nil for none.
	SameKeyBelow *DescriptorPlace `json:"-"`
}

// Candidate is a descriptor that the search compared with an entry.
type Candidate struct {
	Key       string           `json:"key"`
	Value     string           `json:"value"` // empty if the descriptor matches any value
	Position  string           `json:"at"`    // the position as file:line:col
	MatchKind MatchKind        `json:"how"`
	Outcome   CandidateOutcome `json:"outcome"`
	Reason    MatchReason      `json:"why,omitempty"`  // empty if there is nothing to say
	DataLine  string           `json:"line,omitempty"` // the line of the value in a data file, as file:line
	// LeadsToRule is the name of the rule that the search would have found through this candidate. It is set only if the
	// candidate has OutcomeEarlierTaken and the search found no rule.
	LeadsToRule string `json:"leads,omitempty"`

	node *Node // nil in a tree of limits
}

func newCandidate(at DescriptorPlace, how MatchKind, outcome CandidateOutcome, n *Node) Candidate {
	return Candidate{Key: at.Key, Value: at.Value, Position: at.Pos.String(), MatchKind: how, Outcome: outcome, node: n}
}

// MatchKind is the way in which a descriptor is compared with an entry.
type MatchKind string

const (
	MatchExact      MatchKind = "exact"       // compares key and value for equality.
	MatchCIDR       MatchKind = "cidr"        // compares the value, an address, with networks.
	MatchRegex      MatchKind = "regex"       // compares the value with a regular expression.
	MatchValuesFrom MatchKind = "values_from" // searches the value in a file.
	MatchLimitsFrom MatchKind = "limits_from" // searches the value in a file of values and limits.
	MatchWildcard   MatchKind = "wildcard"    // compares "key_value" with a pattern.
	MatchKeyAlone   MatchKind = "key"         // compares the key for equality and ignores the value.
	MatchHoldID     MatchKind = "hold_id"     // compares the key with the hold_id of the level above.
	MatchHold       MatchKind = "hold"        // compares the entry with hold=settle and hold=release.
)

// MatchReason tells more about a comparison.
type MatchReason string

const (
	WhyNotAddress      MatchReason = "not_an_address"   // true if the value is not an IP address.
	WhyOutsideNetworks MatchReason = "outside_networks" // true if the address is in none of the networks.
	WhyNotInFile       MatchReason = "not_in_file"      // true if the value is not in the file.
	WhyValueCut        MatchReason = "value_cut"        // true if only the first MaxRegexValue bytes were compared.
)

const (
	maxUnmatchedRulesListed = 20     // the most candidates, or rules, listed that do not match.
	maxComparedNames        = 10_000 // the most names that are compared with a misspelt one.
	maxSearchedBelow        = 10_000 // the most descriptors searched for a key on lower levels.
)

func (t *Tree) explain(entries []rules.Entry, scratch *rules.SearchScratch) *Record {
	search := &Record{EndReason: EndReasonNoEntries, Steps: make([]Step, 0, min(len(entries), rules.MaxTreeDepth+1))}
	n := &t.Root
	for i := range entries {
		if n.AcceptsHolds && n.Match.AcceptsBelow(entries[i:]) {
			search.addHoldSteps(n.Match, entries[i:])
			return search
		}
		if n.AcceptsHolds && n.matchingChild(&entries[i], scratch) == nil {
			if n.Match.LacksHoldName(entries[i:]) {
				search.addHoldSteps(n.Match, entries[i:])
				return search
			}
			if key := string(entries[i].Key); key == n.Match.HoldIDKey || key == rules.HoldActionKey {
				search.EndReason, search.HoldIDKey = EndReasonWrongHold, n.Match.HoldIDKey
				break
			}
		}
		if n.Children == nil && i > 0 {
			search.EndReason = EndReasonTooManyEntries
			if n.AcceptsHolds {
				search.HoldIDKey = n.Match.HoldIDKey
			}
			break
		}
		search.Steps = append(search.Steps, n.explainStep(&entries[i], scratch))
		step := &search.Steps[i]
		if step.TakenIndex < 0 {
			search.EndReason = n.explainNoMatch(step)
			break
		}
		n = step.Candidates[step.TakenIndex].node
		switch last := i == len(entries)-1; {
		case last && n.Match != nil:
			search.Found, search.EndReason = n.Match, EndReasonRuleFound
			return search
		case n.Children == nil:
			search.EndReason = EndReasonNoRateLimit
		default:
			search.EndReason = EndReasonTooFewEntries
		}
	}
	search.setLeadsToRule(entries, scratch)
	return search
}

// addHoldSteps adds the entries that name a hold and its action, and the rule r that they are about.
func (search *Record) addHoldSteps(r *rules.Match, entries []rules.Entry) {
	search.Found, search.EndReason = r, EndReasonRuleFound
	for i := range entries {
		at, how := DescriptorPlace{Pos: r.Pos, Key: r.HoldIDKey}, MatchHoldID
		if string(entries[i].Key) == rules.HoldActionKey {
			at.Key, at.Value, how = rules.HoldActionKey, string(entries[i].Value), MatchHold
		}
		search.Steps = append(search.Steps, Step{
			Entry: entries[i].Text(), Candidates: []Candidate{newCandidate(at, how, OutcomeSearchedBelow, nil)},
		})
	}
}

// explainStep returns the search of the level below n for an entry. It takes the node that child returns.
func (n *Node) explainStep(e *rules.Entry, scratch *rules.SearchScratch) Step {
	s := Step{Entry: e.Text(), Candidates: []Candidate{}, TakenIndex: -1}
	l := n.Children
	if l == nil { // The domain is empty.
		return s
	}
	s.LevelKeyCount = l.Groups.len()
	k := l.Groups.Find(e.Key)
	if k != nil {
		if next := k.exactNode(e.Value); next != nil {
			s.addCandidate(next, MatchExact, true)
		}
	}
	if k != nil && k.Matchers != nil {
		k.Matchers.explain(e.Value, &s, &scratch.Bounds)
	}
	if len(l.Wildcards) > 0 {
		scratch.JoinedEntry = append(append(append(scratch.JoinedEntry[:0], e.Key...), '_'), e.Value...)
		for i := range l.Wildcards {
			w := &l.Wildcards[i]
			// People are told of a wildcard that does not match if it may have been meant for this key.
			key := w.Node.Place().Key
			if matches := w.Matches(scratch.JoinedEntry); matches || key == string(e.Key) || strings.Contains(key, "*") {
				s.addCandidate(w.Node, MatchWildcard, matches)
			}
		}
	}
	if k != nil && k.AnyValue != nil {
		s.addCandidate(k.AnyValue, MatchKeyAlone, true)
	}
	return s
}

// addCandidate adds n as a candidate, unless it is there already or the lists are full. The first candidate that
// matches is taken.
func (s *Step) addCandidate(n *Node, how MatchKind, matches bool) {
	s.addCandidateAt(n.Place(), n, how, matches, "")
}

// addCandidateAt adds n like addCandidate, with the place and the reason to show.
func (s *Step) addCandidateAt(at DescriptorPlace, n *Node, how MatchKind, matches bool, why MatchReason) {
	for i := range s.Candidates {
		// The text of a wildcard is also an exact value, and its key may be a key alone.
		if c := &s.Candidates[i]; c.node == n && c.Outcome != OutcomeNoMatch {
			return
		}
	}
	outcome := OutcomeNoMatch
	switch {
	case matches && s.TakenIndex < 0:
		outcome, s.TakenIndex = OutcomeSearchedBelow, len(s.Candidates)
	case s.TakenIndex >= 0:
		if !matches || len(s.Candidates) >= 2*maxUnmatchedRulesListed {
			return
		}
		outcome = OutcomeEarlierTaken
	case len(s.Candidates) >= maxUnmatchedRulesListed:
		s.UnlistedCount++
		return
	}
	c := newCandidate(at, how, outcome, n)
	c.Reason = why
	s.Candidates = append(s.Candidates, c)
}

// explainNoMatch returns why no descriptor below n matches the entry of s. It sets SuggestedText and SameKeyBelow of s.
func (n *Node) explainNoMatch(s *Step) EndReason {
	if n.Children == nil {
		return EndReasonNoSuchKey
	}
	keys := &n.Children.Groups
	if k := keys.Find([]byte(s.Entry.Key)); k != nil {
		s.SuggestedText = k.ByValue.nearestName(s.Entry.Value)
		return EndReasonNoSuchValue
	}
	s.SuggestedText, s.SameKeyBelow = keys.nearestName(s.Entry.Key), n.firstWithKeyBelow(s.Entry.Key)
	if s.SuggestedText == "" && n.AcceptsHolds {
		s.SuggestedText = rules.NearestWord(s.Entry.Key, slices.Values([]string{n.Match.HoldIDKey, rules.HoldActionKey}))
	}
	return EndReasonNoSuchKey
}

// nearestName returns the name in t that a caller probably meant by name; empty if none is similar or t has over 10,000
// names.
func (t *nameTable[V]) nearestName(name string) string {
	if t.len() > maxComparedNames {
		return ""
	}
	return rules.NearestWord(name, func(yield func(string) bool) {
		for known := range t.All() {
			if !yield(known) {
				return
			}
		}
	})
}

// firstWithKeyBelow returns the first descriptor in file order that has the key and is at least two levels below n. It
// returns nil if there is none, or if over 10,000 descriptors would have to be searched.
func (n *Node) firstWithKeyBelow(key string) (first *DescriptorPlace) {
	left := maxSearchedBelow
	var search func(n *Node, depth int)
	search = func(n *Node, depth int) {
		if n.Children == nil {
			return
		}
		for name, k := range n.Children.Groups.All() {
			for next := range k.Nodes() {
				if left--; left < 0 {
					return
				}
				if at := next.Place(); name == key && depth > 0 && (first == nil || at.Compare(first.Pos) < 0) {
					first = &at
				}
				search(next, depth+1)
			}
		}
	}
	search(n, 0)
	if left < 0 {
		return nil // Maps have no order, so each call searches 10,000 other descriptors.
	}
	return first
}

// setLeadsToRule sets LeadsToRule of the candidates with OutcomeEarlierTaken.
func (search *Record) setLeadsToRule(entries []rules.Entry, scratch *rules.SearchScratch) {
	for i := range search.Steps {
		s := &search.Steps[i]
		if s.TakenIndex < 0 {
			return
		}
		for j := s.TakenIndex + 1; j < len(s.Candidates); j++ {
			n := s.Candidates[j].node
			for e := i + 1; e < len(entries) && n != nil; e++ {
				n = n.matchingChild(&entries[e], scratch)
			}
			if n != nil && n.Match != nil {
				s.Candidates[j].LeadsToRule = n.Match.FullName
			}
		}
	}
}

func (l *List) explain(entries []rules.Entry, _ *rules.SearchScratch) *Record {
	search := &Record{Steps: []Step{}, EndReason: EndReasonNoRuleMatches}
	values := l.valuesBySlot(nil, entries)
	unmatched, deciding := 0, -1 // deciding is the index of search.Found in search.TriedRules.
	for i := range l.Rules {
		r := &l.Rules[i]
		tried := TriedRule{RuleName: r.Match.FullName, Position: r.Match.Pos.String(), Outcome: OutcomeRuleDecides}
		failed := slices.IndexFunc(r.Conditions, func(c Condition) bool { return !c.matches(values[c.keySlot]) })
		if failed >= 0 {
			if unmatched++; unmatched > maxUnmatchedRulesListed {
				search.UnlistedCount++
				continue
			}
			tried.Outcome = OutcomeNoMatch
			pair := r.Match.ListSettings.MatchPairs[failed]
			tried.FailedKey, tried.FailedPattern = pair.Key, pair.Pattern
			if value := values[r.Conditions[failed].keySlot]; value != nil {
				tried.RequestValue = new(string(value))
			}
			search.TriedRules = append(search.TriedRules, tried)
			continue
		}
		if search.Found != nil {
			search.ChargedCanaries = append(search.ChargedCanaries, search.Found)
			search.TriedRules[deciding].Outcome = OutcomeCanaryCharged
		}
		deciding = len(search.TriedRules)
		search.TriedRules = append(search.TriedRules, tried)
		search.Found, search.EndReason = r.Match, EndReasonRuleFound
		if !r.IsCanary {
			break
		}
	}
	return search
}

func (t *WordTree) explain(entries []rules.Entry, _ *rules.SearchScratch) *Record {
	search := &Record{Steps: []Step{}, EndReason: EndReasonTooFewEntries}
	if len(entries) == 0 {
		search.EndReason = EndReasonNoEntries
	}
	n := &t.Root
	for word := range rules.RequestWords(entries) {
		s := n.explainStep(word)
		search.Steps = append(search.Steps, s)
		if s.TakenIndex < 0 {
			search.EndReason = EndReasonNoSuchKey
			break
		}
		n = n.childForWord(word)
	}
	if search.Found = n.Match; search.Found != nil {
		search.EndReason = EndReasonRuleFound
	}
	return search
}

// explainStep returns the search of the level below n for a word.
func (n *WordNode) explainStep(word []byte) Step {
	s := Step{
		Entry: rules.EntryText{Key: string(word)}, IsWord: true, Candidates: []Candidate{}, TakenIndex: -1,
		LevelKeyCount: n.Named.len(),
	}
	outcome := OutcomeSearchedBelow
	if named := n.Named.Find(word); named != nil {
		s.Candidates = append(s.Candidates,
			newCandidate(DescriptorPlace{Pos: named.Pos, Key: string(word)}, MatchExact, outcome, nil))
		s.TakenIndex, outcome = 0, OutcomeEarlierTaken
	}
	if n.AnyWord != nil {
		s.Candidates = append(s.Candidates,
			newCandidate(DescriptorPlace{Pos: n.AnyWord.Pos, Key: "*"}, MatchWildcard, outcome, nil))
		s.TakenIndex = 0
		s.LevelKeyCount++
	}
	if s.TakenIndex < 0 {
		s.SuggestedText = n.Named.nearestName(string(word))
	}
	return s
}
