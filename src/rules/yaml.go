package rules

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// maxExpanded bounds how many values aliases may add to those that a file has,
// which are fewer than its bytes: "a billion laughs" is nine lines of YAML.
const maxExpanded = 1_000_000

// where says at which places of a rule file a key has a meaning.
type where uint8

const (
	atRoot where = 1 << iota
	atDescriptor
	atLimit
)

// keys are all keys of a rule file. A known key in the wrong place is accepted
// and ignored, as in envoyproxy/ratelimit, with a warning.
var keys = map[string]where{
	"domain":            atRoot,
	"descriptors":       atRoot | atDescriptor,
	"key":               atDescriptor,
	"value":             atDescriptor,
	"rate_limit":        atDescriptor,
	"shadow_mode":       atDescriptor,
	"quota_mode":        atDescriptor,
	"unit":              atLimit,
	"requests_per_unit": atLimit,
	"unit_multiplier":   atLimit,
	"unlimited":         atLimit,
	"name":              atLimit,
}

var whereNames = map[where]string{
	atRoot:       "the file",
	atDescriptor: "a descriptor",
	atLimit:      "a rate_limit",
}

// ParseYAML reads one rule file in Envoy's format. With any problems the
// configuration is good only for finding more of them; it is nil when the text
// is not YAML at all. Warnings name what has no effect.
func ParseYAML(file string, data []byte) (cfg *DomainConfig, problems, warnings Problems) {
	r := yamlReader{file: file, left: len(data) + maxExpanded, open: make(map[*yaml.Node]bool)}
	root := r.document(data)
	switch {
	case len(r.problems) > 0:
	case root == nil: // empty, or only comments
		cfg = &DomainConfig{Pos: Pos{File: file, Line: 1, Col: 1}}
	default:
		cfg = r.domain(root)
	}
	return cfg, r.problems, r.warnings
}

// yamlReader turns YAML nodes into configuration and notes what is wrong.
type yamlReader struct {
	file     string
	problems Problems
	warnings Problems
	left     int                 // how many values may still be visited, aliases followed
	open     map[*yaml.Node]bool // aliases being read, to find circles
}

// document parses the first document of data; nil when there is nothing in it
// or it is no YAML.
func (r *yamlReader) document(data []byte) (root *yaml.Node) {
	if at, ok := invalidUTF8(data); ok {
		at.File = r.file
		r.problems.add(at, "save the file as UTF-8", "the text is not UTF-8")
		return nil
	}
	defer func() { // yaml.v3 has panicked on odd input before
		if p := recover(); p != nil {
			r.problems.add(Pos{File: r.file}, "", "the YAML cannot be read: %v", p)
			root = nil
		}
	}()
	doc, second, err := decode(data)
	if err != nil {
		r.syntax(data, err)
		return nil
	}
	if second.Kind != 0 {
		r.warnings.add(r.pos(second), "put it into a file of its own", "only the first document of a file is read")
	}
	if len(doc.Content) == 0 {
		return nil
	}
	return doc.Content[0]
}

