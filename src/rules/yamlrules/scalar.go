package yamlrules

import (
	"encoding/base64"
	"regexp"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// kind is the type of a YAML value.
type Kind uint8

const (
	IsString Kind = iota
	IsInt
	IsBigInt
	IsFloat
	IsBool
	IsNull
	IsMap
	IsList
)

var kindNames = [...]string{
	IsString: "text",
	IsInt:    "a whole number",
	IsBigInt: "a number of more than 64 bits",
	IsFloat:  "a fraction",
	IsBool:   "true or false",
	IsNull:   "nothing",
	IsMap:    "a map",
	IsList:   "a list",
}

// String is the kind in words for a message.
func (k Kind) String() string { return kindNames[k] }

// scalar is a YAML scalar with its type resolved.
type scalar struct {
	kind Kind
	text string // as written, quotes and escapes undone
	bool bool
	int  int64
}

// boolWords, nullWords and floatWords are plain scalars that YAML 1.1 reads as
// something else than text, whatever yaml.v3 thinks of them.
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

// resolve reads a scalar node by the rules of YAML 1.1, as envoyproxy/ratelimit
// does: `yes` is true, `010` is eight, `1_000` a thousand, `2001-01-01` text.
func resolve(n *yaml.Node) scalar {
	s := scalar{text: n.Value}
	if n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0 &&
		n.Style&yaml.TaggedStyle == 0 {
		return s
	}
	if n.Style&yaml.TaggedStyle != 0 {
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
		s.kind, s.bool = IsBool, b
		return s
	}
	if nullWords[n.Value] {
		s.kind = IsNull
		return s
	}
	s.kind, s.int = number(n.Value)
	if s.kind == IsInt && n.Style&yaml.TaggedStyle != 0 && n.ShortTag() == "!!float" {
		s.kind = IsFloat
	}
	return s
}

// number tells whether a plain scalar is a number, and which.
func number(text string) (Kind, int64) {
	first := text[0]
	if first != '.' && first != '+' && first != '-' && (first < '0' || first > '9') {
		return IsString, 0
	}
	plain := strings.ReplaceAll(text, "_", "")
	if i, err := strconv.ParseInt(plain, 0, 64); err == nil {
		return IsInt, i
	}
	if _, err := strconv.ParseUint(plain, 0, 64); err == nil {
		return IsBigInt, 0
	}
	if floatForm.MatchString(plain) || floatWords.MatchString(text) {
		return IsFloat, 0
	}
	return IsString, 0
}
