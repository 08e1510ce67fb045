package divvyrules

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/rules"
	"ratelimit/src/rules/yamlrules"
)

// divvyFile is a rule file of Button's divvy, read into an ordered list: the
// domain is the name of the file. What divvy's documentation and divvy itself
// read differently is read as documented, with a warning.
type divvyFile struct {
	file     string
	problems rules.Problems
	warnings rules.Problems
	rules    []divvyRule
	skipped  bool // a rule that could not be read, which may be the default
	labels   map[string]rules.Pos
}

// divvyRule is a rule as written.
type divvyRule struct {
	at        rules.Pos
	text      string // the operation
	operation []rules.PairConfig
	bad       bool // the operation is not what was written
	fields    map[string]divvyValue
}

// divvyValue is what stands behind a key of a rule.
type divvyValue struct {
	at   rules.Pos
	kind yamlrules.Kind // isNull, isBool, isString or a number
	text string
}

// The keys of a rule.
const (
	divvyCredit = "creditLimit"
	divvyReset  = "resetSeconds"
	divvyActor  = "actorField"
	divvyPolicy = "matchPolicy"
	divvyLabel  = "label"
	divvyRemark = "comment"
)

var divvyKeys = []string{divvyCredit, divvyReset, divvyActor, divvyPolicy, divvyLabel, divvyRemark}

// config makes an ordered list of what was read.
func (f *divvyFile) config() *rules.DomainConfig {
	top := rules.Pos{File: f.file, Line: 1, Col: 1}
	cfg := &rules.DomainConfig{Pos: top, Domain: rules.BaseName(f.file), Divvy: true, Rules: &rules.Placed[[]rules.RuleConfig]{Pos: top}}
	f.labels = make(map[string]rules.Pos)
	hasDefault := false
	for i := range f.rules {
		hasDefault = hasDefault || len(f.rules[i].operation) == 0
		cfg.Rules.Value = append(cfg.Rules.Value, f.rule(&f.rules[i]))
	}
	switch n := len(f.rules); {
	case len(f.problems) > 0 && n == 0:
	case n == 0:
		f.problems.Add(top, "write at least the default rule", "the file has no rules")
	case !hasDefault && !f.skipped:
		f.problems.Add(f.rules[n-1].at, "write a default rule behind it, which matches everything", "the last rule, %s, is not the default", rules.Shorten(f.rules[n-1].text))
	}
	if len(f.problems) == 0 {
		f.compare()
	}
	return cfg
}

// rule makes one rule of an ordered list of one of divvy's.
func (f *divvyFile) rule(r *divvyRule) rules.RuleConfig {
	before := len(f.problems)
	cfg := rules.RuleConfig{Pos: r.at, Match: &rules.Placed[[]rules.PairConfig]{Pos: r.at, Value: r.operation}, Text: r.text, Incomplete: r.bad}
	limit := &rules.RateLimitConfig{Pos: r.at, UnitPos: r.at}
	cfg.RateLimit = limit
	credit, given := f.number(r, divvyCredit)
	if !given {
		f.problems.Add(r.at, "add it; 0 refuses everything", "the rule %s has no creditLimit", rules.Shorten(r.text))
	}
	reset, given := f.number(r, divvyReset)
	limit.RequestsPerUnit = credit
	at := r.at
	if v, ok := r.fields[divvyReset]; ok {
		at = v.at
	}
	switch {
	case credit > 0 && !given:
		f.problems.Add(r.at, "add it; 0 lets everything pass", "the rule %s has no resetSeconds", rules.Shorten(r.text))
	case credit > 0 && reset == 0:
		limit.Unlimited = true
	case reset == 0: // there is no credit that could be reset
		reset = 1
		fallthrough
	default:
		period := time.Duration(reset) * time.Second
		if period > algorithm.MaxPeriod {
			f.problems.Add(at, "write 3153600000 or less, 100 years", "resetSeconds of %s is out of range: \"%d\"", rules.Shorten(r.text), reset)
			period = algorithm.MaxPeriod
		}
		limit.Period = &rules.Placed[time.Duration]{Pos: at, Value: period}
		limit.Algorithm = &rules.Placed[string]{Pos: r.at, Value: algorithm.FirstHitWindow.String()}
	}
	if v, ok := f.text(r, divvyActor); ok {
		cfg.Per = []rules.Placed[string]{{Pos: v.at, Value: v.text}}
	}
	if v, ok := f.text(r, divvyPolicy); ok && v.text != "stop" {
		if cfg.ShadowMode = v.text == "canary"; !cfg.ShadowMode {
			f.problems.Add(v.at, "write stop, which is the default, or canary", "matchPolicy of %s is neither stop nor canary: %s", rules.Shorten(r.text), rules.Quote(v.text))
		}
	}
	if v, ok := f.text(r, divvyLabel); ok {
		limit.Name = v.text
		f.label(r, v)
	}
	if v, ok := f.text(r, divvyRemark); ok {
		cfg.Metadata = map[string]any{divvyRemark: v.text}
	}
	limit.Incomplete = len(f.problems) > before
	return cfg
}