// decode parses the first two documents of data; one that is not there is
// zero.
func decode(data []byte) (first, second *yaml.Node, err error) {
	first, second = new(yaml.Node), new(yaml.Node)
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err = dec.Decode(first); err == nil {
		err = dec.Decode(second)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return first, second, err
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// syntax notes that data is not YAML. yaml.v3 names the line before the block
// in which it gave up, or none; the line that made it give up is the last of
// the shortest beginning of data with the same error.
func (r *yamlReader) syntax(data []byte, err error) {
	at, what := Pos{File: r.file}, err.Error()
	if m := yamlLine.FindStringSubmatch(what); m != nil {
		at.Line, _ = strconv.Atoi(m[1]) // no line: 0, unknown
		what = m[2]
	}
	if !isUTF16(data) {
		lines := bytes.SplitAfter(data, []byte{'\n'})
		before := sort.Search(len(lines)-1, func(i int) bool {
			_, _, e := decode(bytes.Join(lines[:i+1], nil))
			return e != nil && e.Error() == err.Error()
		})
		at.Line = max(at.Line, before+1)
	}
	r.problems.add(at, "", "not YAML: %s", what)
}

// isUTF16 looks for the mark in front of UTF-16.
func isUTF16(data []byte) bool {
	return bytes.HasPrefix(data, []byte{0xFE, 0xFF}) || bytes.HasPrefix(data, []byte{0xFF, 0xFE})
}

// invalidUTF8 finds the first byte of data that is not UTF-8. UTF-16 with its
// mark in front is YAML too.
func invalidUTF8(data []byte) (Pos, bool) {
	if isUTF16(data) || utf8.Valid(data) {
		return Pos{}, false
	}
	at := 0
	for {
		c, size := utf8.DecodeRune(data[at:])
		if c == utf8.RuneError && size <= 1 {
			break
		}
		at += size
	}
	lineStart := bytes.LastIndexByte(data[:at], '\n') + 1
	return Pos{Line: bytes.Count(data[:at], []byte{'\n'}) + 1, Col: at - lineStart + 1}, true
}

func (r *yamlReader) pos(n *yaml.Node) Pos { return Pos{r.file, n.Line, n.Column} }

// field is a key of a mapping with its value, aliases followed.
type field struct {
	name string
	at   Pos
	node *yaml.Node
}

// enter follows aliases to the node they stand for, and counts it. It returns
// nil for a circle of aliases and for a file that is too large; both are
// noted.
func (r *yamlReader) enter(n *yaml.Node) *yaml.Node {
	if r.left--; r.left == 0 {
		r.problems.add(r.pos(n), "use fewer aliases, or several files", "the aliases of the file stand for more than %d values", maxExpanded)
	}
	if r.left <= 0 {
		return nil
	}
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind == yaml.MappingNode || n.Kind == yaml.SequenceNode {
		if r.open[n] {
			r.problems.add(r.pos(n), "remove the alias that stands inside its own anchor", "the value contains itself")
			return nil
		}
	}
	return n
}

// inside runs read with n marked as being read.
func (r *yamlReader) inside(n *yaml.Node, read func()) {
	r.open[n] = true
	read()
	delete(r.open, n)
}

func kindOf(n *yaml.Node) kind {
	switch n.Kind {
	case yaml.MappingNode:
		return isMap
	case yaml.SequenceNode:
		return isList
	default:
		return resolve(n).kind
	}
}

// fields returns the keys of mapping n at the given place, `<<` merged in, the
// last of equal keys winning. Keys that are not known or not text are noted.
func (r *yamlReader) fields(n *yaml.Node, place where) []field {
	var own, merged []field
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], r.enter(n.Content[i+1])
		if k = r.enter(k); k == nil || v == nil {
			continue
		}
		at := r.pos(n.Content[i])
		if k.Kind == yaml.ScalarNode && k.Value == "<<" && (k.Tag == "!!merge" || k.Style == 0) {
			merged = append(merged, r.merge(v, place)...)
			continue
		}
		if kind := kindOf(k); kind != isString {
			r.problems.add(at, "put the key in quotes if it is meant as text", "the key %s is %v, not text", brief(k.Value), kind)
			continue
		}
		meaning, known := keys[k.Value]
		switch {
		case !known:
			r.problems.add(at, suggest(k.Value, place), "unknown key %s", brief(k.Value))
			continue
		case place == 0: // already inside a value without effect
			r.ignored(v)
			continue
		case meaning&place == 0:
			r.warnings.add(at, "move it or remove it", "%s has no effect in %s", k.Value, whereNames[place])
			r.ignored(v)
			continue
		}
		f := field{k.Value, at, v}
		if j := slices.IndexFunc(own, func(o field) bool { return o.name == f.name }); j >= 0 {
			r.warnings.add(at, "remove one of them", "the key %s is here twice; the last one wins", f.name)
			own[j] = f
			continue
		}
		own = append(own, f)
	}
	for _, f := range merged {
		if !slices.ContainsFunc(own, func(o field) bool { return o.name == f.name }) {
			own = append(own, f)
		}
	}
	return own
}

