package pipeline

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/frontend/tlsconn"
)

const (
	// readBufferBytes is the size of a connection's buffer, unless a request is larger.
	readBufferBytes = 4 << 10
	// MaxLargeInputBytes is how many bytes the buffers for large requests of all connections may have
	// together. Otherwise they could need MaxConnections times MaxInputBytes.
	MaxLargeInputBytes = 64 << 20
	// flushThresholdBytes is how many bytes of replies are collected before they are written.
	flushThresholdBytes = 32 << 10

	// handshakeTimeout is how long a TLS handshake may take.
	handshakeTimeout = 5 * time.Second
	// drainTime is how long a connection stays half open after the reply for a fault, so that the client can read it.
	drainTime = time.Second
)

// ErrEnd ends a connection without a reply. The client can read the replies that were written before.
var ErrEnd = errors.New("the connection ends")

// errInternal is the fault of a connection whose session panicked.
var errInternal = Faultf("Internal error.")

// conn is one connection. Only the goroutine that serves it uses it, but Shutdown sets deadlines of tcpConn and closes
// it.
type conn struct {
	net.Conn      // The embedded Conn is tcpConn, or TLS over tcpConn.
	tcpConn       net.Conn
	memoryAccount *connlimit.MemoryAccount
	isRefused     bool // true if the port has no room for the connection. Then memoryAccount and session are nil.
	srv           *Server
	session       Session
	socket        *socket // nil if no poller can serve the connection.
	input         inputBuffer
	// reads is how many reads since the start, or since it was polled last, had complete requests. A poller may serve
	// the connection after readsToPoll of them.
	reads, readsToPoll int
	largeInputBytes    int64 // the size of input beyond readBufferBytes.
	// readDeadlineSetAt and writeDeadlineSetAt are when the deadlines were set last.
	readDeadlineSetAt, writeDeadlineSetAt time.Time
	unwatchStop                           func() // ends what watchStop started.
}

// sendFaultReply tells the client why answerRequests ended, if reason is a *Fault, and gives it time to read that.
func (c *conn) sendFaultReply(reason error) {
	f, isFault := reason.(*Fault)
	if isFault && c.writeReplies(c.srv.cfg.FaultReply(f)) == nil || reason == ErrEnd {
		c.drainInput()
	}
}

// watchStop makes Shutdown set the last deadline, and close the connection at the end, until unwatchStop is called.
func (c *conn) watchStop() {
	raw, s := c.tcpConn, c.srv
	stopReading := context.AfterFunc(s.stoppingCtx, func() { _ = raw.SetReadDeadline(s.lastReadDeadline) })
	stopClosing := context.AfterFunc(s.ctx, func() { _ = raw.Close() })
	c.unwatchStop = func() { _, _ = stopReading(), stopClosing() }
}

// open does the TLS handshake, and prepares answerRequests.
func (c *conn) open() error {
	if t, ok := c.Conn.(*tlsconn.Conn); ok {
		_ = c.tcpConn.SetDeadline(time.Now().Add(handshakeTimeout))      // If SetDeadline fails, the handshake fails, too.
		if err := t.HandshakeContext(context.Background()); err != nil { // A stop of the server closes the connection.
			return err
		}
	}
	c.session = c.srv.cfg.NewSession(c.RemoteAddr())
	c.input.resize(readBufferBytes, &c.srv.largeBuffers)
	c.setReadDeadline()
	return nil
}

// answerRequests answers requests until the connection ends. It returns a *Fault, or another error. It returns nil if a
// poller may go on.
func (c *conn) answerRequests() error {
	for {
		if err := c.fitInputBuffer(); err != nil {
			return err
		}
		n, err := c.Read(c.input.freeSpace())
		c.input.recordRead(n)
		answered, failed := c.answerInput(errors.Is(err, io.EOF))
		switch {
		case failed != nil:
			return failed
		case errors.Is(err, os.ErrDeadlineExceeded):
			return c.timeoutReason()
		case err != nil:
			return err
		case answered > 0:
			c.setReadDeadline()
			if c.reads++; c.canBePolled() {
				return nil
			}
		}
		if answered > 1 {
			// A client that pipelines has the CPU for one batch at a time. When its turn comes again, it has often sent the next
			// batch, and the read need not wait for the network: a tenth of the CPU time of a batch of 16.
			runtime.Gosched()
		}
	}
}

// deadlinePrecision is by how much a deadline may come early. A deadline is not set again before, because that costs a
// tenth of what it takes to answer a request.
const deadlinePrecision = time.Second

// isRecent reports whether a deadline that was set at setAt for a timeout need not be set again.
func isRecent(setAt, now time.Time, timeout time.Duration) bool {
	return timeout >= 10*deadlinePrecision && now.Sub(setAt) < deadlinePrecision
}

// setReadDeadline sets the read deadline for the next request. If that fails, Read returns the same error.
func (c *conn) setReadDeadline() {
	now, timeout := time.Now(), c.srv.cfg.IdleTimeout
	if isRecent(c.readDeadlineSetAt, now, timeout) || timeout == 0 && !c.readDeadlineSetAt.IsZero() {
		return
	}
	c.readDeadlineSetAt = now
	c.applyReadDeadline()
}

