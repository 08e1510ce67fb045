package h2

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/net/http2"
)

const (
	maxHandlerOutput = 64 << 10        // how many bytes a handler may write before it waits for the client.
	creditStep       = firstWindow / 4 // how many bytes are used before the client may send as many again.
)

// errStreamEnded is the error of a body and a response after the end of their stream.
var errStreamEnded = errors.New("h2: the stream has ended")

// exchange is the body of a request to Handler, and the writer of its answer. After the handler has returned, it does
// nothing.
type exchange struct {
	conn    *conn
	stream  *stream
	request *http.Request
	cancel  func() // ends the context of the request.

	changed      sync.Cond // tells the handler of a new state, input, or less output.
	isBodyClosed bool      // true if the handler wants no more input.
	isAwaiting   bool      // true if AwaitMessage waits.
	// accepted is how many messages the handler may read that it has not begun. unread is the rest of the one that it has
	// begun. readBytes is the size of what it has read since AwaitMessage: that is kept for it, and still charged.
	accepted, unread, readBytes int

	header      http.Header
	trailerKeys []string // the keys that the header "Trailer" announces.
	status      int      // the HTTP status; 0 until the handler has set it.
	headerBlock []byte   // the headers, from the first output until they are queued.
	refusal     string   // the body of an answer to a gRPC request with another HTTP status than 200.
}

// exchangeKey is the key of an *exchange in the context of its request.
type exchangeKey struct{}

// AwaitMessage waits for the next message of a stream, whose context is ctx. It returns the length that the client has
// announced, or 0 if there is none. Handler calls it when it has used the message before. A message that is longer than
// maxBytes need not be complete: Handler must refuse it. Others can be read after AcceptMessage.
func AwaitMessage(ctx context.Context, maxBytes int) (length int) {
	x, ok := ctx.Value(exchangeKey{}).(*exchange)
	if !ok {
		return 0
	}
	c, s := x.conn, x.stream
	c.mu.Lock()
	defer c.mu.Unlock()
	x.isAwaiting = true
	if s.state == handled {
		x.releaseRead()
	}
	for s.state == handled && !s.isReceived && !x.isBodyClosed {
		if _, isComplete := c.firstMessage(s.body); isComplete || announcedLength(s.body) > maxBytes {
			break
		}
		x.changed.Wait()
	}
	x.isAwaiting = false
	return announcedLength(s.body)
}

// AcceptMessage lets Handler read the message that AwaitMessage has found.
func AcceptMessage(ctx context.Context) {
	if x, ok := ctx.Value(exchangeKey{}).(*exchange); ok {
		x.conn.mu.Lock()
		defer x.conn.mu.Unlock()
		x.accepted++
		x.changed.Broadcast()
	}
}

// announcedLength returns the length of the first message in body, of which some may be missing; 0 before its prefix is
// complete.
func announcedLength(body []byte) int {
	if len(body) < messagePrefixBytes {
		return 0
	}
	return int(binary.BigEndian.Uint32(body[1:]))
}

// releaseRead releases what the handler has read and used, so that the client may send more. The caller holds mu.
func (x *exchange) releaseRead() {
	c, s := x.conn, x.stream
	s.heldBytes -= int64(x.readBytes)
	c.account.ReleaseBytes(int64(x.readBytes))
	x.readBytes = 0
	c.sendCredit(s, x.waitingBytes())
	c.flush()
}

// waitingBytes returns how much of what the client has sent the handler has not used. An incomplete message for which
// it waits does not count.
func (x *exchange) waitingBytes() int {
	_, isComplete := x.conn.firstMessage(x.stream.body)
	if x.stream.isGRPC && x.unread == 0 && (x.isAwaiting || x.accepted > 0) && !isComplete {
		return 0
	}
	return len(x.stream.body) + x.readBytes
}

// readable returns how many bytes of the body the handler may read now. Messages are only read when they are complete:
// grpc-go needs 16 KiB for each Read, however little it returns.
func (x *exchange) readable() int {
	c, s := x.conn, x.stream
	if !s.isGRPC {
		return len(s.body)
	}
	if x.unread == 0 && x.accepted > 0 && len(s.body) > 0 {
		n, isComplete := c.firstMessage(s.body)
		if !isComplete && !s.isReceived {
			return 0
		}
		x.unread = n
		x.accepted--
	}
	return min(x.unread, len(s.body))
}

// isAtEnd reports whether the handler has read all that it may: a request of a unary method has one message.
func (x *exchange) isAtEnd() bool {
	s := x.stream
	if !s.isGRPC {
		return s.isReceived && len(s.body) == 0
	}
	return x.unread == 0 && (s.isReceived && len(s.body) == 0 || s.kind != StreamMethod && x.accepted == 0)
}

