package yamlrules

import (
	"bytes"
	"iter"
	"strings"

	"gopkg.in/yaml.v3"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
)

// SplitFile is a rule file whose list of descriptors, or of rules, is read in parts.
type SplitFile struct {
	file            string
	listKey         string // "descriptors" or "rules"
	listLine        int    // the line of the key, from 1
	itemIndent      int    // the number of blanks before the `-` of each item
	textWithoutList []byte // the file with empty lines in place of the list
	listText        []byte // the text from the line below the key to the end of the list
	textFromList    []byte // the text from the line below the key to the end of the file
}

// ParsedPart is the result of reading a part of a file.
type ParsedPart struct {
	Config             *compile.DomainConfig // nil if there is nothing to compile
	ContinuesConfig    bool                  // set if Config continues the Config of the part before
	NeedsWholeFile     bool                  // set if the file must be read as a whole, because it cannot be read in parts
	Problems, Warnings rules.Problems
}

// Split finds the block list `descriptors` or `rules` at the top level of a file. It looks at the indentation only; the
// functions of PartReaders check that the text really is such a list.
func Split(file string, data []byte) (f *SplitFile, ok bool) {
	if isUTF16(data) || hasUnusualLineBreaks(data) {
		return nil, false
	}
	f = &SplitFile{file: file, itemIndent: -1}
	at, lineCount, header := 0, 0, 0
lines:
	for line := range bytes.Lines(data) {
		text := bytes.TrimLeft(line, " ")
		column := len(line) - len(text)
		switch {
		case f.listKey == "":
			if f.listKey = listKeyOfLine(line); f.listKey != "" {
				f.listLine, header = lineCount+1, at+len(line)
			}
		case isBlankOrComment(text):
		case f.itemIndent < 0 && !startsItem(text):
			return nil, false
		case f.itemIndent < 0:
			f.itemIndent = column
		case column == 0 && (f.itemIndent > 0 || !startsItem(text)):
			break lines
		case column < f.itemIndent, column == f.itemIndent && !startsItem(text):
			return nil, false // Indented text behind the list is not YAML.
		}
		at += len(line)
		lineCount++
	}
	f.listText, f.textFromList = data[header:at], data[header:]
	f.textWithoutList = bytes.Join([][]byte{
		data[:header], bytes.Repeat([]byte{'\n'}, lineCount-f.listLine),
		data[at:],
	}, nil)
	return f, f.itemIndent >= 0
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

// PartReaders yields a function that reads the file without its list, and then functions that read the list in parts of
// at least size bytes; the last may be smaller. If quotes or brackets continue on a line that looks like an item, the
// part above it ends too early: it reports NeedsWholeFile.
func (f *SplitFile) PartReaders(size int) iter.Seq[func() ParsedPart] {
	return func(yield func(func() ParsedPart) bool) {
		if !yield(f.readWithoutList) {
			return
		}
		at, start, lines, linesAbove, empty := 0, 0, f.listLine, f.listLine, true
		part := func(end int) func() ParsedPart {
			text, rest, linesAbove := f.listText[start:end], f.textFromList[start:], linesAbove
			return func() ParsedPart { return f.readListPart(text, rest, linesAbove) }
		}
		for line := range bytes.Lines(f.listText) {
			if text := bytes.TrimLeft(line, " "); len(line)-len(text) == f.itemIndent && startsItem(text) {
				if !empty && at-start >= size {
					if !yield(part(at)) {
						return
					}
					start, linesAbove = at, lines
				}
				empty = false
			}
			at += len(line)
			lines++
		}
		yield(part(len(f.listText)))
	}
}

func (f *SplitFile) readWithoutList() (p ParsedPart) {
	r := &reader{file: f.file}
	root := r.readDocument(f.textWithoutList)
	if len(r.problems) > 0 || !f.hasOnlyThisList(root) {
		return ParsedPart{NeedsWholeFile: true}
	}
	p.Config = r.readRuleFile(root)
	if f.listKey == "rules" {
		p.Config.Rules = &compile.Positioned[[]compile.RuleConfig]{Pos: rules.Pos{File: f.file, Line: f.listLine, Col: 1}}
	}
	p.Problems, p.Warnings = r.problems, r.warnings
	return p
}

// hasOnlyThisList reports whether root, which was read from textWithoutList, has the list's key on its line, without a
// value, and no other list.
func (f *SplitFile) hasOnlyThisList(root *yaml.Node) bool {
	found := false
	for i := 0; root != nil && root.Kind == yaml.MappingNode && i+1 < len(root.Content); i += 2 {
		k, v := root.Content[i], root.Content[i+1]
		if k.Value != "descriptors" && k.Value != "rules" {
			continue
		}
		if found || k.Value != f.listKey || k.Line != f.listLine || k.Column != 1 || v.Kind != yaml.ScalarNode ||
			v.Value != "" || v.Style != 0 || v.Anchor != "" {
			return false
		}
		found = true
	}
	return found && isRuleFile(root)
}

// readListPart reads text, a part of the list. rest is the file from the start of the part, and linesAbove counts the
// lines above it.
func (f *SplitFile) readListPart(text, rest []byte, linesAbove int) ParsedPart {
	r := &reader{file: f.file, linesAbove: linesAbove}
	documents, err := decodeDocuments(text, 2)
	cfg := new(compile.DomainConfig)
	switch {
	case err != nil && len(documents) == 0:
		// A part that ends within an item may be valid together with the text below it, and an anchor may be above it.
		_, restErr := decodeDocuments(rest, 1)
		if restErr == nil || restErr.Error() != err.Error() || strings.Contains(err.Error(), "anchor") {
			return ParsedPart{NeedsWholeFile: true}
		}
		r.reportSyntaxError(text, err)
	case err != nil || len(documents) != 1 || len(documents[0].Content) != 1 ||
		documents[0].Content[0].Kind != yaml.SequenceNode:
		return ParsedPart{NeedsWholeFile: true}
	case r.checkAliases(documents[0], len(text)):
		list := field{
			name: f.listKey, keyPos: rules.Pos{File: f.file, Line: f.listLine, Col: 1},
			valueNode: documents[0].Content[0],
		}
		if f.listKey == "rules" {
			cfg.Rules = r.readRules(list)
		} else {
			cfg.Descriptors = r.readDescriptors(list)
		}
	}
	return ParsedPart{
		Config: cfg, ContinuesConfig: true, NeedsWholeFile: r.hasAlias, Problems: r.problems,
		Warnings: r.warnings,
	}
}
