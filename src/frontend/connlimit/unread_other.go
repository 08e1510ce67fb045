//go:build !linux

package connlimit

import (
	"net"
	"time"
)

// boundUnread does nothing: only Linux has the option. The server's write timeout bounds
// blocked writes.
func boundUnread(net.Conn, time.Duration) {}
