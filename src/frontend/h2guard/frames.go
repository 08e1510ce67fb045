package h2guard

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

const (
	headerLen  = 9
	settingLen = 6
	prefaceLen = len(http2.ClientPreface)
)

// frame is the header of an HTTP/2 frame.
type frame struct {
	length uint32 // of the payload, in bytes
	kind   http2.FrameType
	flags  http2.Flags
	stream uint32
}

// ended reports whether the frame is the last of its stream in its direction.
func (f frame) ended() bool {
	return f.kind == http2.FrameData && f.flags.Has(http2.FlagDataEndStream) ||
		f.kind == http2.FrameHeaders && f.flags.Has(http2.FlagHeadersEndStream)
}

// frames finds the frame headers in bytes that arrive in pieces of any size.
type frames struct {
	skip    int // bytes before the next frame header
	partial [headerLen]byte
	have    int // bytes of partial that have arrived
}

// next returns the first frame header in p and the bytes after it. It reports false if
// p ends before a header is complete.
func (f *frames) next(p []byte) (_ frame, rest []byte, ok bool) {
	n := min(f.skip, len(p))
	f.skip -= n
	p = p[n:]
	header := p
	if f.have == 0 && len(p) >= headerLen { // the usual case, without a copy
		n = headerLen
	} else {
		n = copy(f.partial[f.have:], p)
		if f.have += n; f.have < headerLen {
			return frame{}, nil, false
		}
		f.have, header = 0, f.partial[:]
	}
	fr := frame{
		length: binary.BigEndian.Uint32(header) >> 8,
		kind:   http2.FrameType(header[3]),
		flags:  http2.Flags(header[4]),
		stream: binary.BigEndian.Uint32(header[5:]) &^ (1 << 31),
	}
	f.skip = int(fr.length)
	return fr, p[n:], true
}
