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
	"time"
)

const (
	// maxWaitingRequests is how many requests of a connection may wait for a handler.
	maxWaitingRequests = 1000
	// maxHandlerOutput is how many bytes a handler may write before it waits for the client.
	maxHandlerOutput = 64 << 10
	// creditStep is how many bytes are used before the client hears that it may send as many again.
	creditStep = firstWindow / 4
)

// newRequest returns the request for Handler, without a context and a body.
func (c *conn) newRequest(h *head) (*http.Request, error) {
	target, err := url.ParseRequestURI(string(h.path))
	if err != nil && string(h.path) != "*" {
		return nil, errors.New("the path is malformed")
	}
	r := &http.Request{
		Method: string(h.verb), URL: target, RequestURI: string(h.path), Host: string(h.authority), ContentLength: h.length,
		Proto: "HTTP/2.0", ProtoMajor: 2, Header: h.httpHeader(), RemoteAddr: c.net.RemoteAddr().String(), TLS: c.tls,
	}
	if r.Host == "" {
		r.Host = r.Header.Get("Host")
	}
	return r, nil
}

// handleCollected passes a call on to Handler. data is what has been received of its body.
func (c *conn) handleCollected(s *stream, data []byte) {
	if s == &c.opening {
		s = c.keepOpening()
	}
	if len(s.body) == 0 {
		s.body = append(s.body, data...)
		c.holdFor(s, int64(len(data)))
	}
	path := c.server.cfg.Path
	r := &http.Request{
		Method: http.MethodPost, URL: &url.URL{Path: path}, RequestURI: path, ContentLength: s.length,
		Proto: "HTTP/2.0", ProtoMajor: 2, Header: http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}},
		RemoteAddr: c.net.RemoteAddr().String(), TLS: c.tls,
	}
	if s.timeout > 0 {
		const longest = 99_999_999 // A timeout of gRPC has at most eight digits.
		r.Header["Grpc-Timeout"] = []string{strconv.FormatInt(min(int64(s.timeout/time.Microsecond)+1, longest), 10) + "u"}
	}
	c.handle(s, r)
}

// handle lets Handler answer the request of a stream, at once or after other requests. The caller holds mu.
func (c *conn) handle(s *stream, r *http.Request) {
	if c.phase == closed {
		return
	}
	ctx, cancel := context.WithCancel(c.handlerCtx)
	s.request, s.cancel = r.WithContext(ctx), cancel
	s.request.Body = &requestBody{c, s}
	s.changed = sync.NewCond(&c.mu)
	if c.runningHandlers < maxHandlers {
		c.startHandler(s)
		return
	}
	if c.waiting.Len() == maxWaitingRequests {
		c.resetStream(s.id, codeRefusedStream)
		return
	}
	s.state = waiting
	s.enter(&c.waiting)
}

// startHandler runs Handler in a goroutine.
func (c *conn) startHandler(s *stream) {
	s.state, s.isRunning = handled, true
	c.runningHandlers++
	c.users++
	c.holdFor(s, handlerBytes)
	go c.runHandler(s)
}

// runHandler runs Handler for s, and then the next request that waits.
func (c *conn) runHandler(s *stream) {
	defer c.release()
	w := &response{conn: c, stream: s, header: make(http.Header)}
	crashed := true
	defer func() {
		if p := recover(); p != nil && p != http.ErrAbortHandler {
			c.server.cfg.OnPanic(p, debug.Stack())
		}
		s.cancel()
		c.mu.Lock()
		defer c.mu.Unlock()
		w.end(crashed)
		s.isRunning = false
		if s.state == ended {
			c.activeStreams--
		}
		c.runningHandlers--
		if next := c.waiting.Front(); next != nil && c.phase != closed {
			waiter := next.Value.(*stream)
			waiter.leaveQueue()
			c.startHandler(waiter)
		}
		c.flush()
		c.endIfDone()
	}()
	c.server.cfg.Handler.ServeHTTP(w, s.request)
	crashed = false
}

// errStreamEnded is the error of a body and a response after the end of their stream.
var errStreamEnded = errors.New("h2: the stream has ended")

// awaitChange waits for a change of s, after it has written what the client may wait for. mu is released
// meanwhile. The caller checks what has changed, if anything, and calls awaitChange again.
func (c *conn) awaitChange(s *stream) {
	if len(c.out) > 0 && !c.isWriting {
		c.flush()
	} else {
		s.changed.Wait()
	}
}

// requestBody is the body of a request to Handler.
type requestBody struct {
	conn   *conn
	stream *stream
}

