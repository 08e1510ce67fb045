package divvy

import "bytes"

// lineBuffer splits input into lines. A line is valid until the next call of freeSpace. The input that
// nextLine has not returned yet is buf[lineBegin:inputEnd]; buf[lineBegin:scannedEnd] has no line end.
type lineBuffer struct {
	buf                             []byte
	lineBegin, scannedEnd, inputEnd int
}

// nextLine returns the next line without "\n" or "\r\n". If atEnd is set, the last line needs no line end.
func (l *lineBuffer) nextLine(atEnd bool) (line []byte, ok bool) {
	i := bytes.IndexByte(l.buf[l.scannedEnd:l.inputEnd], '\n')
	if i < 0 {
		l.scannedEnd = l.inputEnd
		line = l.buf[l.lineBegin:l.inputEnd]
		if !atEnd || len(line) == 0 {
			return nil, false
		}
		l.lineBegin = l.inputEnd
		return line, true
	}
	line = l.buf[l.lineBegin : l.scannedEnd+i]
	l.lineBegin = l.scannedEnd + i + 1
	l.scannedEnd = l.lineBegin
	return bytes.TrimSuffix(line, carriageReturn), true
}

var carriageReturn = []byte("\r")

// pendingBytes returns how many bytes of an incomplete line have been read.
func (l *lineBuffer) pendingBytes() int { return l.inputEnd - l.lineBegin }

// freeSpace returns the free part of the buffer. The caller must have called nextLine until it returned
// false. The result is empty if an incomplete line fills the buffer.
func (l *lineBuffer) freeSpace() []byte {
	if l.lineBegin > 0 {
		l.inputEnd = copy(l.buf, l.buf[l.lineBegin:l.inputEnd])
		l.lineBegin, l.scannedEnd = 0, l.inputEnd
	}
	return l.buf[l.inputEnd:]
}

// recordRead tells l that n bytes were read into freeSpace().
func (l *lineBuffer) recordRead(n int) { l.inputEnd += n }

// resize changes the buffer's size to n bytes. The incomplete line must fit into them.
func (l *lineBuffer) resize(n int) {
	buf := make([]byte, n)
	l.inputEnd = copy(buf, l.buf[l.lineBegin:l.inputEnd])
	l.buf, l.lineBegin, l.scannedEnd = buf, 0, l.inputEnd
}
