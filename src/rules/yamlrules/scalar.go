package yamlrules

import (
	"encoding/base64"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"ratelimit/src/algorithm"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
)

func kindOf(n *yaml.Node) compile.ValueKind { return parseScalar(n).Kind }

// Scalar is a YAML scalar. For a map or a list only its kind is set.
type Scalar struct {
	Kind compile.ValueKind
	Text string // the scalar without its quotes and escapes
	Bool bool   // the value of compile.KindBool
	Int  int64  // the value of compile.KindInt
}

// These are the scalars without quotes that YAML 1.1 reads as true or false, null, and fractions. yaml.v3 reads some as
// text.
var (
	boolWords = map[string]bool{
		"y": true, "Y": true, "yes": true, "Yes": true, "YES": true, "true": true, "True": true, "TRUE": true,
		"on": true, "On": true, "ON": true,
		"n": false, "N": false, "no": false, "No": false, "NO": false, "false": false, "False": false, "FALSE": false,
		"off": false, "Off": false, "OFF": false,
	}
	nullWords        = map[string]bool{"": true, "~": true, "null": true, "Null": true, "NULL": true}
	floatWordPattern = regexp.MustCompile(`^(\.nan|\.NaN|\.NAN|[-+]?(\.inf|\.Inf|\.INF))$`)
	floatPattern     = regexp.MustCompile(`^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`)
)

// parseScalar reads a scalar node by the rules of YAML 1.1, as envoyproxy/ratelimit does: `yes` is true, `010` is
// eight, `1_000` is a thousand, and `2001-01-01` is text. For maps and lists it returns the kind.
func parseScalar(n *yaml.Node) Scalar {
	switch n.Kind {
	case yaml.MappingNode:
		return Scalar{Kind: compile.KindMap}
	case yaml.SequenceNode:
		return Scalar{Kind: compile.KindList}
	}
	s := Scalar{Text: n.Value}
	tagged := n.Style&yaml.TaggedStyle != 0
	if !tagged && n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0 {
		return s
	}
	if tagged {
		switch n.ShortTag() {
		case "!!binary":
			if data, err := base64.StdEncoding.DecodeString(n.Value); err == nil {
				s.Text = string(data)
			}
			return s
		case "!!bool", "!!int", "!!float", "!!null":
			// A scalar with such a tag is read as if it had neither tag nor quotes.
		default:
			return s
		}
	}
	if b, ok := boolWords[n.Value]; ok {
		s.Kind, s.Bool = compile.KindBool, b
		return s
	}
	if nullWords[n.Value] {
		s.Kind = compile.KindNull
		return s
	}
	s.Kind, s.Int = parseNumberKind(n.Value)
	if s.Kind == compile.KindInt && tagged && n.ShortTag() == "!!float" {
		s.Kind = compile.KindFloat
	}
	return s
}

// parseNumberKind returns the kind of a scalar without quotes that is neither a bool nor null, and its value if that is
// a whole number.
func parseNumberKind(text string) (compile.ValueKind, int64) {
	first := text[0]
	if first != '.' && first != '+' && first != '-' && (first < '0' || first > '9') {
		return compile.KindText, 0
	}
	plain := strings.ReplaceAll(text, "_", "")
	if i, err := strconv.ParseInt(plain, 0, 64); err == nil {
		return compile.KindInt, i
	}
	if _, err := strconv.ParseUint(plain, 0, 64); err == nil {
		return compile.KindBigInt, 0
	}
	if floatPattern.MatchString(plain) || floatWordPattern.MatchString(text) {
		return compile.KindFloat, 0
	}
	return compile.KindText, 0
}

