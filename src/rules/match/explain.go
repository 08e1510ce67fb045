package match

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"ratelimit/src/rules"
)

const (
	maxUnmatchedListed = 20     // the most candidates, or rules, listed that do not match
	maxComparedNames   = 10_000 // the most names that are compared with a misspelt one
	maxSearchedBelow   = 10_000 // the most descriptors searched for a key on lower levels
)

// Explain searches like Domain.FindRule and returns a record of the search for people. It is slower than FindRule,
// allocates, and takes more work, because it compares descriptors behind the one that matches, too. It stays within the
// bounds of s.BeginExplanation; the record is not valid if s.Err then returns an error.
func Explain(d *rules.Domain, entries []rules.Entry, s *rules.SearchScratch) *Record {
	search := d.BaseMatcher().(explainer).explain(entries, s)
	if a, isAdjusted := d.Matcher.(*rules.AdjustedMatcher); isAdjusted && s.Err() == nil {
		search.Found = a.AdjustAll(search.Found, search.ChargedCanaries, entries, s)
	}
	return search
}

// explainer is what all matchers of this package are.
type explainer interface {
	explain(entries []rules.Entry, scratch *rules.SearchScratch) *Record
}

func (t *Tree) explain(entries []rules.Entry, scratch *rules.SearchScratch) *Record {
	search := &Record{EndReason: EndReasonNoEntries, Steps: make([]Step, 0, min(len(entries), rules.MaxTreeDepth+1))}
	n := &t.Root
	for i := range entries {
		if n.AcceptsHolds && search.explainHold(n, entries[i:], scratch) {
			break
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
		case n.Children == nil:
			search.EndReason = EndReasonNoRateLimit
		default:
			search.EndReason = EndReasonTooFewEntries
		}
	}
	if search.Found == nil {
		search.setLeadsToRule(entries, scratch)
	}
	return search
}

// explainHold reports whether entries, which follow those that lead to n, are about a hold of n, and adds them. n must
// accept holds.
func (search *Record) explainHold(n *Node, entries []rules.Entry, scratch *rules.SearchScratch) bool {
	accepts := n.Match.AcceptsBelow(entries)
	if !accepts && n.MatchingChild(&entries[0], scratch) != nil {
		return false
	}
	if accepts || n.Match.LacksHoldName(entries) {
		search.addHoldSteps(n.Match, entries)
		return true
	}
	if key := string(entries[0].Key); key == n.Match.HoldIDKey || key == rules.HoldActionKey {
		search.EndReason, search.HoldIDKey = EndReasonWrongHold, n.Match.HoldIDKey
		return true
	}
	return false
}

// addHoldSteps adds the entries that name a hold and its action, and the match m that they are about.
func (search *Record) addHoldSteps(m *rules.Match, entries []rules.Entry) {
	search.Found, search.EndReason = m, EndReasonRuleFound
	for i := range entries {
		c := Candidate{
			Key: m.HoldIDKey, Position: m.Pos.String(), MatchKind: MatchHoldID, Outcome: OutcomeSearchedBelow,
		}
		if string(entries[i].Key) == rules.HoldActionKey {
			c.Key, c.Value, c.MatchKind = rules.HoldActionKey, string(entries[i].Value), MatchHold
		}
		search.Steps = append(search.Steps, Step{Entry: entries[i].Text(), Candidates: []Candidate{c}})
	}
}

// explainStep returns the search of the level below n for an entry. It takes the node that MatchingChild returns.
func (n *Node) explainStep(e *rules.Entry, scratch *rules.SearchScratch) Step {
	s := Step{Entry: e.Text(), Candidates: []Candidate{}, TakenIndex: -1}
	l := n.Children
	if l == nil { // The domain is empty.
		return s
	}
	s.LevelKeyCount = l.Groups.len()
	k := l.Groups.Find(e.Key)
	if k != nil {
		if next := k.ByValue.Find(e.Value); next != nil {
			s.add(next.candidate(MatchExact), true)
		}
		if k.Matchers != nil {
			k.Matchers.explain(e.Value, &s, &scratch.Bounds)
		}
	}
	if len(l.Wildcards) > 0 {
		text := scratch.JoinEntry(e)
		for i := range l.Wildcards {
			if !scratch.Bounds.AllowsText(len(text)) {
				return s
			}
			w := &l.Wildcards[i]
			// People are told of a wildcard that does not match if it may have been meant for this key.
			key := w.Node.Level().Key()
			if matches := w.Matches(text); matches || key == string(e.Key) || strings.Contains(key, "*") {
				s.add(w.Node.candidate(MatchWildcard), matches)
			}
		}
	}
	if k != nil && k.AnyValue != nil {
		s.add(k.AnyValue.candidate(MatchKeyAlone), true)
	}
	return s
}

// candidate returns n, which must not be a root, as a candidate without an outcome.
func (n *Node) candidate(how MatchKind) Candidate {
	return Candidate{
		Key: n.Level().Key(), Value: n.Level().Value(), Position: n.Descriptor.Pos.String(), MatchKind: how, node: n,
	}
}

