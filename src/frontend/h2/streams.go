package h2

import (
	"container/list"
	"encoding/binary"
	"net/http"
	"time"

	"golang.org/x/net/http2"
)

// streamState is where a stream is in its life; see the package's comment.
type streamState uint8

const (
	collecting streamState = iota
	waiting
	handled
	replying
	ended
)

// stream is a request with its answer, except while a batch has it as a Call. conn.mu guards its fields.
type stream struct {
	id        uint32 // 0 when the stream is no longer in streamTable.
	state     streamState
	heldBytes int64 // what the stream holds of the account.

	opened        time.Time
	timeout       time.Duration // the grpc-timeout; 0 if there is none.
	length        int64         // the content-length; -1 if there is none.
	receivedBytes int64
	receiveWindow int64  // how many bytes the client may send now.
	body          []byte // what has been received and not been used.
	isReceived    bool   // true if the client has ended its side.

	window       int64     // the send window relative to conn.initialWindow.
	out          []byte    // DATA that waits for window.
	trailers     []byte    // the frames after out. They end the stream.
	isBlocked    bool      // true if conn.blocked has the stream.
	lastProgress time.Time // when out last became shorter, or not empty.

	request  *http.Request // for Handler, until exchange has it; nil if Decide can answer.
	isGRPC   bool          // true if a request for Handler has a content type of gRPC.
	kind     MethodKind    // of the path of a gRPC request for Handler.
	exchange *exchange     // set in state handled, and after it.
	place    *list.Element // of conn.waiting, in state waiting.
}

const (
	firstWindow = 65535   // the size of all flow control windows at first (RFC 9113 section 6.9.2).
	connWindow  = 1 << 20 // the size of a connection's window for DATA from the client.
	streamBytes = 512     // about how many bytes a stream needs without its body.
)

// streamTable has the streams of a connection.
type streamTable struct {
	streams map[uint32]*stream
	// opening is the newest stream, if it is collecting; else its id is 0. It need not enter the map if its message
	// follows at once.
	opening         stream
	activeStreams   uint32 // counts streams, calls in batches, and handlers whose stream has ended.
	lastStreamID    uint32 // the last stream that the client has opened.
	lastResetID     uint32 // the highest stream that the server has reset. Frames that follow are ignored.
	runningHandlers int
	isStarting      bool      // true from startHandler until the goroutine of the handler runs.
	waiting         list.List // of streams in this state, the oldest first.
	awaitsSlot      bool      // true if handlerSlots.waiting has the connection; guarded by the mu there.
	receiveWindow   int64     // how many bytes of DATA the client may send on the connection.
}

// find returns an open stream; nil if there is none. The caller holds mu, as for all functions of this file.
func (c *conn) find(id uint32) *stream {
	if id == c.opening.id && id != 0 {
		return &c.opening
	}
	return c.streams[id]
}

// openStream opens a stream for the head h. isReceived says that no DATA follows.
func (c *conn) openStream(id uint32, h *head, isReceived bool) error {
	if c.phase == lastCalls {
		return nil // The client learns from the GOAWAY that the stream was not opened.
	}
	if most := c.server.cfg.MaxStreams; most > 0 && c.activeStreams >= most {
		// Otherwise the client waits for answers, and may not know the bound yet.
		if c.activeStreams == uint32(len(c.streams)) {
			c.waste++
		}
		return streamError(id, http2.ErrCodeRefusedStream)
	}
	if isReceived && h.length > 0 {
		return streamError(id, http2.ErrCodeProtocol)
	}
	c.activeStreams++
	c.waste-- // An open stream is no waste: its HEADERS count if it ends without an answer.
	if h.isCall() && !isReceived {
		s := &c.opening
		*s = stream{}
		s.id, s.opened, s.timeout, s.length, s.receiveWindow = id, c.lastRead, h.timeout, h.length, firstWindow
	} else {
		c.openRequest(stream{
			id: id, opened: c.lastRead, timeout: h.timeout, length: h.length, receiveWindow: firstWindow,
			isReceived: isReceived,
		}, h)
	}
	return nil
}

// keep adds s to the map.
func (c *conn) keep(s stream) *stream {
	kept := &s
	c.streams[s.id] = kept
	c.holdFor(kept, streamBytes)
	return kept
}

