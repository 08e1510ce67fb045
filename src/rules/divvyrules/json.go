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
	"ratelimit/src/rules/compile"
)

// IsDivvyJSON reports whether a JSON file has rules of divvy. A file with `domain` or `schema` at its top has not, nor
// has an object of Kubernetes: package yamlrules reads it, because JSON is YAML too.
func IsDivvyJSON(data []byte) bool {
	var top map[string]json.RawMessage
	_ = json.Unmarshal(bytes.TrimPrefix(data, byteOrderMark), &top) // ParseJSON reports the error.
	return top["domain"] == nil && top["schema"] == nil && (top["apiVersion"] == nil || top["kind"] == nil)
}

// ParseJSON reads a rule file of divvy in its JSON form: `overrides`, a list of rules, and `default`, the last of them.
// The configuration is nil if the text is not JSON, and also, without a problem, for a JSON Schema: editors need one
// beside the rules.
func ParseJSON(file string, data []byte) (cfg *compile.DomainConfig, problems, warnings rules.Problems) {
	f := newReader(file)
	r := jsonReader{reader: f, lastPos: rules.Pos{File: file, Line: 1, Col: 1}}
	root, ok := r.readDocument(data)
	if !ok {
		return nil, f.problems, nil
	}
	if root.kind() != compile.KindMap {
		f.problems.Add(r.posOf(root.offset), "write {\"overrides\": [...], \"default\": {...}}", "the file is %v, not a map",
			root.kind())
		return nil, f.problems, nil
	}
	members := r.readMembers(root)
	has := func(key string) bool {
		return slices.ContainsFunc(members, func(m jsonMember) bool { return m.key == key })
	}
	switch {
	case has("overrides") || has("default"):
		r.readRules(members, has("overrides"))
		cfg = f.domainConfig()
	case has("$schema"):
		return nil, nil, nil
	default:
		f.problems.Add(r.posOf(root.offset), "move it elsewhere if it holds no rules",
			"the file has neither `overrides` and `default`, nor `domain`, nor `schema`")
	}
	return cfg, f.problems, f.warnings
}

var byteOrderMark = []byte("\ufeff")

type jsonReader struct {
	*reader
	text []byte
	// lastPos is the position of text[lastOffset]. posOf moves both.
	lastPos    rules.Pos
	lastOffset int
}

// jsonValue is a valid JSON value.
type jsonValue struct {
	rawJSON []byte
	offset  int // the index of rawJSON in the file
}

// kindByFirstByte maps the first byte of a JSON value to its kind; numbers are not in it.
var kindByFirstByte = map[byte]compile.ValueKind{
	'{': compile.KindMap, '[': compile.KindList, '"': compile.KindText,
	't': compile.KindBool, 'f': compile.KindBool, 'n': compile.KindNull,
}

func (v jsonValue) kind() compile.ValueKind {
	if kind, known := kindByFirstByte[v.rawJSON[0]]; known {
		return kind
	}
	if bytes.ContainsAny(v.rawJSON, ".eE") {
		return compile.KindFloat
	}
	return compile.KindInt
}

// text returns a scalar as text. Numbers are as written, but 1e3 is "1000" and 60.0 is "60".
func (v jsonValue) text() string {
	text := string(v.rawJSON)
	switch v.kind() {
	case compile.KindText:
		_ = json.Unmarshal(v.rawJSON, &text) // rawJSON is valid.
	case compile.KindFloat:
		if f, _ := strconv.ParseFloat(text, 64); f == float64(int64(f)) && f >= 0 && f < 1<<53 {
			text = strconv.FormatInt(int64(f), 10)
		}
	default:
	}
	return text
}

// readDocument returns the value that data is; ok is false, and there is a problem, if data is not JSON.
func (r *jsonReader) readDocument(data []byte) (v jsonValue, ok bool) {
	if !r.problems.CheckUTF8(r.file, data) {
		return v, false
	}
	r.text = bytes.TrimPrefix(data, byteOrderMark)
	err := json.Unmarshal(r.text, new(json.RawMessage))
	if syntax, wrong := errors.AsType[*json.SyntaxError](err); wrong {
		at := int(syntax.Offset) - 1
		if strings.HasPrefix(syntax.Error(), "unexpected end") {
			at = len(r.text)
		}
		r.problems.Add(r.posOf(at), "look for a comma, a bracket or a quote that is missing, or one too many",
			"not JSON: %v", err)
		return v, false
	}
	text := bytes.TrimLeft(r.text, " \t\r\n")
	return jsonValue{bytes.TrimRight(text, " \t\r\n"), len(r.text) - len(text)}, true
}

// posOf returns the position of text[offset]. It counts from the last position, so positions in the order of the text
// are found quickly, even if the whole file is one line.
func (r *jsonReader) posOf(offset int) rules.Pos {
	offset = min(offset, len(r.text))
	if offset < r.lastOffset {
		lineStart := bytes.LastIndexByte(r.text[:offset], '\n') + 1
		r.lastPos.Line -= bytes.Count(r.text[offset:r.lastOffset], []byte{'\n'})
		r.lastPos.Col, r.lastOffset = 1, lineStart
	}
	passed := r.text[r.lastOffset:offset]
	if n := bytes.Count(passed, []byte{'\n'}); n > 0 {
		passed = passed[bytes.LastIndexByte(passed, '\n')+1:]
		r.lastPos.Line, r.lastPos.Col = r.lastPos.Line+n, 1
	}
	r.lastPos.Col, r.lastOffset = r.lastPos.Col+utf8.RuneCount(passed), offset
	return r.lastPos
}

