package connlimit

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// boundUnread makes the kernel close c when its client leaves output unread for d. The
// kernel buffers up to some MiB of output, so writes may not be blocked at that time.
func boundUnread(c net.Conn, d time.Duration) {
	s, ok := c.(syscall.Conn)
	if !ok || d <= 0 {
		return
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return // c is closed
	}
	_ = raw.Control(func(fd uintptr) {
		// A unix socket has no such option. Writes to it block early.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})
}
