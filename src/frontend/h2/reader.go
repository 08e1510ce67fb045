package h2

import (
	"errors"
	"os"
	"slices"
	"time"
)

const (
	smallBufferBytes = 512                  // the size of the read buffer of an idle connection.
	largeBufferBytes = 32 << 10             // of a busy connection. It has room for any frame.
	handOverAfter    = time.Millisecond     // how long Decide may wait on average before another goroutine reads on.
	callTime         = 5 * time.Microsecond // what Decide may take for a call without a wait.
	maxHandedOver    = 64                   // how many batches of a connection may be handed over at a time.
	maxQueuedBytes   = 256 << 10            // how much unwritten output a connection may have until its input waits.
	maxSpareBytes    = 64 << 10             // how much memory a connection keeps for output.
	plannedBytes     = 8 << 10              // how much each connection may keep: what its owner plans for an idle one.
	shrinkAfter      = time.Second          // how long a connection is idle before it frees memory.
)

// reader is the reading side of a connection. Its goroutine is the only one that reads and decodes frames.
type reader struct {
	// buffer[unread:end] is input without a complete frame. Only the reader changes these fields. buffer is nil while the
	// reader waits for input from socket.
	buffer      []byte
	socket      *socket // nil if input can only be read from conn.net.
	unread, end int
	frame       frame // the one that receive handles. A local variable would be allocated in each call.
	lastRead    time.Time
	isShrunk    bool // true if shrink has been called since lastRead.

	chargedBytes int64 // what chargeKept has charged.

	batch       *Batch        // the complete calls of the current read; nil if there are none.
	deciding    *Batch        // the batch that the reader decides; nil if it must not be handed over.
	handedOver  []*Batch      // the batches that former readers decide.
	usualCalls  int           // how many calls the largest of the latest batches had; it shrinks by an eighth each time.
	averageWait time.Duration // how long Decide waits on average; 0 without Config.DecideWaits.
}

// newBuffer returns a read buffer for more than n bytes.
func (s *Server) newBuffer(n int) []byte {
	if n < smallBufferBytes {
		return make([]byte, smallBufferBytes)
	}
	return s.buffers.Get().(*[largeBufferBytes]byte)[:]
}

// releaseBuffer returns a buffer for reuse.
func (s *Server) releaseBuffer(b []byte) {
	if len(b) == largeBufferBytes {
		s.buffers.Put((*[largeBufferBytes]byte)(b))
	}
}

// replaceBuffer moves the unread input to a new buffer for more than n bytes. It returns the old buffer.
func (c *conn) replaceBuffer(n int) (old []byte) {
	old = c.buffer
	c.buffer = c.server.newBuffer(n)
	c.end, c.unread = copy(c.buffer, old[c.unread:c.end]), 0
	return old
}

// readFrames makes the calling goroutine the reader, until the connection ends or another goroutine becomes its reader.
func (c *conn) readFrames() {
	for c.handleInput(c.read()) {
	}
}

// read waits for input and reads it.
func (c *conn) read() (int, error) {
	if c.socket != nil && c.end == 0 {
		c.server.releaseBuffer(c.buffer)
		c.buffer, c.frame.payload = nil, nil // Both refer to the same memory.
		return c.socket.readInto()
	}
	return c.net.Read(c.buffer[c.end:])
}

// handleInput handles the n bytes and the error of a read. It returns whether the calling goroutine still is the
// reader.
func (c *conn) handleInput(n int, err error) (isReader bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end += n
	if errors.Is(err, os.ErrDeadlineExceeded) && c.phase >= open && c.phase < closed {
		if err = c.shrink(); err == nil && n == 0 {
			return true
		}
	}
	c.awaitDrained()
	switch {
	case err != nil:
		c.closeLocked()
		c.server.releaseBuffer(c.buffer)
		return false
	case c.phase == closed: // The input is of no interest any more; see finish.
		c.end = 0
		return true
	}
	now := time.Now()
	c.forgetWaste(int(min(now.Sub(c.lastRead), time.Second) * wastePerSecond / time.Second))
	c.lastRead, c.isShrunk = now, false
	problem := c.receive()
	if problem == nil {
		problem = c.gather()
	}
	wasFull := c.end == len(c.buffer)
	if c.batch != nil && !c.answer(problem == nil) {
		return false
	}
	if problem != nil {
		c.fail(problem)
	}
	if wasFull && len(c.buffer) == smallBufferBytes {
		c.replaceBuffer(smallBufferBytes)
	} else {
		c.end, c.unread = copy(c.buffer, c.buffer[c.unread:c.end]), 0
	}
	c.flush()
	c.chargeKept()
	c.endIfDone()
	return true
}

