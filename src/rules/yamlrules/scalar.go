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

	"ratelimit/src/rules"
)

// kind is the type of a YAML value.
type kind uint8

const (
	isString kind = iota
	isInt
	isBigInt
	isFloat
	isBool
	isNull
	isMap
	isList
)

// String is the kind in words for a message.
func (k kind) String() string {
	return [...]string{"text", "a whole number", "a number of more than 64 bits", "a fraction", "true or false", "nothing", "a map", "a list"}[k]
}

func kindOf(n *yaml.Node) kind { return resolve(n).kind }

// scalar is a YAML scalar with its type resolved; of a map or a list only the kind.
type scalar struct {
	kind kind
	text string // as written, quotes and escapes undone
	bool bool
	int  int64
}

// Plain scalars that YAML 1.1 reads as something other than text, unlike yaml.v3.
var (
	boolWords = map[string]bool{
		"y": true, "Y": true, "yes": true, "Yes": true, "YES": true, "true": true, "True": true, "TRUE": true,
		"on": true, "On": true, "ON": true,
		"n": false, "N": false, "no": false, "No": false, "NO": false, "false": false, "False": false, "FALSE": false,
		"off": false, "Off": false, "OFF": false,
	}
	nullWords  = map[string]bool{"": true, "~": true, "null": true, "Null": true, "NULL": true}
	floatWords = regexp.MustCompile(`^(\.nan|\.NaN|\.NAN|[-+]?(\.inf|\.Inf|\.INF))$`)
	floatForm  = regexp.MustCompile(`^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`)
)

// resolve reads a scalar node by the rules of YAML 1.1, as envoyproxy/ratelimit does: `yes` is true, `010` is eight, `1_000` a
// thousand, `2001-01-01` text. Of maps and lists it returns the kind.
func resolve(n *yaml.Node) scalar {
	switch n.Kind {
	case yaml.MappingNode:
		return scalar{kind: isMap}
	case yaml.SequenceNode:
		return scalar{kind: isList}
	}
	s := scalar{text: n.Value}
	tagged := n.Style&yaml.TaggedStyle != 0
	if !tagged && n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0 {
		return s
	}
	if tagged {
		switch n.ShortTag() {
		case "!!binary":
			if data, err := base64.StdEncoding.DecodeString(n.Value); err == nil {
				s.text = string(data)
			}
			return s
		case "!!bool", "!!int", "!!float", "!!null":
			// as if it were plain; a text that does not fit is text
		default:
			return s
		}
	}
	if b, ok := boolWords[n.Value]; ok {
		s.kind, s.bool = isBool, b
		return s
	}
	if nullWords[n.Value] {
		s.kind = isNull
		return s
	}
	s.kind, s.int = number(n.Value)
	if s.kind == isInt && tagged && n.ShortTag() == "!!float" {
		s.kind = isFloat
	}
	return s
}

// number tells whether a plain scalar is a number, and which.
func number(text string) (kind, int64) {
	first := text[0]
	if first != '.' && first != '+' && first != '-' && (first < '0' || first > '9') {
		return isString, 0
	}
	plain := strings.ReplaceAll(text, "_", "")
	if i, err := strconv.ParseInt(plain, 0, 64); err == nil {
		return isInt, i
	}
	if _, err := strconv.ParseUint(plain, 0, 64); err == nil {
		return isBigInt, 0
	}
	if floatForm.MatchString(plain) || floatWords.MatchString(text) {
		return isFloat, 0
	}
	return isString, 0
}

// text reads a field that is text. Numbers, truth values and dates are taken as written; nothing is the empty text.
func (r *reader) text(f field) string {
	switch s := resolve(f.node); s.kind {
	case isNull:
		return ""
	case isFloat, isBigInt:
		r.wrong(f.node, fmt.Sprintf("write %q, in quotes", s.text), "%s is %v, not text: %s", f.name, s.kind, rules.Quote(s.text))
		return s.text // an empty text would be a second problem
	case isMap, isList:
		r.wrong(f.node, "write `"+f.name+": <text>`", "%s is %v, not text", f.name, s.kind)
		return r.pos(f.node).String() // as above
	default:
		r.checkUTF8(f.node, s.text)
		return s.text
	}
}