// keepOpening moves the stream that is opening to the map, and returns it there; nil if there is none.
func (c *conn) keepOpening() *stream {
	if c.opening.id == 0 {
		return nil
	}
	s := c.opening
	c.opening = stream{}
	return c.keep(s)
}

// holdFor charges n bytes to the account until the stream ends.
func (c *conn) holdFor(s *stream, n int64) {
	if s.state != ended {
		s.heldBytes += n
		c.hold(n)
	}
}

// tellHandler wakes up the handler, if it waits.
func (s *stream) tellHandler() {
	if s.exchange != nil {
		s.exchange.changed.Broadcast()
	}
}

// hold charges n bytes to the account. It closes the connection if the account has no room.
func (c *conn) hold(n int64) {
	if !c.account.HoldBytes(n) {
		c.closeLocked()
	}
}

// complete makes a stream that is collecting a Call of the batch. Its body is data.
func (c *conn) complete(s *stream, data []byte) {
	if c.batch == nil {
		c.batch = c.server.batches.Get().(*Batch)
	}
	c.batch.all = append(c.batch.all, Call{
		Message: data[messagePrefixBytes:], Timeout: s.timeout, streamID: s.id, heldBytes: s.heldBytes,
		window: s.window,
	})
	c.remove(s)
}

// remove removes s from the table.
func (c *conn) remove(s *stream) {
	delete(c.streams, s.id)
	s.id, s.window = 0, 0
}

// isRegular reports whether Decide can answer a call whose body is data, or may begin with it: one message without
// compression.
func (c *conn) isRegular(data []byte, isComplete bool) bool {
	if len(data) < messagePrefixBytes {
		return !isComplete
	}
	length, message := int(binary.BigEndian.Uint32(data[1:])), data[messagePrefixBytes:]
	if data[0] != 0 || length > c.server.cfg.MaxMessageBytes || len(message) > length {
		return false
	}
	return !isComplete || len(message) == length && !c.server.cfg.IsLarge(message)
}

// endStream ends a stream. Its handler, if it still runs, learns of it from its context and its calls.
func (c *conn) endStream(s *stream) {
	switch s.state {
	case ended:
		return
	case waiting:
		c.waiting.Remove(s.place)
	}
	if s.state != handled { // Otherwise the stream counts until its handler returns.
		c.activeStreams--
	}
	c.remove(s)
	c.unblock(s)
	c.account.ReleaseBytes(s.heldBytes)
	s.state, s.body, s.out = ended, nil, nil
	if s.exchange != nil {
		s.exchange.cancel()
		s.tellHandler()
	}
}

// endByID ends a stream or a call of this number, if there is one. It returns whether the client could still have
// waited for the answer: then the stream is waste.
func (c *conn) endByID(id uint32) (isEarly bool) {
	if s := c.find(id); s != nil {
		opened, timeout := s.opened, s.timeout
		c.endStream(s)
		return c.isEarly(opened, timeout)
	}
	call, received := c.findUndecided(id)
	if call == nil || call.isReset {
		return false
	}
	call.isReset = true
	return c.isEarly(received, call.Timeout)
}

// isEarly reports whether a call that arrived at the time received is taken back before its timeout. Timeouts of less
// than lateAfter do not count, because a client could take back as many calls as it likes.
func (c *conn) isEarly(received time.Time, timeout time.Duration) bool {
	return timeout < lateAfter || c.lastRead.Sub(received) < timeout-timeout/8 // The client's clock started before.
}

// resetStream ends a stream of this number, if it is open, and tells the client why. Only ErrCodeNo follows an answer.
func (c *conn) resetStream(id uint32, code http2.ErrCode) {
	if c.endByID(id) && code != http2.ErrCodeNo {
		c.waste++
	}
	c.lastResetID = max(c.lastResetID, id)
	c.out = appendNumberFrame(c.out, http2.FrameRSTStream, id, uint32(code))
}

// checkClosed returns the error for a DATA or HEADERS frame on a stream that is not open, or that the client has ended.
func (c *conn) checkClosed(id uint32) error {
	if id <= c.lastResetID || c.phase == lastCalls && id > c.goAwayID {
		c.waste++
		return nil
	}
	return connError(http2.ErrCodeStreamClosed, "the client has ended the stream of a frame")
}
