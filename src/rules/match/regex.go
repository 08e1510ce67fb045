package match

import (
	"regexp"
	"regexp/syntax"

	"ratelimit/src/rules"
)

// MaxRegexValue is the number of bytes at the start of a value that regular expressions are compared with.
const MaxRegexValue = 2048

// regexList has the descriptors of one key on one level that have a `regex`, in file order.
type regexList []RegexNode

type RegexNode struct {
	*Regex
	Node *Node
}

// find returns the descriptor of the first regular expression that matches a value, or nil.
func (l regexList) find(value []byte, b *rules.SearchBounds) (found *Node) {
	if len(l) == 0 {
		return nil
	}
	value = value[:min(len(value), MaxRegexValue)]
	if n, ok := b.Recall(&l[0], value); ok {
		return n.(*Node)
	}
	before := b.RegexWork()
	for i := range l {
		if !b.AllowsRegex(l[i].Steps * (len(value) + 1)) {
			return nil
		}
		if l[i].matches(value) {
			found = l[i].Node
			break
		}
	}
	b.Remember(&l[0], value, found, before)
	return found
}

// explain adds the regular expressions that find tries to s, and those that match but come later. It stops where b
// does.
func (l regexList) explain(value []byte, s *Step, b *rules.SearchBounds) {
	for i := range l {
		if !b.AllowsRegex(l[i].Steps * (min(len(value), MaxRegexValue) + 1)) {
			return
		}
		var why MatchReason
		if len(value) > MaxRegexValue {
			why = WhyValueCut
		}
		s.addCandidateAt(l[i].Node.Place(), l[i].Node, MatchRegex, l[i].matches(value), why)
	}
}

// Regex is a compiled `regex`.
type Regex struct {
	Compiled *regexp.Regexp
	Parsed   *syntax.Regexp
	Steps    int // the result of regexSteps
}

// matches reports whether the expression matches value, of which it reads the first MaxRegexValue bytes. It allocates
// nothing, except when package regexp enlarges its pools.
func (r *Regex) matches(value []byte) bool {
	return r.Compiled.Match(value[:min(len(value), MaxRegexValue)])
}

// MostRegexes returns the most regular expressions that one descriptor of a request can be compared with in d.
func MostRegexes(d *rules.Domain) int {
	if t, is := d.Matcher.(*Tree); is {
		return t.Root.mostRegexes()
	}
	return 0
}

// mostRegexes returns the most regular expressions below n that entries can be compared with.
func (n *Node) mostRegexes() (most int) {
	if n.Children == nil {
		return 0
	}
	afterWildcard := 0 // A request with any key can get to a wildcard.
	for i := range n.Children.Wildcards {
		afterWildcard = max(afterWildcard, n.Children.Wildcards[i].Node.mostRegexes())
	}
	for _, k := range n.Children.Groups.All() {
		here, after := 0, afterWildcard
		if k.Matchers != nil {
			here = len(k.Matchers.Regexes)
		}
		for child := range k.Nodes() {
			after = max(after, child.mostRegexes())
		}
		most = max(most, here+after)
	}
	return max(most, afterWildcard)
}
