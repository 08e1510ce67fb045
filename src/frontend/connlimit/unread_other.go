//go:build !linux

package connlimit

import (
	"net"
	"time"
)

// limitUnreadTime does nothing, because only Linux has the option. Servers have write timeouts, too.
func limitUnreadTime(net.Conn, time.Duration) {}
