//go:build !linux

package pipeline

import "net"

type socket struct{}

// pollers would serve connections without a goroutine each. Here they serve none.
type pollers struct{}

func (*pollers) stop() {}

func newSocket(c net.Conn) net.Conn { return c }

func (*conn) setSocket(net.Conn) {}

func (*conn) canBePolled() bool { return false }

func (*conn) isPolled() bool { return false }

func (*conn) poll() bool { return false }

func (*conn) leavePoller() {}