// jsonMember is a value in a map or a list.
type jsonMember struct {
	jsonValue
	key       string
	keyOffset int // the index of the key in the file; 0 in a list
}

// readMembers returns the members of a map or a list. If a map has a key twice, that is a problem, and the second value
// is left out.
func (r *jsonReader) readMembers(v jsonValue) (list []jsonMember) {
	dec := json.NewDecoder(bytes.NewReader(v.rawJSON))
	_, _ = dec.Token() // This is the bracket. The decoder returns no errors here, because v is valid JSON.
	seen := make(map[string]bool)
	for dec.More() {
		var m jsonMember
		if v.kind() == compile.KindMap {
			m.keyOffset = int(dec.InputOffset())
			for bytes.IndexByte([]byte(" \t\r\n,"), v.rawJSON[m.keyOffset]) >= 0 {
				m.keyOffset++
			}
			m.keyOffset += v.offset
			token, _ := dec.Token()
			m.key, _ = token.(string)
		}
		_ = dec.Decode((*json.RawMessage)(&m.rawJSON))
		m.offset = v.offset + int(dec.InputOffset()) - len(m.rawJSON)
		if seen[m.key] && v.kind() == compile.KindMap {
			r.problems.Add(r.posOf(m.keyOffset), "remove one of them", "the key %s is here twice", rules.Quote(m.key))
			continue
		}
		seen[m.key] = true
		list = append(list, m)
	}
	return list
}

// readRules reads the rules of a file from its top-level members. The default is the last rule, wherever the file has
// it.
func (r *jsonReader) readRules(members []jsonMember, overrides bool) {
	var last *jsonMember
	for i := range members {
		switch m := &members[i]; {
		case m.key == "default":
			last = m
		case m.key != "overrides":
			r.warnUnknownKey(r.posOf(m.keyOffset), m.key, []string{"overrides", "default"})
		case m.kind() == compile.KindList:
			for _, item := range r.readMembers(m.jsonValue) {
				r.readRule(item.jsonValue)
			}
		default:
			r.problems.Add(r.posOf(m.offset), "write a list of rules, or []", "overrides is %v, not a list", m.kind())
		}
	}
	if last == nil {
		return
	}
	if !overrides {
		r.warnDivvyDiffers(r.posOf(last.offset), "it cannot read a default without overrides, and ends")
	}
	r.readRule(last.jsonValue)
}

func (r *jsonReader) readRule(v jsonValue) {
	skipped := r.hasSkippedRule
	r.hasSkippedRule = true
	at := r.posOf(v.offset)
	if v.kind() != compile.KindMap {
		r.problems.Add(at, "write {\"operation\": {...}, \"creditLimit\": ..., \"resetSeconds\": ...}",
			"the rule is %v, not a map", v.kind())
		return
	}
	rule := divvyRule{pos: at, valueByKey: make(map[string]scalar)}
	operation := false
	for _, m := range r.readMembers(v) {
		kind := m.kind()
		switch {
		case m.key == "operation" && kind == compile.KindMap:
			operation = true
			r.readOperation(&rule, m.jsonValue)
		case m.key == "operation":
			operation = true
			r.problems.Add(r.posOf(m.offset), "write {\"key\": \"pattern\"}, or {} for the default",
				"operation is %v, not a map", kind)
		case !slices.Contains(ruleFieldKeys, m.key):
			r.warnUnknownKey(r.posOf(m.keyOffset), m.key, append([]string{"operation"}, ruleFieldKeys...))
		case kind == compile.KindMap || kind == compile.KindList:
			r.problems.Add(r.posOf(m.offset), "write text or a number", "%s is %v", m.key, kind)
		default:
			rule.valueByKey[m.key] = scalar{r.posOf(m.offset), m.text(), kind == compile.KindNull}
		}
	}
	switch {
	case rule.operationText != "":
		r.rules, r.hasSkippedRule = append(r.rules, rule), skipped
	case !operation:
		r.problems.Add(at, "add \"operation\": {\"key\": \"pattern\"}, or {} for the default", "the rule has no operation")
	}
}

// readOperation reads v, the operation of a rule, into rule.
func (r *jsonReader) readOperation(rule *divvyRule, v jsonValue) {
	var text bytes.Buffer
	_ = json.Compact(&text, v.rawJSON)
	rule.operationText = text.String()
	for _, m := range r.readMembers(v) {
		switch kind := m.kind(); kind {
		case compile.KindMap, compile.KindList:
			rule.lacksPairs = true
			r.problems.Add(r.posOf(m.offset), "write text", "the pattern of %s is %v", rules.Quote(m.key), kind)
			continue
		case compile.KindNull:
			r.warnings.Add(r.posOf(m.offset), "write \"*\" if any value is meant",
				"the pattern of %s is null, which is taken for the text null", rules.Quote(m.key))
		default:
		}
		rule.operationPairs = append(rule.operationPairs,
			compile.MatchPairConfig{Pos: r.posOf(m.keyOffset), Key: m.key, Pattern: m.text()})
	}
}
