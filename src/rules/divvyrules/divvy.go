package divvyrules

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
)

// Origin is the Origin of domains that divvy's files have.
const Origin = "divvy"

// reader collects the rules of one file and their problems. Where divvy 1.7.1 differs from divvy's documentation, the
// reader follows the documentation and warns.
type reader struct {
	file           string
	problems       rules.Problems
	warnings       rules.Problems
	rules          []divvyRule
	hasSkippedRule bool // set if a rule could not be read. That rule may be the default
	rulePosByLabel map[string]rules.Pos
}

func newReader(file string) *reader {
	return &reader{file: file, rulePosByLabel: make(map[string]rules.Pos)}
}

// divvyRule is a rule as written in a file of divvy.
type divvyRule struct {
	pos               rules.Pos
	operationText     string // the operation as written, for messages
	operationPairs    []compile.MatchPairConfig
	operationPatterns []divvyPattern    // the patterns of operationPairs. warnDifferences sets them
	lacksPairs        bool              // set if a problem left pairs out of operationPairs
	valueByKey        map[string]scalar // the keys are creditLimit and so on
}

// scalar is the value of a field of a rule.
type scalar struct {
	pos    rules.Pos
	text   string
	isNull bool // set for null without quotes
}

// ruleFieldKeys are the keys of a rule's fields.
var ruleFieldKeys = []string{"creditLimit", "resetSeconds", "actorField", "matchPolicy", "label", "comment"}

// domainConfig returns the rules of the file as an ordered list.
func (f *reader) domainConfig() *compile.DomainConfig {
	top := rules.Pos{File: f.file, Line: 1, Col: 1}
	cfg := &compile.DomainConfig{
		Pos: top, Domain: compile.BaseName(f.file), Origin: Origin,
		Rules: &compile.Positioned[[]compile.RuleConfig]{Pos: top},
	}
	hasDefault := false
	for i := range f.rules {
		hasDefault = hasDefault || len(f.rules[i].operationPairs) == 0
		cfg.Rules.Value = append(cfg.Rules.Value, f.ruleConfig(&f.rules[i]))
	}
	switch n := len(f.rules); {
	case len(f.problems) > 0 && n == 0:
	case n == 0:
		f.problems.Add(top, "write at least the default rule", "the file has no rules")
	case !hasDefault && !f.hasSkippedRule:
		f.problems.Add(f.rules[n-1].pos, "write a default rule behind it, which matches everything",
			"the last rule, %s, is not the default", rules.Shorten(f.rules[n-1].operationText))
	}
	if len(f.problems) == 0 {
		f.warnDifferences()
	}
	return cfg
}

// ruleConfig returns a rule of divvy as a rule of an ordered list.
func (f *reader) ruleConfig(r *divvyRule) compile.RuleConfig {
	before, text := len(f.problems), rules.Shorten(r.operationText)
	cfg := compile.RuleConfig{
		Match:       &compile.Positioned[[]compile.MatchPairConfig]{Pos: r.pos, Value: r.operationPairs},
		MessageText: r.operationText, HasReadProblem: r.lacksPairs,
	}
	cfg.Pos = r.pos
	limit := &compile.RateLimitConfig{Pos: r.pos, UnitPos: r.pos}
	cfg.RateLimit = limit
	credit, hasCredit := f.numberField(r, "creditLimit", algorithm.MaxCapacity)
	if !hasCredit {
		f.problems.Add(r.pos, "add it; 0 refuses everything", "the rule %s has no creditLimit", text)
	}
	limit.RequestsPerUnit = credit
	reset, hasReset := f.numberField(r, "resetSeconds", math.MaxUint32)
	switch {
	case credit > 0 && !hasReset:
		f.problems.Add(r.pos, "add it; 0 lets everything pass", "the rule %s has no resetSeconds", text)
	case credit > 0 && reset == 0:
		limit.Unlimited = true
	default:
		at := r.pos
		if hasReset {
			at = r.valueByKey["resetSeconds"].pos
		}
		period := time.Duration(max(reset, 1)) * time.Second // A limit of 0 refuses everything in any period.
		if period > algorithm.MaxPeriod {
			f.problems.Add(at, "write 3153600000 or less, 100 years", "resetSeconds of %s is out of range: \"%d\"", text, reset)
			period = algorithm.MaxPeriod
		}
		limit.Period = &compile.Positioned[time.Duration]{Pos: at, Value: period}
		limit.Algorithm = &compile.Positioned[string]{Pos: r.pos, Value: algorithm.FirstHitWindow.String()}
	}
	if v, ok := r.optionalField("actorField"); ok {
		cfg.PerKeys = []compile.Positioned[string]{{Pos: v.pos, Value: v.text}}
	}
	if v, ok := r.optionalField("matchPolicy"); ok && v.text != "stop" {
		if cfg.ShadowMode = v.text == "canary"; !cfg.ShadowMode {
			f.problems.Add(v.pos, "write stop, which is the default, or canary",
				"matchPolicy of %s is neither stop nor canary: %s", text, rules.Quote(v.text))
		}
	}
	if v, ok := r.optionalField("label"); ok {
		limit.Name = v.text
		f.checkLabel(r, v)
	}
	if v, ok := r.optionalField("comment"); ok {
		cfg.AnswerMetadata = map[string]any{"comment": v.text}
	}
	limit.HasReadProblem = len(f.problems) > before
	return cfg
}

