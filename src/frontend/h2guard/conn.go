package h2guard

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/frontend/budget"
)

// StreamBytes is about what an open stream takes: its handler's goroutine with its
// stack, and the server's records of it.
const StreamBytes = 8 << 10

const (
	maxTokens    = 1000
	tokenRate    = 1000 // per second
	streamTokens = 8    // what a new stream earns
	resetTokens  = 9    // what a rapid reset costs, beside its frame
	rapid        = 5 * time.Millisecond
	smallData    = 64  // shorter DATA costs a token, unless it ends the stream
	perSetting   = 256 // open streams that a server changes for one setting at the cost of a token
	peakBytes    = 64  // what servers keep for each stream of the most that were open
	maxHeaders   = 64 << 10
	modest       = 64 << 10              // what a connection may hold and be read from at any time
	crowdedPause = 20 * time.Millisecond // between two looks whether there is room
)

// Conn is one connection. Read, Write and Close are for the server; the other
// methods are for the handlers of its calls, and do nothing on a nil Conn.
type Conn struct {
	net.Conn
	guard   *Guard
	account *budget.Account
	cut     func()
	once    sync.Once
	done    chan struct{} // closed by kill and Close

	mu        sync.Mutex
	in, out   frames            // guarded by mu, as all that follows
	streams   map[uint32]stream // those that are open
	last      uint32            // the highest stream that the client opened
	peak      int               // the most streams that were open
	tokens    float64
	refilled  time.Duration // when tokens was last brought up to date
	lingering [2]int64      // bytes of streams that were reset: since the last sweep, before it

	writes        atomic.Uint64 // writes begun and ended: odd while one is under way
	queued        atomic.Int64  // bytes of replies that are not written
	written       atomic.Uint64 // how many replies were written
	longCalls     atomic.Int64
	held          atomic.Int64  // bytes charged to account
	open          atomic.Int64  // len(streams)
	remains       atomic.Int64  // bytes that are still to be collected after an eviction
	share         atomic.Int64  // of remains, what the end of one handler frees
	seenWrites    uint64        // at the last sweep
	seenWritten   uint64        // at the last sweep
	wasQueued     bool          // at the last sweep
	progressUntil time.Duration // the last sweep that saw progress
}

// stream is an open stream.
type stream struct {
	bytes  int64
	opened time.Duration
}

// Read reads from the client, after the pause that it owes for its frames.
func (c *Conn) Read(p []byte) (int, error) {
	if wait := c.owed(); wait > 0 {
		c.guard.slowed.Add(1)
		c.pause(wait)
	}
	for c.held.Load() > modest && c.guard.crowded() && c.pause(crowdedPause) {
	}
	n, err := c.Conn.Read(p)
	if n > 0 && !c.received(p[:n]) {
		return 0, net.ErrClosed // the budget closed it
	}
	return n, err
}

// pause waits, and reports false if the connection was closed.
func (c *Conn) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.done:
		return false
	}
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
	c.guard.closed(c)
	c.account.Close()
	c.once.Do(func() { close(c.done) })
	return c.Conn.Close()
}

// kill cuts the connection off. The server finds its reads and writes fail, and
// calls Close.
func (c *Conn) kill() {
	c.once.Do(func() { close(c.done) })
	c.cut()
}

// evict is kill when the budget is used up. What the connection held is in use until
// its handlers have noticed.
func (c *Conn) evict() {
	bytes := c.held.Load()
	c.share.Store(bytes/max(c.open.Load(), 1) + 1) // rounded up: together no less than bytes
	c.guard.mu.Lock()
	if _, open := c.guard.conns[c]; open { // else it has ended by itself
		c.remains.Store(bytes)
		c.guard.remains.Add(bytes)
	}
	c.guard.mu.Unlock()
	go c.kill() // the caller may hold locks of another connection
}

// collected says that bytes of remains are not in use any more.
func (c *Conn) collected(bytes int64) {
	for {
		left := c.remains.Load()
		n := min(bytes, left)
		if c.remains.CompareAndSwap(left, left-n) {
			c.guard.remains.Add(-n)
			return
		}
	}
}

func (c *Conn) add(bytes int64) bool {
	c.held.Add(bytes)
	return c.account.Add(bytes)
}

func (c *Conn) release(bytes int64) {
	c.held.Add(-bytes)
	c.account.Release(bytes)
}

// owed returns how long it takes until the connection has tokens again.
func (c *Conn) owed() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tokens >= 0 {
		return 0
	}
	c.refill(c.guard.now())
	return time.Duration(-c.tokens * float64(time.Second) / tokenRate)
}

func (c *Conn) refill(now time.Duration) {
	c.tokens = min(c.tokens+(now-c.refilled).Seconds()*tokenRate, maxTokens)
	c.refilled = now
}

// received charges the frames in p, and reports false if the connection was
// closed for what it holds.
func (c *Conn) received(p []byte) bool {
	now := c.guard.now()
	var bytes int64
	c.mu.Lock()
	defer c.mu.Unlock() // behind Add, so that sent releases nothing that was not added
	c.refill(now)
	for fr, rest, ok := c.in.next(p); ok; fr, rest, ok = c.in.next(rest) {
		bytes += c.receive(fr, now)
	}
	return bytes == 0 || c.add(bytes)
}

