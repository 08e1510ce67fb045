package divvy

import "bytes"

// lines cuts what is read into lines. What is read goes behind what is there; a
// line is valid until the next call of room.
type lines struct {
	buf     []byte
	begin   int // of what is not taken yet
	scanned int // up to here no line ends
	end     int // of what was read
}

// next takes the next whole line, without its "\n" or "\r\n".
func (l *lines) next() (line []byte, ok bool) {
	i := bytes.IndexByte(l.buf[l.scanned:l.end], '\n')
	if i < 0 {
		l.scanned = l.end
		return nil, false
	}
	line = l.buf[l.begin : l.scanned+i]
	l.begin = l.scanned + i + 1
	l.scanned = l.begin
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	return line, true
}

// pending is how much of a line has been read whose end has not.
func (l *lines) pending() int { return l.end - l.begin }

// last takes what stands behind the last whole line.
func (l *lines) last() []byte {
	line := l.buf[l.begin:l.end]
	l.begin, l.scanned = l.end, l.end
	return line
}

// room is where to read to, once next has found nothing; empty when the line
// that has begun fills all there is.
func (l *lines) room() []byte {
	if l.begin > 0 {
		l.end = copy(l.buf, l.buf[l.begin:l.end])
		l.begin, l.scanned = 0, l.end
	}
	return l.buf[l.end:]
}

// read says that n bytes were read to room.
func (l *lines) read(n int) { l.end += n }

// resize gives l a buffer of n bytes, which what is pending fits in.
func (l *lines) resize(n int) {
	buf := make([]byte, n)
	l.end = copy(buf, l.buf[l.begin:l.end])
	l.buf, l.begin, l.scanned = buf, 0, l.end
}
