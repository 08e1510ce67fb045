package h2

import (
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// sender is the writing side of a connection. Any goroutine may write, but only one at a time.
type sender struct {
	out, spare []byte // output that is not being written yet. spare is memory for out.
	heldBytes  int64  // how much of out is charged to the account: answers that another write delays.
	isWriting  bool
	writeBegan time.Time // the last tick before the write that is running.
	drained    sync.Cond // tells goroutines that out has become short.

	window        int64 // how many bytes of DATA the client takes on the connection.
	initialWindow int64 // the client's SETTINGS_INITIAL_WINDOW_SIZE. Windows of streams are relative to it.
	largestWindow int64 // the largest initialWindow so far.
	// blocked has the streams whose output waits for window, the oldest first, so that a WINDOW_UPDATE costs no search
	// among all streams.
	blocked      []*stream
	lastProgress time.Time // the tick before DATA was last sent on the connection.
}

// flush writes the queued output, unless another goroutine does. The caller holds mu, which flush releases while it
// writes.
func (c *conn) flush() {
	if c.isWriting || len(c.out) == 0 {
		return
	}
	c.isWriting = true
	for len(c.out) > 0 {
		b, held := c.out, c.sender.heldBytes
		c.out, c.spare, c.sender.heldBytes = c.spare[:0], nil, 0
		c.writeBegan = c.lastTick
		c.mu.Unlock()
		_, err := c.net.Write(b)
		c.mu.Lock()
		c.account.ReleaseBytes(held)
		if cap(b) <= maxSpareBytes {
			c.spare = b
		}
		if err != nil {
			c.closeLocked()
		}
	}
	c.isWriting = false
	c.drained.Broadcast()
}

// awaitDrained waits while much output is queued. The caller holds mu, which awaitDrained releases meanwhile.
func (c *conn) awaitDrained() {
	for len(c.out) > maxQueuedBytes && c.phase != closed {
		if c.isWriting {
			c.drained.Wait()
		} else {
			c.flush()
		}
	}
}

// sendAnswers writes the answers to b.Calls. The caller holds mu.
func (c *conn) sendAnswers(b *Batch) {
	sum, largest, isSpecial := int64(0), 0, len(c.out) > 0 || c.phase == closed
	for i := range b.Calls {
		call := &b.Calls[i]
		sum += int64(call.dataBytes)
		largest = max(largest, call.dataBytes)
		isSpecial = isSpecial || call.isReset || call.window < 0 || call.heldBytes > 0
	}
	if !isSpecial && sum <= c.window && int64(largest) <= min(maxFrameBytes, c.initialWindow) {
		c.window -= sum
		c.activeStreams -= uint32(len(b.Calls))
		c.pingStrikes = 0
		c.creditAnswers(len(b.Calls))
		c.out, b.out = b.out, c.out // No answer is copied.
	} else {
		c.out = slices.Grow(c.out, len(b.out))
		for i := range b.Calls {
			c.sendAnswer(b, &b.Calls[i])
		}
	}
	if n := int64(len(c.out)) - c.sender.heldBytes; c.isWriting && n > 0 {
		c.sender.heldBytes += n
		c.hold(n)
	}
	c.flush()
}

// sendAnswer queues the answer of one call, of which some may have to wait for the windows.
func (c *conn) sendAnswer(b *Batch, call *Call) {
	if call.heldBytes > 0 {
		c.account.ReleaseBytes(call.heldBytes)
	}
	isOver, n := call.isReset || c.phase == closed, int64(call.dataBytes)
	if isOver || n == 0 || n <= min(maxFrameBytes, c.window, call.window+c.initialWindow) {
		if !isOver {
			c.out = append(c.out, b.out[call.start:call.end]...)
			c.window -= n
			c.pingStrikes = 0
			c.creditAnswers(1)
		}
		c.activeStreams--
		return
	}
	s := c.keep(stream{
		id: call.streamID, state: replying, isReceived: true, window: call.window,
		lastProgress: c.lastRead,
	})
	start, end := call.start+frameHeaderBytes+len(grpcHeaders), call.end-frameHeaderBytes-len(okTrailers)
	s.out, s.trailers = slices.Clone(b.out[end-call.dataBytes:end]), slices.Clone(b.out[end:call.end])
	c.holdFor(s, n)
	if c.phase != closed {
		c.out = append(c.out, b.out[call.start:start]...)
		c.sendData(s)
	}
}

// sendData queues as much of s.out as the windows allow, and the end of the stream after the last byte.
func (c *conn) sendData(s *stream) {
	for len(s.out) > 0 {
		n := min(int64(len(s.out)), maxFrameBytes, c.window, s.window+c.initialWindow)
		if n <= 0 {
			if c.window <= 0 && s.window+c.initialWindow > 0 && !s.isBlocked {
				s.isBlocked = true
				c.blocked = append(c.blocked, s)
			}
			return
		}
		c.out = appendFrame(c.out, http2.FrameData, 0, s.id, s.out[:n])
		s.out = s.out[n:]
		c.pingStrikes = 0 // Clients measure the bandwidth with a PING after DATA.
		c.window -= n
		s.window -= n
		s.heldBytes -= n
		c.account.ReleaseBytes(n)
		if n >= minUsefulData { // A client that wants only some bytes at a time still has to be done in time.
			s.lastProgress, c.lastProgress = c.lastTick, c.lastTick
		}
		if n >= longData {
			c.forgetWaste(wasteOfData)
		}
	}
	s.tellHandler()
	if s.state != replying {
		return
	}
	c.out = append(c.out, s.trailers...)
	c.creditAnswers(1)
	c.pingStrikes = 0
	if s.isReceived {
		c.endStream(s)
	} else { // The client need not send the rest of its request.
		c.resetStream(s.id, http2.ErrCodeNo)
	}
}

// receiveWindowUpdate enlarges a window for DATA to the client (RFC 9113 section 6.9.1).
func (c *conn) receiveWindowUpdate(f *frame) error {
	n := int64(binary.BigEndian.Uint32(f.payload) & maxWindow)
	if n == 0 {
		return connError(http2.ErrCodeProtocol, "WINDOW_UPDATE by 0")
	}
	if f.streamID == 0 {
		if c.window += n; c.window > maxWindow {
			return connError(http2.ErrCodeFlowControl, "the window of the connection is too large")
		}
		c.resumeBlocked()
		return nil
	}
	var window *int64
	s := c.find(f.streamID)
	if s != nil {
		window = &s.window
	} else if call, _ := c.findUndecided(f.streamID); call != nil {
		window = &call.window
	} else {
		return nil // The stream has ended.
	}
	if *window += n; *window+c.initialWindow > maxWindow {
		return streamError(f.streamID, http2.ErrCodeFlowControl)
	}
	if s != nil && len(s.out) > 0 {
		c.sendData(s)
	}
	return nil
}

// resumeBlocked sends what waits for the window of the connection, the oldest first.
func (c *conn) resumeBlocked() {
	for len(c.blocked) > 0 && c.window > 0 {
		s := c.blocked[0]
		c.sendData(s)
		if len(s.out) == 0 || c.window > 0 { // Otherwise it is still the next one.
			c.unblock(s)
		}
	}
}

// unblock removes s from c.blocked, if it is there.
func (c *conn) unblock(s *stream) {
	switch {
	case !s.isBlocked:
		return
	case c.blocked[0] == s:
		c.blocked = c.blocked[1:]
	default:
		c.blocked = slices.DeleteFunc(c.blocked, func(other *stream) bool { return other == s })
	}
	s.isBlocked = false
	if len(c.blocked) == 0 {
		c.blocked = nil
	}
}

// setInitialWindow changes the windows of all streams, and sends what waits for them. It returns an error if that of a
// stream is too large (section 6.9.2).
func (c *conn) setInitialWindow(size int64) error {
	before := c.initialWindow
	c.initialWindow = size
	if size <= before {
		return nil
	}
	highest, concerned := c.opening.window, len(c.streams)
	for call := range c.undecided {
		highest = max(highest, call.window)
		concerned++
	}
	// Clients that measure the bandwidth enlarge their windows some ten times, however many streams they have.
	if size >= c.largestWindow+c.largestWindow/windowGrowth {
		c.largestWindow = size
	} else {
		c.waste += concerned / streamsPerWaste
	}
	for _, s := range c.streams {
		highest = max(highest, s.window)
		if len(s.out) > 0 {
			c.sendData(s)
		}
	}
	if highest+c.initialWindow > maxWindow {
		return connError(http2.ErrCodeFlowControl, "SETTINGS_INITIAL_WINDOW_SIZE makes the window of a stream too large")
	}
	return nil
}
