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

	"ratelimit/src/frontend/budget"
)

const (
	// readBuffer is what a connection has to read to, for as long as it is open.
	readBuffer = 4 << 10
	// maxLong bounds what all connections together have for lines that are longer,
	// so that MaxConns times MaxLine need not fit into memory.
	maxLong = 64 << 20
	// flushAt is how many bytes of replies are written before more are made.
	flushAt = 32 << 10

	// handshakeTimeout is how long TLS may take to begin.
	handshakeTimeout = 5 * time.Second
	// farewell is how long a connection is read once the server stops.
	farewell = 100 * time.Millisecond
	// lingering is how long a connection that was told of its end is kept, for the
	// client to read that.
	lingering = time.Second
)

// conn is one connection. It has one goroutine, which alone uses what mu does not
// guard.
type conn struct {
	net.Conn          // TLS, or raw
	raw      net.Conn // TCP
	srv      *Server
	refused  bool // beyond MaxConns
	in       lines
	borrowed int64 // of maxLong, and of account
	account  *budget.Account
	batch    *batch // while there is something to answer

	mu    sync.Mutex
	ended time.Time // reading ends then, since the server stops; zero: it does not
}

// run serves the connection to its end.
func (c *conn) run(serve func()) {
	defer c.srv.leave(c)
	defer c.recovered()
	serve()
}

// recovered ends the connection after a panic, with an ERR behind the replies
// that there are.
func (c *conn) recovered() {
	p := recover()
	if p == nil {
		return
	}
	c.srv.panics.Add(1)
	c.srv.cfg.OnPanic(p, debug.Stack())
	var out []byte
	if c.batch != nil {
		out = c.batch.out[:bytes.LastIndexByte(c.batch.out, '\n')+1]
	}
	if c.write(c.fail(out, errInternal)) {
		c.linger()
	}
}

// fail appends the reply f, and counts it.
func (c *conn) fail(out []byte, f *fault) []byte {
	c.srv.errors[f.code].Add(1)
	return append(f.append(out), '\n')
}

// serve answers line after line, as many at once as have arrived.
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
			if c.write(c.fail(nil, f)) {
				c.linger()
			}
			return
		}
	}
}

// handshake begins TLS.
func (c *conn) handshake() bool {
	t, ok := c.Conn.(*tls.Conn)
	if !ok {
		return true
	}
	deadline := time.Now().Add(handshakeTimeout)
	if c.raw.SetDeadline(deadline) != nil || t.Handshake() != nil {
		return false
	}
	return true
}

// await sets when reading ends: what Idle allows from now on, unless the server
// stops.
func (c *conn) await() {
	c.mu.Lock()
	defer c.mu.Unlock()
	deadline := c.ended
	if deadline.IsZero() && c.srv.cfg.Idle > 0 {
		deadline = time.Now().Add(c.srv.cfg.Idle)
	}
	_ = c.raw.SetReadDeadline(deadline) // else Read has the same error
}

// end has reading end at t. It is called by others.
func (c *conn) end(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = t
	_ = c.raw.SetReadDeadline(t) // else Read has the same error
}

// expire ends a connection that has said nothing for too long. A client with no
// request under way is not told why: a line it did not ask for would confuse it.
func (c *conn) expire() {
	c.mu.Lock()
	stopping := !c.ended.IsZero()
	c.mu.Unlock()
	if !stopping && c.in.pending() > 0 && !c.write(c.fail(nil, c.srv.errIdle)) {
		return
	}
	c.linger()
}

// answer answers the whole lines that have been read, at the end of the
// connection also the beginning of one. It returns how many lines there were;
// false when the connection is over.
func (c *conn) answer(end bool) (n int, ok bool) {
	b := c.srv.newBatch()
	c.batch = b
	var f *fault
	for f == nil {
		line, whole := c.in.next()
		if !whole {
			if !end || c.in.pending() == 0 {
				break
			}
			line = c.in.last()
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
	if f == nil && c.in.pending() > c.srv.cfg.MaxLine+1 { // one more may be the "\r" of its end
		f = c.srv.errLongLine
	}
	if f != nil {
		b.out = c.fail(b.out, f)
	}
	c.batch = nil
	box := b.release()
	ok = c.write(*box)
	c.srv.written(box)
	if ok && f != nil {
		c.linger()
	}
	return n, ok && f == nil
}

// fit makes the buffer larger when a line fills it, and small again when there
// is none.
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
	if c.srv.long.Add(more) > maxLong && more > 0 {
		c.srv.long.Add(-more)
		return errLongOnes
	}
	c.borrowed += more
	if more < 0 {
		c.account.Release(-more)
	} else if !c.account.Add(more) {
		return errLongOnes
	}
	c.in.resize(size)
	return nil
}

// write reports whether the client took all of out.
func (c *conn) write(out []byte) bool {
	if len(out) == 0 {
		return true
	}
	if c.raw.SetWriteDeadline(time.Now().Add(c.srv.cfg.WriteTimeout)) != nil || !c.account.Add(int64(len(out))) {
		return false
	}
	_, err := c.Write(out)
	c.account.Release(int64(len(out)))
	return err == nil
}

// turnAway tells a client that there are too many, once it asks: a line that it
// did not ask for would confuse it.
func (c *conn) turnAway() {
	var first [1]byte
	if c.raw.SetReadDeadline(time.Now().Add(lingering)) != nil {
		return
	}
	if n, _ := c.Read(first[:]); n > 0 && c.write(c.fail(nil, c.srv.errCrowd)) {
		c.linger()
	}
}

// linger says that nothing more comes, and reads what the client still sends.
// Closing at once what was not read to its end would have TCP forget the replies
// that the client has not read yet.
func (c *conn) linger() {
	if t, ok := c.Conn.(*tls.Conn); ok && t.CloseWrite() != nil {
		return
	}
	half, ok := c.raw.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	if c.raw.SetReadDeadline(time.Now().Add(lingering)) == nil {
		_, _ = io.Copy(io.Discard, c.raw) // until it closes, too, or time is up
	}
}
