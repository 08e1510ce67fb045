package divvyrules

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"unicode/utf8"

	"ratelimit/src/rules"
	"ratelimit/src/rules/yamlrules"
)

// ParseJSON reads a rule file of divvy in its JSON form: `overrides`, a list of
// rules, and `default`, the last of them. With `domain` or `schema` in it a file
// is what ParseYAML reads: JSON is YAML, too. A JSON Schema, which may stand among
// the rules for editors, is passed over, as a file of tests is.
//
// The problems and warnings are those of ParseYAML.
func ParseJSON(file string, data []byte) (cfg *rules.DomainConfig, problems, warnings rules.Problems) {
	f := divvyFile{file: file}
	root := f.document(data)
	if root == nil {
		return nil, f.problems, nil
	}
	if root.field("domain") != nil || root.field("schema") != nil {
		return yamlrules.Parse(file, data)
	}
	overrides, last := root.field("overrides"), root.field("default")
	switch {
	case root.kind != yamlrules.IsMap:
		f.problems.Add(root.Pos, "write {\"overrides\": [...], \"default\": {...}}", "the file is %v, not a map", root.kind)
		return nil, f.problems, nil
	case overrides == nil && last == nil && root.field("$schema") != nil:
		return nil, nil, nil
	case overrides == nil && last == nil:
		f.problems.Add(root.Pos, "move it elsewhere if it holds no rules", "the file has neither `overrides` and `default`, nor `domain`, nor `schema`")
		return nil, f.problems, nil
	}
	f.root(root, overrides, last)
	cfg = f.config()
	return cfg, f.problems, f.warnings
}

// jsonValue is a value in a JSON file, and where it stands.
type jsonValue struct {
	rules.Pos
	kind   yamlrules.Kind
	text   string // of a scalar; of a number as it is written
	raw    []byte
	fields []jsonField
	items  []jsonValue
}

type jsonField struct {
	rules.Pos
	name  string
	value jsonValue
}

func (v *jsonValue) field(name string) *jsonValue {
	for i := range v.fields {
		if v.fields[i].name == name {
			return &v.fields[i].value
		}
	}
	return nil
}

// jsonReader keeps track of lines.
type jsonReader struct {
	file   string
	data   []byte
	dec    *json.Decoder
	lines  []int     // where each begins
	known  rules.Pos // of the last place that was asked for, which is
	offset int       // here
	depth  int
	twice  []rules.Problem
}

// document reads the file; nil where it is not JSON, which is noted.
func (f *divvyFile) document(data []byte) *jsonValue {
	if at, bad := yamlrules.InvalidUTF8(data); bad || yamlrules.IsUTF16(data) {
		at.File = f.file
		f.problems.Add(at, "save the file as UTF-8", "the text is not UTF-8")
		return nil
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	r := jsonReader{file: f.file, data: data, lines: []int{0}}
	for i, c := range data {
		if c == '\n' {
			r.lines = append(r.lines, i+1)
		}
	}
	r.dec = json.NewDecoder(bytes.NewReader(data))
	r.dec.UseNumber()
	v, err := r.value()
	if err == nil {
		if _, err = r.dec.Token(); errors.Is(err, io.EOF) {
			f.problems = append(f.problems, r.twice...)
			return v
		}
		if err == nil {
			err = errors.New("there is more behind the first value")
		}
	}
	at := r.dec.InputOffset()
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		at = max(syntax.Offset-1, 0)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		at, err = int64(len(data)), errors.New("it ends too early")
	}
	f.problems.Add(r.pos(int(at)), "look for a comma, a bracket or a quote that is missing, or one too many", "not JSON: %v", err)
	return nil
}

// pos is the place of a byte. Those behind one another are found quickly, also
// where all of a file is one line.
func (r *jsonReader) pos(offset int) rules.Pos {
	line, found := slices.BinarySearch(r.lines, offset)
	if !found {
		line--
	}
	from, col := r.lines[line], 1
	if r.known.Line == line+1 && r.offset <= offset {
		from, col = r.offset, r.known.Col
	}
	r.known = rules.Pos{File: r.file, Line: line + 1, Col: col + utf8.RuneCount(r.data[from:min(offset, len(r.data))])}
	r.offset = offset
	return r.known
}

// maxJSONDepth bounds how deep values nest; rules need four levels.
const maxJSONDepth = 100

// next is where the next token begins.
func (r *jsonReader) next() int {
	at := int(r.dec.InputOffset())
	for at < len(r.data) && bytes.IndexByte([]byte(" \t\r\n,:"), r.data[at]) >= 0 {
		at++
	}
	return at
}

