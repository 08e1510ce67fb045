package h2

import (
	"fmt"
	"strings"
)

// statusOK is the field ":status: 200", which is number 8 of the static table.
const statusOK = "\x88"

// maxErrorText is how many bytes of an error text a client gets.
const maxErrorText = 4 << 10

// literalField returns a field that does not enter the dynamic table of the client.
func literalField(name, value string) string {
	return string(appendText(appendText([]byte{0}, name), value))
}

// appendText appends a string without compression (RFC 7541 section 5.2).
func appendText(b []byte, s string) []byte {
	const mask = 1<<7 - 1
	n := len(s)
	if n < mask {
		return append(append(b, byte(n)), s...)
	}
	b = append(b, mask)
	for n -= mask; n >= 0x80; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return append(append(b, byte(n)), s...)
}

// appendHeaderFrame appends a header block in a HEADERS frame and, if it is long, in CONTINUATION frames.
func appendHeaderFrame(b []byte, flags uint8, streamID uint32, block string) []byte {
	for kind := frameHeaders; ; kind = frameContinuation {
		n := min(len(block), maxFrameBytes)
		partFlags := flags
		if n < len(block) {
			partFlags &^= flagEndHeaders
		}
		b = append(appendFrameHeader(b, n, kind, partFlags, streamID), block[:n]...)
		if block = block[n:]; block == "" {
			return b
		}
		flags &^= flagEndStream
	}
}

// percentEncode returns text as gRPC sends a grpc-message: bytes other than printable ASCII are percent-encoded.
func percentEncode(text string) string {
	text = text[:min(len(text), maxErrorText)]
	var out strings.Builder
	for i := range len(text) {
		if b := text[i]; b < ' ' || b > '~' || b == '%' {
			fmt.Fprintf(&out, "%%%02X", b)
		} else {
			out.WriteByte(b)
		}
	}
	return out.String()
}
