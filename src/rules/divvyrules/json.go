package divvyrules

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
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
	members := r.members(root)
	has := func(key string) bool {
		return slices.ContainsFunc(members, func(m member) bool { return m.key == key })
	}
	switch {
	case has("overrides") || has("default"):
		r.root(members, has("overrides"))
		cfg = f.config()
	case has("$schema"):
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
	known rules.Pos // the position of the byte at, remembered for the next search
	at    int       // an index in data
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
	r.data = bytes.TrimPrefix(data, byteOrderMark)
	for i, c := range r.data {
		if c == '\n' {
			r.lines = append(r.lines, i+1)
		}
	}
	err := json.Unmarshal(r.data, new(json.RawMessage))
	if syntax, wrong := errors.AsType[*json.SyntaxError](err); wrong {
		at := int(syntax.Offset) - 1
		if strings.HasPrefix(syntax.Error(), "unexpected end") {
			at = len(r.data)
		}
		r.problems.Add(r.pos(at), "look for a comma, a bracket or a quote that is missing, or one too many", "not JSON: %v", err)
		return v, false
	}
	text := bytes.TrimLeft(r.data, " \t\r\n")
	return jsonValue{bytes.TrimRight(text, " \t\r\n"), len(r.data) - len(text)}, true
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

// member is a value in a map, with its key, or in a list.
type member struct {
	jsonValue
	key   string
	keyAt int
}

// members returns what is in a map, or a list. A key that is there twice is a problem, and its second value left out.
func (r *jsonReader) members(v jsonValue) (list []member) {
	dec := json.NewDecoder(bytes.NewReader(v.raw))
	_, _ = dec.Token() // the bracket; there are no errors, as v is known to be JSON
	seen := make(map[string]bool)
	for dec.More() {
		var m member
		if v.kind() == isMap {
			m.keyAt = int(dec.InputOffset())
			for bytes.IndexByte([]byte(" \t\r\n,"), v.raw[m.keyAt]) >= 0 {
				m.keyAt++
			}
			m.keyAt += v.at
			token, _ := dec.Token()
			m.key, _ = token.(string)
		}
		_ = dec.Decode((*json.RawMessage)(&m.raw))
		m.at = v.at + int(dec.InputOffset()) - len(m.raw)
		if seen[m.key] && v.kind() == isMap {
			r.problems.Add(r.pos(m.keyAt), "remove one of them", "the key %s is here twice", rules.Quote(m.key))
			continue
		}
		seen[m.key] = true
		list = append(list, m)
	}
	return list
}

// root reads all of a file. The default is the last rule, wherever it is written.
func (r *jsonReader) root(members []member, overrides bool) {
	var last *member
	for i := range members {
		switch m := &members[i]; {
		case m.key == "default":
			last = m
		case m.key != "overrides":
			r.unknown(r.pos(m.keyAt), m.key, []string{"overrides", "default"})
		case m.kind() == isList:
			for _, item := range r.members(m.jsonValue) {
				r.rule(item.jsonValue)
			}
		default:
			r.problems.Add(r.pos(m.at), "write a list of rules, or []", "overrides is %v, not a list", m.kind())
		}
	}
	if last == nil {
		return
	}
	if !overrides {
		r.differs(r.pos(last.at), "it cannot read a default without overrides, and ends")
	}
	r.rule(last.jsonValue)
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
	for _, m := range r.members(v) {
		kind := m.kind()
		switch {
		case m.key == "operation" && kind == isMap:
			operation = true
			r.operation(&rule, m.jsonValue)
		case m.key == "operation":
			operation = true
			r.problems.Add(r.pos(m.at), "write {\"key\": \"pattern\"}, or {} for the default", "operation is %v, not a map", kind)
		case !slices.Contains(ruleKeys, m.key):
			r.unknown(r.pos(m.keyAt), m.key, append([]string{"operation"}, ruleKeys...))
		case kind == isMap || kind == isList:
			r.problems.Add(r.pos(m.at), "write text or a number", "%s is %v", m.key, kind)
		default:
			rule.fields[m.key] = value{r.pos(m.at), kind, m.text()}
		}
	}
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
	for _, m := range r.members(v) {
		switch kind := m.kind(); kind {
		case isMap, isList:
			rule.incomplete = true
			r.problems.Add(r.pos(m.at), "write text", "the pattern of %s is %v", rules.Quote(m.key), kind)
			continue
		case isNull:
			r.warnings.Add(r.pos(m.at), "write \"*\" if any value is meant",
				"the pattern of %s is null, which is taken for the text null", rules.Quote(m.key))
		default:
		}
		rule.operation = append(rule.operation, rules.PairConfig{Pos: r.pos(m.keyAt), Key: m.key, Pattern: m.text()})
	}
}
