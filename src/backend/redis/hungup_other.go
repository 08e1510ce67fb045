//go:build !unix

package redis

import "net"

// hungUp has no means here: who asks first after the server hung up gets an
// error.
func hungUp(net.Conn) bool { return false }
