package h2

import (
	"bytes"
	"encoding/binary"
)

// receive handles the whole frames in the read buffer, and removes them. Complete calls are in
// c.batch then. The caller holds mu.
func (c *conn) receive() error {
	if c.phase == awaitingPreface {
		input := c.buffer[c.unread:c.end]
		n := min(len(input), len(clientPreface))
		if string(input[:n]) != clientPreface[:n] {
			return connError{codeProtocol, "the connection preface is not that of HTTP/2"}
		}
		if n < len(clientPreface) {
			return nil
		}
		c.unread += n
		c.phase = awaitingSettings
	}
	var f frame
	for c.phase != closed {
		n, err := readFrame(c.buffer[c.unread:c.end], &f)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		c.unread += n
		err = c.receiveFrame(&f)
		if malformed, ok := err.(streamError); ok {
			c.resetStream(malformed.streamID, malformed.code)
		} else if err != nil {
			return err
		}
	}
	return c.checkWaste()
}

// receiveFrame handles a frame. A streamError concerns its stream only.
func (c *conn) receiveFrame(f *frame) error {
	switch {
	case c.block.streamID != 0 && f.kind != frameContinuation:
		return connError{codeProtocol, "a frame interrupts a header block"}
	case c.phase == awaitingSettings && (f.kind != frameSettings || f.has(flagAck)):
		return connError{codeProtocol, "the first frame is not SETTINGS"}
	}
	switch f.kind {
	case frameData:
		return c.receiveData(f)
	case frameHeaders:
		return c.receiveHeaders(f)
	case frameContinuation:
		return c.receiveContinuation(f)
	}
	c.waste++
	switch f.kind {
	case framePriority:
		return c.receivePriority(f)
	case frameResetStream:
		return c.receiveReset(f)
	case frameSettings:
		return c.receiveSettings(f)
	case framePing:
		return c.receivePing(f)
	case frameGoAway:
		return c.receiveGoAway(f)
	case frameWindowUpdate:
		return c.receiveWindowUpdate(f)
	case framePushPromise:
		return connError{codeProtocol, "clients cannot send PUSH_PROMISE"}
	}
	return nil // Frames of unknown types are ignored.
}

func (c *conn) receiveData(f *frame) error {
	n := int64(len(f.payload))
	if err := c.checkNotIdle(f.streamID, "DATA"); err != nil {
		return err
	}
	if c.receiveWindow -= n; c.receiveWindow < 0 {
		return connError{codeFlowControl, "DATA exceeds the window of the connection"}
	}
	if c.receiveWindow < connWindow/2 { // Input is bounded by the windows of streams and by the account.
		c.out = appendNumberFrame(c.out, frameWindowUpdate, 0, uint32(connWindow-c.receiveWindow))
		c.receiveWindow = connWindow
	}
	if err := f.removePadding(); err != nil {
		return err
	}
	s, isLast := c.find(f.streamID), f.has(flagEndStream)
	if len(f.payload) < minUsefulData && !isLast {
		c.waste++
	}
	switch {
	case s == nil || s.isReceived:
		return c.checkClosed(f.streamID, "DATA")
	case n > s.receiveWindow:
		return connError{codeFlowControl, "DATA exceeds the window of its stream"}
	}
	s.receiveWindow -= n
	s.creditBytes += n - int64(len(f.payload)) // Padding is used up at once.
	s.receivedBytes += int64(len(f.payload))
	if s.length >= 0 && s.receivedBytes > s.length {
		return streamError{s.id, codeProtocol, "the request has more DATA than its content-length"}
	}
	if isLast && len(s.body) == 0 {
		return c.endReceipt(s, f.payload)
	}
	if s == &c.opening {
		s = c.keepOpening()
	}
	s.body = append(s.body, f.payload...)
	c.holdFor(s, int64(len(f.payload)))
	switch {
	case c.phase == closed:
		return nil // The account has no room.
	case isLast:
		return c.endReceipt(s, s.body)
	case s.state == collecting:
		s.creditBytes += int64(len(f.payload))
		c.sendCredit(s)
		return c.checkCollected(s)
	}
	s.tellHandler()
	return nil
}

// checkCollected passes a call on to Handler if its message is too long or not the only one, so
// that no more of it is collected.
func (c *conn) checkCollected(s *stream) error {
	if len(s.body) < messagePrefixBytes {
		return nil
	}
	length := int64(binary.BigEndian.Uint32(s.body[1:]))
	if length > int64(c.server.cfg.MaxMessageBytes) || int64(len(s.body)) > messagePrefixBytes+length {
		c.handleCollected(s, nil)
	}
	return nil
}

// endReceipt ends the client's side of a stream. A call that is collecting has the body data.
func (c *conn) endReceipt(s *stream, data []byte) error {
	if s.length >= 0 && s.receivedBytes != s.length {
		return streamError{s.id, codeProtocol, "the request has less DATA than its content-length"}
	}
	s.isReceived = true
	if s.state == collecting {
		c.complete(s, data)
		return nil
	}
	if len(s.body) == 0 {
		s.body = append(s.body, data...)
		c.holdFor(s, int64(len(data)))
	}
	s.tellHandler()
	return nil
}

func (c *conn) receivePriority(f *frame) error {
	switch {
	case f.streamID == 0:
		return connError{codeProtocol, "PRIORITY for stream 0"}
	case len(f.payload) != priorityBytes:
		return connError{codeFrameSize, "PRIORITY has the wrong length"}
	case dependsOn(f.payload) == f.streamID:
		return connError{codeProtocol, "a stream depends on itself"}
	}
	return nil
}

func (c *conn) receiveReset(f *frame) error {
	if len(f.payload) != 4 {
		return connError{codeFrameSize, "RST_STREAM has the wrong length"}
	}
	if err := c.checkNotIdle(f.streamID, "RST_STREAM"); err != nil {
		return err
	}
	c.endByID(f.streamID)
	if f.streamID == c.lastResetID {
		c.lastResetID-- // The client has ended the stream, too, so that nothing may follow.
	}
	return nil
}

// goAwayPing is the content of the PING that finds out when the client knows the first GOAWAY, livePing
// that of the PING that finds out whether the client is alive.
var (
	goAwayPing = []byte("go away!")
	livePing   = []byte("alive?!?")
)

func (c *conn) receivePing(f *frame) error {
	switch {
	case len(f.payload) != 8:
		return connError{codeFrameSize, "PING has the wrong length"}
	case f.streamID != 0:
		return connError{codeProtocol, "PING for a stream"}
	case !f.has(flagAck):
		c.out = append(appendFrameHeader(c.out, 8, framePing, flagAck, 0), f.payload...)
		return c.countPing()
	case c.phase == leaving && bytes.Equal(f.payload, goAwayPing):
		c.endLeaving()
	}
	return nil
}

func (c *conn) receiveGoAway(f *frame) error {
	switch {
	case len(f.payload) < 8:
		return connError{codeFrameSize, "GOAWAY has the wrong length"}
	case f.streamID != 0:
		return connError{codeProtocol, "GOAWAY for a stream"}
	}
	return nil // The client will close the connection after its last answer.
}
