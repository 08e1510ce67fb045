//go:build !unix

package remote

import "net"

// HungUp has no means here: who asks first after the server hung up gets an
// error.
func HungUp(net.Conn) bool { return false }
