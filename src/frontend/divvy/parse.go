package divvy

import (
	"bytes"
	"unicode/utf8"

	"ratelimit/src/frontend/pipeline"
	"ratelimit/src/rules"
)

// maxRequestPairs is the most different keys that a request may have.
const maxRequestPairs = 1000

// parseHit appends the pairs of a line to entries, which then point into the line. The line must be valid UTF-8 and
// have no line end. If a key occurs twice, the entry of its first occurrence gets the last value.
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
func parseHit(entries []rules.Entry, line []byte) ([]rules.Entry, *pipeline.Fault) {
	word, rest, ok := cutToken(line)
	switch {
	case !ok:
		return entries, errOpenQuote
	case !isHitCommand(word):
		return entries, &pipeline.Fault{
			Code: errorCodeUnknownCommand,
			Text: "Unrecognized command: " + string(bytes.ToUpper(word)),
		}
	}
	pairs := pairFinder{firstEntryIndex: len(entries)}
	rest = bytes.TrimFunc(rest, isSpace)
	for len(rest) > 0 {
		var e rules.Entry
		if e.Key, rest, ok = cutToken(rest); !ok {
			return entries, errOpenQuote
		}
		switch {
		case len(rest) == 0:
			return entries, errUnexpectedEnd
		case rest[0] != '=':
			return entries, errExpectedText("'='", rest)
		}
		if e.Value, rest, ok = cutToken(rest[1:]); !ok {
			return entries, errOpenQuote
		}
		if entries = pairs.putEntry(entries, e); len(entries)-pairs.firstEntryIndex > maxRequestPairs {
			return entries, errTooManyPairs
		}
		next := bytes.TrimLeftFunc(rest, isSpace)
		if len(rest) > 0 && len(next) == len(rest) {
			return entries, errExpectedText("whitespace", rest)
		}
		rest = next
	}
	return entries, nil
}

// pairFinder finds the entries of one line by key. The first maxLinearSearch entries are found by a
// linear search, which is faster for few entries; indexByKey has all others.
type pairFinder struct {
	firstEntryIndex int
	indexByKey      map[string]int
}

const maxLinearSearch = 16

// putEntry appends e to entries, or sets the value of the entry of the same line that has its key.
func (p *pairFinder) putEntry(entries []rules.Entry, e rules.Entry) []rules.Entry {
	searched := entries[p.firstEntryIndex:min(len(entries), p.firstEntryIndex+maxLinearSearch)]
	for i := range searched {
		if bytes.Equal(searched[i].Key, e.Key) {
			searched[i].Value = e.Value
			return entries
		}
	}
	if i, found := p.indexByKey[string(e.Key)]; found {
		entries[i].Value = e.Value
		return entries
	}
	if len(searched) == maxLinearSearch {
		if p.indexByKey == nil {
			p.indexByKey = make(map[string]int)
		}
		p.indexByKey[string(e.Key)] = len(entries)
	}
	return append(entries, e)
}

// cutToken splits s after the string that it starts with. ok is false if a quote is not closed.
func cutToken(s []byte) (text, rest []byte, ok bool) {
	if len(s) > 0 && s[0] == '"' {
		return bytes.Cut(s[1:], quoteMark)
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

var quoteMark = []byte{'"'}

func isHitCommand(word []byte) bool {
	// The dotless ı of "hıt" is an I in upper case.
	return bytes.EqualFold(word, []byte("HIT")) || string(bytes.ToUpper(word)) == "HIT"
}

// isSpace reports whether r is white space in JavaScript, where divvy was written.
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

// appendValidUTF8 appends line, with U+FFFD for each byte that starts no character and for each
// character that is cut off. Node decodes divvy's input in the same way.
//
// Source: Unicode 15, section 3.9, "U+FFFD Substitution of Maximal Subparts".
func appendValidUTF8(dst, line []byte) []byte {
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
