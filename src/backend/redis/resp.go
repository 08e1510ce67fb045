package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/mediocregopher/radix/v4/resp"

	"ratelimit/src/backend/remote"
)

func isReply(err error) bool {
	_, ok := errors.AsType[Error](err)
	return ok
}

func appendBulk[T string | []byte](b []byte, s T) []byte {
	b = append(b, '$')
	b = strconv.AppendInt(b, int64(len(s)), 10)
	b = append(b, "\r\n"...)
	b = append(b, s...)
	return append(b, "\r\n"...)
}

func appendNumber(b []byte, n int64) []byte {
	var digits [20]byte
	return appendBulk(b, strconv.AppendInt(digits[:0], n, 10))
}

// errUnasked is a reply that belongs to no command, as of a proxy that sent one
// twice. Which of the others belong to which command is not known then.
var errUnasked = errors.New("a reply that belongs to no command")

// maxError is the most bytes that are kept of an error reply.
const maxError = 512

// errorReply returns the Error in a line that begins with "-".
func errorReply(line []byte) Error { return Error(line[1:min(len(line), maxError)]) }

// unexpected returns the error for a reply of a type that the command never has.
func unexpected(line []byte) error { return fmt.Errorf("%w: unexpected %.40q", errUnasked, line) }

// readInteger reads the reply to a command that returns an integer. An error reply is
// an Error.
func readInteger(br resp.BufferedReader) (int64, error) {
	line, err := readLine(br)
	switch {
	case err != nil:
		return 0, err
	case line[0] == '-':
		return 0, errorReply(line)
	case line[0] != ':':
		return 0, unexpected(line)
	}
	return strconv.ParseInt(string(line[1:]), 10, 64)
}

// readCounter reads the reply to GET: a number as text, or null, which is 0. An error reply is an
// Error.
func readCounter(br resp.BufferedReader) (int64, error) {
	line, err := readLine(br)
	switch {
	case err != nil:
		return 0, err
	case line[0] == '-':
		return 0, errorReply(line)
	case string(line) == "$-1":
		return 0, nil
	}
	size, err := strconv.Atoi(string(line[1:]))
	if line[0] != '$' || err != nil || size < 0 || size > maxText {
		return 0, unexpected(line)
	}
	text, err := readBulk(br, size)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, Error("a counter holds something else than a number")
	}
	return n, nil
}

// maxText is the longest bulk string that is accepted, in bytes.
const maxText = 1 << 20

// readBulk reads a bulk string of that size and the line end behind it.
func readBulk(br resp.BufferedReader, size int) (string, error) {
	b := make([]byte, size+2)
	if _, err := io.ReadFull(br, b); err != nil {
		return "", err
	}
	return string(b[:size]), nil
}

// readLine reads a line without its end. It is never empty.
func readLine(br resp.BufferedReader) ([]byte, error) {
	line, err := br.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	line = bytes.TrimSuffix(line, []byte("\r\n"))
	if len(line) == 0 {
		return nil, errors.New("redis: an empty reply")
	}
	return line, nil
}

// question is one command and its reply, of any form. radix has the same as
// radix.Cmd, but believes a reply that says it has a billion elements.
type question struct {
	words   []string
	reply   []any // int64, string, nil, Error, []any
	refused error // an error reply: one that is returned would make radix close the connection
}

// maxElements is the most elements that a reply may have. CLUSTER SLOTS of a cluster of 1,000
// nodes with many ranges has a tenth of it.
const maxElements = 1 << 20

// Trip sends the command on s and reads the reply.
func (q *question) Trip(ctx context.Context, s remote.Session) error { return exchangeOn(ctx, s, q) }

// MarshalRESP writes the command.
func (q *question) MarshalRESP(w io.Writer, _ *resp.Opts) error {
	b := append(strconv.AppendInt([]byte{'*'}, int64(len(q.words)), 10), "\r\n"...)
	for _, word := range q.words {
		b = appendBulk(b, word)
	}
	_, err := w.Write(b)
	return err
}

// UnmarshalRESP reads the reply, which has to be an array or an error.
func (q *question) UnmarshalRESP(br resp.BufferedReader, _ *resp.Opts) error {
	left := maxElements
	v, err := readReply(br, 0, &left)
	switch {
	case err != nil:
		return err
	case br.Buffered() > 0:
		return errUnasked
	}
	switch v := v.(type) {
	case []any:
		q.reply = v
	case Error:
		q.refused = v
	default:
		return fmt.Errorf("redis: unexpected reply %.40v to %s", v, q.words[0])
	}
	return nil
}

func readReply(br resp.BufferedReader, depth int, left *int) (any, error) {
	line, err := readLine(br)
	if err != nil {
		return nil, err
	}
	if *left--; *left < 0 || depth > 4 {
		return nil, errors.New("redis: a reply that is too large")
	}
	rest := string(line[1:])
	switch line[0] {
	case '+':
		return rest, nil
	case '-':
		return errorReply(line), nil
	}
	n, err := strconv.ParseInt(rest, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("redis: unexpected reply %.40q", line)
	}
	switch {
	case line[0] == ':':
		return n, nil
	case n < 0:
		return nil, nil
	case line[0] == '$' && n <= maxText:
		return readBulk(br, int(n))
	case line[0] == '*':
		var list []any
		for range n {
			v, err := readReply(br, depth+1, left)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		return list, nil
	}
	return nil, fmt.Errorf("redis: unexpected reply %.40q", line)
}