// gather adds calls to a batch that has less than half as many as usual. After many answers at once a client sends as
// many calls, often in a write each, and the first of them would be a batch of its own. So gather yields the processor
// once, to the client if that waits for one, and reads again. The caller, as of handleInput, holds mu, which gather
// releases meanwhile.
func (c *conn) gather() error {
	if c.batch == nil || c.socket == nil {
		return nil
	}
	usual := c.usualCalls
	defer func() { c.usualCalls = max(len(c.batch.all), usual-(usual+7)/8) }()
	if 2*len(c.batch.all) >= usual || c.end == len(c.buffer) {
		return nil
	}
	c.mu.Unlock()
	c.server.yield()
	n := c.socket.readMore()
	c.mu.Lock()
	if c.phase == closed {
		return nil
	}
	c.end += n
	return c.receive()
}

// keptBytes returns how much memory the connection keeps between two reads, beside its streams. Only the reader calls
// it.
func (c *conn) keptBytes() int64 {
	n := cap(c.out) + cap(c.spare) + c.head.keptBytes() + c.decoder.keptBytes()
	if c.socket == nil || c.end > 0 {
		n += len(c.buffer)
	}
	return int64(n)
}

// chargeKept charges what the connection keeps until the next read, as far as it exceeds plannedBytes. The caller holds
// mu.
func (c *conn) chargeKept() {
	n := max(c.keptBytes()-plannedBytes, 0)
	if more := n - c.chargedBytes; more > 0 {
		c.chargedBytes = n
		c.hold(more)
	} else if more < 0 {
		c.chargedBytes = n
		c.account.ReleaseBytes(-more)
	}
}

// shrink frees the memory that an idle connection does not need. The caller holds mu.
func (c *conn) shrink() error {
	if c.buffer != nil {
		c.server.releaseBuffer(c.replaceBuffer(c.end))
	}
	c.decoder.shrink()
	c.head, c.headBlock, c.spare, c.frame.payload, c.isShrunk = head{}, nil, nil, nil, true
	if len(c.out) == 0 {
		c.out = nil
	}
	if len(c.streams) == 0 {
		c.streams = make(map[uint32]*stream)
	}
	c.chargeKept()
	return c.net.SetReadDeadline(time.Time{})
}

// answer decides c.batch and sends its answers. The caller, as of handleInput, holds mu, which answer releases while
// Decide runs.
func (c *conn) answer(mayHandOver bool) (isReader bool) {
	b := c.batch
	c.batch, b.conn, b.Received = nil, c, c.lastRead
	waits := c.server.cfg.DecideWaits
	if waits {
		b.sort()
		c.flush() // Nothing that is ready should wait for the store.
	}
	if waits && mayHandOver {
		if c.deciding = b; c.averageWait > handOverAfter {
			c.handOver()
		}
	}
	c.mu.Unlock()
	b.decide()
	c.mu.Lock()
	if waits {
		wait := max(time.Since(b.Received)-time.Duration(len(b.all))*callTime, 0)
		c.averageWait += (wait - c.averageWait) / 8
	}
	if isReader = b.buffer == nil; isReader {
		c.deciding = nil
	}
	c.handedOver = slices.DeleteFunc(c.handedOver, func(other *Batch) bool { return other == b })
	c.sendAnswers(b)
	if b.out == nil { // The memory for output is that of batches, so that waiting connections hold none.
		b.out, c.spare = c.spare, nil
	}
	if !isReader {
		c.account.ReleaseBytes(int64(len(b.buffer)))
		c.server.releaseBuffer(b.buffer)
		c.endIfDone()
	}
	c.server.releaseBatch(b)
	return isReader
}

// handOver makes a new goroutine the reader. The batch c.deciding keeps the buffer with its messages. The caller holds
// mu.
func (c *conn) handOver() {
	b := c.deciding
	if len(c.handedOver) == maxHandedOver || c.phase == closed {
		return
	}
	c.hold(int64(len(c.buffer)))
	room := c.end - c.unread
	if c.end == len(c.buffer) { // More input waits than fits into a small buffer.
		room = smallBufferBytes
	}
	c.deciding, b.buffer = nil, c.replaceBuffer(room)
	c.handedOver = append(c.handedOver, b)
	c.spawn(c.readFrames)
}

// undecided yields the calls of the current read and of the batches that are handed over. The caller holds mu.
func (c *conn) undecided(yield func(*Call) bool) {
	for _, b := range append(c.handedOver, c.batch) {
		for i := 0; b != nil && i < len(b.all); i++ {
			if !yield(&b.all[i]) {
				return
			}
		}
	}
}

// findUndecided returns the call that undecided yields with this stream, and when it arrived; nil if there is none.
// Clients may ask for thousands in a row, while thousands are undecided. The caller holds mu.
func (c *conn) findUndecided(streamID uint32) (call *Call, received time.Time) {
	if b := c.batch; b != nil { // A client that takes back a call of the same read most often takes back the last one.
		for i := len(b.all) - 1; i >= 0; i-- {
			if b.all[i].streamID == streamID {
				return &b.all[i], c.lastRead
			}
		}
	}
	for _, b := range c.handedOver {
		if call := b.find(streamID); call != nil {
			return call, b.Received
		}
	}
	return nil, time.Time{}
}