// merge is what `<<: v` brings in: the fields of a mapping, or of a list of
// them, earlier ones first.
func (r *yamlReader) merge(v *yaml.Node, place where) (fields []field) {
	switch v.Kind {
	case yaml.MappingNode:
		r.inside(v, func() { fields = r.fields(v, place) })
		return fields
	case yaml.SequenceNode:
		r.inside(v, func() {
			for _, item := range v.Content {
				if item = r.enter(item); item != nil && item.Kind == yaml.MappingNode {
					fields = append(fields, r.merge(item, place)...)
				} else if item != nil {
					r.problems.add(r.pos(item), "", "`<<` needs a map or a list of maps")
				}
			}
		})
		return fields
	}
	r.problems.add(r.pos(v), "", "`<<` needs a map or a list of maps")
	return nil
}

// ignored checks a value that has no effect where it stands as far as
// envoyproxy/ratelimit would: a fraction is refused wherever it is, and a list
// of anything but maps.
func (r *yamlReader) ignored(n *yaml.Node) {
	switch kindOf(n) {
	case isFloat, isBigInt:
		r.problems.add(r.pos(n), "write a whole number, or put it in quotes", "%s is %v", brief(n.Value), kindOf(n))
	case isMap:
		r.inside(n, func() { r.fields(n, 0) })
	case isList:
		r.inside(n, func() {
			for _, item := range n.Content {
				if item = r.enter(item); item == nil {
					continue
				}
				if kind := kindOf(item); kind != isMap {
					r.problems.add(r.pos(item), "remove it", "an item of the list is %v, not a map", kind)
					continue
				}
				r.ignored(item)
			}
		})
	default:
	}
}

// suggest names the key that was probably meant.
func suggest(name string, place where) string {
	if place == 0 {
		return "remove it"
	}
	lower := strings.ReplaceAll(strings.ToLower(name), "-", "_")
	var known []string
	for k, meaning := range keys {
		if meaning&place == 0 {
			continue
		}
		if lower == k || oneEdit(lower, k) {
			return fmt.Sprintf("did you mean `%s`?", k)
		}
		known = append(known, k)
	}
	slices.Sort(known)
	return fmt.Sprintf("known in %s: %s", whereNames[place], strings.Join(known, ", "))
}

// oneEdit reports whether one insertion, deletion, replacement or swap of
// neighbours turns a into b.
func oneEdit(a, b string) bool {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return len(a)+len(b) <= 1 || len(a) == 1 && len(b) == 1 ||
		len(a) == 2 && len(b) == 2 && a[0] == b[1] && a[1] == b[0]
}

func (r *yamlReader) domain(n *yaml.Node) *DomainConfig {
	cfg := &DomainConfig{Pos: r.pos(n)}
	n = r.enter(n)
	if n == nil {
		return cfg
	}
	switch kind := kindOf(n); kind {
	case isNull:
		return cfg
	case isMap:
	default:
		r.problems.add(cfg.Pos, "begin it with `domain: <name>`", "the file is %v, not a map", kind)
		return nil
	}
	r.inside(n, func() {
		for _, f := range r.fields(n, atRoot) {
			switch f.name {
			case "domain":
				cfg.Domain, cfg.Pos = r.text(f), f.at
			case "descriptors":
				cfg.Descriptors = r.descriptors(f)
			}
		}
	})
	return cfg
}

func (r *yamlReader) descriptors(f field) []DescriptorConfig {
	switch kind := kindOf(f.node); kind {
	case isNull:
		return nil
	case isList:
	default:
		r.problems.add(f.at, "write `- key: ...` below it", "descriptors is %v, not a list", kind)
		return nil
	}
	list := make([]DescriptorConfig, 0, len(f.node.Content))
	r.inside(f.node, func() {
		for _, item := range f.node.Content {
			at := r.pos(item)
			item = r.enter(item)
			if item == nil {
				continue
			}
			if kind := kindOf(item); kind != isMap {
				r.problems.add(at, "write `- key: ...`", "a descriptor is %v, not a map", kind)
				continue
			}
			cfg := DescriptorConfig{Pos: at}
			r.inside(item, func() { r.descriptor(item, &cfg) })
			if r.left > 0 { // else it was not read to its end
				list = append(list, cfg)
			}
		}
	})
	return list
}

