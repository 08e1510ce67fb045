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
	// readBufferBytes is the size of a connection's buffer, unless a line is longer.
	readBufferBytes = 4 << 10
	// maxLongLineMemory is how many bytes the buffers for long lines of all connections may have
	// together. Otherwise they could need MaxConnections times MaxLineBytes.
	maxLongLineMemory = 64 << 20
	// flushThresholdBytes is how many bytes of replies are collected before they are written.
	flushThresholdBytes = 32 << 10

	// handshakeTimeout is how long a TLS handshake may take.
	handshakeTimeout = 5 * time.Second
	// drainTime is how long a connection stays half open after an ERR, so that the client can read it.
	drainTime = time.Second
)

// conn is one connection. Only its goroutine uses it, but Shutdown sets deadlines of tcpConn and closes it.
type conn struct {
	net.Conn      // The embedded Conn is tcpConn, or TLS over tcpConn.
	tcpConn       net.Conn
	memoryAccount *connlimit.MemoryAccount
	isRefused     bool // isRefused says that the port has no room for the connection. Then memoryAccount is nil.
	srv           *Server
	inputBuffer   lineBuffer
	longLineBytes int64  // longLineBytes is the size of inputBuffer beyond readBufferBytes.
	batch         *batch // batch is nil unless requests are being answered.
}

// recoverPanic handles a panic: it writes the complete replies, and an ERR. It must be deferred.
func (c *conn) recoverPanic() {
	p := recover()
	if p == nil {
		return
	}
	c.srv.cfg.OnPanic(p, debug.Stack())
	if c.batch != nil {
		replies := c.batch.replies.Bytes()
		if c.writeReplies(replies[:bytes.LastIndexByte(replies, '\n')+1]) != nil {
			return
		}
	}
	c.sendFaultReply(errInternal)
}

// sendFaultReply sends the ERR reply if reason, why serveLines ended, is a *fault. It gives the client time to read it.
func (c *conn) sendFaultReply(reason error) {
	f, ok := reason.(*fault)
	if !ok {
		return
	}
	if f != errNoReply {
		c.srv.errorReplies[f.code].Add(1)
		if c.writeReplies([]byte(f.Error()+"\n")) != nil {
			return
		}
	}
	c.drainInput()
}

// serveLines answers lines until the connection ends. It returns a *fault, or an error of Read or Write.
func (c *conn) serveLines() error {
	if t, ok := c.Conn.(*tls.Conn); ok {
		_ = c.tcpConn.SetDeadline(time.Now().Add(handshakeTimeout)) // If SetDeadline fails, the handshake fails, too.
		if err := t.Handshake(); err != nil {
			return err
		}
	}
	c.inputBuffer.resize(readBufferBytes)
	c.setLineDeadline()
	for {
		n, err := c.Read(c.inputBuffer.freeSpace())
		c.inputBuffer.recordRead(n)
		answered, failed := c.answerLines(errors.Is(err, io.EOF))
		switch {
		case failed != nil:
			return failed
		case errors.Is(err, os.ErrDeadlineExceeded):
			return c.timeoutFault()
		case err != nil:
			return err
		case answered > 0:
			c.setLineDeadline()
		}
		if err := c.fitInputBuffer(); err != nil {
			return err
		}
	}
}

// setLineDeadline sets the read deadline for the next line. If that fails, Read returns the same error.
func (c *conn) setLineDeadline() {
	var deadline time.Time
	if c.srv.cfg.IdleTimeout > 0 {
		deadline = time.Now().Add(c.srv.cfg.IdleTimeout)
	}
	_ = c.tcpConn.SetReadDeadline(deadline)
	if c.srv.stoppingCtx.Err() != nil { // The deadline of Shutdown comes first.
		_ = c.tcpConn.SetReadDeadline(c.srv.lastReadDeadline)
	}
}

// timeoutFault returns the fault for a read deadline that has passed. Only clients that have sent a
// part of a line get an ERR reply: others would take it for the reply to their next request.
func (c *conn) timeoutFault() *fault {
	if c.srv.stoppingCtx.Err() != nil || c.inputBuffer.pendingBytes() == 0 {
		return errNoReply
	}
	return newFaultf("No whole line within %v.", c.srv.cfg.IdleTimeout)
}