// readText reads a field that is text. Whole numbers, true, false and dates are text as written; null is the empty
// text.
func (r *reader) readText(f field) string {
	switch s := parseScalar(f.valueNode); s.Kind {
	case compile.KindNull:
		return ""
	case compile.KindFloat, compile.KindBigInt:
		r.addProblem(f.valueNode, fmt.Sprintf("write %q, in quotes", s.Text), "%s is %v, not text: %s", f.name, s.Kind,
			rules.Quote(s.Text))
		return s.Text // For an empty text the compiler would report a second problem.
	case compile.KindMap, compile.KindList:
		r.addProblem(f.valueNode, "write `"+f.name+": <text>`", "%s is %v, not text", f.name, s.Kind)
		return r.posOf(f.valueNode).String() // This text is unique, so the compiler reports no second problem.
	default:
		r.checkUTF8(f.valueNode, s.Text)
		return s.Text
	}
}

// readBool reads a field that is true or false. Null is false.
func (r *reader) readBool(f field) bool {
	s := parseScalar(f.valueNode)
	if s.Kind != compile.KindBool && s.Kind != compile.KindNull {
		fix := "write true or false"
		if _, word := boolWords[s.Text]; word {
			fix = "remove the quotes"
		}
		r.addProblem(f.valueNode, fix, "%s is %v, not true or false", f.name, s.Kind)
	}
	return s.Bool
}

// invalidOctalPattern and longIntegerPattern match whole numbers that YAML 1.1 reads as fractions: 08, and numbers of
// more than 64 bits. wholeNumberPattern matches a whole number in quotes.
var (
	invalidOctalPattern = regexp.MustCompile(`^0[0-9_]*[89][0-9_]*$`)
	longIntegerPattern  = regexp.MustCompile(`^[-+]?[0-9_]{20,}$`)
	wholeNumberPattern  = regexp.MustCompile(`^[0-9]+$`)
)

// readNumber reads a field that is a whole number: of 32 bits, unless it is a number of requests. Null is 0.
func (r *reader) readNumber(f field) uint64 {
	most := int64(math.MaxUint32)
	switch f.name {
	case "requests_per_unit":
		most = algorithm.MaxCapacity
	case "burst":
		most = algorithm.MaxCapacity - 1
	}
	s := parseScalar(f.valueNode)
	if s.Kind == compile.KindNull {
		return 0
	}
	return uint64(r.checkNumber(s, r.posOf(f.valueNode), f.name, 0, most))
}

// checkNumber returns the value of s, which is at the position at, if that is a whole number from least to most.
// Another value is a problem, in which name stands for s, and checkNumber returns 1: the compiler could report 0 as a
// second problem.
func (r *reader) checkNumber(s Scalar, at rules.Pos, name string, least, most int64) int64 {
	text, what := rules.Quote(s.Text), s.Kind.String()
	number, err := strconv.ParseFloat(strings.ReplaceAll(s.Text, "_", ""), 64)
	isWhole := err == nil && number == math.Trunc(number) // 1e3 and 1000.0 are whole, and yet no integers to YAML.
	if s.Kind == compile.KindFloat && err == nil && !isWhole {
		what = "a fraction"
	}
	switch {
	case s.Kind == compile.KindInt && least <= s.Int && s.Int <= most:
		return s.Int
	case s.Kind == compile.KindFloat && invalidOctalPattern.MatchString(s.Text):
		r.problems.Add(at, "remove the 0 in front", "%s begins with 0 as octal numbers do, and is none: %s", name, text)
	case s.Kind == compile.KindInt, s.Kind == compile.KindBigInt,
		s.Kind == compile.KindFloat && longIntegerPattern.MatchString(s.Text):
		r.problems.Add(at, fmt.Sprintf("write %d to %d", least, most), "%s is out of range: %s", name, text)
	case s.Kind == compile.KindFloat && isWhole && float64(least) <= number && number <= float64(most):
		r.problems.Add(at, fmt.Sprintf("write %.0f", number), "%s is %s: %s", name, what, text)
	case s.Kind == compile.KindFloat && name == "requests_per_unit":
		r.problems.Add(at, "write a whole number; for less than one per unit use a longer unit or unit_multiplier",
			"%s is %s: %s", name, what, text)
	case s.Kind == compile.KindFloat:
		r.problems.Add(at, "write a whole number", "%s is %s: %s", name, what, text)
	case s.Kind == compile.KindText && wholeNumberPattern.MatchString(s.Text):
		r.problems.Add(at, "remove the quotes", "%s is text, not a number: %s", name, text)
	default:
		r.problems.Add(at, "write a whole number", "%s is %s, not a number", name, what)
	}
	return 1
}

