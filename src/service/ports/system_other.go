//go:build !unix

package ports

import "net"

// boundTCP is a TCP address with a listener whose connections wait: not every system can take an address without
// listening.
type boundTCP struct{ net.Listener }

func bindTCP(addr string) (boundSocket, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	return boundTCP{l}, nil
}

func (b boundTCP) listen() (net.Listener, error) { return b.Listener, nil }
func (b boundTCP) release()                      { _ = b.Close() }

// OpenFiles returns 0: there is no limit to know of.
func OpenFiles() int { return 0 }
