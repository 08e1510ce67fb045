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
	maxHeldBytesWhenFull = 64 << 10              // connections that hold more are not read from while the budget is full.
	budgetCheckInterval  = 20 * time.Millisecond // the time between two checks whether it is still full.
)

// Conn is one connection. The server calls Read, Write and Close. The handlers of calls use the
// other exported methods, which do nothing on a nil Conn.
type Conn struct {
	net.Conn
	guard            *Guard
	Account          *connlimit.MemoryAccount
	closeUnderlying  func()
	ctx              context.Context // ends when the connection is cut off or closed.
	cancel           context.CancelFunc
	stopContextWatch func() bool // ends the watch of the context that closes all connections.

	mu sync.Mutex // guards streamTable, tokenBucket and sweepTimer.
	streamTable
	tokenBucket
	sweepTimer *time.Timer

	evictedMemory
	writeProgress
}

// evictedMemory counts the memory that the handlers of an evicted connection still use.
type evictedMemory struct {
	openStreamCount atomic.Int64
	handlerBytes    atomic.Int64
	bytesPerHandler atomic.Int64 // subtracted from handlerBytes when a handler ends.
}

// writeProgress shows whether the client reads. writeTransitions counts the starts and the ends of writes, so it is odd
// during a write. The last sweep set the last four fields; the connection's mu guards them.
type writeProgress struct {
	writeTransitions atomic.Uint64
	queuedReplyBytes atomic.Int64 // the size of replies that have not been written.
	writtenReplies   atomic.Uint64

	lastWriteTransitions, lastWrittenReplies uint64
	hadQueuedReplies                         bool
	lastProgressTime                         time.Duration
}

// Read reads from the client, after a pause if the connection has no tokens.
func (c *Conn) Read(p []byte) (int, error) {
	if wait := c.tokenWaitTime(); wait > 0 {
		c.guard.SlowedReads.Add(1)
		c.pauseReading(wait)
	}
	for c.Account.HeldBytes() > maxHeldBytesWhenFull && c.guard.budgetIsFull() &&
		c.pauseReading(budgetCheckInterval) {
	}
	n, err := c.Conn.Read(p)
	if n > 0 && !c.chargeReceivedFrames(p[:n]) {
		return 0, net.ErrClosed
	}
	return n, err
}

// pauseReading waits for d. It returns false at once if the connection is closed.
func (c *Conn) pauseReading(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-c.ctx.Done():
		return false
	}
}

// tokenWaitTime returns the time until the connection has tokens; 0 or less if it has some.
func (c *Conn) tokenWaitTime() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tokens >= 0 {
		return 0
	}
	c.refillTokens(c.guard.timeSinceStart())
	return time.Duration(-c.tokens * float64(time.Second) / tokensPerSecond)
}

// Write writes to the client.
func (c *Conn) Write(p []byte) (int, error) {
	c.writeTransitions.Add(1)
	n, err := c.Conn.Write(p)
	c.writeTransitions.Add(1)
	c.releaseSentStreams(p[:n])
	return n, err
}

// Close closes the connection and releases all that it holds.
func (c *Conn) Close() error {
	c.stopContextWatch()
	c.cancel() // A running sweep restarts the timer unless ctx has ended.
	c.mu.Lock()
	c.sweepTimer.Stop()
	c.mu.Unlock()
	c.Account.Close()
	return c.Conn.Close()
}

// cutOff cuts the connection off. The server's reads and writes fail then, and it calls Close.
func (c *Conn) cutOff() {
	c.cancel()
	c.closeUnderlying()
}

// cutOffOverBudget cuts the connection off because the budget is used up. Its handlers use memory until they end.
func (c *Conn) cutOffOverBudget(bytes int64) {
	// It is rounded up, so that the ends of all streams release all bytes.
	c.bytesPerHandler.Store(bytes/max(c.openStreamCount.Load(), 1) + 1)
	c.handlerBytes.Store(bytes)
	c.guard.evictedHandlerBytes.Add(bytes)
	time.AfterFunc(maxHandlerTime, func() { c.releaseHandlerBytes(math.MaxInt64) })
	go c.cutOff() // The caller may hold locks of another connection, so it must not wait for cutOff.
}

