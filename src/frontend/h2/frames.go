package h2

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/net/http2"
)

const (
	frameHeaderBytes = 9
	maxFrameBytes    = 16 << 10  // the largest payload in both directions: the default of SETTINGS_MAX_FRAME_SIZE.
	maxWindow        = 1<<31 - 1 // the largest flow control window.
	priorityBytes    = 5         // the length of the priority in HEADERS and PRIORITY frames.
	settingBytes     = 6         // the length of a setting.
)

const (
	flagEndStream  = 0x1 // for DATA and HEADERS.
	flagAck        = 0x1 // for SETTINGS and PING.
	flagEndHeaders = 0x4
	flagPadded     = 0x8
	flagPriority   = 0x20
)

// frame is one frame from the client.
type frame struct {
	kind     http2.FrameType
	flags    uint8
	streamID uint32
	payload  []byte
}

func (f *frame) has(flag uint8) bool { return f.flags&flag != 0 }

// readFrame reads the frame at the start of b into f. It returns its length, or 0 if b ends before the frame does.
func readFrame(b []byte, f *frame) (int, error) {
	if len(b) < frameHeaderBytes {
		return 0, nil
	}
	n := int(b[0])<<16 | int(b[1])<<8 | int(b[2])
	if n > maxFrameBytes {
		return 0, connError(http2.ErrCodeFrameSize, "a frame is too long")
	}
	if len(b) < frameHeaderBytes+n {
		return 0, nil
	}
	f.kind, f.flags = http2.FrameType(b[3]), b[4]
	f.streamID = binary.BigEndian.Uint32(b[5:]) & maxWindow // The first bit is reserved.
	f.payload = b[frameHeaderBytes : frameHeaderBytes+n]
	return frameHeaderBytes + n, nil
}

// removePadding removes the padding from the payload of a DATA or HEADERS frame (RFC 9113 section 6.1).
func (f *frame) removePadding() error {
	if !f.has(flagPadded) {
		return nil
	}
	if len(f.payload) == 0 || int(f.payload[0]) >= len(f.payload) {
		return connError(http2.ErrCodeProtocol, "the padding is longer than its frame")
	}
	f.payload = f.payload[1 : len(f.payload)-int(f.payload[0])]
	return nil
}

// appendFrameHeader appends the header of a frame.
func appendFrameHeader(b []byte, payloadBytes int, kind http2.FrameType, flags uint8, streamID uint32) []byte {
	b = append(b, byte(payloadBytes>>16), byte(payloadBytes>>8), byte(payloadBytes), byte(kind), flags)
	return binary.BigEndian.AppendUint32(b, streamID)
}

// appendFrame appends a frame.
func appendFrame(b []byte, kind http2.FrameType, flags uint8, streamID uint32, payload []byte) []byte {
	return append(appendFrameHeader(b, len(payload), kind, flags, streamID), payload...)
}

// appendNumberFrame appends a frame whose payload is one number: RST_STREAM or WINDOW_UPDATE.
func appendNumberFrame(b []byte, kind http2.FrameType, streamID, number uint32) []byte {
	return binary.BigEndian.AppendUint32(appendFrameHeader(b, 4, kind, 0, streamID), number)
}

// appendHeaderFrame appends a header block in a HEADERS frame and, if it is long, in CONTINUATION frames.
func appendHeaderFrame(b []byte, flags uint8, streamID uint32, block []byte) []byte {
	kind := http2.FrameHeaders
	for ; len(block) > maxFrameBytes; block = block[maxFrameBytes:] {
		b = appendFrame(b, kind, flags&^flagEndHeaders, streamID, block[:maxFrameBytes])
		kind, flags = http2.FrameContinuation, flags&^flagEndStream
	}
	return appendFrame(b, kind, flags, streamID, block)
}

// place says which streams a type of frames is for.
type place uint8

const (
	onConnection place = iota // stream 0 only.
	onStream                  // onStream: any other stream.
	onOpened                  // onOpened: streams that the client has opened, even if they have ended.
	onAny                     // onAny: onConnection or onOpened.
)

