// Package callertext writes descriptors, names and keys of counters for operators. Callers choose their bytes, so the
// texts are bounded and have no unprintable characters.
package callertext

import (
	"fmt"
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
// control characters and the like is quoted as in Go.
func Descriptor(entries []rules.Entry) string { return string(AppendDescriptor(nil, entries)) }

// AppendDescriptor appends the result of Descriptor to dst. It allocates nothing else, unless it has to quote.
func AppendDescriptor(dst []byte, entries []rules.Entry) []byte {
	for i, e := range entries {
		if i > 0 {
			dst = append(dst, ',')
		}
		if i == maxShownEntries {
			return fmt.Appendf(dst, "… (%d more)", len(entries)-i)
		}
		dst = appendBounded(dst, e.Key)
		if len(e.Value) > 0 {
			dst = appendBounded(append(dst, '='), e.Value)
		}
	}
	return dst
}

// ParseDescriptor parses a descriptor in the form key=value,key=value. A value may contain =, as base64 and query
// strings do.
func ParseDescriptor(text string) (entries []rules.Entry, err error) {
	for pair := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, fmt.Errorf("%s: write key=value, separated by commas; %q is not that", text, pair)
		}
		entries = append(entries, rules.Entry{Key: []byte(key), Value: []byte(value)})
	}
	return entries, nil
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

// appendBounded appends at most maxTextBytes bytes of text. It quotes text that contains blanks, commas, =,
// double quotes or unprintable characters.
func appendBounded(dst, text []byte) []byte {
	if len(text) > maxTextBytes {
		text = Cut(text, maxTextBytes)
	}
	for i := 0; i < len(text); {
		c, size := utf8.DecodeRune(text[i:])
		if c == utf8.RuneError || c <= ' ' || c == ',' || c == '=' || c == '"' || !strconv.IsPrint(c) {
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