// readPercent reads a field that is a percentage, 0 to 100, with or without a fraction.
func (r *reader) readPercent(f field) float64 {
	s := parseScalar(f.valueNode)
	kind, text := s.Kind, strings.ReplaceAll(s.Text, "_", "")
	percent, invalid := float64(s.Int), error(nil)
	if kind == compile.KindFloat {
		percent, invalid = strconv.ParseFloat(text, 64)
	}
	inQuotes, _ := strconv.ParseFloat(strings.TrimSuffix(s.Text, "%"), 64)
	switch {
	case invalid != nil: // The value is .inf or .nan, or too large.
		r.addProblem(f.valueNode, "write 0 to 100", "%s is no finite number: %s", f.name, rules.Quote(s.Text))
	case kind == compile.KindBigInt, percent < 0 || percent > 100:
		r.addProblem(f.valueNode, "write 0 to 100", "%s is out of range: %s", f.name, rules.Quote(s.Text))
	case kind == compile.KindInt, kind == compile.KindFloat:
		return percent
	case kind == compile.KindText && inQuotes > 0:
		r.addProblem(f.valueNode, "write "+strings.TrimSuffix(s.Text, "%")+", without quotes and %",
			"%s is text, not a number: %s", f.name, rules.Quote(s.Text))
	default:
		r.addProblem(f.valueNode, "write a number from 0 to 100", "%s is %v, not a number", f.name, s.Kind)
	}
	return 100
}

// durationPattern matches the texts that time.ParseDuration accepts, except a zero without a unit.
var durationPattern = regexp.MustCompile(`^[-+]?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$`)

const durationAdvice = "write hours, minutes, seconds or milliseconds: 720h (30 days), 1h30m, 15s, 1500ms"

// readDuration reads a field that is a duration in Go's form, such as 1h30m.
func (r *reader) readDuration(f field) time.Duration {
	s := parseScalar(f.valueNode)
	kind, text := s.Kind, s.Text
	if kind == compile.KindText && text != "" {
		kind, _ = parseNumberKind(text) // A number in quotes has no unit either.
	}
	switch d, err := time.ParseDuration(text); {
	case kind == compile.KindInt || kind == compile.KindBigInt || kind == compile.KindFloat:
		r.addProblem(f.valueNode, "say of what: 90s, 1500ms, 1h30m", "%s has no unit of time: %s", f.name, rules.Quote(text))
	case kind != compile.KindText:
		r.addProblem(f.valueNode, durationAdvice, "%s is %v, not a duration", f.name, kind)
	case !durationPattern.MatchString(text):
		r.addProblem(f.valueNode, durationAdvice, "%s is not a duration: %s", f.name, rules.Quote(text))
	case err != nil:
		r.addProblem(f.valueNode, "write 876000h or less", "%s is longer than 100 years: %s", f.name, rules.Quote(text))
	default:
		return d
	}
	return time.Hour // All algorithms accept an hour, so the compiler reports no second problem.
}

// readMetadataScalar reads a scalar of metadata: a string, float64, bool or nil.
func (r *reader) readMetadataScalar(n *yaml.Node) any {
	s := parseScalar(n)
	switch s.Kind {
	case compile.KindNull:
		return nil
	case compile.KindBool:
		return s.Bool
	case compile.KindInt:
		return float64(s.Int)
	case compile.KindBigInt, compile.KindFloat:
		number, err := strconv.ParseFloat(strings.ReplaceAll(s.Text, "_", ""), 64)
		if err != nil || math.IsInf(number, 0) || math.IsNaN(number) {
			r.addProblem(n, "write a finite number, or put it in quotes", "%s cannot be sent in an answer", rules.Quote(s.Text))
			return nil
		}
		return number
	default:
		r.checkUTF8(n, s.Text)
		return s.Text
	}
}
