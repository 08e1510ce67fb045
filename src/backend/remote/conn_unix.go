//go:build unix

package remote

import (
	"errors"
	"net"
	"sync"
	"syscall"

	"ratelimit/src/sockets"
)

// peeker finds out whether there are bytes to read from a connection, without reading them.
type peeker struct {
	rawConn syscall.RawConn  // nil if the connection has no file descriptor
	recv    func(fd uintptr) // sets n and err. It is kept because a new closure would be an allocation.

	mu  sync.Mutex // guards n and err
	n   int
	err error
}

func newPeeker(c net.Conn) *peeker {
	p := new(peeker)
	if s, ok := c.(syscall.Conn); ok {
		p.rawConn, _ = s.SyscallConn() // After an error, rawConn is nil.
	}
	p.recv = func(fd uintptr) {
		p.n, p.err = sockets.Peek(int(fd))
	}
	return p
}

// peek reports whether there are bytes to read, and whether the connection has ended. It
// does not wait and is safe for concurrent use.
func (p *peeker) peek() (hasBytes, ended bool) {
	if p.rawConn == nil {
		return false, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// Control is used, because rawConn.Read fails after the deadline of the last reply.
	if err := p.rawConn.Control(p.recv); err != nil {
		return false, true
	}
	return p.n > 0, p.n == 0 && !errors.Is(p.err, syscall.EAGAIN)
}
