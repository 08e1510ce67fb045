package h2guard

import (
	"context"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"ratelimit/src/frontend/connlimit"
)

const (
	modest    = 64 << 10              // bytes that a connection may hold and be read from at any time
	fullPause = 20 * time.Millisecond // between two checks whether the budget has room
)

// Conn is one connection. Read, Write and Close are for the server. The other exported
// methods are for the handlers of its calls, and do nothing on a nil Conn.
type Conn struct {
	net.Conn
	guard   *Guard
	account *connlimit.Account
	cut     func()
	ctx     context.Context // ends when the connection is cut off or closed
	cancel  context.CancelFunc

	mu      sync.Mutex
	streams             // guarded by mu
	bucket              // guarded by mu
	sweeps  *time.Timer // guarded by mu

	usage
	progress
	longCalls atomic.Int64
}

// usage is what an evicted connection still uses.
type usage struct {
	calls   atomic.Int64 // open streams
	remains atomic.Int64 // bytes in use after an eviction
	perCall atomic.Int64 // of remains, what the end of one handler frees
}

// progress shows whether the client reads. The fields after written are of the last sweep;
// the connection's mu guards them.
type progress struct {
	writes  atomic.Uint64 // starts and ends of writes: odd during a write
	queued  atomic.Int64  // bytes of replies that are not written
	written atomic.Uint64 // how many replies were written

	seenWrites, seenWritten uint64
	wasQueued               bool
	at                      time.Duration // the last sweep that saw progress
}

// Read reads from the client, after a pause if the connection has no tokens.
func (c *Conn) Read(p []byte) (int, error) {
	if wait := c.owed(); wait > 0 {
		c.guard.Slowed.Add(1)
		c.pause(wait)
	}
	for c.account.Held() > modest && c.guard.full() && c.pause(fullPause) {
	}
	n, err := c.Conn.Read(p)
	if n > 0 && !c.received(p[:n]) {
		return 0, net.ErrClosed // the budget closed it
	}
	return n, err
}

// pause waits for d, and reports false if the connection was closed.
func (c *Conn) pause(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-c.ctx.Done():
		return false
	}
}

// owed returns the time until the connection has tokens; 0 or less if it has some.
func (c *Conn) owed() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tokens >= 0 {
		return 0
	}
	c.refill(c.guard.now())
	return time.Duration(-c.tokens * float64(time.Second) / tokenRate)
}

// Write writes to the client.
func (c *Conn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	n, err := c.Conn.Write(p)
	c.writes.Add(1)
	c.sent(p[:n])
	return n, err
}

// Close closes the connection and releases all that it holds.
func (c *Conn) Close() error {
	c.cancel() // before Stop, or a running sweep might start the timer again for good
	c.mu.Lock()
	c.sweeps.Stop()
	c.mu.Unlock()
	c.account.Close()
	return c.Conn.Close()
}

// kill cuts the connection off. The server's reads and writes fail, and it calls Close.
func (c *Conn) kill() {
	c.cancel()
	c.cut()
}

// evict kills the connection because the budget is used up. Its handlers use the bytes
// that it held until they end.
func (c *Conn) evict(bytes int64) {
	c.perCall.Store(bytes/max(c.calls.Load(), 1) + 1) // rounded up, so that all calls together free bytes
	c.remains.Store(bytes)
	c.guard.remains.Add(bytes)
	time.AfterFunc(freedAfter, func() { c.freed(math.MaxInt64) })
	go c.kill() // the caller may hold locks of another connection
}

// freed takes bytes, or all if fewer, off what an evicted connection uses.
func (c *Conn) freed(bytes int64) {
	for {
		left := c.remains.Load()
		n := min(bytes, left)
		if c.remains.CompareAndSwap(left, left-n) {
			c.guard.remains.Add(-n)
			return
		}
	}
}