var labelPattern = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,255}$`)

// checkLabel checks that v, the label of r, is valid and that no other rule has it.
func (f *reader) checkLabel(r *divvyRule, v scalar) {
	other, taken := f.rulePosByLabel[v.text]
	switch {
	case !labelPattern.MatchString(v.text):
		f.problems.Add(v.pos, "write up to 255 letters, digits, `_` and `-`", "label of %s is not a name: %s",
			rules.Shorten(r.operationText), rules.Quote(v.text))
	case taken:
		f.problems.Add(v.pos, "choose another", "label of %s is that of the rule at %v, too: %s",
			rules.Shorten(r.operationText), other, rules.Quote(v.text))
	default:
		f.rulePosByLabel[v.text] = r.pos
	}
}

// optionalField returns a field that a rule need not have; ok is false if it is missing, null or empty.
func (r *divvyRule) optionalField(key string) (v scalar, ok bool) {
	v, ok = r.valueByKey[key]
	return v, ok && !v.isNull && v.text != ""
}

// numberField returns a field that is a whole number up to most; has is false if the rule has no such field. It reports
// another value as a problem and returns 1, because 0 has a meaning of its own and could cause a second problem.
func (f *reader) numberField(r *divvyRule, key string, most uint64) (n uint64, has bool) {
	v, has := r.valueByKey[key]
	if !has {
		return 0, false
	}
	number, err := strconv.ParseUint(v.text, 10, 64)
	if err == nil && number > most {
		err = strconv.ErrRange
	}
	text, quoted := rules.Shorten(r.operationText), rules.Quote(v.text)
	switch {
	case v.isNull:
		f.problems.Add(v.pos, "write a whole number", "%s of %s is null", key, text)
	case errors.Is(err, strconv.ErrRange):
		f.problems.Add(v.pos, fmt.Sprintf("write 0 to %d", most), "%s of %s is out of range: %s", key, text, quoted)
	case err != nil:
		f.problems.Add(v.pos, "write a whole number, 0 or more", "%s of %s is not a whole number: %s", key, text, quoted)
	default:
		return number, true
	}
	return 1, true
}

// warnUnknownKey warns of a key that is none of known.
func (f *reader) warnUnknownKey(at rules.Pos, key string, known []string) {
	f.warnings.Add(at, rules.SuggestFix(key, known, "remove it"), "the key %s means nothing here", rules.Quote(key))
}

// warnDivvyDiffers warns of what divvy 1.7.1 does differently from its documentation.
func (f *reader) warnDivvyDiffers(at rules.Pos, format string, args ...any) {
	f.warnings.Add(at, "", "divvy 1.7.1 itself differs: "+format, args...)
}

// isZeroField reports whether a field is 0 or missing.
func (r *divvyRule) isZeroField(key string) bool {
	return strings.Trim(r.valueByKey[key].text, "0") == ""
}
