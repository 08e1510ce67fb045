package divvy

import (
	"cmp"
	"fmt"
	"strings"
	"unicode/utf8"

	"ratelimit/src/frontend/pipeline"
)

// These are the codes of ERR replies. Faults without a code have errorCodeUnknown.
const (
	errorCodeUnknown        = "unknown"
	errorCodeUnknownCommand = "unknown-command"
)

// faultReply returns the ERR reply for f, which ends the connection, and counts it.
func (s *Server) faultReply(f *pipeline.Fault) []byte {
	s.errorReplies.Add(cmp.Or(f.Code, errorCodeUnknown))
	return append(appendFault(nil, f), '\n')
}

// appendFault appends the ERR reply for f without its line end.
func appendFault(dst []byte, f *pipeline.Fault) []byte {
	return fmt.Appendf(dst, `ERR %s "%s"`, cmp.Or(f.Code, errorCodeUnknown), lineEndReplacer.Replace(f.Text))
}

// lineEndReplacer makes spaces of the line ends in texts, which may quote the client.
var lineEndReplacer = strings.NewReplacer("\n", " ", "\r", " ")

// The texts of errOpenQuote and errUnexpectedEnd are those of Button's divvy.
var (
	errOpenQuote     = newFaultf("Unexpected end of quoted string.")
	errUnexpectedEnd = newFaultf("Unexpected end of input string.")
	errTooManyPairs  = newFaultf("More than %d keys.", maxRequestPairs)
	errNotReady      = newFaultf("No rules are loaded yet.")
	errStore         = newFaultf("The store did not answer.")
	errInternal      = newFaultf("Internal error.")
)

func newFaultf(format string, args ...any) *pipeline.Fault {
	return &pipeline.Fault{Text: fmt.Sprintf(format, args...)}
}

func errLongLine(most int) *pipeline.Fault { return newFaultf("Line is longer than %d bytes.", most) }

// errExpectedText returns the fault of a line that has rest where want must be.
func errExpectedText(want string, rest []byte) *pipeline.Fault {
	_, size := utf8.DecodeRune(rest)
	return newFaultf("Expected %s, found '%s'", want, rest[:size])
}