// applyReadDeadline sets the read deadline for a request that the client may send since readDeadlineSetAt.
func (c *conn) applyReadDeadline() {
	var deadline time.Time
	if timeout := c.srv.cfg.IdleTimeout; timeout > 0 {
		deadline = c.readDeadlineSetAt.Add(timeout)
	}
	_ = c.tcpConn.SetReadDeadline(deadline)
	if c.srv.stoppingCtx.Err() != nil { // The deadline of Shutdown comes first.
		_ = c.tcpConn.SetReadDeadline(c.srv.lastReadDeadline)
	}
}

// timeoutReason returns the reason to end the connection after the read deadline. Only clients that have sent a
// part of a request get a reply: others would take it for the reply to their next request.
func (c *conn) timeoutReason() error {
	if c.srv.stoppingCtx.Err() != nil || len(c.input.pending()) == 0 {
		return ErrEnd
	}
	return Faultf("No whole %s within %v.", c.srv.cfg.Request, c.srv.cfg.IdleTimeout)
}

// answerInput answers the complete requests that have been read. It returns their number, and the reason to end the
// connection. After a panic, it has written the replies before it.
func (c *conn) answerInput(atEnd bool) (n int, reason error) {
	r := c.srv.newReplies(c)
	consumed, n, reason := c.answer(r, atEnd)
	c.input.consume(consumed)
	if err := c.writeReplies(r.Bytes()); err != nil {
		reason = err
	}
	c.srv.releaseReplies(r)
	return n, reason
}

// answer calls Session.Answer. If that panics, the reason is errInternal.
func (c *conn) answer(r *Replies, atEnd bool) (consumed, n int, reason error) {
	defer func() {
		if p := recover(); p != nil {
			c.srv.cfg.OnPanic(p, debug.Stack())
			reason = errInternal
		}
	}()
	return c.session.Answer(c.srv.ctx, c.input.pending(), atEnd, r)
}

// fitInputBuffer doubles a read buffer that a request fills, and shrinks a large one that is not needed.
func (c *conn) fitInputBuffer() error {
	size := len(c.input.buf)
	switch pending := len(c.input.pending()); {
	case pending == size && size >= c.srv.cfg.MaxInputBytes:
		return c.tooManyFault() // The session should have refused the request.
	case pending == size:
		size = min(2*size, max(c.srv.cfg.MaxInputBytes, readBufferBytes))
	case size > readBufferBytes && pending < readBufferBytes/2:
		size = readBufferBytes
	default:
		return nil
	}
	more := int64(size - len(c.input.buf))
	if c.srv.largeInputBytes.Add(more) > MaxLargeInputBytes && more > 0 {
		c.srv.largeInputBytes.Add(-more)
		return c.tooManyFault()
	}
	c.largeInputBytes += more
	if more < 0 {
		c.memoryAccount.ReleaseBytes(-more)
	} else if !c.memoryAccount.HoldBytes(more) {
		return c.tooManyFault()
	}
	c.input.resize(size, &c.srv.largeBuffers)
	return nil
}

// tooManyFault returns the fault of a request for which there is no memory.
func (c *conn) tooManyFault() *Fault {
	return Faultf("Too many long %ss at once, try again later.", c.srv.cfg.Request)
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
	if !c.isPolled() {
		c.setWriteDeadline()
	}
	_, err := c.Write(replies)
	return err
}

// setWriteDeadline sets the write deadline for the next write. If that fails, Write fails, too.
func (c *conn) setWriteDeadline() {
	if now, timeout := time.Now(), c.srv.cfg.WriteTimeout; !isRecent(c.writeDeadlineSetAt, now, timeout) {
		c.writeDeadlineSetAt = now
		_ = c.tcpConn.SetWriteDeadline(now.Add(timeout))
	}
}

// awaitRefusedRequest waits for the first request of a refused connection, and returns the fault for it.
func (c *conn) awaitRefusedRequest() error {
	_ = c.tcpConn.SetReadDeadline(time.Now().Add(drainTime)) // If SetReadDeadline fails, Read fails, too.
	if n, err := c.Read(make([]byte, 1)); n == 0 {
		return err
	}
	return Faultf("More than %d connections.", c.srv.cfg.MaxConnections)
}

// drainInput closes the sending side and discards what the client still sends. If the connection
// were closed with unread input, TCP would drop replies that are on their way.
func (c *conn) drainInput() {
	if t, ok := c.Conn.(*tlsconn.Conn); ok && t.CloseWrite() != nil {
		return
	}
	half, ok := c.tcpConn.(interface{ CloseWrite() error })
	if ok && half.CloseWrite() == nil && c.tcpConn.SetReadDeadline(time.Now().Add(drainTime)) == nil {
		_, _ = io.Copy(io.Discard, c.tcpConn) // Copy ends when the client closes the connection, or at the deadline.
	}
}