// add adds a candidate, unless it is there already or the lists are full. The first candidate that matches is taken.
func (s *Step) add(c Candidate, matches bool) {
	for i := range s.Candidates {
		// The text of a wildcard is also an exact value, and its key may be a key alone.
		if other := &s.Candidates[i]; other.node == c.node && other.Outcome != OutcomeNoMatch {
			return
		}
	}
	c.Outcome = OutcomeNoMatch
	switch {
	case matches && s.TakenIndex < 0:
		c.Outcome, s.TakenIndex = OutcomeSearchedBelow, len(s.Candidates)
	case s.TakenIndex >= 0:
		if !matches || len(s.Candidates) >= 2*maxUnmatchedListed {
			return
		}
		c.Outcome = OutcomeEarlierTaken
	case len(s.Candidates) >= maxUnmatchedListed:
		s.UnlistedCount++
		return
	}
	s.Candidates = append(s.Candidates, c)
}

// explain adds the descriptors that find tries, and those that match but come later, to s.
func (m *valueMatchers) explain(value []byte, s *Step, b *rules.SearchBounds) {
	for i := range m.Data {
		if !b.AllowsText(len(value)) {
			return
		}
		m.Data[i].explain(value, s)
	}
	m.Networks.explain(value, s, b)
	for i := range m.Regexes {
		r := &m.Regexes[i]
		compared := value[:min(len(value), MaxRegexValue)]
		if !b.AllowsRegex(r.Steps * (len(compared) + 1)) {
			return
		}
		c := r.Node.candidate(MatchRegex)
		if len(compared) < len(value) {
			c.Reason = WhyValueCut
		}
		s.add(c, r.Compiled.Match(compared))
	}
}

func (d *DataNode) explain(value []byte, s *Step) {
	how := MatchKind(d.Kind.String())
	n := d.find(value)
	if n == nil {
		c := d.Node.candidate(how)
		c.Reason = WhyNotInFile
		s.add(c, false)
		return
	}
	c := n.candidate(how)
	c.DataLine = rules.Pos{File: d.File.Path, Line: d.File.Table.Line(value)}.String()
	s.add(c, true)
}

// explain adds the networks that contain the address in value to s, the longest first. If there are none, it adds the
// descriptors, and why they do not match.
func (t *NetworkTable) explain(value []byte, s *Step, b *rules.SearchBounds) {
	if t.ByPrefix == nil {
		return
	}
	why := WhyNotAddress
	if address, ok := rules.ParseAddress(value); ok {
		why = WhyOutsideNetworks
		for prefix, network := range t.ByPrefix.Supernets(netip.PrefixFrom(address, address.BitLen())) {
			c := network.node.candidate(MatchCIDR)
			c.Position, c.Value = t.Places[network.PlaceIndex].String(), prefix.String()
			s.add(c, true)
			why = ""
		}
	}
	if why == "" {
		return
	}
	for _, n := range t.nodes {
		if !b.AllowsText(0) {
			return
		}
		c := n.candidate(MatchCIDR)
		c.Reason = why
		s.add(c, false)
	}
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
	return rules.NearestWord(name, maps.Keys(maps.Collect(t.All())))
}

// firstWithKeyBelow returns the first descriptor in file order that has the key and is at least two levels below n. It
// returns nil if there is none, or if over 10,000 descriptors would have to be searched.
func (n *Node) firstWithKeyBelow(key string) (first *rules.Descriptor) {
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
				d := next.Descriptor
				if name == key && depth > 0 && (first == nil || d.Pos.Compare(first.Pos) < 0) {
					first = d
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
				n = n.MatchingChild(&entries[e], scratch)
			}
			if n != nil && n.Match != nil {
				s.Candidates[j].LeadsToRule = n.Match.FullName
			}
		}
	}
}

func (l *List) explain(entries []rules.Entry, scratch *rules.SearchScratch) *Record {
	search := &Record{Steps: []Step{}, EndReason: EndReasonNoRuleMatches}
	l.setValues(scratch, entries)
	values := scratch.ValuesBySlot
	unmatched, deciding := 0, -1 // the index of search.Found in search.TriedRules.
	for i := range l.Rules {
		if !scratch.Bounds.AllowsText(scratch.BytesOfValues) {
			break
		}
		r := &l.Rules[i]
		failed := slices.IndexFunc(r.Conditions, func(c Condition) bool { return !c.matches(values[c.keySlot]) })
		if failed >= 0 {
			unmatched++
		}
		if failed >= 0 && unmatched > maxUnmatchedListed {
			search.UnlistedCount++
			continue
		}
		tried := TriedRule{RuleName: r.Match.FullName, Position: r.Match.Pos.String(), Outcome: OutcomeRuleDecides}
		if failed >= 0 {
			pair := r.Match.ListSettings.MatchPairs[failed]
			tried.Outcome, tried.FailedKey, tried.FailedPattern = OutcomeNoMatch, pair.Key, pair.Pattern
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
	add := func(key string, child *WordNode, how MatchKind) {
		c := Candidate{Key: key, Position: child.Pos.String(), MatchKind: how, Outcome: OutcomeSearchedBelow}
		if s.TakenIndex >= 0 {
			c.Outcome = OutcomeEarlierTaken
		}
		s.Candidates, s.TakenIndex = append(s.Candidates, c), 0
	}
	if named := n.Named.Find(word); named != nil {
		add(string(word), named, MatchExact)
	}
	if n.AnyWord != nil {
		add("*", n.AnyWord, MatchWildcard)
		s.LevelKeyCount++
	}
	if s.TakenIndex < 0 {
		s.SuggestedText = n.Named.nearestName(string(word))
	}
	return s
}
