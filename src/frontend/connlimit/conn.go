package connlimit

import (
	"container/list"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// Conn is a connection of a Listener. Its MemoryAccount counts the bytes that it holds.
type Conn struct {
	net.Conn
	*MemoryAccount
	listener        *Listener
	unansweredBytes atomic.Int64 // how many held bytes MarkAnswered releases.
	writeCount      atomic.Uint32
	isBusy          atomic.Bool

	// listener.mu guards the fields below.

	idleList       *list.List // one of the listener's lists; nil while c is busy and after removal.
	listElement    *list.Element
	idleSince      time.Time
	writesWhenIdle uint32 // the value of writeCount at idleSince.
	isRemoved      bool   // true if the listener no longer counts c.
}

// moveTo moves c from its list, if it is in one, to the end of conns, unless that is nil. The caller holds the
// listener's mu.
func (c *Conn) moveTo(conns *list.List, now time.Time) {
	if c.idleList != nil {
		c.idleList.Remove(c.listElement)
	}
	c.idleList, c.listElement, c.idleSince = conns, nil, now
	if conns != nil {
		c.listElement = conns.PushBack(c)
	}
}

// Read reads from the client, and charges the bytes to the budget.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if held := c.bytesToCharge(n); held > 0 && c.HoldBytes(held) {
		c.unansweredBytes.Add(held)
	}
	return n, err
}

// Write writes to the client. Meanwhile, p is charged to the budget.
func (c *Conn) Write(p []byte) (int, error) {
	if c.isBusy.Load() {
		c.MarkIdle() // The client has its answer now, so the connection may be closed to make room.
	}
	held := c.bytesToCharge(len(p))
	if !c.HoldBytes(held) {
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Write(p)
	c.ReleaseBytes(held)
	if err == nil {
		c.writeCount.Add(1)
	}
	return n, err
}

// bytesToCharge returns n, or 0 if Read and Write do not charge the budget.
func (c *Conn) bytesToCharge(n int) int64 {
	if c.MemoryAccount == nil || c.listener.cfg.OnlyManualCharges {
		return 0
	}
	return int64(n)
}

// SyscallConn returns the socket, for servers that read without a buffer. Reads of it are not charged.
func (c *Conn) SyscallConn() (syscall.RawConn, error) {
	socket, ok := c.Conn.(syscall.Conn)
	if !ok || c.bytesToCharge(1) > 0 {
		return nil, errors.ErrUnsupported
	}
	return socket.SyscallConn()
}

// MarkBusy tells the listener that the client waits for an answer. The listener does not close a busy connection to
// make room for another one. The next write ends the busy time.
func (c *Conn) MarkBusy() {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.moveTo(nil, time.Time{})
	c.isBusy.Store(true)
}

// MarkIdle tells the listener that the server waits for the client.
func (c *Conn) MarkIdle() {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.isBusy.Store(false)
	if !c.isRemoved {
		c.listener.markIdle(c, time.Now())
	}
}

// MarkAnswered tells the listener that an answer was written. The connection is idle and releases what was read.
func (c *Conn) MarkAnswered() {
	c.ReleaseBytes(c.unansweredBytes.Swap(0))
	c.MarkIdle()
}

// Close closes the connection and makes room for another one. It does nothing on a nil Conn.
func (c *Conn) Close() error {
	if c == nil {
		return nil
	}
	c.listener.mu.Lock()
	c.listener.removeConn(c)
	c.listener.mu.Unlock()
	c.MemoryAccount.Close()
	return c.Conn.Close()
}

// closeOverBudget closes the connection because the budget is used up.
func (c *Conn) closeOverBudget(int64) {
	c.listener.mu.Lock()
	c.listener.stats.ClosedOverBudget++
	c.listener.mu.Unlock()
	_ = c.Close() // The server learns from Read or Write that the connection is closed.
}

// CloseWrite closes the sending side. Servers call it, so that the client can read the whole answer.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