// flag reads a field that is true or false; nothing is false.
func (r *reader) flag(f field) bool {
	s := resolve(f.node)
	if s.kind != isBool && s.kind != isNull {
		fix := "write true or false"
		if _, word := boolWords[s.text]; word {
			fix = "remove the quotes"
		}
		r.wrong(f.node, fix, "%s is %v, not true or false", f.name, s.kind)
	}
	return s.bool
}

// octalForm and digitsForm are whole numbers that YAML 1.1 reads as fractions: 08, and those of more than 64 bits. wholeForm is one in
// quotes.
var (
	octalForm  = regexp.MustCompile(`^0[0-9_]*[89][0-9_]*$`)
	digitsForm = regexp.MustCompile(`^[-+]?[0-9_]{20,}$`)
	wholeForm  = regexp.MustCompile(`^[0-9]+$`)
)

// number reads a field that is a whole number of 32 bits; nothing is 0.
func (r *reader) number(f field) uint32 {
	most := int64(math.MaxUint32)
	if f.name == "burst" { // one more has 32 bits too
		most--
	}
	s := resolve(f.node)
	text := rules.Quote(s.text)
	switch {
	case s.kind == isNull:
		return 0
	case s.kind == isInt && 0 <= s.int && s.int <= most:
		return uint32(s.int)
	case s.kind == isFloat && octalForm.MatchString(s.text):
		r.wrong(f.node, "remove the 0 in front", "%s begins with 0 as octal numbers do, and is none: %s", f.name, text)
	case s.kind == isInt, s.kind == isBigInt, s.kind == isFloat && digitsForm.MatchString(s.text):
		r.wrong(f.node, fmt.Sprintf("write 0 to %d", most), "%s is out of range: %s", f.name, text)
	case s.kind == isFloat && f.name == "requests_per_unit":
		r.wrong(f.node, "write a whole number; for less than one per unit use a longer unit or unit_multiplier",
			"%s is a fraction: %s", f.name, text)
	case s.kind == isFloat:
		r.wrong(f.node, "write a whole number", "%s is a fraction: %s", f.name, text)
	case s.kind == isString && wholeForm.MatchString(s.text):
		r.wrong(f.node, "remove the quotes", "%s is text, not a number: %s", f.name, text)
	default:
		r.wrong(f.node, "write a whole number", "%s is %v, not a number", f.name, s.kind)
	}
	return 1 // 0 would be a second problem
}

// durationForm is what time.ParseDuration reads, except for a zero without a unit.
var durationForm = regexp.MustCompile(`^[-+]?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$`)

const fixDuration = "write hours, minutes, seconds or milliseconds: 720h (30 days), 1h30m, 15s, 1500ms"

// duration reads a field that is a length of time as Go writes it.
func (r *reader) duration(f field) time.Duration {
	s := resolve(f.node)
	kind, text := s.kind, s.text
	if kind == isString && text != "" {
		kind, _ = number(text) // in quotes a number has no unit either
	}
	switch d, err := time.ParseDuration(text); {
	case kind == isInt || kind == isBigInt || kind == isFloat:
		r.wrong(f.node, "say of what: 90s, 1500ms, 1h30m", "%s has no unit of time: %s", f.name, rules.Quote(text))
	case kind != isString:
		r.wrong(f.node, fixDuration, "%s is %v, not a duration", f.name, kind)
	case !durationForm.MatchString(text):
		r.wrong(f.node, fixDuration, "%s is not a duration: %s", f.name, rules.Quote(text))
	case err != nil:
		r.wrong(f.node, "write 876000h or less", "%s is longer than 100 years: %s", f.name, rules.Quote(text))
	default:
		return d
	}
	return time.Hour // valid for all algorithms, so that there is no second problem
}

// freeScalar reads a scalar of metadata: text, float64, bool or nil.
func (r *reader) freeScalar(n *yaml.Node) any {
	s := resolve(n)
	switch s.kind {
	case isNull:
		return nil
	case isBool:
		return s.bool
	case isInt:
		return float64(s.int)
	case isBigInt, isFloat:
		number, err := strconv.ParseFloat(strings.ReplaceAll(s.text, "_", ""), 64)
		if err != nil || math.IsInf(number, 0) || math.IsNaN(number) {
			r.wrong(n, "write a finite number, or put it in quotes", "%s cannot be sent in an answer", rules.Quote(s.text))
			return nil
		}
		return number
	default:
		r.checkUTF8(n, s.text)
		return s.text
	}
}