func (r *yamlReader) descriptor(n *yaml.Node, cfg *DescriptorConfig) {
	for _, f := range r.fields(n, atDescriptor) {
		switch f.name {
		case "key":
			cfg.Key = r.text(f)
		case "value":
			cfg.Value = r.text(f)
		case "rate_limit":
			cfg.RateLimit = r.rateLimit(f)
		case "descriptors":
			cfg.Descriptors = r.descriptors(f)
		case "shadow_mode":
			cfg.ShadowMode = r.flag(f)
		case "quota_mode":
			cfg.QuotaMode = r.flag(f)
		}
	}
}

func (r *yamlReader) rateLimit(f field) *RateLimitConfig {
	switch kind := kindOf(f.node); kind {
	case isNull:
		return nil
	case isMap:
	default:
		r.problems.add(f.at, "write unit and requests_per_unit below it", "rate_limit is %v, not a map", kind)
		return nil
	}
	cfg := &RateLimitConfig{Pos: f.at, UnitPos: f.at}
	counted := false
	r.inside(f.node, func() {
		for _, f := range r.fields(f.node, atLimit) {
			switch f.name {
			case "unit":
				cfg.Unit, cfg.UnitPos = r.text(f), r.pos(f.node)
			case "requests_per_unit":
				cfg.RequestsPerUnit, counted = r.number(f), true
			case "unit_multiplier":
				n := r.number(f)
				if kindOf(f.node) != isNull {
					cfg.UnitMultiplier = &n
				}
			case "unlimited":
				cfg.Unlimited = r.flag(f)
			case "name":
				cfg.Name = r.text(f)
			}
		}
	})
	if !counted && !cfg.Unlimited && parseUnit(cfg.Unit) != UnitUnknown {
		r.warnings.add(cfg.Pos, "add it; 0 if that is what you want", "without requests_per_unit everything is refused")
	}
	return cfg
}

// text reads a field that is text. Numbers, truth values and dates are taken
// as they are written; nothing at all is the empty text.
func (r *yamlReader) text(f field) string {
	switch kind := kindOf(f.node); kind {
	case isNull:
		return ""
	case isFloat, isBigInt:
		r.problems.add(r.pos(f.node), fmt.Sprintf("write %q, in quotes", f.node.Value),
			"%s is %v, not text: %s", f.name, kind, brief(f.node.Value))
		return f.node.Value // stands in, so that one mistake is one problem
	case isMap, isList:
		r.problems.add(r.pos(f.node), "", "%s is %v, not text", f.name, kind)
		return r.pos(f.node).String() // stands in, as above
	default:
		return resolve(f.node).text
	}
}

// flag reads a field that is true or false; nothing at all is false.
func (r *yamlReader) flag(f field) bool {
	switch kind := kindOf(f.node); kind {
	case isBool:
		return resolve(f.node).bool
	case isNull:
		return false
	default:
		mend := "write true or false"
		if _, word := boolWords[f.node.Value]; word {
			mend = "remove the quotes"
		}
		r.problems.add(r.pos(f.node), mend, "%s is %v, not true or false", f.name, kind)
		return false
	}
}

// number reads a field that is a whole number of 32 bits; nothing at all is 0.
func (r *yamlReader) number(f field) uint32 {
	s := scalar{kind: kindOf(f.node)}
	if f.node.Kind == yaml.ScalarNode {
		s = resolve(f.node)
	}
	switch {
	case s.kind == isNull:
		return 0
	case s.kind == isInt && 0 <= s.int && s.int <= math.MaxUint32:
		return uint32(s.int)
	case s.kind == isInt, s.kind == isBigInt:
		r.problems.add(r.pos(f.node), "write 0 to 4294967295", "%s is out of range: %s", f.name, brief(s.text))
	case s.kind == isFloat:
		r.problems.add(r.pos(f.node), "write a whole number; for less than one per unit use a longer unit or unit_multiplier",
			"%s is a fraction: %s", f.name, brief(s.text))
	case s.kind == isString && isNumber(s.text):
		r.problems.add(r.pos(f.node), "remove the quotes", "%s is text, not a number: %s", f.name, brief(s.text))
	default:
		r.problems.add(r.pos(f.node), "write a whole number", "%s is %v, not a number", f.name, s.kind)
	}
	return 1 // stands in: 0 would be a second problem
}

func isNumber(text string) bool {
	_, err := strconv.ParseUint(text, 10, 32)
	return err == nil
}
