// Package callertext writes descriptors, names and keys of counters for operators. Callers choose their bytes, so the
// texts are bounded and have no unprintable characters.
package callertext

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"ratelimit/src/rules"
)

// Bounds on the texts, in bytes, without quotes.
const (
	maxTextBytes    = 64  // bounds a key or a value.
	maxNameBytes    = 256 // bounds a domain or the name of a rule.
	maxCounterBytes = 256 // bounds the key of a counter.
	maxShownEntries = 16  // bounds the entries of a descriptor. Further ones are only counted.
)

// Descriptor returns entries as key=value,key=value. Each key and value is cut at 64 bytes. One with blanks, commas,
// backslashes, control characters and the like is quoted as in Go. ParseEntries is its inverse.
func Descriptor(entries []rules.Entry) string { return string(AppendDescriptor(nil, entries)) }

// AppendDescriptor appends the result of Descriptor to dst. It allocates nothing else, unless it has to quote.
func AppendDescriptor(dst []byte, entries []rules.Entry) []byte {
	return appendEntries(dst, entries, maxShownEntries, maxTextBytes)
}

// WholeDescriptor is Descriptor without its bounds, for a command that names the same counters.
func WholeDescriptor(entries []rules.Entry) string {
	return string(AppendWholeDescriptor(nil, entries))
}

// AppendWholeDescriptor appends the result of WholeDescriptor to dst.
func AppendWholeDescriptor(dst []byte, entries []rules.Entry) []byte {
	return appendEntries(dst, entries, len(entries), math.MaxInt)
}

// appendEntries appends up to maxEntries entries, whose keys and values are cut at maxBytes.
func appendEntries(dst []byte, entries []rules.Entry, maxEntries, maxBytes int) []byte {
	for i, e := range entries {
		if i > 0 {
			dst = append(dst, ',')
		}
		if i == maxEntries {
			return fmt.Appendf(dst, "… (%d more)", len(entries)-i)
		}
		dst = appendEntry(dst, Cut(e.Key, maxBytes), Cut(e.Value, maxBytes))
	}
	return dst
}

// appendEntry appends key=value, or the key alone. It quotes a value that ends with *, which is a pattern otherwise. A
// quoted key has a = even without a value, because text that is one quoted word is that of a log; see fromLog.
func appendEntry(dst, key, value []byte) []byte {
	start := len(dst)
	dst = appendWord(dst, key)
	switch {
	case len(value) == 0 && len(dst) > start && dst[start] == '"':
		return append(dst, '=')
	case len(value) == 0:
		return dst
	case value[len(value)-1] == '*':
		return strconv.AppendQuote(append(dst, '='), string(value))
	}
	return appendWord(append(dst, '='), value)
}

// Entry is an entry of a descriptor that people wrote.
type Entry struct {
	Key, Value string
	// IsQuoted says that Value was in quotes.
	IsQuoted bool
}

// ParseEntries parses what Descriptor writes: key=value,key=value. A key alone has an empty value. A value may contain
// =, as base64 and query strings do. Blanks after a comma are skipped. The text may be as a log has it, in quotes or
// with their escapes. A text that Descriptor has cut is an error.
func ParseEntries(text string) (entries []Entry, err error) {
	text = fromLog(text)
	rest, isMore := text, true
	for isMore {
		rest = strings.TrimLeft(rest, " ")
		begin := rest
		var e Entry
		e.Key, rest, _, err = cutWord(rest, "=,")
		if value, hasValue := strings.CutPrefix(rest, "="); err == nil && hasValue {
			e.Value, rest, e.IsQuoted, err = cutWord(value, ",")
		}
		pair := begin[:len(begin)-len(rest)]
		if err == nil && rest != "" && rest[0] != ',' {
			err = errors.New("write a comma after the closing quote")
		}
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s: %w", text, err)
		case strings.HasPrefix(e.Key, "…") || isCut(e.Key, text) || isCut(e.Value, text):
			return nil, fmt.Errorf("%s: %s was cut: write the whole text in place of …", text, pair)
		case e.Key == "":
			return nil, fmt.Errorf("%s: write key=value, separated by commas; %q is not that", text, pair)
		}
		entries = append(entries, e)
		rest, isMore = strings.CutPrefix(rest, ",")
	}
	return entries, nil
}

// fromLog returns a text without the quotes and escapes that a log adds to it. All of these are user="bot,7":
//
//	user="bot,7"
//	"user=\"bot,7\""
//	user=\"bot,7\"
//
// Descriptor writes neither of the last two: no single word in quotes, and no backslash before the first quote.
func fromLog(text string) string {
	for {
		quoted := text
		if first := strings.IndexByte(text, '"'); first > 0 && text[first-1] == '\\' {
			quoted = `"` + text + `"`
		}
		plain, err := strconv.Unquote(quoted)
		if err != nil || quoted[0] != '"' {
			return text
		}
		text = plain
	}
}

// cutWord returns the word at the start of text, and the text behind it. A word ends before a character of ends, unless
// it is in quotes.
func cutWord(text, ends string) (word, rest string, isQuoted bool, err error) {
	if strings.HasPrefix(text, `"`) {
		quoted, err := strconv.QuotedPrefix(text)
		if err != nil {
			return "", "", true, errors.New("a closing quote is missing, or an escape is not one of Go")
		}
		word, err = strconv.Unquote(quoted)
		return word, text[len(quoted):], true, err
	}
	end := strings.IndexAny(text, ends)
	if end < 0 {
		end = len(text)
	}
	return text[:end], text[end:], false, nil
}

// isCut reports whether word of text was cut.
func isCut(word, text string) bool {
	return strings.HasSuffix(word, "…") && (len(word) > maxTextBytes || len(text) > maxNameBytes)
}

// ParseDescriptor returns the entries that ParseEntries finds.
func ParseDescriptor(text string) (entries []rules.Entry, err error) {
	parsed, err := ParseEntries(text)
	for _, e := range parsed {
		entries = append(entries, rules.Entry{Key: []byte(e.Key), Value: []byte(e.Value)})
	}
	return entries, err
}

// Name returns a copy of the name of a domain or rule, cut at 256 bytes.
func Name(name string) string { return strings.Clone(Cut(name, maxNameBytes)) }

// CounterKey returns the key of a counter, cut at 256 bytes. It quotes a key with unprintable characters as in Go.
func CounterKey(key []byte) string {
	s := string(Cut(key, maxCounterBytes))
	for _, c := range s {
		if c == utf8.RuneError || !strconv.IsPrint(c) {
			return strconv.Quote(s)
		}
	}
	return s
}

// appendWord appends text. It quotes text with blanks, commas, =, double quotes, backslashes or unprintable characters.
func appendWord(dst, text []byte) []byte {
	for i := 0; i < len(text); {
		c, size := utf8.DecodeRune(text[i:])
		if c == utf8.RuneError || c <= ' ' || c == ',' || c == '=' || c == '"' || c == '\\' ||
			!strconv.IsPrint(c) {
			return strconv.AppendQuote(dst, string(text))
		}
		i += size
	}
	return append(dst, text...)
}

// Cut returns text. If text is longer than size bytes, it returns a copy of the whole characters within these bytes,
// and "…".
func Cut[T string | []byte](text T, size int) T {
	if len(text) <= size {
		return text
	}
	for size > 0 && !utf8.RuneStart(text[size]) {
		size--
	}
	return T(string(text[:size]) + "…")
}
