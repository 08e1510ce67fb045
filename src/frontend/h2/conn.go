package h2

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"ratelimit/src/frontend/tlsconn"
)

// phase is where a connection is in its life; see the package's comment.
type phase uint8

const (
	awaitingPreface phase = iota
	awaitingSettings
	open
	leaving
	lastCalls
	closed
)

// conn is one connection.
type conn struct {
	server     *Server
	raw        net.Conn // the socket.
	account    Account
	ctx        context.Context // ends when the connection is closed.
	cancel     context.CancelFunc
	handlerCtx context.Context // the context of all requests to Handler, without the end of their streams.

	mu    sync.Mutex           // guards all fields below, and the fields of streams.
	net   net.Conn             // raw, or encrypts it. Closing it may wait for a write.
	tls   *tls.ConnectionState // nil for plain text.
	phase phase
	users int // counts the goroutines of the connection that spawn started.

	reader
	blockReader
	streamTable
	sender
	limits
}

// newConn returns a connection for serve.
func newConn(s *Server, raw net.Conn) *conn {
	c := &conn{server: s, raw: raw, net: raw}
	c.ctx, c.cancel = context.WithCancel(s.ctx)
	c.account = s.cfg.OpenAccount(func() { go c.close() }) // The owner of the account may hold locks that close needs.
	c.handlerCtx = s.cfg.ConnContext(c.ctx, c.account)
	c.drained.L, c.streams = &c.mu, make(map[uint32]*stream)
	c.decoder = decoder{methodPath: s.cfg.Path, static: s.staticTable, maxBytes: maxTableBytes}
	c.receiveWindow, c.window, c.goAwayID = connWindow, firstWindow, maxWindow
	c.initialWindow, c.largestWindow = firstWindow, firstWindow
	now, age := time.Now(), s.cfg.MaxConnectionAge
	c.lastTick, c.lastRead = now, now
	c.leaveAt = now.Add(age - age/10 + rand.N(age/5+1)) // Clients that came together leave one after the other.
	return c
}

// serve serves the connection until it ends, or until another goroutine becomes its reader.
func (c *conn) serve() {
	if !c.handshake() {
		return
	}
	c.mu.Lock()
	c.out = c.server.appendGreeting(c.out)
	c.flush()
	if c.socket = openSocket(c); c.socket == nil {
		c.buffer = c.server.newBuffer(0)
	}
	c.mu.Unlock()
	c.readFrames()
}

// handshake does the TLS handshake, if the server uses TLS. The deadline also bounds the time for the connection
// preface.
func (c *conn) handshake() (ok bool) {
	_ = c.raw.SetDeadline(time.Now().Add(HandshakeTimeout)) // If this fails, so does the first read.
	if c.server.cfg.TLS == nil {
		return true
	}
	t := tlsconn.Server(c.raw, c.server.cfg.TLS, c.account)
	if err := t.HandshakeContext(c.ctx); err != nil {
		t.Release()
		if wrong := WrongHandshake(err); wrong != nil {
			c.server.cfg.OnProtocolError(c.raw.RemoteAddr(), wrong)
		}
		return false
	}
	state := t.ConnectionState()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.net, c.tls = t, &state
	return state.NegotiatedProtocol == "h2"
}

// spawn runs f in a goroutine. When the last one ends or one panics, the connection is closed. The caller holds mu.
func (c *conn) spawn(f func()) {
	c.users++
	go func() {
		defer c.release()
		f()
	}()
}

// release ends the use of the connection by one goroutine, which defers it.
func (c *conn) release() {
	p := recover()
	if p != nil {
		c.server.cfg.OnPanic(p, debug.Stack())
	}
	c.mu.Lock()
	c.users--
	isLast := c.users == 0
	if isLast || p != nil {
		c.closeLocked()
	}
	c.mu.Unlock()
	if isLast {
		c.account.ReleaseBytes(int64(len(c.block.payload)) + c.chargedBytes)
		if t, ok := c.net.(*tlsconn.Conn); ok {
			t.Release()
		}
		c.account.Close()
		c.server.forget(c)
	}
}

// close closes the connection at once.
func (c *conn) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closeLocked()
}

// closeLocked closes the connection. Goroutines that wait for the client learn of it. The caller holds mu.
func (c *conn) closeLocked() {
	c.phase = closed
	c.cancel()
	_ = c.raw.Close() // Other goroutines learn of the close from their reads and writes.
	c.out = nil
	c.account.ReleaseBytes(c.sender.heldBytes)
	c.sender.heldBytes = 0
	c.endStreams()
}

// endStreams ends all streams, and the waiting for them. The caller holds mu.
func (c *conn) endStreams() {
	c.endByID(c.opening.id)
	for _, s := range c.blocked {
		s.isBlocked = false
	}
	c.blocked = nil
	for _, s := range c.streams {
		c.endStream(s)
	}
	c.drained.Broadcast()
}

// fail ends the connection because of err, a violation, which is sent to the client in a GOAWAY. The caller holds mu.
func (c *conn) fail(err error) {
	v := err.(violation)
	if v.code == http2.ErrCodeEnhanceYourCalm {
		c.server.Flooding.Add(1)
	} else {
		c.server.Invalid.Add(1)
	}
	c.server.cfg.OnProtocolError(c.net.RemoteAddr(), v)
	c.out = appendGoAway(c.out, min(c.goAwayID, c.lastStreamID), v.code, v.reason)
	c.flush()
	c.finish()
}

// finish ends the connection after its output. Input is read on, because a close would discard the output. The caller
// holds mu.
func (c *conn) finish() {
	if c.phase == closed {
		return
	}
	c.phase = closed
	c.endStreams()
	if half, ok := c.net.(interface{ CloseWrite() error }); ok && !c.isWriting {
		_ = half.CloseWrite() // If this fails, the connection is gone already.
	}
	_ = c.net.SetReadDeadline(time.Now().Add(lingerTime)) // As above.
}

// appendGoAway appends a GOAWAY. Streams up to lastID are answered.
func appendGoAway(b []byte, lastID uint32, code http2.ErrCode, reason string) []byte {
	payload := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, lastID), uint32(code))
	return appendFrame(b, http2.FrameGoAway, 0, 0, append(payload, reason...))
}

// leave asks the client to use another connection, and ends this one after its calls. The caller holds mu.
func (c *conn) leave(reason string) {
	switch c.phase {
	case awaitingPreface, awaitingSettings:
		c.closeLocked()
	case open:
		// The first GOAWAY allows all streams, because the client may be opening some.
		c.phase, c.leftAt = leaving, time.Now()
		c.sendSoon(appendFrame(appendGoAway(nil, maxWindow, http2.ErrCodeNo, reason), http2.FramePing, 0, 0, goAwayPing))
	}
}

// endLeaving sends the second GOAWAY: the client knows of the first, so that later streams are ignored. The caller
// holds mu.
func (c *conn) endLeaving() {
	c.phase, c.goAwayID = lastCalls, c.lastStreamID
	c.sendSoon(appendGoAway(nil, c.goAwayID, http2.ErrCodeNo, ""))
}

// sendSoon writes b in another goroutine, so that the caller need not wait for the client. The caller holds mu.
func (c *conn) sendSoon(b []byte) {
	c.out = append(c.out, b...)
	c.spawn(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.flush()
		c.endIfDone()
	})
}

// endIfDone ends a connection that has answered its last call. The caller holds mu.
func (c *conn) endIfDone() {
	if c.phase == lastCalls && c.activeStreams == 0 && len(c.out) == 0 && !c.isWriting {
		c.finish()
	}
}
