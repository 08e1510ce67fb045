//go:build unix

package redis

import (
	"errors"
	"net"
	"syscall"
)

// watcher looks whether there is something to read from a connection.
type watcher struct {
	raw    syscall.RawConn // nil: cannot be looked at
	look   func(fd uintptr)
	silent bool // what look found
}

func newWatcher(c net.Conn) *watcher {
	w := new(watcher)
	if s, ok := c.(syscall.Conn); ok {
		w.raw, _ = s.SyscallConn() // fails only where there is no connection
	}
	w.look = func(fd uintptr) {
		var b [1]byte
		_, err := syscall.Read(int(fd), b[:])
		w.silent = errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR)
	}
	return w
}

// readable reports whether there is something to read: the end of the connection, or
// bytes nobody asked for. It takes the first byte, so the connection is of no use then.
// It does not wait.
func (w *watcher) readable() bool {
	if w.raw == nil {
		return false
	}
	// Read would refuse, as the deadline of the last reply has passed.
	return w.raw.Control(w.look) != nil || !w.silent
}
