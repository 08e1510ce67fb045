//go:build unix

package redis

import (
	"errors"
	"net"
	"syscall"
)

// hungUp reports whether there is something to read from c, most likely its
// end. It takes what there is, and does not wait.
func hungUp(c net.Conn) bool {
	s, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return true
	}
	silent := false
	// Read would refuse, as the deadline of the last answer has passed.
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		_, err := syscall.Read(int(fd), b[:])
		silent = errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR)
	})
	return err != nil || !silent
}
