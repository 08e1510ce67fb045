package memcached

import (
	"bytes"
	"net"
	"time"
)

// maxReply is more than the longest line that Memcached answers to what we send.
const maxReply = 1024

// guard is what gomemcache takes for a connection: one of many that share a pipe.
// gomemcache writes each command at once. The deadlines that it sets do nothing, the
// pipe has its own. A reply is one whole line, or an error: gomemcache counts on
// lines that end as they should.
//
// gomemcache closes a connection whose server says that it cannot do something,
// which one without memory says all the time. So it is told NOT_FOUND, which is
// nothing to it, and what was said is in refused.
type guard struct {
	pipe func() (*pipe, error) // the one there is, or a new one

	refused error
	rest    []byte // of the reply, for gomemcache
	sent    time.Time
	version bool // the command was "version"

	// What follows is the pipe's until it sends to done.
	line [maxReply]byte
	n    int
	err  error
	done chan struct{}
}

func newGuard(pipe func() (*pipe, error)) *guard {
	return &guard{pipe: pipe, done: make(chan struct{}, 1)}
}

func (g *guard) Write(command []byte) (int, error) {
	g.refused, g.rest = nil, nil
	for {
		p, err := g.pipe()
		if err != nil {
			return 0, err
		}
		if p.send(g, command) {
			return len(command), nil
		}
	}
}

// Read returns the reply to what was written last.
func (g *guard) Read(b []byte) (int, error) {
	if len(g.rest) == 0 {
		<-g.done
		if g.err != nil {
			return 0, g.err
		}
		g.rest = g.judge(g.line[:g.n])
	}
	n := copy(b, g.rest)
	g.rest = g.rest[n:]
	return n, nil
}

var (
	crlf        = []byte("\r\n")
	notFound    = []byte("NOT_FOUND\r\n")
	serverError = []byte("SERVER_ERROR ")
	clientError = []byte("CLIENT_ERROR ")
	plainError  = []byte("ERROR")
)

// judge looks for what a server says that cannot do something.
func (g *guard) judge(line []byte) []byte {
	if isRefusal(line) {
		g.refused = replyError(line)
		return notFound
	}
	return line
}

// isRefusal tells whether a server says that it cannot do something.
func isRefusal(line []byte) bool {
	return bytes.HasPrefix(line, serverError) || bytes.HasPrefix(line, clientError)
}

func replyError(line []byte) Error { return Error(bytes.TrimRight(line, "\r\n")) }

// Close does nothing: the pipe is others' as well.
func (*guard) Close() error { return nil }

func (*guard) LocalAddr() net.Addr              { return server("") }
func (*guard) RemoteAddr() net.Addr             { return server("") }
func (*guard) SetDeadline(time.Time) error      { return nil }
func (*guard) SetReadDeadline(time.Time) error  { return nil }
func (*guard) SetWriteDeadline(time.Time) error { return nil }
