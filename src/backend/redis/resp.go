package redis

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"ratelimit/src/backend/remote"
)

func isErrorReply(err error) bool {
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

func appendBulkNumber(b []byte, n int64) []byte {
	var digits [20]byte
	return appendBulk(b, strconv.AppendInt(digits[:0], n, 10))
}

// errUnrequestedReply is the error of a reply that belongs to no command, such as one that a proxy
// sent twice. The other replies of the batch may then belong to other commands too.
var errUnrequestedReply = errors.New("a reply that belongs to no command")

// maxErrorReplyBytes is how many bytes of an error reply are kept.
const maxErrorReplyBytes = 512

// errorReply returns the Error in a line that begins with "-".
func errorReply(line []byte) Error { return Error(line[1:min(len(line), maxErrorReplyBytes)]) }

// unexpectedReply returns the error for a reply of a type that the command never has.
func unexpectedReply(line []byte) error {
	return fmt.Errorf("%w: unexpected %.40q", errUnrequestedReply, line)
}

// readLineOfType reads a line that starts with first, the type of a reply. For an error reply it returns an Error.
func readLineOfType(br *bufio.Reader, first byte) ([]byte, error) {
	line, err := readLine(br)
	switch {
	case err != nil:
		return nil, err
	case line[0] == '-':
		return nil, errorReply(line)
	case line[0] != first:
		return nil, unexpectedReply(line)
	}
	return line, nil
}

func readInteger(br *bufio.Reader) (int64, error) {
	line, err := readLineOfType(br, ':')
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(line[1:]), 10, 64)
}

// errNoNumber is the error of a lookup that found a text.
const errNoNumber Error = "a counter holds something else than a number"

// readCounter reads the reply to GET: a number as text, or null, which is 0.
func readCounter(br *bufio.Reader) (int64, error) {
	line, err := readLineOfType(br, '$')
	if err != nil {
		return 0, err
	}
	size, err := strconv.Atoi(string(line[1:]))
	switch {
	case err == nil && size == -1:
		return 0, nil
	case err != nil || size < 0 || size > maxBulkBytes:
		return 0, unexpectedReply(line)
	}
	text, err := readBulk(br, size)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, errNoNumber
	}
	return n, nil
}

// maxBulkBytes is the longest bulk string that is accepted, in bytes.
const maxBulkBytes = 1 << 20

// readBulk reads a bulk string of this size, and the end of its line.
func readBulk(br *bufio.Reader, size int) (string, error) {
	b := make([]byte, size+2)
	if _, err := io.ReadFull(br, b); err != nil {
		return "", err
	}
	return string(b[:size]), nil
}

// readLine reads a line, and returns it without its end. An empty line is an error.
func readLine(br *bufio.Reader) ([]byte, error) {
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

// maxReplyElements bounds the elements of a reply. The reply to CLUSTER SLOTS of 1,000 nodes with many ranges has a
// tenth of it.
const maxReplyElements = 1 << 20

// exchangeCommand sends one command and returns its reply: an int64, string, nil, Error or []any of these. It differs
// from radix.Cmd, which allocates the memory for any number of elements that a reply announces.
func exchangeCommand(c *remote.Conn, words ...string) (reply any, err error) {
	b := append(strconv.AppendInt([]byte{'*'}, int64(len(words)), 10), "\r\n"...)
	for _, word := range words {
		b = appendBulk(b, word)
	}
	if _, err := c.Write(b); err != nil {
		return nil, err
	}
	return readOnlyReply(c.Replies)
}

// perform sends one command and returns its reply. An error reply is returned as an Error, and l keeps its connection.
func perform(ctx context.Context, l *remote.Link, words ...string) (reply any, err error) {
	err = l.Do(ctx, func(c *remote.Conn) (err error) {
		reply, err = exchangeCommand(c, words...)
		return err
	})
	if e, isError := reply.(Error); isError {
		return nil, e
	}
	return reply, err
}

// performList is perform for a command whose reply is an array.
func performList(ctx context.Context, l *remote.Link, words ...string) ([]any, error) {
	reply, err := perform(ctx, l, words...)
	if err != nil {
		return nil, err
	}
	list, err := replyList(reply, words[0])
	if err != nil {
		return nil, &remote.LinkError{Store: l.Name, Addr: l.Addr, Err: err}
	}
	return list, nil
}

// replyList returns the elements of a reply to command. An error reply becomes the error.
func replyList(reply any, command string) ([]any, error) {
	switch v := reply.(type) {
	case []any:
		return v, nil
	case Error:
		return nil, v
	}
	return nil, fmt.Errorf("redis: unexpected reply %.40v to %s", reply, command)
}

// readOnlyReply reads a reply of any type, behind which there must be no other.
func readOnlyReply(br *bufio.Reader) (any, error) {
	left := maxReplyElements
	v, err := readReply(br, 0, &left)
	if err == nil && br.Buffered() > 0 {
		err = errUnrequestedReply
	}
	return v, err
}

// readReply reads a reply of any type. It subtracts the number of its elements from left.
func readReply(br *bufio.Reader, depth int, left *int) (any, error) {
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
	case line[0] == '$' && n <= maxBulkBytes:
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
