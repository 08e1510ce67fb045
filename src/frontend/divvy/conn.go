package divvy

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"ratelimit/src/frontend/connlimit"
)

const (
	// readBuffer is the size of a connection's buffer while no line is longer.
	readBuffer = 4 << 10
	// maxLong bounds the larger buffers of all connections together, so that the memory
	// need not hold MaxConns times MaxLine.
	maxLong = 64 << 20
	// flushAt is how many bytes of replies are collected before they are written.
	flushAt = 32 << 10

	// handshakeTimeout is how long a TLS handshake may take.
	handshakeTimeout = 5 * time.Second
	// farewell is how long Shutdown still reads from a connection.
	farewell = 100 * time.Millisecond
	// lingering is how long a connection stays half open after its last reply, for the
	// client to read it.
	lingering = time.Second
)

// conn is one connection. Its goroutine alone uses the fields that mu does not guard.
type conn struct {
	net.Conn           // TLS over raw, or raw
	raw       net.Conn // TCP
	account   *connlimit.Account
	refused   bool // by the port; it has no account
	srv       *Server
	in        lines
	longBytes int64  // of the buffer beyond readBuffer
	batch     *batch // nil unless requests are being answered

	mu    sync.Mutex
	ended time.Time // guarded by mu; the read deadline once the server stops, else zero
}

// recovered ends the connection after a panic: it writes the complete replies and an ERR.
func (c *conn) recovered() {
	p := recover()
	if p == nil {
		return
	}
	c.srv.counts.panics.Add(1)
	c.srv.cfg.OnPanic(p, debug.Stack())
	var out []byte
	if c.batch != nil {
		out = c.batch.out[:bytes.LastIndexByte(c.batch.out, '\n')+1]
	}
	c.finish(out, errInternal)
}

// finish writes out and the ERR reply f, and lets the client read them.
func (c *conn) finish(out []byte, f *fault) {
	if c.write(c.srv.appendFault(out, f)) {
		c.linger()
	}
}

// serve answers all lines that have arrived, and reads again.
func (c *conn) serve() {
	if !c.handshake() {
		return
	}
	c.in.resize(readBuffer)
	c.await()
	for {
		n, err := c.Read(c.in.room())
		c.in.read(n)
		answered, ok := c.answer(errors.Is(err, io.EOF))
		switch {
		case !ok:
			return
		case errors.Is(err, os.ErrDeadlineExceeded):
			c.expire()
			return
		case err != nil:
			return
		case answered > 0:
			c.await()
		}
		if f := c.fit(); f != nil {
			c.finish(nil, f)
			return
		}
	}
}

func (c *conn) handshake() bool {
	t, ok := c.Conn.(*tls.Conn)
	return !ok || c.raw.SetDeadline(time.Now().Add(handshakeTimeout)) == nil && t.Handshake() == nil
}

// await sets the read deadline for the next line.
func (c *conn) await() {
	c.mu.Lock()
	defer c.mu.Unlock()
	deadline := c.ended
	if deadline.IsZero() && c.srv.cfg.Idle > 0 {
		deadline = time.Now().Add(c.srv.cfg.Idle)
	}
	_ = c.raw.SetReadDeadline(deadline) // else Read returns the same error
}

// end sets the last read deadline. Shutdown calls it.
func (c *conn) end(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = t
	_ = c.raw.SetReadDeadline(t) // else Read returns the same error
}

// expire ends a connection whose read deadline has passed. It sends an ERR only if the
// client has sent a part of a line: a client that waits for no reply would take the ERR
// for the reply to its next request.
func (c *conn) expire() {
	c.mu.Lock()
	stopping := !c.ended.IsZero()
	c.mu.Unlock()
	if stopping || c.in.pending() == 0 {
		c.linger()
		return
	}
	c.finish(nil, errIdle(c.srv.cfg.Idle))
}

// answer answers the complete lines that were read; at the end of the input, also a last
// line without an end. It returns the number of lines, and false if the connection is over.
func (c *conn) answer(end bool) (n int, ok bool) {
	b := c.srv.newBatch()
	c.batch = b
	var f *fault
	for f == nil {
		line, whole := c.in.next(end)
		if !whole {
			break
		}
		n++
		f = b.add(line)
		if len(b.out) >= flushAt {
			if !c.write(b.out) {
				return n, false
			}
			b.out = b.out[:0]
		}
	}
	if earlier := b.decide(); earlier != nil {
		f = earlier
	}
	if f == nil && c.in.pending() > c.srv.cfg.MaxLine+1 { // one byte more may be the "\r" of its end
		f = errLongLine(c.srv.cfg.MaxLine)
	}
	if f != nil {
		b.out = c.srv.appendFault(b.out, f)
	}
	c.batch = nil
	replies := b.release()
	ok = c.write(*replies)
	c.srv.pools.putReplies(replies)
	if ok && f != nil {
		c.linger()
	}
	return n, ok && f == nil
}

// fit doubles a buffer that a line fills, and shrinks a large buffer that is not needed.
func (c *conn) fit() *fault {
	size := len(c.in.buf)
	switch pending := c.in.pending(); {
	case pending == size:
		size = min(2*size, max(c.srv.cfg.MaxLine+2, readBuffer))
	case size > readBuffer && pending < readBuffer/2:
		size = readBuffer
	}
	more := int64(size - len(c.in.buf))
	if more == 0 {
		return nil
	}
	if c.srv.counts.longBytes.Add(more) > maxLong && more > 0 {
		c.srv.counts.longBytes.Add(-more)
		return errLongLines
	}
	c.longBytes += more
	if more < 0 {
		c.account.Release(-more)
	} else if !c.account.Hold(more) {
		return errLongLines
	}
	c.in.resize(size)
	return nil
}

// write reports whether the client's kernel took all of out in time.
func (c *conn) write(out []byte) bool {
	if len(out) == 0 {
		return true
	}
	if c.raw.SetWriteDeadline(time.Now().Add(c.srv.cfg.WriteTimeout)) != nil || !c.account.Hold(int64(len(out))) {
		return false
	}
	_, err := c.Write(out)
	c.account.Release(int64(len(out)))
	return err == nil
}

// turnAway sends the error for too many connections as the reply to the first request.
func (c *conn) turnAway() {
	var first [1]byte
	if c.raw.SetReadDeadline(time.Now().Add(lingering)) != nil {
		return
	}
	if n, _ := c.Read(first[:]); n > 0 {
		c.finish(nil, errTooManyConns(c.srv.cfg.MaxConns))
	}
}

// linger closes the sending side and discards what the client still sends. If the
// connection were closed with unread input, TCP would drop replies on their way.
func (c *conn) linger() {
	if t, ok := c.Conn.(*tls.Conn); ok && t.CloseWrite() != nil {
		return
	}
	half, ok := c.raw.(interface{ CloseWrite() error })
	if ok && half.CloseWrite() == nil && c.raw.SetReadDeadline(time.Now().Add(lingering)) == nil {
		_, _ = io.Copy(io.Discard, c.raw) // until the client closes or the deadline passes
	}
}
