package h2guard

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

const (
	frameHeaderBytes = 9
	settingBytes     = 6
)

// frameHeader is the header of an HTTP/2 frame. That of x/net has a fifth field, so that the compiler would keep it in
// memory.
type frameHeader struct {
	length   uint32 // of the payload.
	kind     http2.FrameType
	flags    http2.Flags
	streamID uint32
}

// endsStream reports whether the frame is the last of its stream in its direction.
func (h frameHeader) endsStream() bool {
	return h.kind == http2.FrameData && h.flags.Has(http2.FlagDataEndStream) ||
		h.kind == http2.FrameHeaders && h.flags.Has(http2.FlagHeadersEndStream)
}

// frameScanner finds the frame headers in bytes that arrive in pieces of any size.
type frameScanner struct {
	bytesToSkip int                    // how many bytes follow before the next header.
	header      [frameHeaderBytes]byte // the start of the next header, if it is incomplete.
	headerBytes int                    // how much of header has arrived.
}

// next returns the first frame header in p and the bytes after it; not ok if p ends before that.
func (f *frameScanner) next(p []byte) (_ frameHeader, rest []byte, ok bool) {
	n := min(f.bytesToSkip, len(p))
	f.bytesToSkip -= n
	p = p[n:]
	header := p
	if f.headerBytes == 0 && len(p) >= frameHeaderBytes { // Usually the header is complete, and needs no copy.
		n = frameHeaderBytes
	} else {
		n = copy(f.header[f.headerBytes:], p)
		if f.headerBytes += n; f.headerBytes < frameHeaderBytes {
			return frameHeader{}, nil, false
		}
		f.headerBytes, header = 0, f.header[:]
	}
	h := frameHeader{
		length:   binary.BigEndian.Uint32(header) >> 8,
		kind:     http2.FrameType(header[3]),
		flags:    http2.Flags(header[4]),
		streamID: binary.BigEndian.Uint32(header[5:]) &^ (1 << 31),
	}
	f.bytesToSkip = int(h.length)
	return h, p[n:], true
}
