package yamlrules

import (
	"bytes"

	"gopkg.in/yaml.v3"
)

// parsePlain parses the plain YAML that most rule files have, several times faster than yaml.v3 and into the same
// nodes: block maps and lists, keys that are words, and values without blanks, or in quotes without escapes, each on
// the line of its key. It returns false for everything else, right or wrong, which yaml.v3 has to parse.
func parsePlain(data []byte) (root *yaml.Node, ok bool) {
	p := plainParser{rest: data}
	if !p.nextLine() {
		return nil, false
	}
	if root, ok = p.block(0); !ok || !p.atEnd {
		return nil, false
	}
	return root, true
}

// maxPlainDepth bounds the recursion of plainParser.
const maxPlainDepth = 4 * 100

// plainParser is the state of parsePlain: the line that is to be parsed, from its first character that is not a blank.
type plainParser struct {
	rest     []byte // the lines below the current one
	line     []byte // the rest of the current line, without blanks on the left
	number   int    // that of the current line, from 1
	column   int    // that of the first byte of line, from 0
	atEnd    bool
	unusable bool        // set if a line has bytes that only yaml.v3 knows
	nodes    []yaml.Node // allocated and not used yet
}

// nextLine moves to the next line that is neither empty nor a comment. It returns false if there is none, or if it is
// unusable.
func (p *plainParser) nextLine() bool {
	for len(p.rest) > 0 {
		line, rest, _ := bytes.Cut(p.rest, []byte{'\n'})
		p.rest, p.number = rest, p.number+1
		p.line = bytes.TrimLeft(line, " ")
		p.column = len(line) - len(p.line)
		if len(p.line) == 0 {
			continue
		}
		for _, c := range p.line {
			if c < ' ' || c > '~' {
				p.unusable = true
				return false
			}
		}
		if p.line[0] != '#' {
			return true
		}
	}
	p.atEnd = true
	return false
}

func (p *plainParser) node(kind yaml.Kind) *yaml.Node {
	if len(p.nodes) == 0 {
		p.nodes = make([]yaml.Node, 32)
	}
	n := &p.nodes[0]
	p.nodes = p.nodes[1:]
	n.Kind, n.Line, n.Column = kind, p.number, p.column+1
	return n
}

// isItem reports whether the line starts an item of a list.
func (p *plainParser) isItem() bool { return len(p.line) > 1 && p.line[0] == '-' && p.line[1] == ' ' }

// block parses the map or the list that starts at the current line.
func (p *plainParser) block(depth int) (*yaml.Node, bool) {
	if depth == maxPlainDepth {
		return nil, false
	}
	if p.isItem() {
		return p.list(depth)
	}
	return p.fields(depth)
}

// list parses a list of maps.
func (p *plainParser) list(depth int) (*yaml.Node, bool) {
	n, column := p.node(yaml.SequenceNode), p.column
	for !p.atEnd && p.column == column && p.isItem() {
		item := bytes.TrimLeft(p.line[1:], " ")
		p.column += len(p.line) - len(item)
		if p.line = item; len(item) == 0 || item[0] == '-' || item[0] == '#' {
			return nil, false
		}
		m, ok := p.fields(depth + 1)
		if !ok {
			return nil, false
		}
		n.Content = append(n.Content, m)
	}
	return n, p.atEnd || p.column <= column
}

// fields parses a map.
func (p *plainParser) fields(depth int) (*yaml.Node, bool) {
	n, column := p.node(yaml.MappingNode), p.column
	n.Content = make([]*yaml.Node, 0, 6)
	for !p.atEnd && p.column == column && !p.isItem() {
		length := keyLength(p.line)
		if length == 0 {
			return nil, false
		}
		key := p.node(yaml.ScalarNode)
		key.Value = string(p.line[:length])
		value, ok := p.value(length+1, column, depth)
		if !ok {
			return nil, false
		}
		n.Content = append(n.Content, key, value)
	}
	return n, len(n.Content) > 0 && (p.atEnd || p.column <= column)
}

// value parses the value behind a key whose map has the column. skip is the length of the key and its colon.
func (p *plainParser) value(skip, column, depth int) (*yaml.Node, bool) {
	text := bytes.TrimLeft(p.line[skip:], " ")
	if len(text) == 0 {
		if !p.nextLine() || p.column < column || p.column == column && !p.isItem() {
			return nil, false
		}
		return p.block(depth + 1)
	}
	p.column += len(p.line) - len(text)
	n := p.node(yaml.ScalarNode)
	if quote := text[0]; quote == '"' || quote == '\'' {
		inner := text[1:]
		if i := bytes.IndexAny(inner, `"'\`); i < 0 || i != len(inner)-1 || inner[i] != quote {
			return nil, false
		}
		text = inner[:len(inner)-1]
		if n.Style = yaml.DoubleQuotedStyle; quote == '\'' {
			n.Style = yaml.SingleQuotedStyle
		}
	} else if !isPlainValue(text) {
		return nil, false
	}
	n.Value = string(text)
	p.nextLine()
	return n, !p.unusable && (p.atEnd || p.column <= column)
}

// keyLength returns the length of the key that line starts with; 0 if that is not a word followed by a colon.
func keyLength(line []byte) int {
	i := 0
	for i < len(line) && isWordByte(line[i]) {
		i++
	}
	if i == 0 || i > 100 || i == len(line) || line[i] != ':' || i+1 < len(line) && line[i+1] != ' ' {
		return 0
	}
	return i
}

func isWordByte(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// isPlainValue reports whether text is a scalar without quotes, and without bytes that can mean anything else.
func isPlainValue(text []byte) bool {
	if c := text[0]; c != '/' && !isWordByte(c) {
		return false
	}
	for _, c := range text {
		if !isWordByte(c) && c != '/' && c != '.' && c != '-' && c != '*' {
			return false
		}
	}
	return true
}