var labelForm = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,255}$`)

func (f *divvyFile) label(r *divvyRule, v divvyValue) {
	other, taken := f.labels[v.text]
	switch {
	case !labelForm.MatchString(v.text):
		f.problems.Add(v.at, "write up to 255 letters, digits, `_` and `-`", "label of %s is not a name: %s", rules.Shorten(r.text), rules.Quote(v.text))
	case taken:
		f.problems.Add(v.at, "choose another", "label of %s is that of the rule at %v, too: %s", rules.Shorten(r.text), other, rules.Quote(v.text))
	default:
		f.labels[v.text] = r.at
	}
}

// text is a field that may be left out: nothing, null and an empty text are the
// same.
func (f *divvyFile) text(r *divvyRule, key string) (divvyValue, bool) {
	v := r.fields[key]
	return v, v.kind != yamlrules.IsNull && v.text != ""
}

var wholeForm = regexp.MustCompile(`^[0-9]+$`)

// number is a field of a whole number; given says that there is one, though it
// may be wrong, which is noted.
func (f *divvyFile) number(r *divvyRule, key string) (n uint32, given bool) {
	v, given := r.fields[key]
	if !given {
		return 0, false
	}
	number, err := strconv.ParseUint(v.text, 10, 32)
	switch {
	case v.kind == yamlrules.IsNull:
		f.problems.Add(v.at, "write a whole number", "%s of %s is null", key, rules.Shorten(r.text))
	case v.kind == yamlrules.IsBool || !wholeForm.MatchString(v.text):
		f.problems.Add(v.at, "write a whole number, 0 or more", "%s of %s is not a whole number: %s", key, rules.Shorten(r.text), rules.Quote(v.text))
	case err != nil:
		f.problems.Add(v.at, "write 0 to 4294967295", "%s of %s is out of range: %s", key, rules.Shorten(r.text), rules.Quote(v.text))
	default:
		return uint32(number), true
	}
	return 1, true // stands in: 0 would be a second problem
}

// unknown warns of a key that nobody reads.
func (f *divvyFile) unknown(at rules.Pos, key string, known []string) {
	mend := "remove it"
	for _, k := range known {
		if rules.OneEdit(strings.ToLower(key), strings.ToLower(k)) {
			mend = "did you mean `" + k + "`?"
		}
	}
	f.warnings.Add(at, mend, "the key %s means nothing here", rules.Quote(key))
}

// differs warns of what divvy reads otherwise than its documentation says.
func (f *divvyFile) differs(at rules.Pos, format string, args ...any) {
	f.warnings.Add(at, "", "divvy 1.7.1 itself differs: "+format, args...)
}

// maxTwice bounds the search for pairs of rules that divvy itself takes for
// unreachable.
const maxTwice = 2000

// compare looks for what divvy itself would do with the rules that is not what
// its documentation says, and so not what is done here.
func (f *divvyFile) compare() {
	patterns := make([][]divvyPattern, len(f.rules))
	counters := make(map[string]rules.Pos)
	for i := range f.rules {
		r := &f.rules[i]
		for _, p := range r.operation {
			patterns[i] = append(patterns[i], newDivvyPattern(p))
			f.comparePattern(r, &patterns[i][len(patterns[i])-1])
		}
		credit, reset := r.fields[divvyCredit].text, r.fields[divvyReset].text
		if strings.Trim(credit, "0") != "" && strings.Trim(reset, "0") == "" {
			f.differs(r.at, "it refuses resetSeconds 0 of %s, though it documents it", rules.Shorten(r.text))
		}
		same := f.counter(r)
		if other, twin := counters[same]; twin && strings.Trim(credit, "0") != "" {
			f.differs(r.at, "%s and the rule at %v share a counter there, so that each hit on both costs two", rules.Shorten(r.text), other)
		}
		counters[same] = r.at
	}
	f.compareReach(patterns)
}

// compareReach looks for rules that divvy itself takes for unreachable.
func (f *divvyFile) compareReach(patterns [][]divvyPattern) {
	first, more := make(map[int]int), make(map[int]int) // behind each rule
	for i := range min(len(f.rules), maxTwice) {
		for j := range i {
			if v := f.rules[j].fields[divvyPolicy]; v.text == "canary" || !masks(patterns[j], f.rules[i].operation) || f.masks(j, i) {
				continue
			}
			if _, known := first[j]; !known {
				first[j] = i
			} else {
				more[j]++
			}
			break
		}
	}
	for j, i := range first {
		also := ""
		if n := more[j]; n > 0 {
			also = fmt.Sprintf(" and %d more", n)
		}
		f.differs(f.rules[i].at, "it takes %s%s for unreachable, behind %s at %v, and refuses the file", rules.Shorten(f.rules[i].text), also, rules.Shorten(f.rules[j].text), f.rules[j].at)
	}
	f.warnings.Sort()
}

func (f *divvyFile) comparePattern(r *divvyRule, p *divvyPattern) {
	stars := strings.Count(p.Pattern, "*")
	switch {
	case p.Pattern == "*":
		f.differs(r.at, "%s matches also requests without the key %s", rules.Shorten(r.text), rules.Quote(p.Key))
	case stars == 0:
	case p.expr == nil:
		f.differs(r.at, "it cannot read the pattern %s of %s, and ends", rules.Quote(p.Pattern), rules.Shorten(r.text))
	case stars > 1:
		f.differs(r.at, "in %s only the first `*` of %s is a wildcard; another repeats what stands before it", rules.Shorten(r.text), rules.Quote(p.Pattern))
	case !strings.HasSuffix(p.Pattern, "*"):
		f.differs(r.at, "%s matches also values that go on behind %s", rules.Shorten(r.text), rules.Quote(p.Pattern))
	}
	if p.expr != nil && p.expr.MatchString(missing) {
		f.differs(r.at, "%s matches also requests without the key %s, which it takes for the text %q", rules.Shorten(r.text), rules.Quote(p.Key), missing)
	}
}

// counter is what divvy's counters of a rule have in common.
func (f *divvyFile) counter(r *divvyRule) string {
	match := make([]rules.Pair, 0, len(r.operation))
	for _, p := range r.operation {
		match = append(match, rules.Pair{Key: p.Key, Pattern: p.Pattern})
	}
	slices.SortFunc(match, func(a, b rules.Pair) int { return strings.Compare(a.Key, b.Key) })
	return fmt.Sprintf("%q %q %s %s", match, r.fields[divvyActor].text, r.fields[divvyCredit].text, r.fields[divvyReset].text)
}

// masks reports whether rule j takes all that rule i would match.
func (f *divvyFile) masks(j, i int) bool {
	for _, p := range f.rules[j].operation {
		var as []byte
		for _, q := range f.rules[i].operation {
			if q.Key == p.Key {
				as = append([]byte{}, q.Pattern...)
			}
		}
		if !rules.PatternMatches(p.Pattern, as) {
			return false
		}
	}
	return true
}

// missing is what divvy itself matches a pattern with when there is no value.
const missing = "undefined"

// divvyPattern is a pattern as divvy 1.7.1 reads it: a `*` alone matches what is
// not there, too; else the first is a wildcard, others are those of a regular
// expression, and the end is open.
type divvyPattern struct {
	rules.PairConfig
	expr *regexp.Regexp // nil: no `*` in it, or one that cannot be
}

func newDivvyPattern(p rules.PairConfig) divvyPattern {
	if p.Pattern == "*" || !strings.Contains(p.Pattern, "*") {
		return divvyPattern{p, nil}
	}
	before, rest, _ := strings.Cut(p.Pattern, "*")
	text := "^" + regexp.QuoteMeta(before) + ".*"
	if strings.Contains(p.Pattern, "**") {
		return divvyPattern{p, nil}
	}
	for _, r := range rest {
		if r == '*' {
			text += "*"
		} else {
			text += regexp.QuoteMeta(string(r))
		}
	}
	expr, err := regexp.Compile(text)
	if err != nil {
		return divvyPattern{p, nil}
	}
	return divvyPattern{p, expr}
}

// masks reports whether divvy itself takes a rule of these patterns for one that
// matches all that a later one does.
func masks(patterns []divvyPattern, later []rules.PairConfig) bool {
	for i := range patterns {
		p := &patterns[i]
		value, there := missing, false
		for _, q := range later {
			if q.Key == p.Key {
				value, there = q.Pattern, true
			}
		}
		switch {
		case p.Pattern == "*":
		case p.expr != nil && p.expr.MatchString(value):
		case p.expr == nil && there && value == p.Pattern:
		default:
			return false
		}
	}
	return true
}
