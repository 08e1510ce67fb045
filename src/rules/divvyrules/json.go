package divvyrules

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strconv"
	"unicode/utf8"

	"ratelimit/src/rules"
)

// IsDivvy reports whether a JSON file is one of divvy's. Those with `domain` or `schema` at the top are for package yamlrules: JSON is
// YAML too.
func IsDivvy(data []byte) bool {
	var top map[string]json.RawMessage
	_ = json.Unmarshal(bytes.TrimPrefix(data, byteOrderMark), &top) // ParseJSON reports errors
	return top["domain"] == nil && top["schema"] == nil
}

// ParseJSON reads a rule file of divvy in its JSON form: `overrides`, a list of rules, and `default`, the last of them. The
// configuration is nil with problems if the text is not JSON, and without for a JSON Schema, which may be among the rules for editors.
// Otherwise it is as ParseINI's.
func ParseJSON(file string, data []byte) (cfg *rules.DomainConfig, problems, warnings rules.Problems) {
	f := newReader(file)
	r := jsonReader{reader: f, lines: []int{0}}
	root, ok := r.document(data)
	if !ok {
		return nil, f.problems, nil
	}
	if root.kind() != isMap {
		f.problems.Add(r.pos(root.at), "write {\"overrides\": [...], \"default\": {...}}", "the file is %v, not a map", root.kind())
		return nil, f.problems, nil
	}
	keys := make(map[string]bool)
	r.each(root, func(key string, _ int, _ jsonValue) { keys[key] = true })
	switch {
	case keys["overrides"] || keys["default"]:
		f.problems = nil // they are found again
		r.root(root, keys["overrides"])
		cfg = f.config()
	case keys["$schema"]:
		return nil, nil, nil
	default:
		f.problems.Add(r.pos(root.at), "move it elsewhere if it holds no rules",
			"the file has neither `overrides` and `default`, nor `domain`, nor `schema`")
	}
	return cfg, f.problems, f.warnings
}

var byteOrderMark = []byte("\ufeff")

// jsonReader reads a JSON text in order.
type jsonReader struct {
	*reader
	data  []byte
	lines []int     // where each line starts
	known rules.Pos // the place last asked for,
	at    int       // which is here
}

// jsonValue is the text of a value that is known to be JSON, and where it starts.
type jsonValue struct {
	raw []byte
	at  int
}

func (v jsonValue) kind() kind {
	switch v.raw[0] {
	case '{':
		return isMap
	case '[':
		return isList
	case '"':
		return isText
	case 't', 'f':
		return isBool
	case 'n':
		return isNull
	}
	if bytes.ContainsAny(v.raw, ".eE") {
		return isFraction
	}
	return isWhole
}

// text is a scalar as text. Numbers are as written, except that 1e3 is 1000 and 60.0 is 60.
func (v jsonValue) text() (text string) {
	switch v.kind() {
	case isText:
		_ = json.Unmarshal(v.raw, &text) // it is known to be JSON
		return text
	case isFraction:
		if f, _ := strconv.ParseFloat(string(v.raw), 64); f == float64(int64(f)) && f >= 0 && f < 1<<53 {
			return strconv.FormatInt(int64(f), 10)
		}
	default:
	}
	return string(v.raw)
}

// document checks that data is JSON, and reports if it is not.
func (r *jsonReader) document(data []byte) (v jsonValue, ok bool) {
	if !r.problems.CheckUTF8(r.file, data) {
		return v, false
	}
	data = bytes.TrimPrefix(data, byteOrderMark)
	r.data = data
	for i, c := range data {
		if c == '\n' {
			r.lines = append(r.lines, i+1)
		}
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	var raw json.RawMessage
	err := dec.Decode(&raw)
	end := int(dec.InputOffset())
	if err == nil {
		if _, err = dec.Token(); errors.Is(err, io.EOF) {
			return jsonValue{raw, end - len(raw)}, true
		}
		if err == nil {
			end, err = int(dec.InputOffset()), errors.New("there is more behind the first value")
		}
	}
	var syntax *json.SyntaxError
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		end, err = len(data), errors.New("it ends too early")
	case errors.As(err, &syntax):
		end = max(int(syntax.Offset)-1, 0)
	}
	r.problems.Add(r.pos(end), "look for a comma, a bracket or a quote that is missing, or one too many", "not JSON: %v", err)
	return v, false
}