// receive takes note of one frame and returns how many bytes more are held.
func (c *Conn) receive(fr frame, now time.Duration) (bytes int64) {
	switch fr.kind {
	case frameHeaders:
		if fr.stream <= c.last {
			c.tokens--
			return 0
		}
		c.last = fr.stream
		bytes = StreamBytes + headerCost(fr.length)
		c.streams[fr.stream] = stream{bytes, now}
		c.open.Add(1)
		c.tokens = min(c.tokens+streamTokens, maxTokens)
		if len(c.streams) > c.peak {
			c.peak++
			return bytes + peakBytes
		}
		return bytes
	case frameContinuation:
		c.tokens--
		return c.grow(c.last, headerCost(fr.length))
	case frameData:
		if fr.length < smallData && !fr.ended() {
			c.tokens--
		}
		return c.grow(fr.stream, dataCost(fr.length))
	case frameRSTStream:
		c.reset(fr.stream, now)
	case frameSettings:
		c.tokens -= float64(fr.length/settingLen) * float64(1+len(c.streams)/perSetting)
	}
	c.tokens--
	return 0
}

// grow adds bytes to a stream, if it is open, and returns what was added.
func (c *Conn) grow(id uint32, bytes int64) int64 {
	s, open := c.streams[id]
	if !open {
		return 0
	}
	s.bytes += bytes
	c.streams[id] = s
	return bytes
}

// reset ends a stream whose handler may still run.
func (c *Conn) reset(id uint32, now time.Duration) {
	s, open := c.streams[id]
	if !open {
		return
	}
	c.open.Add(-1)
	delete(c.streams, id)
	c.lingering[0] += s.bytes
	if now-s.opened < rapid {
		c.tokens -= resetTokens
	}
}

// sent releases what the streams held that p ends.
func (c *Conn) sent(p []byte) {
	var bytes int64
	c.mu.Lock()
	for fr, rest, ok := c.out.next(p); ok; fr, rest, ok = c.out.next(rest) {
		switch {
		case fr.kind == frameRSTStream:
			c.reset(fr.stream, c.guard.now())
		case fr.ended():
			if s, open := c.streams[fr.stream]; open {
				bytes += s.bytes
				c.open.Add(-1)
				delete(c.streams, fr.stream)
			}
		}
	}
	c.mu.Unlock()
	if bytes > 0 {
		c.release(bytes)
	}
}

// headerCost is what a server holds for n bytes of compressed headers, in which
// one byte can stand for a name and a value that were sent before.
func headerCost(n uint32) int64 { return min(8*int64(n), maxHeaders) }

// dataCost is what a server holds for a DATA frame of n bytes: grpc-go takes buffers
// of 4 and 16 KiB for those above 1 KiB, and some 150 bytes for each.
func dataCost(n uint32) int64 {
	const perFrame = 160
	switch {
	case n <= 1<<10:
		return int64(n) + perFrame
	case n <= 4<<10:
		return 4<<10 + perFrame
	case n <= 16<<10:
		return 16<<10 + perFrame
	}
	return int64(n) + perFrame
}

// sweep reports whether the connection has made no progress for too long, and
// releases what streams held that were reset before the last sweep.
func (c *Conn) sweep(now time.Duration) (stalled bool) {
	c.mu.Lock()
	old := c.lingering[1]
	c.lingering = [2]int64{0, c.lingering[0]}
	c.mu.Unlock()
	if old > 0 {
		c.release(old)
	}
	writes, written, queued := c.writes.Load(), c.written.Load(), c.queued.Load() > 0
	blocked := writes%2 == 1 && writes == c.seenWrites
	unread := queued && c.wasQueued && written == c.seenWritten
	c.seenWrites, c.seenWritten, c.wasQueued = writes, written, queued
	select {
	case <-c.done: // the server has yet to notice
		return false
	default:
	}
	if !blocked && !unread {
		c.progressUntil = now
	}
	return now-c.progressUntil >= c.guard.cfg.Stall
}

// Queued charges a reply, until Written is called with the same number of bytes.
func (c *Conn) Queued(bytes int64) {
	if c != nil {
		c.queued.Add(bytes)
		c.add(bytes)
	}
}

// Written says that a reply of that many bytes was written, or dropped.
func (c *Conn) Written(bytes int64) {
	if c != nil {
		c.queued.Add(-bytes)
		c.written.Add(1)
		c.release(bytes)
	}
}

// Cancelled says that a handler ended whose stream had ended before, so that
// nothing is left of it.
func (c *Conn) Cancelled() {
	if c == nil {
		return
	}
	if c.remains.Load() > 0 {
		c.collected(c.share.Load())
		return
	}
	released := false
	c.mu.Lock()
	for i := len(c.lingering) - 1; i >= 0 && !released; i-- {
		if c.lingering[i] >= StreamBytes {
			c.lingering[i] -= StreamBytes
			released = true
		}
	}
	c.mu.Unlock()
	if released {
		c.release(StreamBytes)
	}
}

// MaxLong is how many long calls one connection may have.
const MaxLong = 8

// OpenLong charges a call that lasts until the client ends it. It reports false if
// the connection has MaxLong of them, or if those of all connections hold a quarter
// of the budget. CloseLong ends the call.
func (c *Conn) OpenLong(bytes int64) bool {
	switch {
	case c == nil:
		return true
	case c.longCalls.Add(1) > MaxLong:
	case c.guard.long.Add(bytes) > c.guard.maxLong:
		c.guard.long.Add(-bytes)
	default:
		c.add(bytes)
		return true
	}
	c.longCalls.Add(-1)
	c.guard.longRefused.Add(1)
	return false
}

// CloseLong releases what OpenLong charged.
func (c *Conn) CloseLong(bytes int64) {
	if c != nil {
		c.longCalls.Add(-1)
		c.guard.long.Add(-bytes)
		c.release(bytes)
	}
}
