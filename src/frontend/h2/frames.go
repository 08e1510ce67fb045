package h2

import (
	"bytes"
	"encoding/binary"
	"time"
)

// place says which streams a type of frames is for.
type place uint8

const (
	onConnection place = iota // onConnection: stream 0 only.
	onStream                  // onStream: any other stream.
	onOpened                  // onOpened: streams that the client has opened, even if they have ended.
	onAny                     // onAny: onConnection or onOpened.
)

// frameRules says what frames are like, and how they are handled (RFC 9113 section 6).
var frameRules = [...]struct {
	name    string
	place   place
	length  int                       // length is that of the payload; 0 for any.
	receive func(*conn, *frame) error // receive is nil for frames that clients cannot send.
}{
	frameData:         {"DATA", onOpened, 0, (*conn).receiveData},
	frameHeaders:      {"HEADERS", onStream, 0, (*conn).receiveHeaders},
	framePriority:     {"PRIORITY", onStream, priorityBytes, (*conn).receivePriority},
	frameResetStream:  {"RST_STREAM", onOpened, 4, (*conn).receiveReset},
	frameSettings:     {"SETTINGS", onConnection, 0, (*conn).receiveSettings},
	framePushPromise:  {"PUSH_PROMISE", onStream, 0, nil},
	framePing:         {"PING", onConnection, 8, (*conn).receivePing},
	frameGoAway:       {"GOAWAY", onConnection, 0, (*conn).receiveGoAway},
	frameWindowUpdate: {"WINDOW_UPDATE", onAny, 4, (*conn).receiveWindowUpdate},
	frameContinuation: {"CONTINUATION", onStream, 0, (*conn).receiveContinuation},
}

// receive handles the whole frames in the read buffer, and removes them. Complete calls are in
// c.batch then. The caller holds mu, as for all functions of this file.
func (c *conn) receive() error {
	if c.phase == awaitingPreface {
		input := c.buffer[c.unread:c.end]
		n := min(len(input), len(clientPreface))
		switch {
		case string(input[:n]) != clientPreface[:n]:
			return connError(codeProtocol, "the connection preface is not that of HTTP/2")
		case n < len(clientPreface):
			return nil
		}
		c.unread, c.phase = c.unread+n, awaitingSettings
	}
	f := &c.frame
	for c.phase != closed {
		n, err := readFrame(c.buffer[c.unread:c.end], f)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		c.unread += n
		if err = c.receiveFrame(f); err != nil {
			v, ok := err.(violation)
			if !ok || v.streamID == 0 {
				return err
			}
			c.resetStream(v.streamID, v.code)
		}
	}
	if c.waste > maxWaste {
		return connError(codeEnhanceYourCalm, "too many frames without calls")
	}
	return nil
}

// receiveFrame handles a frame.
func (c *conn) receiveFrame(f *frame) error {
	switch {
	case c.block.streamID != 0 && f.kind != frameContinuation:
		return connError(codeProtocol, "a frame interrupts a header block")
	case c.phase == awaitingSettings && (f.kind != frameSettings || f.has(flagAck)):
		return connError(codeProtocol, "the first frame is not SETTINGS")
	case int(f.kind) >= len(frameRules):
		c.waste++
		return nil // Frames of unknown types are ignored.
	}
	rule := &frameRules[f.kind]
	if f.kind != frameData {
		c.waste++ // A call makes up for its HEADERS.
	}
	opened := f.streamID%2 == 1 && f.streamID <= c.lastStreamID
	switch {
	case rule.length > 0 && len(f.payload) != rule.length:
		return connError(codeFrameSize, rule.name+" has the wrong length")
	case (f.streamID == 0) != (rule.place == onConnection) && rule.place != onAny:
		return connError(codeProtocol, rule.name+" is for the wrong stream")
	case !opened && f.streamID != 0 && rule.place >= onOpened:
		return connError(codeProtocol, rule.name+" is for a stream that is idle")
	case rule.receive == nil:
		return connError(codeProtocol, "clients cannot send "+rule.name)
	}
	return rule.receive(c, f)
}

func (c *conn) receiveData(f *frame) error {
	n := int64(len(f.payload))
	// The window never gets smaller than a frame. Input is bounded by the windows of streams and by the account.
	if c.receiveWindow -= n; c.receiveWindow < connWindow/2 {
		c.out = appendNumberFrame(c.out, frameWindowUpdate, 0, uint32(connWindow-c.receiveWindow))
		c.receiveWindow = connWindow
	}
	if err := f.removePadding(); err != nil {
		return err
	}
	s, isLast, used := c.find(f.streamID), f.has(flagEndStream), int64(len(f.payload))
	if used < minUsefulData && !isLast {
		c.waste++
	}
	switch {
	case s == nil || s.isReceived:
		return c.checkClosed(f.streamID)
	case n > s.receiveWindow:
		return connError(codeFlowControl, "DATA exceeds the window of its stream")
	}
	s.receiveWindow -= n
	s.receivedBytes += used
	if s.length >= 0 && s.receivedBytes > s.length {
		return streamError(s.id, codeProtocol)
	}
	if isLast && len(s.body) == 0 {
		return c.endReceipt(s, f.payload)
	}
	if s == &c.opening {
		s = c.keepOpening()
	}
	s.body = append(s.body, f.payload...)
	c.holdFor(s, used)
	switch {
	case c.phase == closed: // The account has no room.
	case isLast:
		return c.endReceipt(s, s.body)
	case s.state == collecting:
		c.sendCredit(s, 0)
		if !c.isRegular(s.body, false) {
			c.handleCollected(s)
		}
	default:
		s.tellHandler()
	}
	return nil
}

