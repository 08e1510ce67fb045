//go:build !linux

package connlimit

import (
	"net"
	"time"
)

// boundUnread does nothing: only Linux has such an option. Writes that are blocked are
// bounded by what serves the connection.
func boundUnread(net.Conn, time.Duration) {}