// frameRules says what frames are like, and how they are handled (RFC 9113 section 6).
var frameRules = [...]struct {
	place   place
	length  int                       // of the payload, or of the shortest one if negative.
	receive func(*conn, *frame) error // nil for frames that clients cannot send.
}{
	http2.FrameData:         {onOpened, 0, (*conn).receiveData},
	http2.FrameHeaders:      {onStream, 0, (*conn).receiveHeaders},
	http2.FramePriority:     {onStream, priorityBytes, (*conn).receivePriority},
	http2.FrameRSTStream:    {onOpened, 4, (*conn).receiveReset},
	http2.FrameSettings:     {onConnection, 0, (*conn).receiveSettings},
	http2.FramePushPromise:  {onStream, 0, nil},
	http2.FramePing:         {onConnection, 8, (*conn).receivePing},
	http2.FrameGoAway:       {onConnection, -8, (*conn).receiveGoAway},
	http2.FrameWindowUpdate: {onAny, 4, (*conn).receiveWindowUpdate},
	http2.FrameContinuation: {onStream, 0, (*conn).receiveContinuation},
}

// receive handles and removes the whole frames in the read buffer. Complete calls go to c.batch. The caller holds mu,
// as below.
func (c *conn) receive() error {
	if c.phase == awaitingPreface {
		input := c.buffer[c.unread:c.end]
		n := min(len(input), len(http2.ClientPreface))
		switch {
		case string(input[:n]) != http2.ClientPreface[:n]:
			return violation{
				code: http2.ErrCodeProtocol, reason: "the connection preface is not that of HTTP/2",
				cause: WrongProtocol(input),
			}
		case n < len(http2.ClientPreface):
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
			v := err.(violation)
			if v.streamID == 0 {
				return err
			}
			c.resetStream(v.streamID, v.code)
		}
	}
	if c.waste > maxWaste {
		return connError(http2.ErrCodeEnhanceYourCalm, "too many frames without calls")
	}
	return nil
}

// receiveFrame handles a frame.
func (c *conn) receiveFrame(f *frame) error {
	switch {
	case c.block.streamID != 0 && f.kind != http2.FrameContinuation:
		return connError(http2.ErrCodeProtocol, "a frame interrupts a header block")
	case c.phase == awaitingSettings && (f.kind != http2.FrameSettings || f.has(flagAck)):
		return connError(http2.ErrCodeProtocol, "the first frame is not SETTINGS")
	case int(f.kind) >= len(frameRules):
		c.waste++
		return nil // Frames of unknown types are ignored.
	}
	rule := &frameRules[f.kind]
	if f.kind != http2.FrameData {
		c.waste++ // openStream takes it back for the HEADERS of a stream.
	}
	opened := f.streamID%2 == 1 && f.streamID <= c.lastStreamID
	switch {
	case rule.length > 0 && len(f.payload) != rule.length || len(f.payload) < -rule.length:
		return connError(http2.ErrCodeFrameSize, f.kind.String()+" has the wrong length")
	case (f.streamID == 0) != (rule.place == onConnection) && rule.place != onAny:
		return connError(http2.ErrCodeProtocol, f.kind.String()+" is for the wrong stream")
	case !opened && f.streamID != 0 && rule.place >= onOpened:
		return connError(http2.ErrCodeProtocol, f.kind.String()+" is for a stream that is idle")
	case rule.receive == nil:
		return connError(http2.ErrCodeProtocol, "clients cannot send "+f.kind.String())
	}
	return rule.receive(c, f)
}

func (c *conn) receiveData(f *frame) error {
	n := int64(len(f.payload))
	// The window never gets smaller than a frame. Input is bounded by the windows of streams and by the account.
	if c.receiveWindow -= n; c.receiveWindow < connWindow/2 {
		c.out = appendNumberFrame(c.out, http2.FrameWindowUpdate, 0, uint32(connWindow-c.receiveWindow))
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
		return connError(http2.ErrCodeFlowControl, "DATA exceeds the window of its stream")
	}
	s.receiveWindow -= n
	s.receivedBytes += used
	if s.length >= 0 && s.receivedBytes > s.length {
		return streamError(s.id, http2.ErrCodeProtocol)
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
		switch {
		case s.request != nil:
			c.handleWhenReady(s)
		case !c.isRegular(s.body, false):
			c.handleCollected(s)
		}
	case s.state == handled:
		c.sendCredit(s, s.exchange.waitingBytes())
		s.tellHandler()
	}
	return nil
}

