package divvy

import (
	"bytes"
	"fmt"
	"time"
	"unicode/utf8"
)

// code is the class of an ERR reply.
type code uint8

const (
	codeUnknown code = iota
	codeUnknownCommand

	codes
)

var codeNames = [codes]string{"unknown", "unknown-command"}

// fault is an ERR reply. It ends the connection.
type fault struct {
	code code
	text string
}

// Error returns the reply without its line end.
func (f *fault) Error() string { return string(f.append(nil)) }

// The texts of divvy come first.
var (
	errQuote     = &fault{codeUnknown, "Unexpected end of quoted string."}
	errEnd       = &fault{codeUnknown, "Unexpected end of input string."}
	errPairs     = unknownf("More than %d keys.", maxPairs)
	errLongLines = &fault{codeUnknown, "Too many long lines at once, try again later."}
	errNotReady  = &fault{codeUnknown, "No rules are loaded yet."}
	errStore     = &fault{codeUnknown, "The store did not answer."}
	errInternal  = &fault{codeUnknown, "Internal error."}
)

func unknownf(format string, args ...any) *fault {
	return &fault{codeUnknown, fmt.Sprintf(format, args...)}
}

func errLongLine(most int) *fault        { return unknownf("Line is longer than %d bytes.", most) }
func errTooManyConns(most int) *fault    { return unknownf("More than %d connections.", most) }
func errIdle(after time.Duration) *fault { return unknownf("No whole line within %v.", after) }
func errNoDomain(domain []byte) *fault {
	return unknownf("No rules are loaded for the domain %s.", domain)
}

func errCommand(word []byte) *fault {
	return &fault{codeUnknownCommand, "Unrecognized command: " + string(bytes.ToUpper(word))}
}

// errExpected is the fault of a line that continues with rest where want must come.
func errExpected(want string, rest []byte) *fault {
	_, size := utf8.DecodeRune(rest)
	return unknownf("Expected %s, found '%s'", want, rest[:size])
}

// append appends the reply without its line end. It replaces line ends in the text,
// which may quote the client, by spaces.
func (f *fault) append(dst []byte) []byte {
	dst = append(dst, "ERR "+codeNames[f.code]+` "`...)
	text := len(dst)
	dst = append(dst, f.text...)
	for i, c := range dst[text:] {
		if c == '\n' || c == '\r' {
			dst[text+i] = ' '
		}
	}
	return append(dst, '"')
}

// appendFault appends the reply f with its line end, and counts it.
func (s *Server) appendFault(dst []byte, f *fault) []byte {
	s.counts.errors[f.code].Add(1)
	return append(f.append(dst), '\n')
}
