package divvy

import (
	"bytes"
	"fmt"
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

// Error is the reply without its end.
func (f *fault) Error() string { return string(f.append(nil)) }

// The faults whose texts never change: divvy's first, then those it does not
// have.
var (
	errQuote    = &fault{codeUnknown, "Unexpected end of quoted string."}
	errEnd      = &fault{codeUnknown, "Unexpected end of input string."}
	errPairs    = &fault{codeUnknown, fmt.Sprintf("More than %d keys.", maxPairs)}
	errLongOnes = &fault{codeUnknown, "Too many long lines at once, try again later."}
	errNotReady = &fault{codeUnknown, "No rules are loaded yet."}
	errStore    = &fault{codeUnknown, "The store did not answer."}
	errInternal = &fault{codeUnknown, "Internal error."}
)

func unknownCommand(word []byte) *fault {
	return &fault{codeUnknownCommand, "Unrecognized command: " + string(bytes.ToUpper(word))}
}

// expected is the fault of a line that has something else than what before rest.
func expected(what string, rest []byte) *fault {
	_, size := utf8.DecodeRune(rest)
	return &fault{codeUnknown, fmt.Sprintf("Expected %s, found '%s'", what, rest[:size])}
}

// append appends the reply without its end. It is always one line: what clients
// sent may have a carriage return in it, which some take for the end of one.
func (f *fault) append(dst []byte) []byte {
	dst = append(dst, "ERR "...)
	dst = append(dst, codeNames[f.code]...)
	dst = append(dst, ' ', '"')
	begin := len(dst)
	dst = append(dst, f.text...)
	for i, c := range dst[begin:] {
		if c == '\n' || c == '\r' {
			dst[begin+i] = ' '
		}
	}
	return append(dst, '"')
}
