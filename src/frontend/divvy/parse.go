package divvy

import (
	"bytes"
	"hash/maphash"
	"unicode/utf8"

	"ratelimit/src/rules"
)

// maxPairs is how many different keys a request may have. Rules look at a few.
const maxPairs = 1000

// parse reads a line, which is UTF-8 and has no end, and appends its pairs to
// entries; they are spans of the line. Of a key that comes twice the last value
// counts, in the first one's place.
//
//	line   = word rest
//	word   = string; HIT in any case
//	rest   = trimmed, then pairs apart by white space
//	pair   = string "=" string
//	string = '"' anything but '"' '"' | what stands before white space or "="
//
// Both kinds of string may be empty. There is no white space before the word.
//
// Source: Button's divvy, README section "Protocol", and its parser.
func parse(entries []rules.Entry, line []byte) ([]rules.Entry, *fault) {
	word, rest, ok := token(line)
	switch {
	case !ok:
		return entries, errQuote
	case !isHit(word):
		return entries, unknownCommand(word)
	}
	pairs := pairs{first: len(entries)}
	rest = trimRight(trimLeft(rest))
	for len(rest) > 0 {
		var e rules.Entry
		if e.Key, rest, ok = token(rest); !ok {
			return entries, errQuote
		}
		switch {
		case len(rest) == 0:
			return entries, errEnd
		case rest[0] != '=':
			return entries, expected("'='", rest)
		}
		if e.Value, rest, ok = token(rest[1:]); !ok {
			return entries, errQuote
		}
		if entries = pairs.put(entries, e); len(entries)-pairs.first > maxPairs {
			return entries, errPairs
		}
		behind := trimLeft(rest)
		if len(rest) > 0 && len(behind) == len(rest) {
			return entries, expected("whitespace", rest)
		}
		rest = behind
	}
	return entries, nil
}

// pairs are those of one line, and how they are found by key: a few by looking at
// all, more by a hash.
type pairs struct {
	first  int // their place in the entries
	places map[uint64]int
}

// fewPairs is up to how many pairs looking at all is faster than a map.
const fewPairs = 16

var keySeed = maphash.MakeSeed()

// put appends e, or gives the entry of the line that has its key its value.
func (p *pairs) put(entries []rules.Entry, e rules.Entry) []rules.Entry {
	if len(entries)-p.first < fewPairs {
		return p.scan(entries, e)
	}
	if p.places == nil {
		p.places = make(map[uint64]int)
		for i := p.first; i < len(entries); i++ {
			p.places[maphash.Bytes(keySeed, entries[i].Key)] = i
		}
	}
	hash := maphash.Bytes(keySeed, e.Key)
	i, found := p.places[hash]
	switch {
	case !found:
		p.places[hash] = len(entries)
		return append(entries, e)
	case !bytes.Equal(entries[i].Key, e.Key): // two keys with one hash
		return p.scan(entries, e)
	}
	entries[i].Value = e.Value
	return entries
}

// scan is put without the hash.
func (p *pairs) scan(entries []rules.Entry, e rules.Entry) []rules.Entry {
	for i := p.first; i < len(entries); i++ {
		if bytes.Equal(entries[i].Key, e.Key) {
			entries[i].Value = e.Value
			return entries
		}
	}
	return append(entries, e)
}

// token returns the string that s begins with and what stands behind it; false
// for a quote that is not closed.
func token(s []byte) (text, rest []byte, ok bool) {
	if len(s) > 0 && s[0] == '"' {
		end := bytes.IndexByte(s[1:], '"')
		if end < 0 {
			return nil, nil, false
		}
		return s[1 : 1+end], s[end+2:], true
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

func isHit(word []byte) bool {
	return bytes.EqualFold(word, []byte("HIT")) || string(bytes.ToUpper(word)) == "HIT" // "hıt": a dotless ı is an I
}

// isSpace reports whether r is white space to JavaScript's \s and trim.
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

func trimLeft(s []byte) []byte {
	for len(s) > 0 {
		r, size := utf8.DecodeRune(s)
		if !isSpace(r) {
			break
		}
		s = s[size:]
	}
	return s
}

func trimRight(s []byte) []byte {
	for len(s) > 0 {
		r, size := utf8.DecodeLastRune(s)
		if !isSpace(r) {
			break
		}
		s = s[:len(s)-size]
	}
	return s
}