// Read waits for input and reads it. It returns io.EOF after all input.
func (b *requestBody) Read(p []byte) (int, error) {
	c, s := b.conn, b.stream
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(s.body) == 0 && !s.isReceived && !s.isBodyClosed && s.state != ended {
		c.awaitChange(s)
	}
	switch {
	case s.state == ended || s.isBodyClosed:
		return 0, errStreamEnded
	case len(s.body) == 0:
		return 0, io.EOF
	}
	n := copy(p, s.body)
	s.body = s.body[n:]
	c.releaseFor(s, int64(n))
	s.creditBytes += int64(n)
	c.sendCredit(s)
	c.flush()
	return n, nil
}

// Close ends a Read that waits.
func (b *requestBody) Close() error {
	b.conn.mu.Lock()
	defer b.conn.mu.Unlock()
	b.stream.isBodyClosed = true
	b.stream.tellHandler()
	return nil
}

// sendCredit lets the client send as much as has been used, if that is much.
func (c *conn) sendCredit(s *stream) {
	if s.creditBytes >= creditStep && !s.isReceived {
		c.out = appendNumberFrame(c.out, frameWindowUpdate, s.id, uint32(s.creditBytes))
		s.receiveWindow += s.creditBytes
		s.creditBytes = 0
	}
}

// response is the http.ResponseWriter of a stream. Only its handler uses it; after the handler has returned, its
// methods do nothing.
type response struct {
	conn        *conn
	stream      *stream
	header      http.Header
	trailerKeys []string // trailerKeys are the keys that the header "Trailer" announces.
	isStarted   bool     // isStarted says that the headers are queued.
	isOver      bool     // isOver says that the handler has returned.
}

// Header returns the headers, and after Write the trailers.
func (w *response) Header() http.Header { return w.header }

// WriteHeader queues the headers with an HTTP status. Only the first call has an effect.
func (w *response) WriteHeader(status int) {
	w.conn.mu.Lock()
	defer w.conn.mu.Unlock()
	w.start(status)
}

// Write queues p, and waits while the client is slow. It fails after the end of the stream.
func (w *response) Write(p []byte) (int, error) {
	c, s := w.conn, w.stream
	c.mu.Lock()
	defer c.mu.Unlock()
	w.start(http.StatusOK)
	for len(s.out) > maxHandlerOutput && s.state != ended {
		c.awaitChange(s)
	}
	if s.state == ended || w.isOver {
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
func (w *response) Flush() {
	w.conn.mu.Lock()
	defer w.conn.mu.Unlock()
	w.start(http.StatusOK)
	w.conn.flush()
}

// start queues the headers, if they are not queued yet. The caller holds mu, as for the following methods.
func (w *response) start(status int) {
	if w.isStarted || w.isOver || w.stream.state == ended {
		return
	}
	w.isStarted = true
	for _, list := range w.header["Trailer"] {
		for key := range strings.SplitSeq(list, ",") {
			w.trailerKeys = append(w.trailerKeys, http.CanonicalHeaderKey(strings.TrimSpace(key)))
		}
	}
	block := literalField(":status", strconv.Itoa(status))
	for key, values := range w.header {
		if !strings.HasPrefix(key, http.TrailerPrefix) && !slices.Contains(w.trailerKeys, key) {
			block += literalFields(key, values)
		}
	}
	c := w.conn
	c.out = appendHeaderFrame(c.out, flagEndHeaders, w.stream.id, block)
}

// end ends the response after its handler has returned; with an error if it panicked.
func (w *response) end(crashed bool) {
	c, s := w.conn, w.stream
	if s.state != ended && crashed {
		c.resetStream(s.id, codeInternal)
	}
	w.start(http.StatusOK)
	w.isOver = true
	if s.state == ended {
		return
	}
	block := ""
	for key, values := range w.header {
		if name, isTrailer := strings.CutPrefix(key, http.TrailerPrefix); isTrailer || slices.Contains(w.trailerKeys, key) {
			block += literalFields(name, values)
		}
	}
	if block != "" {
		s.trailers = appendHeaderFrame(nil, flagEndHeaders|flagEndStream, s.id, block)
	}
	s.state, s.isAnswered = replying, true
	c.sendData(s)
}

// classifyResponse finds out which names a response must not have.
var classifyResponse = classifier("")

// literalFields returns a field for each of values; none if the name belongs to a connection, which HTTP/2 forbids.
func literalFields(name string, values []string) (block string) {
	name = strings.ToLower(name)
	if classifyResponse([]byte(name), nil) == meansMalformed {
		return ""
	}
	for _, value := range values {
		if isValidValue([]byte(value)) {
			block += literalField(name, value)
		}
	}
	return block
}
