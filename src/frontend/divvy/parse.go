package divvy

import (
	"bytes"
	"unicode/utf8"

	"ratelimit/src/rules"
)

// maxPairs is how many different keys a request may have.
const maxPairs = 1000

// parse appends the pairs of a line to entries; they point into the line. The line is
// valid UTF-8 and has no end. If a key comes twice, the last value counts, at the place
// of the first.
//
//	line   = word rest
//	word   = string; HIT in any case
//	rest   = trimmed, then pairs separated by white space
//	pair   = string "=" string
//	string = '"' anything but '"' '"' | anything up to white space or "="
//
// A string may be empty. White space before the word is an error.
//
// Source: Button's divvy, README section "Protocol", and its parser.
func parse(entries []rules.Entry, line []byte) ([]rules.Entry, *fault) {
	word, rest, ok := token(line)
	switch {
	case !ok:
		return entries, errQuote
	case !isHit(word):
		return entries, errCommand(word)
	}
	pairs := pairs{first: len(entries)}
	rest = bytes.TrimFunc(rest, isSpace)
	for len(rest) > 0 {
		var e rules.Entry
		if e.Key, rest, ok = token(rest); !ok {
			return entries, errQuote
		}
		switch {
		case len(rest) == 0:
			return entries, errEnd
		case rest[0] != '=':
			return entries, errExpected("'='", rest)
		}
		if e.Value, rest, ok = token(rest[1:]); !ok {
			return entries, errQuote
		}
		if entries = pairs.put(entries, e); len(entries)-pairs.first > maxPairs {
			return entries, errPairs
		}
		next := bytes.TrimLeftFunc(rest, isSpace)
		if len(rest) > 0 && len(next) == len(rest) {
			return entries, errExpected("whitespace", rest)
		}
		rest = next
	}
	return entries, nil
}

// pairs finds the pairs of one line by key: the first fewPairs by a linear search, which
// is faster for so few, and all others by a map.
type pairs struct {
	first  int // index of the line's first entry
	places map[string]int
}

const fewPairs = 16

// put appends e, or sets the value of the line's entry that has its key.
func (p *pairs) put(entries []rules.Entry, e rules.Entry) []rules.Entry {
	few := entries[p.first:min(len(entries), p.first+fewPairs)]
	for i := range few {
		if bytes.Equal(few[i].Key, e.Key) {
			few[i].Value = e.Value
			return entries
		}
	}
	if i, found := p.places[string(e.Key)]; found {
		entries[i].Value = e.Value
		return entries
	}
	if len(few) == fewPairs {
		if p.places == nil {
			p.places = make(map[string]int)
		}
		p.places[string(e.Key)] = len(entries)
	}
	return append(entries, e)
}

// token splits s after its first string. It reports false if a quote is not closed.
func token(s []byte) (text, rest []byte, ok bool) {
	if len(s) > 0 && s[0] == '"' {
		return bytes.Cut(s[1:], quote)
	}
	i := 0
	for i < len(s) && s[i] != '=' {
		r, size := rune(s[i]), 1
		if r >= utf8.RuneSelf {
			r, size = utf8.DecodeRune(s[i:])
		}
		if isSpace(r) {
			break
		}
		i += size
	}
	return s[:i], s[i:], true
}

var quote = []byte{'"'}

func isHit(word []byte) bool {
	return bytes.EqualFold(word, []byte("HIT")) || string(bytes.ToUpper(word)) == "HIT" // "hıt": a dotless ı is an I
}

// isSpace reports whether \s and trim of JavaScript take r for white space.
func isSpace(r rune) bool {
	if r < utf8.RuneSelf {
		return r == ' ' || '\t' <= r && r <= '\r'
	}
	switch r {
	case '\u00a0', '\u1680', '\u2028', '\u2029', '\u202f', '\u205f', '\u3000', '\ufeff':
		return true
	}
	return '\u2000' <= r && r <= '\u200a'
}

// appendValid appends line with U+FFFD for what is not UTF-8: one for each byte that
// starts no character, and one for each character that is cut off. Node decodes divvy's
// input the same way.
//
// Source: Unicode 15, section 3.9, "U+FFFD Substitution of Maximal Subparts".
func appendValid(dst, line []byte) []byte {
	for len(line) > 0 {
		r, size := utf8.DecodeRune(line)
		dst = utf8.AppendRune(dst, r)
		if r == utf8.RuneError && size == 1 {
			for size < len(line) && !utf8.FullRune(line[:size+1]) {
				size++
			}
		}
		line = line[size:]
	}
	return dst
}
