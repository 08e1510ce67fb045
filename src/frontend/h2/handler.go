package h2

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	maxHandlers       = 800 // how many handlers run at a time, without those of streams.
	maxHandlersOfConn = 100 // how many handlers of a connection run at a time, streams included.
)

// What a request for Handler takes, as measured with grpc-go's server.
const (
	requestBytes = 1 << 10  // about how many bytes a request needs that waits for its message, without its fields.
	perField     = 192      // about how many bytes a field needs beside what RFC 9113 counts.
	handlerBytes = 24 << 10 // about how many bytes a handler needs, most of it for three goroutines.
	streamExtra  = 18 << 10 // how much more that of a stream needs: a goroutine that waits with a buffer.
)

// newRequest returns the request for Handler, without what startHandler adds. The path stays what the client sent: gRPC
// looks up methods by it, and knows no escapes and no query.
func newRequest(h *head) *http.Request {
	header := make(http.Header, len(h.fields))
	for i := range h.fields {
		header.Add(string(h.fields[i].name), string(h.fields[i].value))
	}
	path := string(h.path)
	return &http.Request{
		Method: string(h.verb), URL: &url.URL{Path: path}, RequestURI: path, Host: string(h.authority),
		ContentLength: h.length, Header: header,
	}
}

// openRequest opens a stream for a request that Handler answers. The caller holds mu, as for all functions of this
// file.
func (c *conn) openRequest(s stream, h *head) {
	kept := c.keep(s)
	c.holdFor(kept, requestBytes+int64(len(h.fields)*perField+h.bytes))
	if kept.isGRPC = h.meanings&(1<<meansGRPC|1<<meansOtherCodec) != 0; kept.isGRPC {
		if status, code, text := h.refusal(); status != 0 {
			c.refuse(kept, status, code, text)
			return
		}
		kept.kind = c.server.cfg.KindOf(string(h.path))
	}
	kept.request = newRequest(h)
	if kept.isGRPC && h.has(meansOtherType) { // gRPC takes the type that it knows.
		types := kept.request.Header["Content-Type"]
		kept.request.Header["Content-Type"] = slices.DeleteFunc(types, func(t string) bool { return !isGRPC(t) })
	}
	c.handleWhenReady(kept)
}

// OnlyGRPC returns a handler that passes requests of gRPC on to h, and refuses others as gRPC servers do.
func OnlyGRPC(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, code, text := http.StatusBadRequest, grpcInternal, severalHosts
		switch {
		case slices.ContainsFunc(r.Header["Content-Type"], isGRPC):
			h.ServeHTTP(w, r)
			return
		case len(r.Header["Host"]) <= 1:
			status, code = http.StatusUnsupportedMediaType, grpcInvalidArgument
			text = fmt.Sprintf("invalid gRPC request content-type %q", r.Header.Get("Content-Type"))
		}
		w.Header().Set("Content-Type", grpcType)
		w.Header().Set("Grpc-Status", strconv.Itoa(code))
		w.Header().Set("Grpc-Message", percentEncode(text))
		w.WriteHeader(status)
	})
}

const severalHosts = "there are several host headers"

// refusal returns how gRPC refuses a request of gRPC because of its headers; 0 if it does not.
func (h *head) refusal() (httpStatus, grpcStatus int, text string) {
	switch {
	case h.has(meansHosts):
		return http.StatusBadRequest, grpcInternal, severalHosts
	case h.has(meansBadTimeout):
		return http.StatusBadRequest, grpcInternal, "malformed grpc-timeout"
	case h.has(meansBadBinary):
		return http.StatusBadRequest, grpcInternal, "malformed binary metadata"
	case h.meanings&(1<<meansAuthority|1<<meansHost) == 0:
		return http.StatusBadRequest, grpcInternal, "no host or :authority header present"
	case !h.has(meansPost):
		return http.StatusMethodNotAllowed, grpcInternal,
			fmt.Sprintf("Received a HEADERS frame with :method %q which should be POST", h.verb)
	case h.has(meansTimeout) && h.timeout == 0:
		return http.StatusOK, grpcDeadlineExceeded, deadlineText
	}
	return 0, 0, ""
}

// refuse answers a request without a handler.
func (c *conn) refuse(s *stream, httpStatus, grpcStatus int, text string) {
	block := appendField(nil, ":status", strconv.Itoa(httpStatus))
	block = appendStatus(appendField(block, "content-type", grpcType), grpcStatus, text)
	s.trailers = appendHeaderFrame(nil, flagEndHeaders|flagEndStream, s.id, block)
	s.state = replying
	c.sendData(s)
}

// handleCollected lets Handler answer a call that is collecting.
func (c *conn) handleCollected(s *stream) {
	s.request = newRequest(&head{verb: []byte(http.MethodPost), path: []byte(c.server.cfg.Path), length: s.length})
	s.isGRPC, s.kind = true, UnaryMethod
	s.request.Header.Set("Content-Type", grpcType)
	s.request.Header.Set("Te", "trailers")
	c.holdFor(s, requestBytes)
	c.handleWhenReady(s)
}

