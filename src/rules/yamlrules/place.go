package yamlrules

import (
	"bytes"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"ratelimit/src/rules"
)

// NumberPlace is where a rule file has the value of requests_per_unit.
type NumberPlace struct {
	Start, End int // the bytes text[Start:End] of the file
	LineStart  int // of the line with the number
}

// RequestsPlaces returns the places of requests_per_unit in the first document of a file, by Rule.Pos. It leaves out
// limits with an anchor or an alias, since several rules can share these.
func RequestsPlaces(file string, text []byte) map[rules.Pos]NumberPlace {
	places := make(map[rules.Pos]NumberPlace)
	documents, _ := decodeDocuments(text, 1) // What is wrong with the file, Parse tells.
	lines := lineStarts(text)
	r := &reader{file: file}
	add := func(at, limit *yaml.Node) {
		if number := valueOfKey(limit, "requests_per_unit"); number != nil && limit.Anchor == "" {
			if place, ok := findNumber(text, lines, number); ok {
				places[r.posOf(at)] = place
			}
		}
	}
	var walk func(n *yaml.Node)
	walk = func(n *yaml.Node) {
		if n.Anchor != "" {
			return
		}
		if limit := valueOfKey(n, "rate_limit"); limit != nil {
			add(n, limit)
		}
		if list := valueOfKey(n, "rate_limits"); list != nil && list.Kind == yaml.SequenceNode {
			for _, item := range list.Content {
				if add(item, item); len(list.Content) == 1 {
					add(n, item)
				}
			}
		}
		for _, child := range n.Content {
			walk(child)
		}
	}
	for _, document := range documents {
		walk(document)
	}
	return places
}

// valueOfKey returns the value of a key of a map as the file has it; nil if n is no map or lacks the key.
func valueOfKey(n *yaml.Node, key string) *yaml.Node {
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// lineStarts returns the offset of each line of text.
func lineStarts(text []byte) []int {
	starts := []int{0}
	for i, c := range text {
		if c == '\n' {
			starts = append(starts, i+1)
		}
	}
	return starts
}

// findNumber returns the place of a plain number.
func findNumber(text []byte, lines []int, n *yaml.Node) (p NumberPlace, ok bool) {
	if n.Kind != yaml.ScalarNode || n.Value == "" || n.Anchor != "" || n.Line > len(lines) {
		return p, false
	}
	p.LineStart = lines[n.Line-1]
	p.Start = p.LineStart
	for range n.Column - 1 { // yaml.v3 counts characters.
		_, size := utf8.DecodeRune(text[p.Start:])
		p.Start += size
	}
	p.End = p.Start + len(n.Value)
	return p, bytes.HasPrefix(text[p.Start:], []byte(n.Value)) && strings.Trim(n.Value, "0123456789_") == ""
}
