package compile

import (
	"errors"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	"ratelimit/src/rules"
	"ratelimit/src/rules/match"
)

// These bounds limit what one value of a request can cost.
const (
	// MaxRegexLength is the most bytes of a regular expression.
	MaxRegexLength = 1000
	// MaxRegexSteps is the most steps of a regular expression, see regexSteps.
	MaxRegexSteps = 1000
	// MaxRegexes is the most regular expressions of one key on one level, or of one ordered list.
	MaxRegexes = 100
	// MaxTotalRegexSteps is the most steps that these have together.
	MaxTotalRegexSteps = 5000
)

// compileRegex compiles a regular expression. It returns nil if there is a problem.
func (c *report) compileRegex(text *Positioned[string]) *match.Regex {
	refuse := func(fix, format string, args ...any) *match.Regex {
		c.problems.Add(text.Pos, fix, format, args...)
		return nil
	}
	switch {
	case text.Value == "":
		return refuse("write an expression, or remove it", "regex is empty")
	case len(text.Value) > MaxRegexLength:
		return refuse("write a shorter one, or several descriptors", "regex is longer than %d bytes", MaxRegexLength)
	}
	parsed, err := syntax.Parse(text.Value, syntax.Perl)
	var mistake *syntax.Error
	if errors.As(err, &mistake) {
		fix := "write it in the syntax of RE2, in single quotes"
		if mistake.Code == syntax.ErrInvalidPerlOp {
			fix = "RE2 has neither look-around nor back-references: write a descriptor for each case"
		}
		return refuse(fix, "regex is not a regular expression: %v in %s", mistake.Code, rules.Quote(mistake.Expr))
	}
	steps := regexSteps(parsed)
	if steps > MaxRegexSteps {
		return refuse("repeat less, or write several descriptors",
			"regex has %d steps, and %d are the most: each character and class counts as often as it is repeated",
			steps, MaxRegexSteps)
	}
	compiled, err := regexp.Compile(text.Value)
	if err != nil { // It compiles, because it parses and is small.
		return refuse("", "regex: %v", err)
	}
	return &match.Regex{Compiled: compiled, Parsed: parsed, Steps: steps}
}

// regexSteps returns about how many instructions an expression has when it is compiled: each character, class, anchor
// and group counts one, as often as it is repeated.
func regexSteps(re *syntax.Regexp) int {
	const most = 1 << 30 // It keeps products within an int.
	if re.Op == syntax.OpLiteral {
		return len(re.Rune)
	}
	steps := 0
	for _, sub := range re.Sub {
		steps += regexSteps(sub)
	}
	if re.Op == syntax.OpRepeat {
		steps *= max(1, re.Min, re.Max)
	}
	return min(1+steps, most)
}

// addRegex makes child the descriptor of a regular expression below n.
func (c *report) addRegex(n, child *match.Node, r *match.Regex, at rules.Pos) {
	l := child.Level()
	list := &n.MatchersOf(l.Key()).Regexes
	steps := r.Steps
	for _, other := range *list {
		if steps += other.Steps; other.Compiled.String() == l.Value() {
			c.problems.Add(at, "remove one, or join their limits and descriptors",
				"regex %s of the key %s is already at %v, on the same level",
				rules.Quote(l.Value()), rules.Quote(l.Key()), other.Node.Descriptor.Pos)
			return
		}
	}
	switch {
	case len(*list) == MaxRegexes:
		c.problems.Add(at, "join some with `|`, or use wildcards",
			"the key %s has more than %d regular expressions on one level", rules.Quote(l.Key()), MaxRegexes)
	case steps > MaxTotalRegexSteps:
		c.problems.Add(at, "write simpler ones",
			"the regular expressions of the key %s have more than %d steps together on one level", rules.Quote(l.Key()),
			MaxTotalRegexSteps)
	}
	*list = append(*list, match.RegexNode{Regex: r, Node: child})
}

// shape is what is known of the texts that an expression matches.
type shape struct {
	isAnchored bool   // each text begins with prefix; if not, prefix is empty
	prefix     string // the text behind the anchor `^`
	isWhole    bool   // each text with the prefix matches, and each text if prefix is empty
	isOne      bool   // only prefix itself matches
}