// Read waits for a message and reads it. It returns io.EOF after all input.
func (x *exchange) Read(p []byte) (int, error) {
	c, s := x.conn, x.stream
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flush() // The client may wait for it before it sends more.
	for x.readable() == 0 && !x.isAtEnd() && !x.isBodyClosed && s.state == handled {
		x.changed.Wait()
	}
	n := x.readable()
	switch {
	case s.state != handled || x.isBodyClosed:
		return 0, errStreamEnded
	case n == 0:
		return 0, io.EOF
	}
	n = copy(p, s.body[:n])
	if s.body = s.body[n:]; len(s.body) == 0 {
		s.body = nil // Otherwise its memory is kept.
	}
	if x.readBytes += n; s.isGRPC {
		x.unread -= n
	} else {
		x.releaseRead()
	}
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
		c.out = appendNumberFrame(c.out, http2.FrameWindowUpdate, s.id, uint32(credit))
		s.receiveWindow += credit
	}
}

// Header returns the headers, and after Write the trailers.
func (x *exchange) Header() http.Header { return x.header }

// WriteHeader sets the headers, with an HTTP status. Only the first call has an effect.
func (x *exchange) WriteHeader(status int) {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	x.setHeaders(status)
}

// Write queues p, and waits while the client is slow. It fails after the end of the stream.
func (x *exchange) Write(p []byte) (int, error) {
	c, s := x.conn, x.stream
	c.mu.Lock()
	defer c.mu.Unlock()
	x.setHeaders(http.StatusOK)
	if len(s.out) > maxHandlerOutput {
		c.flush()
	}
	for len(s.out) > maxHandlerOutput && s.state == handled {
		x.changed.Wait()
	}
	if s.state != handled {
		return 0, errStreamEnded
	}
	if s.isGRPC && x.status != http.StatusOK {
		x.refusal += string(p[:min(len(p), maxErrorText-len(x.refusal))])
		return len(p), nil
	}
	x.queueHeaders()
	if len(s.out) == 0 {
		s.lastProgress = c.lastTick
	}
	s.out = append(s.out, p...)
	c.holdFor(s, int64(len(p)))
	c.sendData(s)
	c.awaitDrained()
	return len(p), nil
}

// Flush writes what is queued. Headers without a message are not: if the call fails now, they become one block with the
// status, since gRPC clients retry only such calls.
func (x *exchange) Flush() {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	x.setHeaders(http.StatusOK)
	x.conn.flush()
}

// setHeaders sets the headers, if they are not set yet. The caller holds mu, as for the following methods.
func (x *exchange) setHeaders(status int) {
	if x.status != 0 || x.stream.state != handled {
		return
	}
	x.status = status
	for key := range strings.SplitSeq(strings.Join(x.header["Trailer"], ","), ",") {
		x.trailerKeys = append(x.trailerKeys, http.CanonicalHeaderKey(strings.TrimSpace(key)))
	}
	x.headerBlock = x.appendHeader(appendField(nil, ":status", strconv.Itoa(status)), false)
}

// queueHeaders queues the headers, if they are not queued yet.
func (x *exchange) queueHeaders() {
	if x.headerBlock != nil {
		x.conn.out = appendHeaderFrame(x.conn.out, flagEndHeaders, x.stream.id, x.headerBlock)
		x.headerBlock = nil
	}
}

// end ends the response after its handler has returned; with an error if it panicked.
func (x *exchange) end(crashed bool) {
	c, s := x.conn, x.stream
	if crashed && s.state == handled {
		c.resetStream(s.id, http2.ErrCodeInternal)
	}
	if s.state == ended {
		c.activeStreams--
		return
	}
	s.body = nil
	released := s.heldBytes - streamBytes - int64(len(s.out)) // The handler and the request are gone, the answer is not.
	s.heldBytes -= released
	c.account.ReleaseBytes(released)
	x.setHeaders(http.StatusOK)
	if s.isGRPC && x.status != http.StatusOK { // grpc-go's handler answers so, its server answers with a status of gRPC.
		c.refuse(s, x.status, grpcInternal, strings.TrimSpace(x.refusal))
		return
	}
	if x.hasMetadata() {
		x.queueHeaders()
	}
	block := x.appendHeader(x.headerBlock, true) // Without a body and metadata, headers and trailers are one block.
	if s.trailers = appendHeaderFrame(nil, flagEndHeaders|flagEndStream, s.id, block); block == nil {
		s.trailers = appendFrame(nil, http2.FrameData, flagEndStream, s.id, nil)
	}
	s.state = replying
	c.sendData(s)
}

// hasMetadata reports whether the handler has set headers beside those that each answer of gRPC has.
func (x *exchange) hasMetadata() bool {
	for key, values := range x.header {
		if len(values) > 0 && key != "Content-Type" && key != "Trailer" && !slices.Contains(x.trailerKeys, key) &&
			!strings.HasPrefix(key, http.TrailerPrefix) {
			return true
		}
	}
	return false
}

// appendHeader appends the fields of the header, or those of the trailers, except what belongs to a connection in
// HTTP/1.
func (x *exchange) appendHeader(block []byte, ofTrailers bool) []byte {
	for key, values := range x.header {
		name, isTrailer := strings.CutPrefix(key, http.TrailerPrefix)
		name, isTrailer = strings.ToLower(name), isTrailer || slices.Contains(x.trailerKeys, key)
		for _, value := range values {
			if isTrailer == ofTrailers && key != "Trailer" && classify([]byte(name), nil, "") != meansMalformed &&
				isValidValue([]byte(value)) {
				block = appendField(block, name, value)
			}
		}
	}
	return block
}
