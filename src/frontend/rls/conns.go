package rls

import (
	"maps"
	"net"
	"slices"
	"sync"
)

// conns is a listener that remembers its connections. grpc-go waits for those
// in the middle of a handshake even when it is told to stop at once.
type conns struct {
	net.Listener

	mu     sync.Mutex
	open   map[*conn]struct{}
	closed bool // no new ones
}

type conn struct {
	net.Conn
	of *conns
}

// Accept waits for the next connection.
func (c *conns) Accept() (net.Conn, error) {
	raw, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	accepted := &conn{raw, c}
	if !c.add(accepted) {
		_ = raw.Close() // it came too late
	}
	return accepted, nil
}

// add reports false if there are to be no new ones.
func (c *conns) add(accepted *conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.open[accepted] = struct{}{}
	}
	return !c.closed
}

// Close closes the connection.
func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// closeAll closes all connections, and those still to come.
func (c *conns) closeAll() {
	c.mu.Lock()
	c.closed = true
	open := slices.Collect(maps.Keys(c.open))
	clear(c.open)
	c.mu.Unlock()
	for _, o := range open {
		_ = o.Conn.Close() // whatever it was about is cut off
	}
}