// received charges the frames in p, and reports false if the budget closed the connection.
func (c *Conn) received(p []byte) bool {
	now := c.guard.now()
	var bytes int64
	c.mu.Lock()
	defer c.mu.Unlock() // after add, so that sent releases only what was added
	c.refill(now)
	for fr, rest, ok := c.in.next(p); ok; fr, rest, ok = c.in.next(rest) {
		bytes += c.receive(fr, now, &c.bucket)
	}
	c.calls.Store(int64(len(c.open)))
	return bytes == 0 || c.account.Hold(bytes)
}

// sent releases the bytes of the streams that p ends.
func (c *Conn) sent(p []byte) {
	var bytes int64
	c.mu.Lock()
	for fr, rest, ok := c.out.next(p); ok; fr, rest, ok = c.out.next(rest) {
		switch {
		case fr.kind == http2.FrameRSTStream:
			c.reset(fr.stream, c.guard.now(), &c.bucket)
		case fr.ended():
			bytes += c.open[fr.stream].bytes
			delete(c.open, fr.stream)
		}
	}
	c.calls.Store(int64(len(c.open)))
	c.mu.Unlock()
	c.account.Release(bytes)
}

// sweep closes a connection that has made no progress for stall, and releases the bytes
// of streams that were reset before the last sweep. It runs again until the connection
// is closed.
func (c *Conn) sweep() {
	if c.ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	c.account.Release(c.lingering[1])
	c.lingering = [2]int64{0, c.lingering[0]}
	stalled := c.stalled(c.guard.now())
	c.sweeps.Reset(sweepInterval)
	c.mu.Unlock()
	if stalled {
		c.guard.Stalled.Add(1)
		c.kill()
	}
}

// stalled reports whether there was no progress for stall.
func (p *progress) stalled(now time.Duration) bool {
	writes, written, queued := p.writes.Load(), p.written.Load(), p.queued.Load() > 0
	blocked := writes%2 == 1 && writes == p.seenWrites
	unread := queued && p.wasQueued && written == p.seenWritten
	p.seenWrites, p.seenWritten, p.wasQueued = writes, written, queued
	if !blocked && !unread {
		p.at = now
	}
	return now-p.at >= stall
}

// Queued charges a reply, until Written is called with the same number of bytes.
func (c *Conn) Queued(bytes int64) {
	if c != nil {
		c.queued.Add(bytes)
		c.account.Hold(bytes)
	}
}

// Written releases a reply of that many bytes, which was written or dropped.
func (c *Conn) Written(bytes int64) {
	if c != nil {
		c.queued.Add(-bytes)
		c.written.Add(1)
		c.account.Release(bytes)
	}
}

// Cancelled releases the memory of a handler that ended after its stream was reset, or
// after the connection was evicted.
func (c *Conn) Cancelled() {
	if c == nil {
		return
	}
	if c.remains.Load() > 0 {
		c.freed(c.perCall.Load())
		return
	}
	c.mu.Lock()
	released := c.endLingering()
	c.mu.Unlock()
	if released {
		c.account.Release(StreamBytes)
	}
}

// MaxLong is how many long calls one connection may have.
const MaxLong = 8

// OpenLong charges a call that lasts until the client ends it. It reports false if
// the connection has MaxLong of them, or if those of all connections hold a quarter
// of the budget. CloseLong ends the call.
func (c *Conn) OpenLong(bytes int64) bool {
	if c == nil {
		return true
	}
	g := c.guard
	calls, all := c.longCalls.Add(1), g.longBytes.Add(bytes)
	if calls <= MaxLong && (g.budget == nil || all <= g.budget.Max()/4) {
		c.account.Hold(bytes)
		return true
	}
	c.longCalls.Add(-1)
	g.longBytes.Add(-bytes)
	g.LongRefused.Add(1)
	return false
}

// CloseLong releases what OpenLong charged.
func (c *Conn) CloseLong(bytes int64) {
	if c != nil {
		c.longCalls.Add(-1)
		c.guard.longBytes.Add(-bytes)
		c.account.Release(bytes)
	}
}
