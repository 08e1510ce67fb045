package divvy

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"runtime/debug"
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
	// lingering is how long a connection stays half open after its last reply, for the
	// client to read it.
	lingering = time.Second
)

// conn is one connection. Only its goroutine uses it, but Shutdown sets deadlines.
type conn struct {
	net.Conn           // TLS over raw, or raw
	raw       net.Conn // TCP
	account   *connlimit.Account
	refused   bool // by the port; it has no account
	srv       *Server
	in        lines
	longBytes int64  // of the buffer beyond readBuffer
	batch     *batch // nil unless requests are being answered
}

// recovered ends the connection after a panic: it writes the complete replies and an ERR.
func (c *conn) recovered() {
	p := recover()
	if p == nil {
		return
	}
	c.srv.cfg.OnPanic(p, debug.Stack())
	if c.batch != nil {
		out := c.batch.out.Bytes()
		if c.write(out[:bytes.LastIndexByte(out, '\n')+1]) != nil {
			return
		}
	}
	c.finish(errInternal)
}

// finish ends the connection for the reason that serve returned. If that is an ERR reply,
// finish sends it and lets the client read it.
func (c *conn) finish(reason error) {
	f, ok := reason.(*fault)
	if !ok {
		return
	}
	if f != errNoReply {
		c.srv.counts.errors[f.code].Add(1)
		if c.write([]byte(f.Error()+"\n")) != nil {
			return
		}
	}
	c.linger()
}

// serve answers all lines that have arrived, and reads again. It returns a *fault, or the
// error of a connection that cannot be written to.
func (c *conn) serve() error {
	if t, ok := c.Conn.(*tls.Conn); ok {
		_ = c.raw.SetDeadline(time.Now().Add(handshakeTimeout)) // else the handshake fails, too
		if err := t.Handshake(); err != nil {
			return err
		}
	}
	c.in.resize(readBuffer)
	c.await()
	for {
		n, err := c.Read(c.in.room())
		c.in.read(n)
		answered, failed := c.answer(errors.Is(err, io.EOF))
		switch {
		case failed != nil:
			return failed
		case errors.Is(err, os.ErrDeadlineExceeded):
			return c.expired()
		case err != nil:
			return err
		case answered > 0:
			c.await()
		}
		if err := c.fit(); err != nil {
			return err
		}
	}
}

// await sets the read deadline for the next line.
func (c *conn) await() {
	var deadline time.Time
	if c.srv.cfg.Idle > 0 {
		deadline = time.Now().Add(c.srv.cfg.Idle)
	}
	_ = c.raw.SetReadDeadline(deadline) // else Read returns the same error
	if c.srv.stopping.Err() != nil {    // Shutdown's deadline may have come before
		_ = c.raw.SetReadDeadline(c.srv.deadline)
	}
}

// expired returns why a connection ends whose read deadline has passed. It is an ERR reply
// only if the client has sent a part of a line: a client that waits for no reply would take
// the ERR for the reply to its next request.
func (c *conn) expired() *fault {
	if c.srv.stopping.Err() != nil || c.in.pending() == 0 {
		return errNoReply
	}
	return unknownf("No whole line within %v.", c.srv.cfg.Idle)
}

// answer answers the complete lines that were read; at the end of the input, also a last
// line without an end. It returns the number of lines, and why the connection is over.
func (c *conn) answer(end bool) (n int, reason error) {
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
		if b.out.Len() >= flushAt {
			if err := c.write(b.out.Bytes()); err != nil {
				return n, err
			}
			b.out.Reset()
		}
	}
	if earlier := b.decide(); earlier != nil {
		f = earlier
	}
	if f == nil && c.in.pending() > c.srv.cfg.MaxLine+1 { // one byte more may be the "\r" of its end
		f = errLongLine(c.srv.cfg.MaxLine)
	}
	c.batch = nil
	out := b.release()
	err := c.write(out.Bytes())
	c.srv.releaseReplies(out)
	if err == nil && f != nil {
		return n, f
	}
	return n, err
}

// fit doubles a buffer that a line fills, and shrinks a large buffer that is not needed.
func (c *conn) fit() error {
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

// write writes out. It fails if the client's kernel does not take all of it in time.
func (c *conn) write(out []byte) error {
	if len(out) == 0 {
		return nil
	}
	if !c.account.Hold(int64(len(out))) {
		return net.ErrClosed
	}
	defer c.account.Release(int64(len(out)))
	_ = c.raw.SetWriteDeadline(time.Now().Add(c.srv.cfg.WriteTimeout)) // else Write returns the same error
	_, err := c.Write(out)
	return err
}

// turnAway returns the error for too many connections as the reply to the first request.
func (c *conn) turnAway() error {
	_ = c.raw.SetReadDeadline(time.Now().Add(lingering)) // else Read returns the same error
	if n, err := c.Read(make([]byte, 1)); n == 0 {
		return err
	}
	return unknownf("More than %d connections.", c.srv.cfg.MaxConns)
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