// shapeOf returns the shape of an expression. Where it is unsure, the fields are false.
func shapeOf(re *syntax.Regexp) (s shape) {
	parts := []*syntax.Regexp{re}
	if re.Op == syntax.OpConcat {
		parts = re.Sub
	}
	if len(parts) > 0 && parts[0].Op == syntax.OpBeginText {
		s.isAnchored, parts = true, parts[1:]
		if len(parts) > 0 && parts[0].Op == syntax.OpLiteral && parts[0].Flags&syntax.FoldCase == 0 {
			s.prefix, parts = string(parts[0].Rune), parts[1:]
		}
		s.isOne = len(parts) == 1 && parts[0].Op == syntax.OpEndText
	}
	s.isWhole = !slices.ContainsFunc(parts, func(part *syntax.Regexp) bool { return !matchesEmpty(part) })
	return s
}

// matchesEmpty reports whether an expression matches the empty text at any place.
func matchesEmpty(re *syntax.Regexp) bool {
	switch re.Op {
	case syntax.OpEmptyMatch, syntax.OpStar, syntax.OpQuest:
		return true
	case syntax.OpRepeat:
		return re.Min == 0 || matchesEmpty(re.Sub[0])
	case syntax.OpPlus, syntax.OpCapture:
		return matchesEmpty(re.Sub[0])
	case syntax.OpConcat:
		return !slices.ContainsFunc(re.Sub, func(sub *syntax.Regexp) bool { return !matchesEmpty(sub) })
	case syntax.OpAlternate:
		return slices.ContainsFunc(re.Sub, matchesEmpty)
	}
	return false
}

// hides reports whether each text that t matches is matched by s, too, as far as that is known.
func (s shape) hides(t shape) bool {
	return s.isWhole && (s.prefix == "" || t.isAnchored && strings.HasPrefix(t.prefix, s.prefix))
}

// warnUselessRegexes warns of regular expressions of the group that no request gets to, or that hide what comes after
// them.
func warnUselessRegexes(warnings *rules.Problems, key string, k *match.KeyGroup, wildcards []match.WildcardNode) {
	list := k.Matchers.Regexes
	for i := range list {
		r, at := shapeOf(list[i].Parsed), list[i].Node.Descriptor.Pos
		text := rules.Quote(list[i].Compiled.String())
		if r.isOne {
			if exact := k.ByValue.Find([]byte(r.prefix)); exact != nil && r.prefix != "" {
				warnings.Add(at, "remove one", "no request can match regex %s: the value at %v comes first and takes all of them",
					text, exact.Descriptor.Pos)
			} else if r.prefix != "" {
				warnings.Add(at, "write `value: "+r.prefix+"`, which is faster", "regex %s matches one value only", text)
			}
		}
		for j := range i {
			if shapeOf(list[j].Parsed).hides(r) {
				warnings.Add(at, "put the more specific one first, or remove one",
					"no request can match regex %s: regex %s at %v takes all of them",
					text, rules.Quote(list[j].Compiled.String()), list[j].Node.Descriptor.Pos)
				break
			}
		}
		for w := range min(len(wildcards), maxComparedItems) {
			l := wildcards[w].Node.Level()
			before, _, isWildcard := strings.Cut(l.Value(), "*")
			if isWildcard && l.Key() == key && r.hides(shape{isAnchored: true, prefix: before}) {
				warnings.Add(wildcards[w].Node.Descriptor.Pos, "remove one, or narrow the regex",
					"no request can match %s: regex %s comes before wildcards and takes all of them", rules.Quote(l.Name()), text)
			}
		}
		if r.isWhole && r.prefix == "" {
			warnings.Add(at, "remove regex, or narrow it", "regex %s matches every value", text)
			if k.AnyValue != nil {
				warnings.Add(k.AnyValue.Descriptor.Pos, "remove it, or narrow the regex",
					"no request can match %s: regex %s at %v comes before a key alone and takes all of them",
					rules.Quote(key), text, at)
			}
		}
	}
}
