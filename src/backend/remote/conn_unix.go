//go:build unix

package remote

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

// pending reports whether there are bytes to read, and leaves them there. It does not wait,
// and is safe for concurrent use.
func (w *watcher) pending() bool {
	if w.raw == nil {
		return false
	}
	n := 0
	err := w.raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, _ = syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	})
	return err == nil && n > 0
}

// readable reports whether there is something to read: the end of the connection, or
// bytes that no command asked for. It takes the first byte, so the connection is of no use then.
// It does not wait.
func (w *watcher) readable() bool {
	if w.raw == nil {
		return false
	}
	// Read would refuse, as the deadline of the last reply has passed.
	return w.raw.Control(w.look) != nil || !w.silent
}
