package divvy

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// These are the codes of ERR replies.
const (
	errorCodeUnknown        = "unknown"
	errorCodeUnknownCommand = "unknown-command"
)

// fault is an ERR reply. It ends the connection.
type fault struct{ code, text string }

// Error returns the reply without its line end. Line ends in the text, which may quote the client, become spaces.
func (f *fault) Error() string {
	return "ERR " + f.code + ` "` + lineEndReplacer.Replace(f.text) + `"`
}

var lineEndReplacer = strings.NewReplacer("\n", " ", "\r", " ")

// The texts of errOpenQuote and errUnexpectedEnd are those of Button's divvy.
var (
	errOpenQuote        = &fault{errorCodeUnknown, "Unexpected end of quoted string."}
	errUnexpectedEnd    = &fault{errorCodeUnknown, "Unexpected end of input string."}
	errTooManyPairs     = newFaultf("More than %d keys.", maxRequestPairs)
	errTooManyLongLines = &fault{errorCodeUnknown, "Too many long lines at once, try again later."}
	errNotReady         = &fault{errorCodeUnknown, "No rules are loaded yet."}
	errStore            = &fault{errorCodeUnknown, "The store did not answer."}
	errInternal         = &fault{errorCodeUnknown, "Internal error."}
	errNoReply          = &fault{} // errNoReply ends the connection without an ERR reply.
)

func newFaultf(format string, args ...any) *fault {
	return &fault{errorCodeUnknown, fmt.Sprintf(format, args...)}
}

func errLongLine(most int) *fault { return newFaultf("Line is longer than %d bytes.", most) }

// errExpectedText returns the fault of a line that has rest where want must be.
func errExpectedText(want string, rest []byte) *fault {
	_, size := utf8.DecodeRune(rest)
	return newFaultf("Expected %s, found '%s'", want, rest[:size])
}
