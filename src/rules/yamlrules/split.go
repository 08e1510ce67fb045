package yamlrules

import (
	"bytes"
	"errors"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	"gopkg.in/yaml.v3"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
)

// minPartBytes is the least size in bytes of the parts in which a list is read. Parts save memory: the nodes of yaml.v3
// take some 25 bytes for each byte of text.
const minPartBytes = 256 << 10

// errNeedsWholeFile says that a file must be read as a whole.
var errNeedsWholeFile = errors.New("the file cannot be read in parts")

// readInParts reads a file whose list of descriptors, or of rules, is a block list. It reads the list in parts of at
// least size bytes; the last may be smaller. If the file cannot be read like that, it changes nothing in r and returns
// false.
func (r *reader) readInParts(data []byte, size int) (cfg *compile.DomainConfig, ok bool) {
	f, ok := split(r.file, data, size)
	if !ok {
		return nil, false
	}
	outer := &reader{file: r.file}
	if cfg, ok = f.readWithoutList(outer, data); !ok {
		return nil, false
	}
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := range f.parts {
		g.Go(func() error { return f.readPart(&f.parts[i]) })
	}
	if g.Wait() != nil {
		return nil, false
	}
	r.addFindings(outer)
	for i := range f.parts {
		p := &f.parts[i]
		r.addFindings(&p.reader)
		if cfg.Rules != nil {
			cfg.Rules.Value = append(cfg.Rules.Value, p.rules...)
		} else {
			cfg.DescriptorParts = append(cfg.DescriptorParts, p.descriptors)
		}
	}
	return cfg, true
}

// addFindings adds the problems and warnings of other.
func (r *reader) addFindings(other *reader) {
	r.problems, r.warnings = append(r.problems, other.problems...), append(r.warnings, other.warnings...)
}

// splitFile is a rule file whose list of descriptors, or of rules, is read in parts.
type splitFile struct {
	listKey    string    // "descriptors" or "rules"
	keyPos     rules.Pos // the position of listKey
	start, end int       // the list is data[start:end], from the line below the key on
	parts      []listPart
}

// listPart is a part of the list: some of its items.
type listPart struct {
	reader
	text        []byte
	textOn      []byte                     // the file from the start of the part on
	descriptors []compile.DescriptorConfig // those that were read
	rules       []compile.RuleConfig
}

// split finds the block list `descriptors` or `rules` at the top level of a file, and cuts it into parts. It looks at
// the indentation only; the functions that read the parts check that the text really is such a list. If quotes or
// brackets continue on a line that looks like an item, the part above it ends too early, and readPart refuses it.
func split(file string, data []byte, size int) (f *splitFile, ok bool) {
	if isUTF16(data) || hasUnusualLineBreaks(data) {
		return nil, false
	}
	f = &splitFile{}
	linesAbove, itemIndent, partStart := 0, -1, 0
	startPart := func() {
		f.parts = append(f.parts, listPart{reader: reader{file: file, linesAbove: linesAbove}, textOn: data[f.end:]})
		partStart = f.end
	}
lines:
	for line := range bytes.Lines(data) {
		text := bytes.TrimLeft(line, " ")
		column := len(line) - len(text)
		switch {
		case f.listKey == "":
			if f.listKey = listKeyOfLine(line); f.listKey != "" {
				f.start, f.keyPos = f.end+len(line), rules.Pos{File: file, Line: linesAbove + 1, Col: 1}
			}
		case isBlankOrComment(text):
		case itemIndent < 0 && !startsItem(text):
			return nil, false
		case itemIndent < 0:
			itemIndent = column
		case column == 0 && (itemIndent > 0 || !startsItem(text)):
			break lines
		case column < itemIndent, column == itemIndent && !startsItem(text):
			return nil, false // Indented text behind the list is not YAML.
		case column == itemIndent && f.end-partStart >= size:
			startPart()
		}
		f.end += len(line)
		linesAbove++
		if f.end == f.start {
			startPart()
		}
	}
	for i := range f.parts {
		p, below := &f.parts[i], data[f.end:]
		if i+1 < len(f.parts) {
			below = f.parts[i+1].textOn
		}
		p.text = p.textOn[:len(p.textOn)-len(below)]
	}
	return f, itemIndent >= 0
}