// pos is the place of a byte. Places in the order of the text are found quickly, also where all of a file is one line.
func (r *jsonReader) pos(offset int) rules.Pos {
	line, found := slices.BinarySearch(r.lines, offset)
	if !found {
		line--
	}
	from, col := r.lines[line], 1
	if r.known.Line == line+1 && r.at <= offset {
		from, col = r.at, r.known.Col
	}
	r.known = rules.Pos{File: r.file, Line: line + 1, Col: col + utf8.RuneCount(r.data[from:min(offset, len(r.data))])}
	r.at = offset
	return r.known
}

// each calls read for each member of a map, with its key and where that is, or for each item of a list. A key that is there twice is a
// problem, and read once.
func (r *jsonReader) each(v jsonValue, read func(key string, keyAt int, v jsonValue)) {
	dec := json.NewDecoder(bytes.NewReader(v.raw))
	_, _ = dec.Token() // the bracket; there are no errors, as v is known to be JSON
	seen := make(map[string]bool)
	for dec.More() {
		key, keyAt := "", 0
		if v.kind() == isMap {
			keyAt = int(dec.InputOffset())
			for bytes.IndexByte([]byte(" \t\r\n,"), v.raw[keyAt]) >= 0 {
				keyAt++
			}
			keyAt += v.at
			token, _ := dec.Token()
			key, _ = token.(string)
		}
		var raw json.RawMessage
		_ = dec.Decode(&raw)
		if seen[key] && v.kind() == isMap {
			r.problems.Add(r.pos(keyAt), "remove one of them", "the key %s is here twice", rules.Quote(key))
			continue
		}
		seen[key] = true
		read(key, keyAt, jsonValue{raw, v.at + int(dec.InputOffset()) - len(raw)})
	}
}

// root reads all of a file.
func (r *jsonReader) root(root jsonValue, overrides bool) {
	var last *jsonValue // the default is the last rule, wherever it is written
	r.each(root, func(key string, keyAt int, v jsonValue) {
		switch {
		case key == "default":
			last = &v
		case key != "overrides":
			r.unknown(r.pos(keyAt), key, []string{"overrides", "default"})
		case v.kind() == isList:
			r.each(v, func(_ string, _ int, item jsonValue) { r.rule(item) })
		default:
			r.problems.Add(r.pos(v.at), "write a list of rules, or []", "overrides is %v, not a list", v.kind())
		}
	})
	if last == nil {
		return
	}
	if !overrides {
		r.differs(r.pos(last.at), "it cannot read a default without overrides, and ends")
	}
	r.rule(*last)
}

func (r *jsonReader) rule(v jsonValue) {
	skipped := r.skipped
	r.skipped = true
	at := r.pos(v.at)
	if v.kind() != isMap {
		r.problems.Add(at, "write {\"operation\": {...}, \"creditLimit\": ..., \"resetSeconds\": ...}", "the rule is %v, not a map",
			v.kind())
		return
	}
	rule := divvyRule{at: at, fields: make(map[string]value)}
	operation := false
	r.each(v, func(key string, keyAt int, v jsonValue) {
		kind := v.kind()
		switch {
		case key == "operation" && kind == isMap:
			operation = true
			r.operation(&rule, v)
		case key == "operation":
			operation = true
			r.problems.Add(r.pos(v.at), "write {\"key\": \"pattern\"}, or {} for the default", "operation is %v, not a map", kind)
		case !slices.Contains(ruleKeys, key):
			r.unknown(r.pos(keyAt), key, append([]string{"operation"}, ruleKeys...))
		case kind == isMap || kind == isList:
			r.problems.Add(r.pos(v.at), "write text or a number", "%s is %v", key, kind)
		default:
			rule.fields[key] = value{r.pos(v.at), kind, v.text()}
		}
	})
	switch {
	case rule.text != "":
		r.rules, r.skipped = append(r.rules, rule), skipped
	case !operation:
		r.problems.Add(at, "add \"operation\": {\"key\": \"pattern\"}, or {} for the default", "the rule has no operation")
	}
}

// operation reads what a rule matches.
func (r *jsonReader) operation(rule *divvyRule, v jsonValue) {
	var text bytes.Buffer
	_ = json.Compact(&text, v.raw)
	rule.text = text.String()
	r.each(v, func(key string, keyAt int, v jsonValue) {
		at, kind := r.pos(keyAt), v.kind()
		switch kind {
		case isMap, isList:
			rule.incomplete = true
			r.problems.Add(r.pos(v.at), "write text", "the pattern of %s is %v", rules.Quote(key), kind)
			return
		case isNull:
			r.warnings.Add(r.pos(v.at), "write \"*\" if any value is meant",
				"the pattern of %s is null, which is taken for the text null", rules.Quote(key))
		default:
		}
		rule.operation = append(rule.operation, rules.PairConfig{Pos: at, Key: key, Pattern: v.text()})
	})
}
