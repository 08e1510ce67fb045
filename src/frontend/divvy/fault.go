package divvy

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// The codes of ERR replies.
const (
	codeUnknown        = "unknown"
	codeUnknownCommand = "unknown-command"
)

// fault is an ERR reply. It ends the connection.
type fault struct{ code, text string }

// Error returns the reply without its line end. It replaces line ends in the text, which
// may quote the client, by spaces.
func (f *fault) Error() string {
	return "ERR " + f.code + ` "` + lineEnds.Replace(f.text) + `"`
}

var lineEnds = strings.NewReplacer("\n", " ", "\r", " ")

// The texts of divvy come first.
var (
	errQuote     = &fault{codeUnknown, "Unexpected end of quoted string."}
	errEnd       = &fault{codeUnknown, "Unexpected end of input string."}
	errPairs     = unknownf("More than %d keys.", maxPairs)
	errLongLines = &fault{codeUnknown, "Too many long lines at once, try again later."}
	errNotReady  = &fault{codeUnknown, "No rules are loaded yet."}
	errStore     = &fault{codeUnknown, "The store did not answer."}
	errInternal  = &fault{codeUnknown, "Internal error."}
	errNoReply   = &fault{} // ends the connection without an ERR
)

func unknownf(format string, args ...any) *fault {
	return &fault{codeUnknown, fmt.Sprintf(format, args...)}
}

func errLongLine(most int) *fault { return unknownf("Line is longer than %d bytes.", most) }

func errCommand(word []byte) *fault {
	return &fault{codeUnknownCommand, "Unrecognized command: " + string(bytes.ToUpper(word))}
}

// errExpected is the fault of a line that continues with rest where want must come.
func errExpected(want string, rest []byte) *fault {
	_, size := utf8.DecodeRune(rest)
	return unknownf("Expected %s, found '%s'", want, rest[:size])
}