// handleWhenReady lets Handler answer a request, unless it is one of a unary method whose message is incomplete.
func (c *conn) handleWhenReady(s *stream) {
	if s.state != collecting || c.phase == closed {
		return
	}
	if _, isComplete := c.firstMessage(s.body); isComplete || s.isReceived || s.kind != UnaryMethod {
		s.state = waiting
		s.place = c.waiting.PushBack(s)
		c.startHandlers()
	}
}

// firstMessage returns how many bytes of body are its first message, with the prefix, and whether that is the whole
// message. All of a message that is too long counts as whole: Handler need not wait to refuse it.
func (c *conn) firstMessage(body []byte) (n int, isComplete bool) {
	if len(body) < messagePrefixBytes {
		return len(body), false
	}
	length := announcedLength(body)
	if length > c.server.cfg.MaxMessageBytes {
		return len(body), true
	}
	n = min(messagePrefixBytes+length, len(body))
	return n, n == messagePrefixBytes+length
}

// startHandlers starts the handler of the request that waits longest, if it may run. That handler starts the next one:
// goroutines of other connections would wait for hundreds that start together.
func (c *conn) startHandlers() {
	for c.waiting.Len() > 0 && c.runningHandlers < maxHandlersOfConn && !c.isStarting && c.phase != closed {
		s := c.waiting.Front().Value.(*stream)
		waited := time.Since(s.opened)
		if s.timeout > 0 && waited >= s.timeout {
			c.waiting.Remove(s.place)
			c.refuse(s, http.StatusOK, grpcDeadlineExceeded, deadlineText)
			continue
		}
		if s.kind != StreamMethod && !c.server.slots.take(c) {
			return // The end of another handler calls startHandlers.
		}
		c.waiting.Remove(s.place)
		if s.timeout > 0 {
			s.request.Header.Set("Grpc-Timeout", formatTimeout(s.timeout-waited))
		}
		c.startHandler(s)
	}
}

// startHandler runs Handler in a goroutine.
func (c *conn) startHandler(s *stream) {
	r := s.request
	r.Proto, r.ProtoMajor, r.RemoteAddr, r.TLS = "HTTP/2.0", 2, c.net.RemoteAddr().String(), c.tls
	x := &exchange{conn: c, stream: s, header: make(http.Header)}
	ctx, cancel := context.WithCancel(context.WithValue(c.handlerCtx, exchangeKey{}, x))
	x.request, x.cancel = r.WithContext(ctx), cancel
	x.request.Body, x.changed.L, s.exchange, s.request = x, &c.mu, x, nil
	s.state = handled
	c.runningHandlers++
	c.isStarting = true
	if c.holdFor(s, handlerBytes); s.kind == StreamMethod {
		c.holdFor(s, streamExtra)
	} else {
		x.accepted = 1 // Others have one message.
	}
	c.spawn(x.run)
}

// run runs Handler, and then other requests that wait.
func (x *exchange) run() {
	c, crashed := x.conn, true
	defer func() {
		if p := recover(); p != nil && p != http.ErrAbortHandler {
			c.server.cfg.OnPanic(p, debug.Stack())
		}
		x.cancel()
		c.mu.Lock()
		x.end(crashed)
		c.runningHandlers--
		c.startHandlers()
		c.flush()
		c.endIfDone()
		c.mu.Unlock()
		if x.stream.kind != StreamMethod {
			c.server.slots.release()
		}
	}()
	c.mu.Lock()
	c.isStarting = false
	c.startHandlers()
	c.mu.Unlock()
	c.server.cfg.Handler.ServeHTTP(x, x.request)
	crashed = false
}

// handlerSlots bounds the handlers of a server. Connections that wait for one take turns.
type handlerSlots struct {
	mu      sync.Mutex
	used    int     // guarded by mu
	waiting []*conn // guarded by mu; each once, the oldest first
}

// take takes a slot for a handler of c. If none is free, it returns false; release will call c.startHandlers. The
// caller holds c.mu.
func (h *handlerSlots) take(c *conn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.used < maxHandlers {
		h.used++
		return true
	}
	if !c.awaitsSlot {
		c.awaitsSlot = true
		h.waiting = append(h.waiting, c)
	}
	return false
}

// release frees a slot, and lets connections that wait take it. The caller holds no mu.
func (h *handlerSlots) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.used--
	for len(h.waiting) > 0 && h.used < maxHandlers {
		c := h.waiting[0]
		h.waiting = h.waiting[1:]
		c.awaitsSlot = false
		h.mu.Unlock() // take needs it.
		c.mu.Lock()
		c.startHandlers()
		c.flush()
		c.mu.Unlock()
		h.mu.Lock()
	}
}
