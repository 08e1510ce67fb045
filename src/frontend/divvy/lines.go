package divvy

import "bytes"

// lines splits input into lines. A line is valid until the next call of room.
type lines struct {
	buf     []byte
	begin   int // of the input that next has not returned
	scanned int // no line ends between begin and scanned
	end     int // of the input
}

// next returns the next line, without its "\n" or "\r\n". At the end of the input it
// also returns a last line that has no end.
func (l *lines) next(atEnd bool) (line []byte, ok bool) {
	i := bytes.IndexByte(l.buf[l.scanned:l.end], '\n')
	if i < 0 {
		l.scanned = l.end
		line = l.buf[l.begin:l.end]
		if !atEnd || len(line) == 0 {
			return nil, false
		}
		l.begin = l.end
		return line, true
	}
	line = l.buf[l.begin : l.scanned+i]
	l.begin = l.scanned + i + 1
	l.scanned = l.begin
	return bytes.TrimSuffix(line, cr), true
}

var cr = []byte("\r")

// pending returns how many bytes of an incomplete line were read.
func (l *lines) pending() int { return l.end - l.begin }

// room returns the free part of the buffer. Call it after next returned false. It is
// empty if an incomplete line fills the buffer.
func (l *lines) room() []byte {
	if l.begin > 0 {
		l.end = copy(l.buf, l.buf[l.begin:l.end])
		l.begin, l.scanned = 0, l.end
	}
	return l.buf[l.end:]
}

// read tells l that n bytes were read into room.
func (l *lines) read(n int) { l.end += n }

// resize changes the buffer's size to n bytes, which must hold the incomplete line.
func (l *lines) resize(n int) {
	buf := make([]byte, n)
	l.end = copy(buf, l.buf[l.begin:l.end])
	l.buf, l.begin, l.scanned = buf, 0, l.end
}
