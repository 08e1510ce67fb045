package h2

import "encoding/binary"

const (
	// maxBlockBytes bounds a header block before its decompression.
	maxBlockBytes = 64 << 10
	// maxContinuations bounds the frames of a header block: full frames are enough for maxBlockBytes.
	maxContinuations = 16
)

// blockReader reads the header blocks of a connection. Only the reader uses it.
type blockReader struct {
	decoder decoder
	head    head // head is that of the last block.
	// headBlock is the block of head if decoding it again would change nothing, else empty.
	headBlock []byte
	block     headerBlock // block is incomplete.
}

// headerBlock is a header block that consists of several frames (RFC 9113 section 4.3). Until
// its end, the client may send nothing but its CONTINUATION frames.
type headerBlock struct {
	bytes         []byte
	streamID      uint32 // streamID is 0 if there is no incomplete block.
	endsStream    bool
	continuations int
}

func (c *conn) receiveHeaders(f *frame) error {
	if f.streamID%2 == 0 {
		return connError{codeProtocol, "HEADERS for a stream that clients cannot open"}
	}
	if err := f.removePadding(); err != nil {
		return err
	}
	if f.has(flagPriority) {
		if len(f.payload) < priorityBytes {
			return connError{codeFrameSize, "HEADERS is shorter than its priority"}
		}
		if dependsOn(f.payload) == f.streamID {
			return connError{codeProtocol, "a stream depends on itself"}
		}
		f.payload = f.payload[priorityBytes:]
	}
	if f.has(flagEndHeaders) {
		return c.receiveBlock(f.streamID, f.payload, f.has(flagEndStream))
	}
	c.block = headerBlock{bytes: append(c.block.bytes[:0], f.payload...), streamID: f.streamID, endsStream: f.has(flagEndStream)}
	c.hold(int64(len(f.payload)))
	return nil
}

func (c *conn) receiveContinuation(f *frame) error {
	b := &c.block
	if b.streamID == 0 || f.streamID != b.streamID {
		return connError{codeProtocol, "CONTINUATION without HEADERS"}
	}
	c.waste++
	b.continuations++
	b.bytes = append(b.bytes, f.payload...)
	c.hold(int64(len(f.payload)))
	if len(b.bytes) > maxBlockBytes || b.continuations > maxContinuations {
		return connError{codeEnhanceYourCalm, "a header block is too long"}
	}
	if !f.has(flagEndHeaders) || c.phase == closed {
		return nil
	}
	done := *b
	*b = headerBlock{}
	c.account.ReleaseBytes(int64(len(done.bytes)))
	return c.receiveBlock(done.streamID, done.bytes, done.endsStream)
}

// receiveBlock handles a complete header block: the head of a new stream, or the trailers of an open one.
func (c *conn) receiveBlock(id uint32, block []byte, endsStream bool) error {
	if id <= c.lastStreamID {
		return c.receiveTrailers(id, block, endsStream)
	}
	c.keepOpening()
	c.waste++
	h, err := c.readHead(block)
	if malformed, ok := err.(streamError); ok {
		c.lastStreamID, malformed.streamID = id, id
		return malformed
	}
	if err != nil {
		return err
	}
	return c.openStream(id, h, endsStream)
}

func (c *conn) receiveTrailers(id uint32, block []byte, endsStream bool) error {
	c.waste++
	isMalformed, err := c.readTrailers(block)
	if err != nil {
		return err
	}
	s := c.find(id)
	if s == nil || s.isReceived {
		if err := c.checkClosed(id, "HEADERS"); err != nil {
			return err
		}
	}
	if isMalformed || !endsStream {
		return streamError{id, codeProtocol, "the trailers are malformed"}
	}
	if s == nil {
		return nil // The server has reset the stream.
	}
	return c.endReceipt(s, s.body)
}

// priorityBytes is the length of the priority in HEADERS and PRIORITY frames, which has no effect (RFC 9113 section 5.3).
const priorityBytes = 5

// dependsOn returns the stream on which a priority depends.
func dependsOn(priority []byte) uint32 { return binary.BigEndian.Uint32(priority) & maxWindow }
