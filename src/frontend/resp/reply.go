package resp

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"

	"ratelimit/src/frontend/pipeline"
)

// These are the codes of error replies. Clients of Redis act on some of them.
const (
	codeERR       = "ERR"
	codeLoading   = "LOADING"
	codeNoAuth    = "NOAUTH"
	codeNoPerm    = "NOPERM"
	codeNoProto   = "NOPROTO"
	codeWrongPass = "WRONGPASS"
)

var errorCodes = []string{codeERR, codeLoading, codeNoAuth, codeNoPerm, codeNoProto, codeWrongPass}

// replyError is an error reply. The connection goes on.
type replyError struct{ code, text string }

// Error returns the reply without its type and its end.
func (e *replyError) Error() string { return e.code + " " + e.text }

// errorf returns an error reply without a code that clients act on. Arguments of a command are written with %.64q.
func errorf(format string, args ...any) *replyError {
	return &replyError{codeERR, fmt.Sprintf(format, args...)}
}

// writeError writes the reply for e, and counts it.
func (s *Server) writeError(w *bytes.Buffer, e *replyError) {
	s.CountErrorReply(e.code)
	b := append(w.AvailableBuffer(), '-')
	b = append(append(append(b, e.code...), ' '), pipeline.OneLine(e.text)...)
	w.Write(append(b, "\r\n"...))
}

// appendHeader appends a line with a number. It writes the digits in place, from the last to the first, which takes
// half of the time of strconv.AppendInt: five numbers of a reply were an eighth of the cost of a decision.
func appendHeader(dst []byte, kind byte, n int64) []byte {
	if n < 0 {
		return append(strconv.AppendInt(append(dst, kind), n, 10), "\r\n"...)
	}
	digits := 1
	for rest := n; rest >= 10; rest /= 10 {
		digits++
	}
	dst = slices.Grow(dst, digits+3)
	start := len(dst)
	dst = dst[:start+digits+3]
	dst[start], dst[start+digits+1], dst[start+digits+2] = kind, '\r', '\n'
	for i := start + digits; i > start; i-- {
		dst[i] = byte('0' + n%10)
		n /= 10
	}
	return dst
}

func appendArray(dst []byte, n int) []byte     { return appendHeader(dst, '*', int64(n)) }
func appendInteger(dst []byte, n int64) []byte { return appendHeader(dst, ':', n) }
func appendSimple(dst []byte, text string) []byte {
	return append(append(append(dst, '+'), text...), "\r\n"...)
}

func appendOK(dst []byte) []byte { return append(dst, "+OK\r\n"...) }

func appendBulk[T string | []byte](dst []byte, text T) []byte {
	return append(append(appendHeader(dst, '$', int64(len(text))), text...), "\r\n"...)
}

// appendMap appends the start of a map of n keys and their values. Version 2 of the protocol has no maps, so there it
// is an array.
func appendMap(dst []byte, version, n int) []byte {
	if version == 3 {
		return appendHeader(dst, '%', int64(n))
	}
	return appendArray(dst, 2*n)
}

// appendNull appends the reply for a missing text.
func appendNull(dst []byte, version int) []byte {
	if version == 3 {
		return append(dst, "_\r\n"...)
	}
	return append(dst, "$-1\r\n"...)
}

// appendText appends a text for people, which version 3 tells from other strings.
func appendText(dst []byte, version int, text string) []byte {
	if version != 3 {
		return appendBulk(dst, text)
	}
	dst = append(appendHeader(dst, '=', int64(len("txt:")+len(text))), "txt:"...)
	return append(append(dst, text...), "\r\n"...)
}