// answerLines answers the complete lines that have been read. If atEnd is set, it also answers a last
// line without a line end. It returns the number of lines, and the reason to end the connection.
func (c *conn) answerLines(atEnd bool) (n int, reason error) {
	b := c.srv.newBatch()
	c.batch = b
	var f *fault
	for f == nil {
		line, whole := c.inputBuffer.nextLine(atEnd)
		if !whole {
			break
		}
		n++
		f = b.addRequest(line)
		if b.replies.Len() >= flushThresholdBytes {
			if err := c.writeReplies(b.replies.Bytes()); err != nil {
				return n, err
			}
			b.replies.Reset()
		}
	}
	if earlier := b.decideRequests(); earlier != nil {
		f = earlier
	}
	if f == nil && c.inputBuffer.pendingBytes() > c.srv.cfg.MaxLineBytes+1 { // One more byte may be the "\r" of the line end.
		f = errLongLine(c.srv.cfg.MaxLineBytes)
	}
	c.batch = nil
	replies := b.returnToPool()
	err := c.writeReplies(replies.Bytes())
	c.srv.releaseReplies(replies)
	if err == nil && f != nil {
		return n, f
	}
	return n, err
}

// fitInputBuffer doubles a read buffer that a line fills, and shrinks a large one that is not needed.
func (c *conn) fitInputBuffer() error {
	size := len(c.inputBuffer.buf)
	switch pending := c.inputBuffer.pendingBytes(); {
	case pending == size:
		size = min(2*size, max(c.srv.cfg.MaxLineBytes+2, readBufferBytes))
	case size > readBufferBytes && pending < readBufferBytes/2:
		size = readBufferBytes
	}
	more := int64(size - len(c.inputBuffer.buf))
	if more == 0 {
		return nil
	}
	if c.srv.longLineBytes.Add(more) > maxLongLineMemory && more > 0 {
		c.srv.longLineBytes.Add(-more)
		return errTooManyLongLines
	}
	c.longLineBytes += more
	if more < 0 {
		c.memoryAccount.ReleaseBytes(-more)
	} else if !c.memoryAccount.HoldBytes(more) {
		return errTooManyLongLines
	}
	c.inputBuffer.resize(size)
	return nil
}

// writeReplies writes replies. It fails if the client does not read them within WriteTimeout.
func (c *conn) writeReplies(replies []byte) error {
	if len(replies) == 0 {
		return nil
	}
	if !c.memoryAccount.HoldBytes(int64(len(replies))) {
		return net.ErrClosed
	}
	defer c.memoryAccount.ReleaseBytes(int64(len(replies)))
	_ = c.tcpConn.SetWriteDeadline(time.Now().Add(c.srv.cfg.WriteTimeout)) // If SetWriteDeadline fails, Write fails, too.
	_, err := c.Write(replies)
	return err
}

// awaitRefusedRequest waits for the first request of a refused connection, and returns the fault for it.
func (c *conn) awaitRefusedRequest() error {
	_ = c.tcpConn.SetReadDeadline(time.Now().Add(drainTime)) // If SetReadDeadline fails, Read fails, too.
	if n, err := c.Read(make([]byte, 1)); n == 0 {
		return err
	}
	return newFaultf("More than %d connections.", c.srv.cfg.MaxConnections)
}

// drainInput closes the sending side and discards what the client still sends. If the connection
// were closed with unread input, TCP would drop replies that are on their way.
func (c *conn) drainInput() {
	if t, ok := c.Conn.(*tls.Conn); ok && t.CloseWrite() != nil {
		return
	}
	half, ok := c.tcpConn.(interface{ CloseWrite() error })
	if ok && half.CloseWrite() == nil && c.tcpConn.SetReadDeadline(time.Now().Add(drainTime)) == nil {
		_, _ = io.Copy(io.Discard, c.tcpConn) // Copy ends when the client closes the connection, or at the deadline.
	}
}
