package rls

import (
	"context"
	"net"
)

// closingListener closes its connections when ctx ends, also those in the middle of a
// handshake: grpc-go waits for them even when it is told to stop at once.
type closingListener struct {
	net.Listener
	ctx context.Context
}

// closingConn is a connection of a closingListener.
type closingConn struct {
	net.Conn
	forget func() bool
}

// Accept waits for the next connection.
func (l closingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return closingConn{conn, context.AfterFunc(l.ctx, func() { _ = conn.Close() })}, nil // its reads and writes fail
}

// Close closes the connection.
func (c closingConn) Close() error {
	c.forget()
	return c.Conn.Close()
}
