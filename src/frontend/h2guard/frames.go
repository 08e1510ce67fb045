package h2guard

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

const (
	frameHeaderBytes = 9
	settingBytes     = 6
	prefaceBytes     = len(http2.ClientPreface)
)

// frameHeader is the header of an HTTP/2 frame.
type frameHeader struct {
	payloadBytes uint32
	frameType    http2.FrameType
	flags        http2.Flags
	streamID     uint32
}

// endsStream reports whether the frame is the last of its stream in its direction.
func (f frameHeader) endsStream() bool {
	return f.frameType == http2.FrameData && f.flags.Has(http2.FlagDataEndStream) ||
		f.frameType == http2.FrameHeaders && f.flags.Has(http2.FlagHeadersEndStream)
}

// frameScanner finds the frame headers in bytes that arrive in pieces of any size. The next header
// starts after bytesToSkip bytes. Its first partialHeaderBytes bytes have arrived and are in partialHeader.
type frameScanner struct {
	bytesToSkip        int
	partialHeader      [frameHeaderBytes]byte
	partialHeaderBytes int
}

// nextHeader returns the first frame header in p and the bytes after it; not ok if p ends before that.
func (f *frameScanner) nextHeader(p []byte) (_ frameHeader, rest []byte, ok bool) {
	n := min(f.bytesToSkip, len(p))
	f.bytesToSkip -= n
	p = p[n:]
	header := p
	if f.partialHeaderBytes == 0 && len(p) >= frameHeaderBytes { // Usually the header is complete, and needs no copy.
		n = frameHeaderBytes
	} else {
		n = copy(f.partialHeader[f.partialHeaderBytes:], p)
		if f.partialHeaderBytes += n; f.partialHeaderBytes < frameHeaderBytes {
			return frameHeader{}, nil, false
		}
		f.partialHeaderBytes, header = 0, f.partialHeader[:]
	}
	fr := frameHeader{
		payloadBytes: binary.BigEndian.Uint32(header) >> 8,
		frameType:    http2.FrameType(header[3]),
		flags:        http2.Flags(header[4]),
		streamID:     binary.BigEndian.Uint32(header[5:]) &^ (1 << 31),
	}
	f.bytesToSkip = int(fr.payloadBytes)
	return fr, p[n:], true
}
