package memcached

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"ratelimit/src/backend/remote"
)

// maxReply is the size of the buffer for a reply, in bytes. No reply to our commands is longer.
const maxReply = 1024

// session is a connection to Memcached.
type session struct {
	net.Conn
	in *bufio.Reader
}

// Open connects. With TLS it sends "version": what a server sends on its own after the
// handshake of TLS 1.3 is read with the answer, else it would be taken for a reply
// without a command.
func (*protocol) Open(ctx context.Context, d *remote.Dialer, addr string) (remote.Session, error) {
	conn, err := d.DialContext(ctx, network(addr), addr)
	if err != nil {
		return nil, err
	}
	s := &session{conn, bufio.NewReaderSize(conn, 16<<10)}
	if d.TLS != nil {
		return s, s.Ping(ctx)
	}
	return s, nil
}

// network returns the network of a server's address: unix for a path, else tcp.
func network(addr string) string {
	if strings.Contains(addr, "/") {
		return "unix"
	}
	return "tcp"
}

var (
	version       = []byte("version\r\n")
	versionPrefix = []byte("VERSION ")
	crlf          = []byte("\r\n")
	notFound      = []byte("NOT_FOUND\r\n")
	serverError   = []byte("SERVER_ERROR ")
	clientError   = []byte("CLIENT_ERROR ")
	plainError    = []byte("ERROR")
)

// Ping asks for the version.
func (s *session) Ping(context.Context) error {
	if _, err := s.Write(version); err != nil {
		return err
	}
	return s.readVersion()
}

// readVersion reads the reply to "version", behind which there is nothing.
func (s *session) readVersion() error {
	line, err := s.readReply(true)
	if err == nil && s.in.Buffered() > 0 {
		err = fmt.Errorf("it sent a reply without a command behind %.40q", line)
	}
	return err
}

// readReply reads a line that is a reply to "version", or to another command. After one
// that is not, it is not known which reply belongs to which command.
func (s *session) readReply(isVersion bool) ([]byte, error) {
	line, err := s.in.ReadSlice('\n')
	switch {
	case err == nil && bytes.HasPrefix(line, plainError): // another protocol, or too many connections
		return nil, replyError(line)
	case errors.Is(err, bufio.ErrBufferFull), err == nil && (len(line) > maxReply || !isReply(line)):
		return nil, fmt.Errorf("it does not speak as Memcached does: %.40q", line)
	case err == nil && bytes.HasPrefix(line, versionPrefix) != isVersion:
		return nil, fmt.Errorf("its replies do not match the commands: %.40q", line)
	}
	return line, err
}

// isReply reports whether a line can be the reply to what is sent: incr, decr, add and
// version.
func isReply(line []byte) bool {
	text, whole := bytes.CutSuffix(line, crlf)
	switch {
	case !whole || len(text) == 0:
		return false
	case '0' <= text[0] && text[0] <= '9':
		return len(bytes.Trim(text, "0123456789")) == 0
	}
	switch string(text) {
	case "STORED", "NOT_STORED", "NOT_FOUND":
		return true
	}
	return isRefusal(line) || bytes.HasPrefix(line, versionPrefix)
}

// isRefusal reports whether a server says that it cannot do something.
func isRefusal(line []byte) bool {
	return bytes.HasPrefix(line, serverError) || bytes.HasPrefix(line, clientError)
}

func replyError(line []byte) Error { return Error(bytes.TrimRight(line, "\r\n")) }
