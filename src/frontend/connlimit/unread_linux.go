package connlimit

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// boundUnread has the kernel close a connection whose client does not take what was
// written for so long. What was written is the kernel's, up to some MiB a connection,
// so no write has to be blocked for that.
func boundUnread(c net.Conn, d time.Duration) {
	s, ok := c.(syscall.Conn)
	if !ok || d <= 0 {
		return
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return // it is closed
	}
	_ = raw.Control(func(fd uintptr) {
		// A unix socket has no such option, and needs none: writes to it block early.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})
}
