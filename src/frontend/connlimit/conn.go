package connlimit

import (
	"container/list"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"ratelimit/src/frontend/budget"
)

// Conn is a connection of a Listener. Hold, Release and Close do nothing on a nil Conn.
type Conn struct {
	net.Conn
	of      *Listener
	account *budget.Account // nil: no bound
	read    atomic.Int64    // bytes of account that Answered releases
	writes  atomic.Uint32
	busy    atomic.Bool

	// What follows is guarded by of.mu.
	list  *list.List // of of; nil while busy, and once gone
	place *list.Element
	since time.Time // the start of the idle time, if in a list
	seen  uint32    // writes at that time
	gone  bool      // closed, or about to be
}

// push appends c to conns. The caller holds of.mu.
func (c *Conn) push(conns *list.List, now time.Time) {
	c.list, c.place, c.since = conns, conns.PushBack(c), now
}

// unlist takes c out of its list, if it is in one. The caller holds of.mu.
func (c *Conn) unlist() {
	if c.list != nil {
		c.list.Remove(c.place)
		c.list, c.place = nil, nil
	}
}

// Read reads, and charges what was read to the budget.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && c.metered() && c.account.Add(int64(n)) {
		c.read.Add(int64(n))
	}
	return n, err
}

// Write writes, and charges p to the budget meanwhile.
func (c *Conn) Write(p []byte) (int, error) {
	if c.busy.Load() {
		c.Idle() // an answer has started
	}
	held := int64(0)
	if c.metered() {
		held = int64(len(p))
	}
	if !c.account.Add(held) {
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Write(p)
	c.account.Release(held)
	if err == nil {
		c.writes.Add(1)
	}
	return n, err
}

func (c *Conn) metered() bool { return c.account != nil && !c.of.cfg.Unmetered }

// Hold charges n bytes that are needed to answer a request. It reports false if the
// connection is closed, for example because it held the most when the budget was used up.
func (c *Conn) Hold(n int64) bool { return c == nil || c.account.Add(n) }

// Release gives back n of the bytes that Hold took.
func (c *Conn) Release(n int64) {
	if c != nil {
		c.account.Release(n)
	}
}

// Busy says that the client waits for an answer. A busy connection is not closed for
// another one. The next write ends this.
func (c *Conn) Busy() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.unlist()
	c.busy.Store(true)
}

// Idle says that the server waits for the client.
func (c *Conn) Idle() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.busy.Store(false)
	if !c.gone {
		c.of.idle(c, time.Now())
	}
}

// Answered says that the answer was written: the connection is idle, and holds nothing
// of what was read so far.
func (c *Conn) Answered() {
	c.account.Release(c.read.Swap(0))
	c.Idle()
}

// Close closes the connection and makes room for another.
func (c *Conn) Close() error {
	if c == nil {
		return nil
	}
	c.of.mu.Lock()
	c.of.remove(c)
	c.of.mu.Unlock()
	c.account.Close()
	return c.Conn.Close()
}

// CloseWrite closes the sending side. net/http and divvy use it, so that a client can
// read the whole answer.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
