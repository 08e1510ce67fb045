package main

import (
	"net"
	"sync"
	"sync/atomic"

	"ratelimit/src/metrics"
)

// operatorConns is how many connections the debug port and that of scrapes have
// at most. Whoever needs more of them is no operator.
const operatorConns = 256

// crowd is a listener with a bound on its open connections. Those beyond it are
// closed at once: a client that is told so goes elsewhere, while one that nobody
// accepts waits.
type crowd struct {
	net.Listener
	most          int64
	open, refused atomic.Int64
}

// Accept waits for the next connection for which there is room.
func (c *crowd) Accept() (net.Conn, error) {
	for {
		raw, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c.open.Add(1) <= c.most {
			return &crowdConn{Conn: raw, of: c}, nil
		}
		c.open.Add(-1)
		c.refused.Add(1)
		_ = raw.Close() // there is nothing to lose
	}
}

type crowdConn struct {
	net.Conn
	of   *crowd
	once sync.Once
}

// Close closes the connection and makes room for another.
func (c *crowdConn) Close() error {
	c.once.Do(func() { c.of.open.Add(-1) })
	return c.Conn.Close()
}

// CloseWrite is what net/http looks for, to let a client read an answer to its end.
func (c *crowdConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// stats are the figures of the ports that have a bound. Divvy's has its own.
func (p ports) stats(add func(metrics.Stat)) {
	for _, n := range p.named() {
		if c, ok := n.Listener.(*crowd); ok {
			add(metrics.Stat{Name: "ratelimit." + n.name + ".cx_active", Kind: metrics.KindGauge, Value: c.open.Load()})
			add(metrics.Stat{Name: "ratelimit." + n.name + ".cx_refused", Kind: metrics.KindCounter, Value: c.refused.Load()})
		}
	}
}
