package h2guard

import "encoding/binary"

// Frame types and flags of RFC 9113.
const (
	frameData         = 0x0
	frameHeaders      = 0x1
	frameRSTStream    = 0x3
	frameSettings     = 0x4
	frameContinuation = 0x9

	flagEndStream = 0x1 // of DATA and HEADERS
)

const (
	headerLen  = 9
	settingLen = 6
	prefaceLen = len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
)

// frame is the header of an HTTP/2 frame.
type frame struct {
	length uint32 // of the payload, in bytes
	kind   byte
	flags  byte
	stream uint32
}

// ended reports whether the frame is the last of its stream in its direction.
func (f frame) ended() bool {
	return f.flags&flagEndStream != 0 && (f.kind == frameData || f.kind == frameHeaders)
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
		kind:   header[3],
		flags:  header[4],
		stream: binary.BigEndian.Uint32(header[5:]) &^ (1 << 31),
	}
	f.skip = int(fr.length)
	return fr, p[n:], true
}