func (r *jsonReader) value() (*jsonValue, error) {
	at := r.next()
	v := &jsonValue{Pos: r.pos(at)}
	if r.depth++; r.depth > maxJSONDepth {
		return nil, fmt.Errorf("values are nested more than %d levels deep", maxJSONDepth)
	}
	defer func() { r.depth-- }()
	token, err := r.dec.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case json.Delim:
		if t == '{' {
			v.kind, err = yamlrules.IsMap, r.object(v)
		} else {
			v.kind, err = yamlrules.IsList, r.list(v)
		}
		if err == nil {
			_, err = r.dec.Token() // the bracket at the end
		}
	case string:
		v.kind, v.text = yamlrules.IsString, t
	case json.Number:
		v.kind, v.text = yamlrules.IsFloat, t.String()
		if _, whole := strconv.ParseInt(v.text, 10, 64); whole == nil {
			v.kind = yamlrules.IsInt
		} else if f, _ := t.Float64(); f == float64(int64(f)) && f >= 0 && f < 1<<53 { // 1e3, 60.0
			v.kind, v.text = yamlrules.IsInt, strconv.FormatInt(int64(f), 10)
		}
	case bool:
		v.kind, v.text = yamlrules.IsBool, strconv.FormatBool(t)
	default:
		v.kind, v.text = yamlrules.IsNull, "null"
	}
	v.raw = r.data[at:r.dec.InputOffset()]
	return v, err
}

func (r *jsonReader) object(v *jsonValue) error {
	seen := make(map[string]bool)
	for r.dec.More() {
		at := r.pos(r.next())
		token, err := r.dec.Token()
		if err != nil {
			return err
		}
		name, _ := token.(string) // the decoder sees to that
		value, err := r.value()
		if err != nil {
			return err
		}
		if seen[name] {
			r.twice = append(r.twice, rules.Problem{Pos: at, What: fmt.Sprintf("the key %s is here twice", rules.Quote(name)), Fix: "remove one of them"})
			continue
		}
		seen[name] = true
		v.fields = append(v.fields, jsonField{at, name, *value})
	}
	return nil
}

func (r *jsonReader) list(v *jsonValue) error {
	for r.dec.More() {
		item, err := r.value()
		if err != nil {
			return err
		}
		v.items = append(v.items, *item)
	}
	return nil
}

// root reads the whole of a file.
func (f *divvyFile) root(root, overrides, last *jsonValue) {
	for i := range root.fields {
		if k := &root.fields[i]; k.name != "overrides" && k.name != "default" {
			f.unknown(k.Pos, k.name, []string{"overrides", "default"})
		}
	}
	switch {
	case overrides != nil && overrides.kind == yamlrules.IsList:
		for i := range overrides.items {
			f.jsonRule(&overrides.items[i])
		}
	case overrides != nil:
		f.problems.Add(overrides.Pos, "write a list of rules, or []", "overrides is %v, not a list", overrides.kind)
	case last != nil:
		f.differs(last.Pos, "it cannot read a default without overrides, and ends")
	}
	if last != nil {
		f.jsonRule(last)
	}
}

func (f *divvyFile) jsonRule(v *jsonValue) {
	skipped := f.skipped
	f.skipped = true
	if v.kind != yamlrules.IsMap {
		f.problems.Add(v.Pos, "write {\"operation\": {...}, \"creditLimit\": ..., \"resetSeconds\": ...}", "the rule is %v, not a map", v.kind)
		return
	}
	r := divvyRule{at: v.Pos, fields: make(map[string]divvyValue)}
	for i := range v.fields {
		k := &v.fields[i]
		switch {
		case k.name == "operation":
		case !slices.Contains(divvyKeys, k.name):
			f.unknown(k.Pos, k.name, append([]string{"operation"}, divvyKeys...))
		case k.value.kind == yamlrules.IsMap || k.value.kind == yamlrules.IsList:
			f.problems.Add(k.value.Pos, "write text or a number", "%s is %v", k.name, k.value.kind)
		default:
			r.fields[k.name] = divvyValue{k.value.Pos, k.value.kind, k.value.text}
		}
	}
	operation := v.field("operation")
	switch {
	case operation == nil:
		f.problems.Add(v.Pos, "add \"operation\": {\"key\": \"pattern\"}, or {} for the default", "the rule has no operation")
		return
	case operation.kind != yamlrules.IsMap:
		f.problems.Add(operation.Pos, "write {\"key\": \"pattern\"}, or {} for the default", "operation is %v, not a map", operation.kind)
		return
	}
	var text bytes.Buffer
	_ = json.Compact(&text, operation.raw) // it was read
	r.text = text.String()
	for i := range operation.fields {
		k := &operation.fields[i]
		if k.value.kind == yamlrules.IsMap || k.value.kind == yamlrules.IsList {
			r.bad = true
			f.problems.Add(k.value.Pos, "write text", "the pattern of %s is %v", rules.Quote(k.name), k.value.kind)
			continue
		}
		if k.value.kind == yamlrules.IsNull {
			f.warnings.Add(k.value.Pos, "write \"*\" if any value is meant", "the pattern of %s is null, which is taken for the text null", rules.Quote(k.name))
		}
		r.operation = append(r.operation, rules.PairConfig{Pos: k.Pos, Key: k.name, Pattern: k.value.text})
	}
	f.rules, f.skipped = append(f.rules, r), skipped
}