// listKeyOfLine returns the key of a list that starts below line; empty if no list does.
func listKeyOfLine(line []byte) string {
	key, behind, _ := bytes.Cut(line, []byte{':'})
	if k := string(key); k != "descriptors" && k != "rules" || !isBlankOrComment(bytes.TrimLeft(behind, " ")) ||
		len(behind) > 0 && behind[0] == '#' {
		return ""
	}
	return string(key)
}

// isBlankOrComment reports whether a line without its indentation is empty or a comment.
func isBlankOrComment(text []byte) bool {
	return len(text) == 0 || text[0] == '#' || text[0] == '\n' || text[0] == '\r'
}

// startsItem reports whether a line without its indentation starts an item of a list.
func startsItem(text []byte) bool {
	return len(text) > 0 && text[0] == '-' && (len(text) == 1 || text[1] == ' ' || text[1] == '\n' || text[1] == '\r')
}

// hasUnusualLineBreaks reports whether data has line breaks of YAML that bytes.Lines does not find: CR alone, NEL, LS
// or PS.
func hasUnusualLineBreaks(data []byte) bool {
	return bytes.Count(data, []byte{'\r'}) != bytes.Count(data, []byte("\r\n")) ||
		bytes.Contains(data, []byte("\u0085")) || bytes.Contains(data, []byte("\u2028")) ||
		bytes.Contains(data, []byte("\u2029"))
}

// readWithoutList reads the file with empty lines in place of the list.
func (f *splitFile) readWithoutList(r *reader, data []byte) (cfg *compile.DomainConfig, ok bool) {
	empty := bytes.Repeat([]byte{'\n'}, bytes.Count(data[f.start:f.end], []byte{'\n'}))
	root := r.readDocument(slices.Concat(data[:f.start], empty, data[f.end:]))
	if len(r.problems) > 0 || !f.hasOnlyThisList(root) {
		return nil, false
	}
	cfg = r.readRuleFile(root)
	if f.listKey == "rules" {
		cfg.Rules = &compile.Positioned[[]compile.RuleConfig]{Pos: f.keyPos}
	}
	return cfg, true
}

// hasOnlyThisList reports whether root, which was read without the list, has the list's key on its line, without a
// value, and no other list.
func (f *splitFile) hasOnlyThisList(root *yaml.Node) bool {
	found := false
	for i := 0; root != nil && root.Kind == yaml.MappingNode && i+1 < len(root.Content); i += 2 {
		k, v := root.Content[i], root.Content[i+1]
		if k.Value != "descriptors" && k.Value != "rules" {
			continue
		}
		if found || k.Value != f.listKey || k.Line != f.keyPos.Line || k.Column != 1 || v.Kind != yaml.ScalarNode ||
			v.Value != "" || v.Style != 0 || v.Anchor != "" {
			return false
		}
		found = true
	}
	return found && isRuleFile(root)
}

// readPart reads a part. Its error is errNeedsWholeFile.
func (f *splitFile) readPart(p *listPart) error {
	documents, err := decodeDocuments(p.text, 2)
	if err != nil && len(documents) == 0 {
		// A part that ends within an item may be valid together with the text below it, and an anchor may be above it.
		_, restErr := decodeDocuments(p.textOn, 1)
		if restErr == nil || restErr.Error() != err.Error() || strings.Contains(err.Error(), "anchor") {
			return errNeedsWholeFile
		}
		p.reportSyntaxError(p.text, err)
		return nil
	}
	if err != nil || len(documents) != 1 || len(documents[0].Content) != 1 ||
		documents[0].Content[0].Kind != yaml.SequenceNode {
		return errNeedsWholeFile
	}
	if p.checkAliases(documents[0], len(p.text)) {
		list := field{name: f.listKey, keyPos: f.keyPos, valueNode: documents[0].Content[0]}
		if f.listKey == "rules" {
			p.rules = p.readRules(list).Value
		} else {
			p.descriptors = p.readDescriptors(list)
		}
	}
	if p.hasAlias {
		return errNeedsWholeFile
	}
	return nil
}
