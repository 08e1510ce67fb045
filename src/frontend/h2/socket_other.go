//go:build !unix

package h2

// socket is not used on this system.
type socket struct{}

func openSocket(*conn) *socket { return nil }

func (*socket) readInto() (int, error) { panic("h2: no socket") }
