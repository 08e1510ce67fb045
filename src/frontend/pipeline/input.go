package pipeline

// inputBuffer holds what has been read and not been answered: buf[begin:end].
type inputBuffer struct {
	buf        []byte
	begin, end int
}

// pending returns the input that has not been answered. It is valid until the next call of freeSpace.
func (b *inputBuffer) pending() []byte { return b.buf[b.begin:b.end] }

func (b *inputBuffer) consume(n int) { b.begin += n }

// freeSpace returns the free part of the buffer. It is empty if an incomplete request fills the buffer.
func (b *inputBuffer) freeSpace() []byte {
	if b.begin > 0 {
		b.end = copy(b.buf, b.buf[b.begin:b.end])
		b.begin = 0
	}
	return b.buf[b.end:]
}

// recordRead tells b that n bytes were read into freeSpace().
func (b *inputBuffer) recordRead(n int) { b.end += n }

// resize changes the buffer's size to n bytes. The pending input must fit into them.
func (b *inputBuffer) resize(n int) {
	buf := make([]byte, n)
	b.end = copy(buf, b.pending())
	b.buf, b.begin = buf, 0
}
