package pipeline

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"ratelimit/src/sockets"
)

// socket is a TCP connection or Unix socket that a poller can serve. While it is polled, its descriptor is not
// registered with the Go runtime, which would wake a thread for each request.
type socket struct {
	owner *conn // set by startConn

	// mu guards the fields below. All but isClosed change only on the goroutine that serves the connection. So that
	// goroutine reads them without mu.

	mu       sync.Mutex
	net.Conn         // The Go runtime's; closed while it is polled.
	fd       int     // valid while it is polled.
	poller   *poller // nil unless it is polled.
	isClosed bool
}

// newSocket returns c as a *socket if a poller can serve it; else c.
func newSocket(c net.Conn) net.Conn {
	switch c.(type) {
	case *net.TCPConn, *net.UnixConn:
		return &socket{Conn: sockets.New(c)}
	}
	return c
}

// Write writes replies. If the connection is polled and p cannot be written at once, it leaves the poller, and the
// calling goroutine waits.
func (s *socket) Write(p []byte) (written int, err error) {
	if s.poller != nil {
		written, _ = sockets.Write(s.fd, p) // After an error other than EAGAIN, the next Write fails, too.
		if written == len(p) {
			return written, nil
		}
		s.owner.leavePoller()
		s.owner.setWriteDeadline()
	}
	n, err := s.Conn.Write(p[written:])
	return written + n, err
}

// Close closes the connection. If it is polled, the poller sees that its input has ended.
func (s *socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isClosed = true
	if s.poller != nil {
		return os.NewSyscallError("shutdown", unix.Shutdown(s.fd, unix.SHUT_RDWR))
	}
	return s.Conn.Close()
}

// SetReadDeadline fails while the connection is polled, which does no harm: unpoll sets the deadline again.
func (s *socket) SetReadDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Conn.SetReadDeadline(t)
}

// CloseWrite closes the sending side. The connection must not be polled.
func (s *socket) CloseWrite() error { return s.Conn.(interface{ CloseWrite() error }).CloseWrite() }

// SyscallConn returns the socket. The connection must not be polled.
func (s *socket) SyscallConn() (syscall.RawConn, error) { return s.Conn.(syscall.Conn).SyscallConn() }

// detach removes the connection from the Go runtime, for p. It fails if s is closed or if the process has no file
// descriptor left.
func (s *socket) detach(p *poller) error {
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var dupErr error
	err = raw.Control(func(fd uintptr) { s.fd, dupErr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if err != nil || dupErr != nil {
		return errors.Join(err, os.NewSyscallError("fcntl", dupErr))
	}
	_ = s.Conn.Close() // The copy of the descriptor keeps the connection open.
	s.poller = p
	return nil
}

// attach returns the connection to the Go runtime, if it is polled. It closes the connection if the process has no file
// descriptor left.
func (s *socket) attach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.poller == nil {
		return
	}
	s.poller = nil
	file := os.NewFile(uintptr(s.fd), "")
	if !s.isClosed {
		if c, err := net.FileConn(file); err == nil { // c has a copy of the descriptor.
			s.Conn = sockets.New(c)
		}
	}
	_ = file.Close() // If there is no copy, the next Read fails, because s.Conn is closed.
}
