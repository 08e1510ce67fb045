package h2

import (
	"encoding/binary"
	"time"
)

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
	b = append(appendFrameHeader(b, len(settings), frameSettings, 0, 0), settings...)
	return appendNumberFrame(b, frameWindowUpdate, 0, connWindow-firstWindow)
}

func appendSetting(b []byte, id uint16, value uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(b, id), value)
}

// receiveSettings applies the settings of the client. Answers use no dynamic table and the smallest frames,
// so that only the window size has an effect.
func (c *conn) receiveSettings(f *frame) error {
	switch {
	case f.streamID != 0:
		return connError{codeProtocol, "SETTINGS for a stream"}
	case f.has(flagAck) && len(f.payload) > 0, len(f.payload)%settingBytes != 0:
		return connError{codeFrameSize, "SETTINGS has the wrong length"}
	case f.has(flagAck):
		return nil
	}
	c.waste += len(f.payload) / settingBytes
	initial := c.initialWindow
	for p := f.payload; len(p) > 0; p = p[settingBytes:] {
		value := binary.BigEndian.Uint32(p[2:])
		switch binary.BigEndian.Uint16(p) {
		case settingEnablePush:
			if value > 1 {
				return connError{codeProtocol, "SETTINGS_ENABLE_PUSH is neither 0 nor 1"}
			}
		case settingInitialWindowSize:
			if value > maxWindow {
				return connError{codeFlowControl, "SETTINGS_INITIAL_WINDOW_SIZE is too large"}
			}
			initial = int64(value)
		case settingMaxFrameSize:
			if value < maxFrameBytes || value >= 1<<24 {
				return connError{codeProtocol, "SETTINGS_MAX_FRAME_SIZE is out of range"}
			}
		}
	}
	if c.phase == awaitingSettings {
		c.phase = open
		if err := c.net.SetReadDeadline(time.Time{}); err != nil {
			return err
		}
	}
	c.out = appendFrameHeader(c.out, 0, frameSettings, flagAck, 0)
	return c.setInitialWindow(initial)
}