// releaseHandlerBytes subtracts bytes, or all if fewer, from what the handlers of an evicted connection use.
func (c *Conn) releaseHandlerBytes(bytes int64) {
	for {
		used := c.handlerBytes.Load()
		n := min(bytes, used)
		if c.handlerBytes.CompareAndSwap(used, used-n) {
			c.guard.evictedHandlerBytes.Add(-n)
			return
		}
	}
}

// chargeReceivedFrames charges the frames in p. It returns false if the budget closed the connection.
func (c *Conn) chargeReceivedFrames(p []byte) bool {
	now := c.guard.timeSinceStart()
	var bytes int64
	c.mu.Lock()
	defer c.mu.Unlock() // releaseSentStreams waits for mu, so it releases only bytes that HoldBytes has added.
	c.refillTokens(now)
	for fr, rest, ok := c.clientFrames.next(p); ok; fr, rest, ok = c.clientFrames.next(rest) {
		bytes += c.receiveFrame(fr, now, &c.tokenBucket)
	}
	c.openStreamCount.Store(int64(len(c.openStreams)))
	return bytes == 0 || c.Account.HoldBytes(bytes)
}

// releaseSentStreams releases the bytes of the streams that the frames in p end.
func (c *Conn) releaseSentStreams(p []byte) {
	var bytes int64
	c.mu.Lock()
	for fr, rest, ok := c.serverFrames.next(p); ok; fr, rest, ok = c.serverFrames.next(rest) {
		switch {
		case fr.kind == http2.FrameRSTStream:
			c.resetStream(fr.streamID, c.guard.timeSinceStart(), &c.tokenBucket)
		case fr.endsStream():
			bytes += c.openStreams[fr.streamID].heldBytes
			delete(c.openStreams, fr.streamID)
		}
	}
	c.openStreamCount.Store(int64(len(c.openStreams)))
	c.mu.Unlock()
	c.Account.ReleaseBytes(bytes)
}

// runSweep cuts off a stalled connection, and releases streams that were reset before the last sweep. It
// restarts its timer until the connection is closed.
func (c *Conn) runSweep() {
	if c.ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	c.Account.ReleaseBytes(c.olderResetBytes)
	c.recentResetBytes, c.olderResetBytes = 0, c.recentResetBytes
	stalled := c.isStalled(c.guard.timeSinceStart())
	c.sweepTimer.Reset(sweepInterval)
	c.mu.Unlock()
	if stalled {
		c.guard.StalledConnections.Add(1)
		c.cutOff()
	}
}

// isStalled reports whether there was no progress for maxStallTime.
func (p *writeProgress) isStalled(now time.Duration) bool {
	writes, written, queued := p.writeTransitions.Load(), p.writtenReplies.Load(), p.queuedReplyBytes.Load() > 0
	blocked := writes%2 == 1 && writes == p.lastWriteTransitions
	unread := queued && p.hadQueuedReplies && written == p.lastWrittenReplies
	p.lastWriteTransitions, p.lastWrittenReplies, p.hadQueuedReplies = writes, written, queued
	if !blocked && !unread {
		p.lastProgressTime = now
	}
	return now-p.lastProgressTime >= maxStallTime
}

// ChargeQueuedReply charges a reply of that many bytes until the handler calls ReleaseWrittenReply with the same
// number.
func (c *Conn) ChargeQueuedReply(bytes int64) {
	if c != nil {
		c.queuedReplyBytes.Add(bytes)
		c.Account.HoldBytes(bytes)
	}
}

// ReleaseWrittenReply releases a reply of that many bytes, which has been written or dropped.
func (c *Conn) ReleaseWrittenReply(bytes int64) {
	if c != nil {
		c.queuedReplyBytes.Add(-bytes)
		c.writtenReplies.Add(1)
		c.Account.ReleaseBytes(bytes)
	}
}

// ReleaseCancelledCall releases the memory of a handler that ended after its stream was reset, or after eviction.
func (c *Conn) ReleaseCancelledCall() {
	if c == nil {
		return
	}
	if c.handlerBytes.Load() > 0 {
		c.releaseHandlerBytes(c.bytesPerHandler.Load())
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.takeResetStreamBytes() {
		c.Account.ReleaseBytes(StreamBytes)
	}
}
