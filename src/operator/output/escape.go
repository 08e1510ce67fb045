package output

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Escaping returns a writer to w that escapes characters that are not printable, as JSON does, except tabs and ends of
// lines: names and texts of files could control the terminal. If it gets a part of a character, it writes that with the
// rest. The writer is safe for concurrent use if w is.
func Escaping(w io.Writer) io.Writer {
	if _, ok := w.(*escapingWriter); ok {
		return w
	}
	return &escapingWriter{to: w}
}

// Raw returns the writer below one that Escaping returned, and any other as it is. It is for control sequences of the
// program's own.
func Raw(w io.Writer) io.Writer {
	if e, ok := w.(*escapingWriter); ok {
		return e.to
	}
	return w
}

// Escaped returns text as Escaping writes it.
func Escaped(text string) string { return string(escape([]byte(text))) }

type escapingWriter struct {
	to   io.Writer
	mu   sync.Mutex
	part []byte // guarded by mu. It is the start of a character whose rest has not been written yet.
}

// Write implements io.Writer.
func (e *escapingWriter) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	text := p
	if len(e.part) > 0 {
		text = append(e.part, p...)
	}
	whole := wholeCharacters(text)
	if _, err := e.to.Write(escape(text[:whole])); err != nil {
		return 0, err
	}
	e.part = bytes.Clone(text[whole:])
	return len(p), nil
}

// wholeCharacters returns the length of text without the part of a character at its end.
func wholeCharacters(text []byte) int {
	for i := len(text) - 1; i >= 0 && i >= len(text)-utf8.UTFMax; i-- {
		if utf8.RuneStart(text[i]) {
			if !utf8.FullRune(text[i:]) {
				return i
			}
			break
		}
	}
	return len(text)
}

// escape returns text with escapes of all characters that are not printable, except tabs and ends of lines. Text of
// JSON stays the same JSON: encoding/json leaves some of these characters in strings, such as U+009B, which starts
// control sequences as ESC [ does.
func escape(text []byte) []byte {
	if isPlain(text) {
		return text
	}
	escaped := make([]byte, 0, len(text)+16)
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError && size == 1:
			escaped = fmt.Appendf(escaped, `\x%02x`, text[0])
		case r == '\n' || r == '\t' || unicode.IsPrint(r):
			escaped = append(escaped, text[:size]...)
		case r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			escaped = fmt.Appendf(escaped, `\u%04x\u%04x`, high, low)
		default:
			escaped = fmt.Appendf(escaped, `\u%04x`, r)
		}
		text = text[size:]
	}
	return escaped
}

// isPlain reports whether text has only printable ASCII characters, tabs and ends of lines.
func isPlain(text []byte) bool {
	for _, c := range text {
		if (c < ' ' || c > '~') && c != '\n' && c != '\t' {
			return false
		}
	}
	return true
}