// endReceipt ends the client's side of a stream. data is s.body or, if that is empty, the only DATA.
func (c *conn) endReceipt(s *stream, data []byte) error {
	if s.length >= 0 && s.receivedBytes != s.length {
		return streamError(s.id, codeProtocol)
	}
	if s.state == collecting && c.isRegular(data, true) {
		c.complete(s, data)
		return nil
	}
	if s == &c.opening {
		s = c.keepOpening()
	}
	if s.isReceived = true; len(s.body) == 0 {
		s.body = append(s.body, data...)
		c.holdFor(s, int64(len(data)))
	}
	if s.state == collecting {
		c.handleCollected(s)
	}
	s.tellHandler()
	return nil
}

// priorityBytes is the length of the priority in HEADERS and PRIORITY frames.
const priorityBytes = 5

// receivePriority checks a priority, which has no effect (section 5.3).
func (c *conn) receivePriority(f *frame) error {
	if binary.BigEndian.Uint32(f.payload)&maxWindow == f.streamID {
		return connError(codeProtocol, "a stream depends on itself")
	}
	return nil
}

func (c *conn) receiveReset(f *frame) error {
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
	if !f.has(flagAck) {
		c.out = appendFrame(c.out, framePing, flagAck, 0, f.payload)
		return c.countPing()
	}
	if c.phase == leaving && bytes.Equal(f.payload, goAwayPing) {
		c.endLeaving()
	}
	return nil
}

// receiveGoAway does nothing: the client will close the connection after its last answer.
func (c *conn) receiveGoAway(f *frame) error {
	if len(f.payload) < 8 {
		return connError(codeFrameSize, "GOAWAY has the wrong length")
	}
	return nil
}

// Settings of RFC 9113 section 6.5.2.
const (
	settingEnablePush           = 0x2
	settingMaxConcurrentStreams = 0x3
	settingInitialWindowSize    = 0x4
	settingMaxFrameSize         = 0x5
	settingMaxHeaderListSize    = 0x6
	settingBytes                = 6
)

// appendGreeting appends what a server sends first: its SETTINGS, and a larger window of the connection.
func (s *Server) appendGreeting(b []byte) []byte {
	settings := appendSetting(nil, settingMaxHeaderListSize, uint32(s.cfg.MaxHeaderBytes))
	if s.cfg.MaxStreams > 0 {
		settings = appendSetting(settings, settingMaxConcurrentStreams, s.cfg.MaxStreams)
	}
	b = appendFrame(b, frameSettings, 0, 0, settings)
	return appendNumberFrame(b, frameWindowUpdate, 0, connWindow-firstWindow)
}

func appendSetting(b []byte, id uint16, value uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(b, id), value)
}

// receiveSettings applies the settings of the client. Answers use no dynamic table and the smallest frames,
// so that only the window size has an effect.
func (c *conn) receiveSettings(f *frame) error {
	if f.has(flagAck) && len(f.payload) > 0 || len(f.payload)%settingBytes != 0 {
		return connError(codeFrameSize, "SETTINGS has the wrong length")
	}
	if f.has(flagAck) {
		return nil
	}
	c.waste += len(f.payload) / settingBytes
	initial := c.initialWindow
	for p := f.payload; len(p) > 0; p = p[settingBytes:] {
		id, value := binary.BigEndian.Uint16(p), binary.BigEndian.Uint32(p[2:])
		switch {
		case id == settingInitialWindowSize && value > maxWindow:
			return connError(codeFlowControl, "SETTINGS_INITIAL_WINDOW_SIZE is too large")
		case id == settingEnablePush && value > 1, id == settingMaxFrameSize && (value < maxFrameBytes || value >= 1<<24):
			return connError(codeProtocol, "a setting is out of range")
		case id == settingInitialWindowSize:
			initial = int64(value)
		}
	}
	if c.phase == awaitingSettings {
		c.phase = open
		if err := c.net.SetDeadline(time.Time{}); err != nil {
			return err
		}
	}
	c.out = appendFrame(c.out, frameSettings, flagAck, 0, nil)
	grows := initial > c.initialWindow
	if c.initialWindow = initial; grows {
		return c.resumeStreams()
	}
	return nil
}
