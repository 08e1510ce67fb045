package h2

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
)

const (
	maxWaitingRequests = 1000            // maxWaitingRequests is how many requests of a connection may wait for a handler.
	maxHandlerOutput   = 64 << 10        // maxHandlerOutput is how many bytes a handler may write before it waits for the client.
	creditStep         = firstWindow / 4 // creditStep is how many bytes are used before the client may send as many again.
)

// newRequest returns the request for Handler, without what handle adds; nil if the path is malformed.
func newRequest(h *head) *http.Request {
	target, err := url.ParseRequestURI(string(h.path))
	if err != nil && string(h.path) != "*" {
		return nil
	}
	header := make(http.Header, len(h.fields))
	for i := range h.fields {
		header.Add(string(h.fields[i].name), string(h.fields[i].value))
	}
	return &http.Request{
		Method: string(h.verb), URL: target, RequestURI: string(h.path), Host: string(h.authority), ContentLength: h.length, Header: header,
	}
}

// handleCollected passes a call that is collecting on to Handler.
func (c *conn) handleCollected(s *stream) {
	r := newRequest(&head{verb: []byte(http.MethodPost), path: []byte(c.server.cfg.Path), length: s.length})
	r.Header.Set("Content-Type", "application/grpc")
	r.Header.Set("Te", "trailers")
	if s.timeout > 0 {
		r.Header.Set("Grpc-Timeout", strconv.FormatInt(s.timeout.Milliseconds()+1, 10)+"m")
	}
	c.handle(s, r)
}

// handle lets Handler answer the request of a stream, at once or after other requests. The caller holds mu.
func (c *conn) handle(s *stream, r *http.Request) {
	if c.phase == closed {
		return
	}
	ctx, cancel := context.WithCancel(c.handlerCtx)
	r.Proto, r.ProtoMajor, r.RemoteAddr, r.TLS = "HTTP/2.0", 2, c.net.RemoteAddr().String(), c.tls
	x := &exchange{conn: c, stream: s, request: r.WithContext(ctx), cancel: cancel, header: make(http.Header)}
	x.request.Body, x.changed.L, s.exchange = x, &c.mu, x
	switch {
	case c.runningHandlers < maxHandlers:
		c.startHandler(s)
	case len(c.waiting) < maxWaitingRequests:
		s.state = waiting
		c.waiting = append(c.waiting, s)
	default:
		c.resetStream(s.id, codeRefusedStream)
	}
}

// startHandler runs Handler in a goroutine.
func (c *conn) startHandler(s *stream) {
	s.state = handled
	c.runningHandlers++
	c.holdFor(s, handlerBytes)
	c.spawn(s.exchange.run)
}

// run runs Handler, and then the next request that waits.
func (x *exchange) run() {
	c, crashed := x.conn, true
	defer func() {
		if p := recover(); p != nil && p != http.ErrAbortHandler {
			c.server.cfg.OnPanic(p, debug.Stack())
		}
		x.cancel()
		c.mu.Lock()
		defer c.mu.Unlock()
		x.end(crashed)
		c.runningHandlers--
		if len(c.waiting) > 0 {
			next := c.waiting[0]
			c.waiting = c.waiting[1:]
			c.startHandler(next)
		}
		c.flush()
		c.endIfDone()
	}()
	c.server.cfg.Handler.ServeHTTP(x, x.request)
	crashed = false
}

// errStreamEnded is the error of a body and a response after the end of their stream.
var errStreamEnded = errors.New("h2: the stream has ended")

// exchange is the body of a request to Handler, and the writer of its answer. After the handler has returned, it does nothing.
type exchange struct {
	conn    *conn
	stream  *stream
	request *http.Request
	cancel  func() // cancel ends the context of the request.

	changed      sync.Cond // changed tells the handler of a new state, input, or less output.
	isBodyClosed bool      // isBodyClosed says that the handler wants no more input.

	header      http.Header
	trailerKeys []string // trailerKeys are the keys that the header "Trailer" announces.
	isStarted   bool     // isStarted says that the headers are queued.
}

