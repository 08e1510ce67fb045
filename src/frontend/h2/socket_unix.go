//go:build unix

package h2

import (
	"io"
	"syscall"

	"ratelimit/src/sockets"
)

// socket reads a connection without a buffer while nothing has arrived: a waiting connection holds no memory for input.
type socket struct {
	raw  syscall.RawConn
	read func(fd uintptr) (done bool)
	more func(fd uintptr) (done bool)
	n    int   // the result of read and more.
	err  error // nil, io.EOF or an error of the system; of read.
	conn *conn
}

// openSocket returns nil if c has no socket of its own, as with TLS.
func openSocket(c *conn) *socket {
	sc, ok := c.net.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	s := &socket{raw: raw, conn: c}
	s.read, s.more = s.tryRead, s.tryReadMore
	return s
}

// readInto waits for input, and reads it into a new buffer of the connection.
func (s *socket) readInto() (int, error) {
	if err := s.raw.Read(s.read); err != nil {
		return 0, err
	}
	return s.n, s.err
}

// tryRead reads what has arrived. It returns false, and gives the buffer back, if that is nothing.
func (s *socket) tryRead(fd uintptr) (done bool) {
	c := s.conn
	c.buffer = c.server.newBuffer(smallBufferBytes)
	s.n, s.err = sockets.Read(int(fd), c.buffer)
	switch {
	case s.err == syscall.EAGAIN:
		c.server.releaseBuffer(c.buffer)
		c.buffer = nil
		return false
	case s.n == 0 && s.err == nil:
		s.err = io.EOF
	}
	return true
}

// readMore adds what has arrived to the buffer of the connection, and returns how many bytes that is. It does not wait.
// The next read has the error, if there is one.
func (s *socket) readMore() int {
	s.n = 0
	_ = s.raw.Read(s.more)
	return s.n
}

func (s *socket) tryReadMore(fd uintptr) (done bool) {
	c := s.conn
	s.n, _ = sockets.Read(int(fd), c.buffer[c.end:])
	return true
}
