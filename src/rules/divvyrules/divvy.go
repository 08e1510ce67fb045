package divvyrules

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/rules"
)

// reader collects the rules of one file, and what is wrong with them. Where divvy's documentation and divvy itself differ, it follows
// the documentation, with a warning.
type reader struct {
	file     string
	problems rules.Problems
	warnings rules.Problems
	rules    []divvyRule
	skipped  bool // a rule could not be read; it may be the default
	labels   map[string]rules.Pos
}

func newReader(file string) *reader { return &reader{file: file, labels: make(map[string]rules.Pos)} }

// divvyRule is a rule as written.
type divvyRule struct {
	at         rules.Pos
	text       string // the operation
	operation  []rules.PairConfig
	incomplete bool // the operation is not all that was written
	fields     map[string]value
}

// value is a scalar of a rule.
type value struct {
	at   rules.Pos
	kind kind
	text string
}

// kind is the type of a value, in words for messages.
type kind string

const (
	isText     kind = "text"
	isWhole    kind = "a whole number"
	isFraction kind = "a fraction"
	isBool     kind = "true or false"
	isNull     kind = "nothing"
	isMap      kind = "a map"
	isList     kind = "a list"
)

var ruleKeys = []string{"creditLimit", "resetSeconds", "actorField", "matchPolicy", "label", "comment"}

// config returns the rules as an ordered list.
func (f *reader) config() *rules.DomainConfig {
	top := rules.Pos{File: f.file, Line: 1, Col: 1}
	cfg := &rules.DomainConfig{Pos: top, Domain: rules.BaseName(f.file), Divvy: true, Rules: &rules.Placed[[]rules.RuleConfig]{Pos: top}}
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
		f.problems.Add(f.rules[n-1].at, "write a default rule behind it, which matches everything",
			"the last rule, %s, is not the default", rules.Shorten(f.rules[n-1].text))
	}
	if len(f.problems) == 0 {
		f.compare()
	}
	return cfg
}

// rule returns a rule of divvy as a rule of an ordered list.
func (f *reader) rule(r *divvyRule) rules.RuleConfig {
	before, text := len(f.problems), rules.Shorten(r.text)
	cfg := rules.RuleConfig{
		Match: &rules.Placed[[]rules.PairConfig]{Pos: r.at, Value: r.operation}, Text: r.text, Incomplete: r.incomplete,
	}
	cfg.Pos = r.at
	limit := &rules.RateLimitConfig{Pos: r.at, UnitPos: r.at}
	cfg.RateLimit = limit
	credit, hasCredit := f.number(r, "creditLimit")
	if !hasCredit {
		f.problems.Add(r.at, "add it; 0 refuses everything", "the rule %s has no creditLimit", text)
	}
	limit.RequestsPerUnit = credit
	reset, hasReset := f.number(r, "resetSeconds")
	switch {
	case credit > 0 && !hasReset:
		f.problems.Add(r.at, "add it; 0 lets everything pass", "the rule %s has no resetSeconds", text)
	case credit > 0 && reset == 0:
		limit.Unlimited = true
	default:
		at := r.at
		if hasReset {
			at = r.fields["resetSeconds"].at
		}
		period := time.Duration(max(reset, 1)) * time.Second // without credit any period will do
		if period > algorithm.MaxPeriod {
			f.problems.Add(at, "write 3153600000 or less, 100 years", "resetSeconds of %s is out of range: \"%d\"", text, reset)
			period = algorithm.MaxPeriod
		}
		limit.Period = &rules.Placed[time.Duration]{Pos: at, Value: period}
		limit.Algorithm = &rules.Placed[string]{Pos: r.at, Value: algorithm.FirstHitWindow.String()}
	}
	if v, ok := r.optional("actorField"); ok {
		cfg.Per = []rules.Placed[string]{{Pos: v.at, Value: v.text}}
	}
	if v, ok := r.optional("matchPolicy"); ok && v.text != "stop" {
		if cfg.ShadowMode = v.text == "canary"; !cfg.ShadowMode {
			f.problems.Add(v.at, "write stop, which is the default, or canary", "matchPolicy of %s is neither stop nor canary: %s",
				text, rules.Quote(v.text))
		}
	}
	if v, ok := r.optional("label"); ok {
		limit.Name = v.text
		f.label(r, v)
	}
	if v, ok := r.optional("comment"); ok {
		cfg.Metadata = map[string]any{"comment": v.text}
	}
	limit.Incomplete = len(f.problems) > before
	return cfg
}

var labelForm = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,255}$`)

// label checks the name of a rule.
func (f *reader) label(r *divvyRule, v value) {
	other, taken := f.labels[v.text]
	switch {
	case !labelForm.MatchString(v.text):
		f.problems.Add(v.at, "write up to 255 letters, digits, `_` and `-`", "label of %s is not a name: %s", rules.Shorten(r.text),
			rules.Quote(v.text))
	case taken:
		f.problems.Add(v.at, "choose another", "label of %s is that of the rule at %v, too: %s", rules.Shorten(r.text), other,
			rules.Quote(v.text))
	default:
		f.labels[v.text] = r.at
	}
}

// optional returns a field that may be left out. Null and an empty text are as if it were.
func (r *divvyRule) optional(key string) (value, bool) {
	v, there := r.fields[key]
	return v, there && v.kind != isNull && v.text != ""
}

var wholeForm = regexp.MustCompile(`^[0-9]+$`)

// number returns a field that is a whole number, and whether there is one. For an invalid one it reports a problem and returns 1.
func (f *reader) number(r *divvyRule, key string) (n uint32, there bool) {
	v, there := r.fields[key]
	if !there {
		return 0, false
	}
	number, err := strconv.ParseUint(v.text, 10, 32)
	text, quoted := rules.Shorten(r.text), rules.Quote(v.text)
	switch {
	case v.kind == isNull:
		f.problems.Add(v.at, "write a whole number", "%s of %s is null", key, text)
	case v.kind == isBool || !wholeForm.MatchString(v.text):
		f.problems.Add(v.at, "write a whole number, 0 or more", "%s of %s is not a whole number: %s", key, text, quoted)
	case err != nil:
		f.problems.Add(v.at, "write 0 to 4294967295", "%s of %s is out of range: %s", key, text, quoted)
	default:
		return uint32(number), true
	}
	return 1, true // 0 would be a second problem
}

// unknown warns of a key without a meaning.
func (f *reader) unknown(at rules.Pos, key string, known []string) {
	fix := "remove it"
	if near := rules.Near(key, slices.Values(known)); near != "" {
		fix = "did you mean `" + near + "`?"
	}
	f.warnings.Add(at, fix, "the key %s means nothing here", rules.Quote(key))
}

// differs warns of what divvy does otherwise than its documentation says.
func (f *reader) differs(at rules.Pos, format string, args ...any) {
	f.warnings.Add(at, "", "divvy 1.7.1 itself differs: "+format, args...)
}

// isZero reports whether a number is 0, or not there.
func (r *divvyRule) isZero(key string) bool { return strings.Trim(r.fields[key].text, "0") == "" }