// Read waits for input and reads it. It returns io.EOF after all input.
func (x *exchange) Read(p []byte) (int, error) {
	c, s := x.conn, x.stream
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flush() // The client may wait for it before it sends more.
	for len(s.body) == 0 && !s.isReceived && !x.isBodyClosed && s.state == handled {
		x.changed.Wait()
	}
	switch {
	case s.state != handled || x.isBodyClosed:
		return 0, errStreamEnded
	case len(s.body) == 0:
		return 0, io.EOF
	}
	n := copy(p, s.body)
	s.body = s.body[n:]
	s.heldBytes -= int64(n)
	c.account.ReleaseBytes(int64(n))
	c.sendCredit(s, len(s.body))
	c.flush()
	return n, nil
}

// Close ends a Read that waits.
func (x *exchange) Close() error {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	x.isBodyClosed = true
	x.changed.Broadcast()
	return nil
}

// sendCredit lets the client send as much as has been used, if that is much. The rest of what it has sent is unused.
func (c *conn) sendCredit(s *stream, unused int) {
	if credit := firstWindow - s.receiveWindow - int64(unused); credit >= creditStep && !s.isReceived {
		c.out = appendNumberFrame(c.out, frameWindowUpdate, s.id, uint32(credit))
		s.receiveWindow += credit
	}
}

// Header returns the headers, and after Write the trailers.
func (x *exchange) Header() http.Header { return x.header }

// WriteHeader queues the headers with an HTTP status. Only the first call has an effect.
func (x *exchange) WriteHeader(status int) {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	x.start(status)
}

// Write queues p, and waits while the client is slow. It fails after the end of the stream.
func (x *exchange) Write(p []byte) (int, error) {
	c, s := x.conn, x.stream
	c.mu.Lock()
	defer c.mu.Unlock()
	x.start(http.StatusOK)
	if len(s.out) > maxHandlerOutput {
		c.flush()
	}
	for len(s.out) > maxHandlerOutput && s.state == handled {
		x.changed.Wait()
	}
	if s.state != handled {
		return 0, errStreamEnded
	}
	if len(s.out) == 0 {
		s.lastProgress = c.lastTick
	}
	s.out = append(s.out, p...)
	c.holdFor(s, int64(len(p)))
	c.sendData(s)
	c.awaitDrained()
	return len(p), nil
}

// Flush writes what is queued.
func (x *exchange) Flush() {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	x.start(http.StatusOK)
	x.conn.flush()
}

// start queues the headers, if they are not queued yet. The caller holds mu, as for the following methods.
func (x *exchange) start(status int) {
	if x.isStarted || x.stream.state != handled {
		return
	}
	x.isStarted = true
	for key := range strings.SplitSeq(strings.Join(x.header["Trailer"], ","), ",") {
		x.trailerKeys = append(x.trailerKeys, http.CanonicalHeaderKey(strings.TrimSpace(key)))
	}
	block := x.appendHeader(appendField(nil, ":status", strconv.Itoa(status)), false)
	x.conn.out = appendHeaderFrame(x.conn.out, flagEndHeaders, x.stream.id, block)
}

// end ends the response after its handler has returned; with an error if it panicked.
func (x *exchange) end(crashed bool) {
	c, s := x.conn, x.stream
	if crashed && s.state == handled {
		c.resetStream(s.id, codeInternal)
	}
	if s.state == ended {
		c.activeStreams--
		return
	}
	x.start(http.StatusOK)
	block := x.appendHeader(nil, true)
	if s.trailers = appendHeaderFrame(nil, flagEndHeaders|flagEndStream, s.id, block); block == nil {
		s.trailers = appendFrame(nil, frameData, flagEndStream, s.id, nil)
	}
	s.state = replying
	c.sendData(s)
}

// appendHeader appends the fields of the header, or those of the trailers, except what belongs to a connection in HTTP/1.
func (x *exchange) appendHeader(block []byte, ofTrailers bool) []byte {
	for key, values := range x.header {
		name, isTrailer := strings.CutPrefix(key, http.TrailerPrefix)
		name, isTrailer = strings.ToLower(name), isTrailer || slices.Contains(x.trailerKeys, key)
		for _, value := range values {
			if isTrailer == ofTrailers && classify([]byte(name), nil, "") != meansMalformed && isValidValue([]byte(value)) {
				block = appendField(block, name, value)
			}
		}
	}
	return block
}
