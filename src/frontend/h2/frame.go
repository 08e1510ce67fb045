package h2

import (
	"encoding/binary"
	"fmt"
)

// clientPreface is what a client sends first (RFC 9113 section 3.4).
const clientPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

const (
	frameHeaderBytes = 9
	// maxFrameBytes is the largest payload of a frame in both directions: the default of SETTINGS_MAX_FRAME_SIZE.
	maxFrameBytes = 16 << 10
	maxWindow     = 1<<31 - 1
)

// frameType is the type of a frame (RFC 9113 section 6).
type frameType uint8

const (
	frameData frameType = iota
	frameHeaders
	framePriority
	frameResetStream
	frameSettings
	framePushPromise
	framePing
	frameGoAway
	frameWindowUpdate
	frameContinuation
)

const (
	flagEndStream  = 0x1 // flagEndStream is for DATA and HEADERS.
	flagAck        = 0x1 // flagAck is for SETTINGS and PING.
	flagEndHeaders = 0x4
	flagPadded     = 0x8
	flagPriority   = 0x20
)

// frame is one frame from the client.
type frame struct {
	kind     frameType
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
		return 0, connError(codeFrameSize, "a frame is too long")
	}
	if len(b) < frameHeaderBytes+n {
		return 0, nil
	}
	f.kind, f.flags = frameType(b[3]), b[4]
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
		return connError(codeProtocol, "the padding is longer than its frame")
	}
	f.payload = f.payload[1 : len(f.payload)-int(f.payload[0])]
	return nil
}

// appendFrameHeader appends the header of a frame.
func appendFrameHeader(b []byte, payloadBytes int, kind frameType, flags uint8, streamID uint32) []byte {
	b = append(b, byte(payloadBytes>>16), byte(payloadBytes>>8), byte(payloadBytes), byte(kind), flags)
	return binary.BigEndian.AppendUint32(b, streamID)
}

// appendFrame appends a frame.
func appendFrame(b []byte, kind frameType, flags uint8, streamID uint32, payload []byte) []byte {
	return append(appendFrameHeader(b, len(payload), kind, flags, streamID), payload...)
}

// appendNumberFrame appends a frame whose payload is one number: RST_STREAM or WINDOW_UPDATE.
func appendNumberFrame(b []byte, kind frameType, streamID, number uint32) []byte {
	return binary.BigEndian.AppendUint32(appendFrameHeader(b, 4, kind, 0, streamID), number)
}

// appendHeaderFrame appends a header block in a HEADERS frame and, if it is long, in CONTINUATION frames.
func appendHeaderFrame(b []byte, flags uint8, streamID uint32, block []byte) []byte {
	kind := frameHeaders
	for ; len(block) > maxFrameBytes; block = block[maxFrameBytes:] {
		b = appendFrame(b, kind, flags&^flagEndHeaders, streamID, block[:maxFrameBytes])
		kind, flags = frameContinuation, flags&^flagEndStream
	}
	return appendFrame(b, kind, flags, streamID, block)
}

// errorCode is an error code of RFC 9113 section 7.
type errorCode uint32

const (
	codeNone            errorCode = 0x0
	codeProtocol        errorCode = 0x1
	codeInternal        errorCode = 0x2
	codeFlowControl     errorCode = 0x3
	codeStreamClosed    errorCode = 0x5
	codeFrameSize       errorCode = 0x6
	codeRefusedStream   errorCode = 0x7
	codeCompression     errorCode = 0x9
	codeEnhanceYourCalm errorCode = 0xb
)

// violation ends a connection or, with a streamID, only that stream (RFC 9113 section 5.4). The reason
// of a connection's end is for its GOAWAY and for logs.
type violation struct {
	streamID uint32
	code     errorCode
	reason   string
}

func connError(code errorCode, reason string) error { return violation{0, code, reason} }
func streamError(streamID uint32, code errorCode) error {
	return violation{streamID: streamID, code: code}
}

func (v violation) Error() string {
	return fmt.Sprintf("h2: %s (error code %d, stream %d)", v.reason, v.code, v.streamID)
}