// endReceipt ends the client's side of a stream. data is s.body or, if that is empty, the only DATA.
func (c *conn) endReceipt(s *stream, data []byte) error {
	if s.length >= 0 && s.receivedBytes != s.length {
		return streamError(s.id, http2.ErrCodeProtocol)
	}
	if s.state == collecting && s.request == nil && c.isRegular(data, true) {
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
	switch {
	case s.state == collecting && s.request == nil:
		c.handleCollected(s)
	case s.state == collecting:
		c.handleWhenReady(s)
	}
	s.tellHandler()
	return nil
}

// receivePriority checks a priority, which has no effect (section 5.3).
func (c *conn) receivePriority(f *frame) error {
	if binary.BigEndian.Uint32(f.payload)&maxWindow == f.streamID {
		return connError(http2.ErrCodeProtocol, "a stream depends on itself")
	}
	return nil
}

func (c *conn) receiveReset(f *frame) error {
	if c.endByID(f.streamID) {
		c.waste++
	}
	if f.streamID == c.lastResetID {
		c.lastResetID-- // The client has ended the stream, too, so that nothing may follow.
	}
	return nil
}

var (
	goAwayPing = []byte("go away!") // the content of the PING that follows the first GOAWAY: is it known?
	livePing   = []byte("alive?!?") // of the PING to a silent client.
)

func (c *conn) receivePing(f *frame) error {
	if f.has(flagAck) {
		if c.phase == leaving && bytes.Equal(f.payload, goAwayPing) {
			c.endLeaving()
		}
		return nil
	}
	c.out = appendFrame(c.out, http2.FramePing, flagAck, 0, f.payload)
	isEarly := c.lastRead.Sub(c.lastPing) < c.server.cfg.MinClientPingInterval
	c.lastPing = c.lastRead
	if !isEarly {
		c.pingStrikes = 0
	} else if c.pingStrikes++; c.pingStrikes > maxPingStrikes {
		return connError(http2.ErrCodeEnhanceYourCalm, "too_many_pings") // gRPC clients look for this text.
	}
	return nil
}

// receiveGoAway does nothing: the client will close the connection after its last answer.
func (c *conn) receiveGoAway(*frame) error { return nil }

// appendGreeting appends what a server sends first: its SETTINGS, and a larger window of the connection.
func (s *Server) appendGreeting(b []byte) []byte {
	settings := binary.BigEndian.AppendUint32([]byte{0, byte(http2.SettingMaxHeaderListSize)}, MaxHeaderBytes)
	if most := s.cfg.MaxStreams; most > 0 {
		settings = binary.BigEndian.AppendUint32(append(settings, 0, byte(http2.SettingMaxConcurrentStreams)), most)
	}
	b = appendFrame(b, http2.FrameSettings, 0, 0, settings)
	return appendNumberFrame(b, http2.FrameWindowUpdate, 0, connWindow-firstWindow)
}

// receiveSettings checks the settings of the client. Only the window size matters to answers, which use no dynamic
// table.
func (c *conn) receiveSettings(f *frame) error {
	if f.has(flagAck) && len(f.payload) > 0 || len(f.payload)%settingBytes != 0 {
		return connError(http2.ErrCodeFrameSize, "SETTINGS has the wrong length")
	}
	if f.has(flagAck) {
		return nil
	}
	c.waste += len(f.payload) / settingBytes
	window := c.initialWindow
	for p := f.payload; len(p) > 0; p = p[settingBytes:] {
		s := http2.Setting{ID: http2.SettingID(binary.BigEndian.Uint16(p)), Val: binary.BigEndian.Uint32(p[2:])}
		if err := s.Valid(); err != nil {
			return connError(http2.ErrCode(err.(http2.ConnectionError)), s.ID.String()+" is out of range")
		}
		if s.ID == http2.SettingInitialWindowSize {
			window = int64(s.Val)
		}
	}
	if c.phase == awaitingSettings {
		c.phase = open
		_ = c.net.SetDeadline(time.Time{}) // If this fails, so does the next read.
	}
	c.out = appendFrame(c.out, http2.FrameSettings, flagAck, 0, nil)
	return c.setInitialWindow(window)
}

// violation ends a stream or, without a streamID, the connection (RFC 9113 section 5.4). The reason is for GOAWAY and
// logs.
type violation struct {
	streamID uint32
	code     http2.ErrCode
	reason   string
	cause    error // nil, or a *WrongProtocolError.
}

func connError(code http2.ErrCode, reason string) error { return violation{code: code, reason: reason} }

func streamError(id uint32, code http2.ErrCode) error {
	return violation{streamID: id, code: code, reason: "a stream is reset"}
}

func (v violation) Unwrap() error { return v.cause }

func (v violation) Error() string {
	if v.cause != nil {
		return v.cause.Error()
	}
	return fmt.Sprintf("h2: %s (error code %d, stream %d)", v.reason, v.code, v.streamID)
}
