package rules

import (
	"fmt"
	gopath "path"
	"regexp"
	"strconv"
	"strings"
	"time"

	"ratelimit/src/algorithm"
)

// divvyFile is a rule file of Button's divvy, read into an ordered list: the
// domain is the name of the file. What divvy's documentation and divvy itself
// read differently is read as documented, with a warning.
type divvyFile struct {
	file     string
	problems Problems
	warnings Problems
	rules    []divvyRule
	skipped  bool // a rule that could not be read, which may be the default
	labels   map[string]Pos
}

// divvyRule is a rule as written.
type divvyRule struct {
	at        Pos
	text      string // the operation
	operation []PairConfig
	bad       bool // the operation is not what was written
	fields    map[string]divvyValue
}

// divvyValue is what stands behind a key of a rule.
type divvyValue struct {
	at   Pos
	kind kind // isNull, isBool, isString or a number
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

// baseName is the name of a file without directories and extension: the domain,
// where the file does not say it.
func baseName(file string) string {
	name := gopath.Base(strings.ReplaceAll(file, "\\", "/"))
	return strings.TrimSuffix(name, gopath.Ext(name))
}

// config makes an ordered list of what was read.
func (f *divvyFile) config() *DomainConfig {
	top := Pos{File: f.file, Line: 1, Col: 1}
	cfg := &DomainConfig{Pos: top, Domain: baseName(f.file), Divvy: true, Rules: &Placed[[]RuleConfig]{Pos: top}}
	f.labels = make(map[string]Pos)
	hasDefault := false
	for i := range f.rules {
		hasDefault = hasDefault || len(f.rules[i].operation) == 0
		cfg.Rules.Value = append(cfg.Rules.Value, f.rule(&f.rules[i]))
	}
	switch n := len(f.rules); {
	case len(f.problems) > 0 && n == 0:
	case n == 0:
		f.problems.add(top, "write at least the default rule", "the file has no rules")
	case !hasDefault && !f.skipped:
		f.problems.add(f.rules[n-1].at, "write a default rule behind it, which matches everything", "the last rule, %s, is not the default", cited(f.rules[n-1].text))
	}
	if len(f.problems) == 0 {
		f.compare()
	}
	return cfg
}

// rule makes one rule of an ordered list of one of divvy's.
func (f *divvyFile) rule(r *divvyRule) RuleConfig {
	before := len(f.problems)
	cfg := RuleConfig{Pos: r.at, Match: &Placed[[]PairConfig]{Pos: r.at, Value: r.operation}, Text: r.text, refused: r.bad}
	limit := &RateLimitConfig{Pos: r.at, UnitPos: r.at}
	cfg.RateLimit = limit
	credit, given := f.number(r, divvyCredit)
	if !given {
		f.problems.add(r.at, "add it; 0 refuses everything", "the rule %s has no creditLimit", cited(r.text))
	}
	reset, given := f.number(r, divvyReset)
	limit.RequestsPerUnit = credit
	at := r.at
	if v, ok := r.fields[divvyReset]; ok {
		at = v.at
	}
	switch {
	case credit > 0 && !given:
		f.problems.add(r.at, "add it; 0 lets everything pass", "the rule %s has no resetSeconds", cited(r.text))
	case credit > 0 && reset == 0:
		limit.Unlimited = true
	case reset == 0: // there is no credit that could be reset
		reset = 1
		fallthrough
	default:
		period := time.Duration(reset) * time.Second
		if period > algorithm.MaxPeriod {
			f.problems.add(at, "write 3153600000 or less, 100 years", "resetSeconds of %s is out of range: \"%d\"", cited(r.text), reset)
			period = algorithm.MaxPeriod
		}
		limit.Period = &Placed[time.Duration]{at, period}
		limit.Algorithm = &Placed[string]{r.at, algorithm.FirstHitWindow.String()}
	}
	if v, ok := f.text(r, divvyActor); ok {
		cfg.Per = []Placed[string]{{v.at, v.text}}
	}
	if v, ok := f.text(r, divvyPolicy); ok && v.text != "stop" {
		if cfg.ShadowMode = v.text == "canary"; !cfg.ShadowMode {
			f.problems.add(v.at, "write stop, which is the default, or canary", "matchPolicy of %s is neither stop nor canary: %s", cited(r.text), brief(v.text))
		}
	}
	if v, ok := f.text(r, divvyLabel); ok {
		limit.Name = v.text
		f.label(r, v)
	}
	if v, ok := f.text(r, divvyRemark); ok {
		cfg.Metadata = map[string]any{divvyRemark: v.text}
	}
	limit.guessed = len(f.problems) > before
	return cfg
}

var labelForm = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,255}$`)

func (f *divvyFile) label(r *divvyRule, v divvyValue) {
	other, taken := f.labels[v.text]
	switch {
	case !labelForm.MatchString(v.text):
		f.problems.add(v.at, "write up to 255 letters, digits, `_` and `-`", "label of %s is not a name: %s", cited(r.text), brief(v.text))
	case taken:
		f.problems.add(v.at, "choose another", "label of %s is that of the rule at %v, too: %s", cited(r.text), other, brief(v.text))
	default:
		f.labels[v.text] = r.at
	}
}

// text is a field that may be left out: nothing, null and an empty text are the
// same.
func (f *divvyFile) text(r *divvyRule, key string) (divvyValue, bool) {
	v := r.fields[key]
	return v, v.kind != isNull && v.text != ""
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
	case v.kind == isNull:
		f.problems.add(v.at, "write a whole number", "%s of %s is null", key, cited(r.text))
	case v.kind == isBool || !wholeForm.MatchString(v.text):
		f.problems.add(v.at, "write a whole number, 0 or more", "%s of %s is not a whole number: %s", key, cited(r.text), brief(v.text))
	case err != nil:
		f.problems.add(v.at, "write 0 to 4294967295", "%s of %s is out of range: %s", key, cited(r.text), brief(v.text))
	default:
		return uint32(number), true
	}
	return 1, true // stands in: 0 would be a second problem
}

// unknown warns of a key that nobody reads.
func (f *divvyFile) unknown(at Pos, key string, known []string) {
	mend := "remove it"
	for _, k := range known {
		if oneEdit(strings.ToLower(key), strings.ToLower(k)) {
			mend = "did you mean `" + k + "`?"
		}
	}
	f.warnings.add(at, mend, "the key %s means nothing here", brief(key))
}

// differs warns of what divvy reads otherwise than its documentation says.
func (f *divvyFile) differs(at Pos, format string, args ...any) {
	f.warnings.add(at, "", "divvy 1.7.1 itself differs: "+format, args...)
}

// maxTwice bounds the search for pairs of rules that divvy itself takes for
// unreachable.
const maxTwice = 2000

// compare looks for what divvy itself would do with the rules that is not what
// its documentation says, and so not what is done here.
func (f *divvyFile) compare() {
	patterns := make([][]divvyPattern, len(f.rules))
	counters := make(map[string]Pos)
	for i := range f.rules {
		r := &f.rules[i]
		for _, p := range r.operation {
			patterns[i] = append(patterns[i], newDivvyPattern(p))
			f.comparePattern(r, &patterns[i][len(patterns[i])-1])
		}
		credit, reset := r.fields[divvyCredit].text, r.fields[divvyReset].text
		if strings.Trim(credit, "0") != "" && strings.Trim(reset, "0") == "" {
			f.differs(r.at, "it refuses resetSeconds 0 of %s, though it documents it", cited(r.text))
		}
		same := f.counter(r)
		if other, twin := counters[same]; twin && strings.Trim(credit, "0") != "" {
			f.differs(r.at, "%s and the rule at %v share a counter there, so that each hit on both costs two", cited(r.text), other)
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
		f.differs(f.rules[i].at, "it takes %s%s for unreachable, behind %s at %v, and refuses the file", cited(f.rules[i].text), also, cited(f.rules[j].text), f.rules[j].at)
	}
	f.warnings.sort()
}

func (f *divvyFile) comparePattern(r *divvyRule, p *divvyPattern) {
	stars := strings.Count(p.Pattern, "*")
	switch {
	case p.Pattern == "*":
		f.differs(r.at, "%s matches also requests without the key %s", cited(r.text), brief(p.Key))
	case stars == 0:
	case p.expr == nil:
		f.differs(r.at, "it cannot read the pattern %s of %s, and ends", brief(p.Pattern), cited(r.text))
	case stars > 1:
		f.differs(r.at, "in %s only the first `*` of %s is a wildcard; another repeats what stands before it", cited(r.text), brief(p.Pattern))
	case !strings.HasSuffix(p.Pattern, "*"):
		f.differs(r.at, "%s matches also values that go on behind %s", cited(r.text), brief(p.Pattern))
	}
	if p.expr != nil && p.expr.MatchString(missing) {
		f.differs(r.at, "%s matches also requests without the key %s, which it takes for the text %q", cited(r.text), brief(p.Key), missing)
	}
}

// counter is what divvy's counters of a rule have in common.
func (f *divvyFile) counter(r *divvyRule) string {
	match := make([]Pair, 0, len(r.operation))
	for _, p := range r.operation {
		match = append(match, Pair{p.Key, p.Pattern})
	}
	sortPairs(match)
	return fmt.Sprintf("%q %q %s %s", match, r.fields[divvyActor].text, r.fields[divvyCredit].text, r.fields[divvyReset].text)
}

// masks reports whether rule j takes all that rule i would match.
func (f *divvyFile) masks(j, i int) bool {
	for _, p := range f.rules[j].operation {
		c := newCondition(0, p.Pattern)
		var as []byte
		for _, q := range f.rules[i].operation {
			if q.Key == p.Key {
				as = append([]byte{}, q.Pattern...)
			}
		}
		if !c.met(as) {
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
	PairConfig
	expr *regexp.Regexp // nil: no `*` in it, or one that cannot be
}

func newDivvyPattern(p PairConfig) divvyPattern {
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
func masks(patterns []divvyPattern, later []PairConfig) bool {
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
