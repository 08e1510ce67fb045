package memcached

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"ratelimit/src/backend/remote"
)

// maxReplyBytes is the longest reply that is accepted, in bytes. No reply to our commands is longer.
const maxReplyBytes = 1024

// Open does nothing, because Memcached needs no command first.
func (protocol) Open(context.Context, *remote.Conn) error { return nil }

func (protocol) Renew(*remote.Conn) error { return nil }

// Network returns the network of a server's address: unix for a path, else tcp.
func (protocol) Network(addr string) string {
	if strings.Contains(addr, "/") {
		return "unix"
	}
	return "tcp"
}

var (
	versionCommand    = []byte("version\r\n")
	versionPrefix     = []byte("VERSION ")
	crlf              = []byte("\r\n")
	notFoundReply     = []byte("NOT_FOUND\r\n")
	serverErrorPrefix = []byte("SERVER_ERROR ")
	clientErrorPrefix = []byte("CLIENT_ERROR ")
	plainErrorPrefix  = []byte("ERROR")
)

func (protocol) Ping(c *remote.Conn) error {
	if _, err := c.Write(versionCommand); err != nil {
		return err
	}
	return readVersion(c.Replies)
}

// readVersion reads the reply to "version", which must be the last reply.
func readVersion(br *bufio.Reader) error {
	line, err := readReply(br, true)
	if err == nil && br.Buffered() > 0 {
		err = fmt.Errorf("it sent a reply without a command behind %.40q", line)
	}
	return err
}

// readReply reads the reply to "version" or, if isVersion is false, to another command. After
// an error, it is unknown which reply belongs to which command.
func readReply(br *bufio.Reader, isVersion bool) ([]byte, error) {
	line, err := br.ReadSlice('\n')
	switch {
	// The server has another protocol, or too many connections.
	case err == nil && bytes.HasPrefix(line, plainErrorPrefix):
		return nil, errorReply(line)
	case errors.Is(err, bufio.ErrBufferFull), err == nil && (len(line) > maxReplyBytes || !isKnownReply(line)):
		return nil, fmt.Errorf("it does not speak as Memcached does: %.40q", line)
	case err == nil && bytes.HasPrefix(line, versionPrefix) != isVersion:
		return nil, fmt.Errorf("its replies do not match the commands: %.40q", line)
	}
	return line, err
}

// isKnownReply reports whether a line can be the reply to incr, decr, add, delete or version.
func isKnownReply(line []byte) bool {
	text, complete := bytes.CutSuffix(line, crlf)
	switch {
	case !complete || len(text) == 0:
		return false
	case '0' <= text[0] && text[0] <= '9':
		return len(bytes.Trim(text, "0123456789")) == 0
	}
	switch string(text) {
	case "STORED", "NOT_STORED", "NOT_FOUND", "DELETED":
		return true
	}
	return isErrorReply(line) || bytes.HasPrefix(line, versionPrefix)
}

// isErrorReply reports whether a line is an error reply to one command.
func isErrorReply(line []byte) bool {
	return bytes.HasPrefix(line, serverErrorPrefix) || bytes.HasPrefix(line, clientErrorPrefix)
}

func errorReply(line []byte) Error { return Error(bytes.TrimRight(line, "\r\n")) }
