package divvyrules

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
)

// maxComparedRules is the most rules of a file that are compared with all rules before them.
const maxComparedRules = 2000

// missingValueText is the text that divvy 1.7.1 compares with a pattern if the request has no value for its key.
const missingValueText = "undefined"

// warnDifferences warns where divvy 1.7.1 would treat the rules differently from its documentation.
func (f *reader) warnDifferences() {
	counters := make(map[string]rules.Pos)
	for i := range f.rules {
		r := &f.rules[i]
		for _, p := range r.operationPairs {
			r.operationPatterns = append(r.operationPatterns, newDivvyPattern(p))
			f.warnPatternDifferences(r, &r.operationPatterns[len(r.operationPatterns)-1])
		}
		text := rules.Shorten(r.operationText)
		if !r.isZeroField("creditLimit") && r.isZeroField("resetSeconds") {
			f.warnDivvyDiffers(r.pos, "it refuses resetSeconds 0 of %s, though it documents it", text)
		}
		counter := r.divvyCounterKey()
		if other, taken := counters[counter]; taken && !r.isZeroField("creditLimit") {
			f.warnDivvyDiffers(r.pos, "%s and the rule at %v share a counter there, so that each hit on both costs two",
				text, other)
		}
		counters[counter] = r.pos
	}
	f.warnWronglyUnreachable()
	f.warnings.Sort()
}

// warnPatternDifferences warns of requests that a pattern of r matches in divvy 1.7.1 only.
func (f *reader) warnPatternDifferences(r *divvyRule, p *divvyPattern) {
	text, pattern, key := rules.Shorten(r.operationText), rules.Quote(p.Pattern), rules.Quote(p.Key)
	stars := strings.Count(p.Pattern, "*")
	switch {
	case p.Pattern == "*":
		f.warnDivvyDiffers(r.pos, "%s matches also requests without the key %s", text, key)
	case stars == 0:
	case p.divvyRegexp == nil:
		f.warnDivvyDiffers(r.pos, "it cannot read the pattern %s of %s, and ends", pattern, text)
	case stars > 1:
		f.warnDivvyDiffers(r.pos, "in %s only the first `*` of %s is a wildcard; another repeats what stands before it", text,
			pattern)
	case !strings.HasSuffix(p.Pattern, "*"):
		f.warnDivvyDiffers(r.pos, "%s matches also values that go on behind %s", text, pattern)
	}
	if p.divvyRegexp != nil && p.divvyRegexp.MatchString(missingValueText) {
		f.warnDivvyDiffers(r.pos, "%s matches also requests without the key %s, which it takes for the text %q", text, key,
			missingValueText)
	}
}

// divvyCounterKey returns the constant part of the keys that divvy 1.7.1 counts the rule under.
func (r *divvyRule) divvyCounterKey() string {
	match := make([]string, 0, len(r.operationPairs))
	for _, p := range r.operationPairs {
		match = append(match, fmt.Sprintf("%q=%q", p.Key, p.Pattern))
	}
	slices.Sort(match)
	return fmt.Sprintf("%s %q %s %s", match, r.valueByKey["actorField"].text, r.valueByKey["creditLimit"].text,
		r.valueByKey["resetSeconds"].text)
}

// warnWronglyUnreachable warns of rules that divvy 1.7.1 takes for unreachable although requests can reach them.
func (f *reader) warnWronglyUnreachable() {
	unreachable := make(map[int][]int) // maps the index of a rule to those of later rules that it seems to hide.
	for i := range min(len(f.rules), maxComparedRules) {
		later := &f.rules[i]
		hides := func(r divvyRule) bool {
			return r.valueByKey["matchPolicy"].text != "canary" &&
				r.coversRule(later, (*divvyPattern).matchesInDivvy) && !r.coversRule(later, (*divvyPattern).matches)
		}
		if j := slices.IndexFunc(f.rules[:i], hides); j >= 0 {
			unreachable[j] = append(unreachable[j], i)
		}
	}
	for j, list := range unreachable {
		also := ""
		if more := len(list) - 1; more > 0 {
			also = fmt.Sprintf(" and %d more", more)
		}
		later := &f.rules[list[0]]
		f.warnDivvyDiffers(later.pos, "it takes %s%s for unreachable, behind %s at %v, and refuses the file",
			rules.Shorten(later.operationText), also, rules.Shorten(f.rules[j].operationText), f.rules[j].pos)
	}
}

// coversRule reports whether r matches every request that later matches. matches reports whether a pattern of r matches
// the pattern that later has for the same key; has is false if later has no such key.
func (r *divvyRule) coversRule(later *divvyRule, matches func(p *divvyPattern, value string, has bool) bool) bool {
	for i := range r.operationPatterns {
		value, has := patternForKey(later.operationPairs, r.operationPatterns[i].Key)
		if !matches(&r.operationPatterns[i], value, has) {
			return false
		}
	}
	return true
}

func patternForKey(operation []compile.MatchPairConfig, key string) (pattern string, has bool) {
	i := slices.IndexFunc(operation, func(p compile.MatchPairConfig) bool { return p.Key == key })
	if i < 0 {
		return "", false
	}
	return operation[i].Pattern, true
}

// divvyPattern is a pattern as divvy 1.7.1 reads it. A `*` alone also matches a missing value. Otherwise the first `*`
// is a wildcard, further ones are repetitions of a regular expression, and any text may follow.
type divvyPattern struct {
	compile.MatchPairConfig
	divvyRegexp *regexp.Regexp // nil if the pattern is "*", has no `*`, or is one that divvy cannot read
}

func newDivvyPattern(pair compile.MatchPairConfig) divvyPattern {
	p := divvyPattern{MatchPairConfig: pair}
	before, rest, wild := strings.Cut(p.Pattern, "*")
	if wild && p.Pattern != "*" && !strings.Contains(p.Pattern, "**") {
		rest = strings.ReplaceAll(regexp.QuoteMeta(rest), `\*`, "*")
		p.divvyRegexp, _ = regexp.Compile("^" + regexp.QuoteMeta(before) + ".*" + rest)
	}
	return p
}

// matches reports whether p matches a value by divvy's documentation.
func (p *divvyPattern) matches(value string, has bool) bool {
	return has && rules.PatternMatches(p.Pattern, []byte(value))
}

// matchesInDivvy reports whether p matches a value in divvy 1.7.1.
func (p *divvyPattern) matchesInDivvy(value string, has bool) bool {
	switch {
	case p.Pattern == "*":
		return true
	case p.divvyRegexp == nil:
		return has && value == p.Pattern
	case !has:
		value = missingValueText
	}
	return p.divvyRegexp.MatchString(value)
}
