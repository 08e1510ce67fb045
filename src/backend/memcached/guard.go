package memcached

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// errStalled is a command that was not answered for as long as one may take.
var errStalled = errors.New("the connection stalled")

// maxReply is more than the longest line that Memcached answers to what we send.
const maxReply = 1024

// guard is the connection that gomemcache works on. Each command, which
// gomemcache writes at once, has one deadline of its own from then on; those that
// gomemcache sets do nothing. A reply is one whole line, or an error: gomemcache
// counts on lines that end as they should.
//
// gomemcache closes a connection whose server says that it cannot do something,
// which one without memory says all the time. So it is told NOT_FOUND, which is
// nothing to it, and what was said is in refused.
type guard struct {
	net.Conn
	raw     net.Conn // below TLS
	timeout time.Duration
	open    *atomic.Int64
	closed  atomic.Bool

	// What follows belongs to whoever uses the connection.
	refused error
	line    [maxReply]byte
	rest    []byte // of the reply, for gomemcache
}

func (g *guard) Write(p []byte) (int, error) {
	g.refused, g.rest = nil, nil
	if err := g.Conn.SetDeadline(time.Now().Add(g.timeout)); err != nil {
		return 0, err
	}
	n, err := g.Conn.Write(p)
	return n, g.stalled(err)
}

func (g *guard) Read(p []byte) (int, error) {
	if len(g.rest) == 0 {
		line, err := g.readLine()
		if err != nil {
			return 0, err
		}
		g.rest = line
	}
	n := copy(p, g.rest)
	g.rest = g.rest[n:]
	return n, nil
}

// readLine reads a reply.
func (g *guard) readLine() ([]byte, error) {
	n := 0
	for n < len(g.line) {
		k, err := g.Conn.Read(g.line[n:])
		n += k
		if end := bytes.IndexByte(g.line[:n], '\n'); end >= 0 {
			if end != n-1 || !bytes.HasSuffix(g.line[:n], crlf) {
				break
			}
			return g.judge(g.line[:n])
		}
		if err != nil {
			return nil, g.stalled(err)
		}
	}
	return nil, fmt.Errorf("it does not speak as Memcached does: %.40q", g.line[:n])
}

var (
	crlf        = []byte("\r\n")
	notFound    = []byte("NOT_FOUND\r\n")
	serverError = []byte("SERVER_ERROR ")
	clientError = []byte("CLIENT_ERROR ")
	plainError  = []byte("ERROR")
)

// judge looks for errors in a reply.
func (g *guard) judge(line []byte) ([]byte, error) {
	reply := Error(bytes.TrimRight(line, "\r\n"))
	switch {
	case bytes.HasPrefix(line, serverError), bytes.HasPrefix(line, clientError):
		g.refused = reply
		return notFound, nil
	case bytes.HasPrefix(line, plainError): // another protocol, or too many connections
		return nil, reply
	}
	return line, nil
}

func (g *guard) stalled(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: no answer for %v", errStalled, g.timeout)
	}
	return err
}

// Close closes the connection; again does nothing.
func (g *guard) Close() error {
	if !g.closed.CompareAndSwap(false, true) {
		return nil
	}
	g.open.Add(-1)
	return g.Conn.Close()
}

func (*guard) SetDeadline(time.Time) error      { return nil }
func (*guard) SetReadDeadline(time.Time) error  { return nil }
func (*guard) SetWriteDeadline(time.Time) error { return nil }
