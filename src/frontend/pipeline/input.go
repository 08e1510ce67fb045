package pipeline

import (
	"math/bits"
	"sync"
)

// largeBuffers has pools of large read buffers, by the binary logarithm of their size. Without it clients that send
// long requests at once leave garbage faster than it is collected.
type largeBuffers [bits.UintSize]sync.Pool

// take returns a buffer of n bytes. Its content may be that of other clients.
func (l *largeBuffers) take(n int) []byte {
	if b, ok := l[bits.Len(uint(n))].Get().(*[]byte); ok && cap(*b) >= n {
		return (*b)[:n]
	}
	return make([]byte, n)
}

// put keeps a buffer for take, if it is large.
func (l *largeBuffers) put(b []byte) {
	if len(b) > readBufferBytes {
		l[bits.Len(uint(len(b)))].Put(&b)
	}
}

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
func (b *inputBuffer) resize(n int, large *largeBuffers) {
	buf := large.take(n)
	b.end = copy(buf, b.pending())
	large.put(b.buf)
	b.buf, b.begin = buf, 0
}
