package connlimit

import (
	"container/list"
	"errors"
	"net"
	"sync/atomic"
	"time"
)

// Conn is a connection of a Listener.
type Conn struct {
	net.Conn
	*Account // what is needed to answer its requests
	of       *Listener
	read     atomic.Int64 // bytes of Account that Answered releases
	writes   atomic.Uint32
	busy     atomic.Bool

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
	if held := c.metered(n); held > 0 && c.Hold(held) {
		c.read.Add(held)
	}
	return n, err
}

// Write writes, and charges p to the budget meanwhile.
func (c *Conn) Write(p []byte) (int, error) {
	if c.busy.Load() {
		c.Idle() // an answer has started
	}
	held := c.metered(len(p))
	if !c.Hold(held) {
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Write(p)
	c.Release(held)
	if err == nil {
		c.writes.Add(1)
	}
	return n, err
}

// metered returns how many of n bytes that were read or are written count.
func (c *Conn) metered(n int) int64 {
	if c.Account == nil || c.of.cfg.Unmetered {
		return 0
	}
	return int64(n)
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
	c.Release(c.read.Swap(0))
	c.Idle()
}

// Close closes the connection and makes room for another. It does nothing on a nil Conn.
func (c *Conn) Close() error {
	if c == nil {
		return nil
	}
	c.of.mu.Lock()
	c.of.remove(c)
	c.of.mu.Unlock()
	c.Account.Close()
	return c.Conn.Close()
}

// evict closes the connection because the budget is used up.
func (c *Conn) evict(int64) {
	c.of.mu.Lock()
	c.of.stats.OverBudget++
	c.of.mu.Unlock()
	_ = c.Close() // its reader returns the error
}

// CloseWrite closes the sending side. net/http and divvy use it, so that a client can
// read the whole answer.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
