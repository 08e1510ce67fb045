package divvyrules

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"ratelimit/src/rules"
)

// maxCompared bounds the search for rules that divvy takes for unreachable.
const maxCompared = 2000

// missing is the text that divvy matches a pattern with if there is no value.
const missing = "undefined"

// compare warns where divvy 1.7.1 itself would do something else with the rules than its documentation says.
func (f *reader) compare() {
	patterns := make([][]divvyPattern, len(f.rules))
	counters := make(map[string]rules.Pos)
	for i := range f.rules {
		r := &f.rules[i]
		for _, p := range r.operation {
			patterns[i] = append(patterns[i], newPattern(p))
			f.comparePattern(r, &patterns[i][len(patterns[i])-1])
		}
		text := rules.Shorten(r.text)
		if !r.isZero("creditLimit") && r.isZero("resetSeconds") {
			f.differs(r.at, "it refuses resetSeconds 0 of %s, though it documents it", text)
		}
		counter := r.counter()
		if other, taken := counters[counter]; taken && !r.isZero("creditLimit") {
			f.differs(r.at, "%s and the rule at %v share a counter there, so that each hit on both costs two", text, other)
		}
		counters[counter] = r.at
	}
	f.compareReach(patterns)
	f.warnings.Sort()
}

// comparePattern warns of requests that a pattern matches in divvy only.
func (f *reader) comparePattern(r *divvyRule, p *divvyPattern) {
	text, pattern, key := rules.Shorten(r.text), rules.Quote(p.Pattern), rules.Quote(p.Key)
	stars := strings.Count(p.Pattern, "*")
	switch {
	case p.Pattern == "*":
		f.differs(r.at, "%s matches also requests without the key %s", text, key)
	case stars == 0:
	case p.expr == nil:
		f.differs(r.at, "it cannot read the pattern %s of %s, and ends", pattern, text)
	case stars > 1:
		f.differs(r.at, "in %s only the first `*` of %s is a wildcard; another repeats what stands before it", text, pattern)
	case !strings.HasSuffix(p.Pattern, "*"):
		f.differs(r.at, "%s matches also values that go on behind %s", text, pattern)
	}
	if p.expr != nil && p.expr.MatchString(missing) {
		f.differs(r.at, "%s matches also requests without the key %s, which it takes for the text %q", text, key, missing)
	}
}

// counter is the constant part of divvy's keys for a rule.
func (r *divvyRule) counter() string {
	match := make([]string, 0, len(r.operation))
	for _, p := range r.operation {
		match = append(match, fmt.Sprintf("%q=%q", p.Key, p.Pattern))
	}
	slices.Sort(match)
	return fmt.Sprintf("%s %q %s %s", match, r.fields["actorField"].text, r.fields["creditLimit"].text, r.fields["resetSeconds"].text)
}

// compareReach warns of rules that divvy takes for unreachable and that are not.
func (f *reader) compareReach(patterns [][]divvyPattern) {
	first, more := make(map[int]int), make(map[int]int) // rules behind each rule
	for i := range min(len(f.rules), maxCompared) {
		for j := range i {
			if f.rules[j].fields["matchPolicy"].text == "canary" || !masks(patterns[j], f.rules[i].operation) || f.masks(j, i) {
				continue
			}
			if _, known := first[j]; known {
				more[j]++
			} else {
				first[j] = i
			}
			break
		}
	}
	for j, i := range first {
		also := ""
		if n := more[j]; n > 0 {
			also = fmt.Sprintf(" and %d more", n)
		}
		f.differs(f.rules[i].at, "it takes %s%s for unreachable, behind %s at %v, and refuses the file",
			rules.Shorten(f.rules[i].text), also, rules.Shorten(f.rules[j].text), f.rules[j].at)
	}
}

// valueOf is the pattern of a key in an operation.
func valueOf(operation []rules.PairConfig, key string) (pattern string, there bool) {
	for _, p := range operation {
		if p.Key == key {
			return p.Pattern, true
		}
	}
	return "", false
}

// masks reports whether rule j takes all that rule i would match.
func (f *reader) masks(j, i int) bool {
	return !slices.ContainsFunc(f.rules[j].operation, func(p rules.PairConfig) bool {
		value, there := valueOf(f.rules[i].operation, p.Key)
		return !there || !rules.PatternMatches(p.Pattern, []byte(value))
	})
}

// divvyPattern is a pattern as divvy 1.7.1 reads it. A `*` alone also matches a missing value. Otherwise the first `*` is a wildcard,
// further ones are those of a regular expression, and the end is open.
type divvyPattern struct {
	rules.PairConfig
	expr *regexp.Regexp // nil: no `*` in it, or divvy cannot read it
}

func newPattern(p rules.PairConfig) divvyPattern {
	before, rest, wild := strings.Cut(p.Pattern, "*")
	if p.Pattern == "*" || !wild || strings.Contains(p.Pattern, "**") {
		return divvyPattern{p, nil}
	}
	rest = strings.ReplaceAll(regexp.QuoteMeta(rest), `\*`, "*")
	expr, err := regexp.Compile("^" + regexp.QuoteMeta(before) + ".*" + rest)
	if err != nil {
		return divvyPattern{p, nil}
	}
	return divvyPattern{p, expr}
}

// masks reports whether divvy takes a rule of these patterns for one that matches all that a later one does.
func masks(patterns []divvyPattern, later []rules.PairConfig) bool {
	for i := range patterns {
		p := &patterns[i]
		value, there := valueOf(later, p.Key)
		text := value
		if !there {
			text = missing
		}
		switch {
		case p.Pattern == "*":
		case p.expr != nil && p.expr.MatchString(text):
		case p.expr == nil && there && value == p.Pattern:
		default:
			return false
		}
	}
	return true
}
