package connlimit

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// limitUnreadTime makes the kernel close c when its client leaves output unread for d. Blocked writes
// do not show that, because the kernel buffers some MiB of output.
func limitUnreadTime(c net.Conn, d time.Duration) {
	s, ok := c.(syscall.Conn)
	if !ok || d <= 0 {
		return
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return // SyscallConn fails only if c is closed.
	}
	_ = raw.Control(func(fd uintptr) {
		// Unix sockets do not have the option, but their buffers are small.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})
}
