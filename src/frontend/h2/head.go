package h2

import (
	"bytes"
	"strconv"
	"time"

	"golang.org/x/net/http2"
)

const (
	maxBlockBytes    = 64 << 10 // how long a header block may be before its decompression.
	maxContinuations = 16       // in how many frames a header block may continue.
	maxHeadBlock     = 64       // how long a block may be that is recognized when it comes again.
	maxShortBlock    = 1 << 10  // how long a block may be that waits for no other.
	maxFields        = 100      // how many fields a header list may have: Envoy's default.
	maxKeptHead      = 2 << 10  // how many bytes a connection keeps of a head for the next one.
)

// blockReader reads the header blocks of a connection. Only the reader uses it.
type blockReader struct {
	decoder decoder
	// block is a HEADERS frame to which the payload of CONTINUATION frames is added (RFC 9113 section 4.3). Until its end,
	// the client may send nothing else. Its streamID is 0 if there is no incomplete block.
	block         frame
	continuations int
	head          head   // of the last block.
	headBlock     []byte // the block of head if decoding it again would change nothing, else empty.
}

func (c *conn) receiveHeaders(f *frame) error {
	if f.streamID%2 == 0 {
		return connError(http2.ErrCodeProtocol, "HEADERS is for a stream that clients cannot open")
	}
	if err := f.removePadding(); err != nil {
		return err
	}
	if f.has(flagPriority) {
		if len(f.payload) < priorityBytes {
			return connError(http2.ErrCodeFrameSize, "HEADERS is shorter than its priority")
		}
		if err := c.receivePriority(f); err != nil {
			return err
		}
		f.payload = f.payload[priorityBytes:]
	}
	if f.has(flagEndHeaders) {
		return c.receiveBlock(f)
	}
	c.block, c.continuations = *f, 0
	c.block.payload = bytes.Clone(f.payload)
	c.hold(int64(len(f.payload)))
	return nil
}

func (c *conn) receiveContinuation(f *frame) error {
	b := &c.block
	if f.streamID != b.streamID {
		return connError(http2.ErrCodeProtocol, "CONTINUATION without HEADERS")
	}
	c.continuations++
	b.payload = append(b.payload, f.payload...)
	c.hold(int64(len(f.payload)))
	if len(b.payload) > maxBlockBytes || c.continuations > maxContinuations {
		return connError(http2.ErrCodeEnhanceYourCalm, "a header block is too long")
	}
	if !f.has(flagEndHeaders) || c.phase == closed {
		return nil
	}
	done := *b
	*b = frame{}
	c.account.ReleaseBytes(int64(len(done.payload)))
	return c.receiveBlock(&done)
}

// receiveBlock handles a complete header block.
func (c *conn) receiveBlock(f *frame) error {
	err := c.readHeadInTurn(f.payload)
	if err == nil {
		err = c.receiveHead(f.streamID, f.has(flagEndStream))
	}
	if c.head.keptBytes() > maxKeptHead { // A client could open many connections, and leave a long list on each.
		c.head, c.headBlock = head{}, c.headBlock[:0]
	}
	return err
}

// receiveHead handles c.head: the head of a new stream, or the trailers of an open one, which are only checked.
func (c *conn) receiveHead(id uint32, endsStream bool) (err error) {
	h := &c.head
	if id <= c.lastStreamID {
		s := c.find(id)
		isClosed := s == nil || s.isReceived
		if isClosed {
			err = c.checkClosed(id)
		}
		switch {
		case err == nil && (!endsStream || h.meanings&(pseudoMeanings|1<<meansMalformed) != 0):
			return streamError(id, http2.ErrCodeProtocol)
		case isClosed:
			return err
		}
		return c.endReceipt(s, s.body)
	}
	c.keepOpening()
	c.lastStreamID = id
	switch {
	case c.isLong(h):
		return streamError(id, http2.ErrCodeEnhanceYourCalm)
	case h.has(meansMalformed) || h.meanings&verbMeanings == 0 || h.meanings&pathMeanings == 0 || !h.has(meansScheme):
		return streamError(id, http2.ErrCodeProtocol)
	}
	return c.openStream(id, h, endsStream)
}

// readHeadInTurn is readHead, but only half of the cores decode long blocks at a time. Thousands of connections may
// send one together, and calls with short blocks should not wait for all of them.
func (c *conn) readHeadInTurn(block []byte) error {
	if len(block) > maxShortBlock {
		c.server.longBlocks <- struct{}{}
		defer func() { <-c.server.longBlocks }()
	}
	return c.readHead(block)
}

// readHead decodes a header block into c.head.
func (c *conn) readHead(block []byte) error {
	h := &c.head
	if len(block) > 0 && bytes.Equal(block, c.headBlock) {
		return nil // Clients send the same block for many calls.
	}
	*h = head{length: -1, fields: h.fields[:0], texts: h.texts[:0]}
	c.headBlock = c.headBlock[:0]
	c.decoder.begin(block)
	for {
		f, err := c.decoder.next()
		if err != nil {
			return err
		}
		if f == nil {
			break
		}
		h.bytes += f.size()
		h.count++
		if !c.isLong(h) { // The rest of a long list is still decoded, because it may change the dynamic table.
			h.add(f)
		}
	}
	c.decoder.end()
	if c.decoder.isRepeatable && len(block) <= maxHeadBlock {
		c.headBlock = append(c.headBlock, block...)
	}
	return nil
}

// isLong reports whether the server does not accept a list of so many fields, or bytes.
func (c *conn) isLong(h *head) bool {
	return h.bytes > MaxHeaderBytes || h.count > maxFields
}

// head is the content of a header block: of the one that opens a stream, or of trailers.
type head struct {
	meanings uint32        // a bit for each meaning of a field. The request is malformed if it has meansMalformed.
	timeout  time.Duration // the grpc-timeout, if h has meansTimeout and not meansBadTimeout.
	length   int64         // the content-length; -1 if there is none.
	bytes    int           // the size of the header list, as RFC 9113 section 6.5.2 counts it.
	count    int           // how many fields the list has.
	// verb, path and authority are pseudo-header fields, fields the others. A request to Config.Path only has those that
	// gRPC defines.
	verb, path, authority []byte
	fields                []field
	texts                 texts // the memory of all names and values.
}

// keptBytes returns the size of the memory of h.
func (h *head) keptBytes() int { return cap(h.fields)*fieldBytes + cap(h.texts) }

func (h *head) has(m meaning) bool { return h.meanings&(1<<m) != 0 }

// isCall reports whether Decide can answer the request, if its message is regular.
func (h *head) isCall() bool {
	const needs = 1<<meansMethod | 1<<meansPost | 1<<meansGRPC
	const forbids = 1<<meansOtherType | 1<<meansOtherCodec | 1<<meansEncoding | 1<<meansBadTimeout | 1<<meansHosts |
		1<<meansBadBinary
	return h.meanings&(needs|forbids) == needs && h.meanings&(1<<meansAuthority|1<<meansHost) != 0 &&
		(h.timeout > 0 || !h.has(meansTimeout))
}

// add adds a field, and checks it (RFC 9113 sections 8.2 and 8.3).
func (h *head) add(f *field) {
	before := h.meanings
	h.meanings |= 1 << f.meaning
	if pseudoMeanings>>f.meaning&1 != 0 {
		same := uint32(1) << f.meaning // the meanings of fields with the same name.
		switch f.meaning {
		case meansPath, meansMethod:
			same, h.path = pathMeanings, h.texts.add(f.value)
		case meansPost, meansOtherVerb:
			same, h.verb = verbMeanings, h.texts.add(f.value)
		case meansAuthority:
			h.authority = h.texts.add(f.value)
		}
		if before&same != 0 || before&^pseudoMeanings != 0 {
			h.meanings |= 1 << meansMalformed
		}
		return
	}
	switch f.meaning {
	case meansTimeout:
		var ok bool
		if h.timeout, ok = parseTimeout(f.value); !ok {
			h.meanings |= 1 << meansBadTimeout
		}
	case meansHost:
		if before&(1<<meansHost) != 0 {
			h.meanings |= 1 << meansHosts
		}
	case meansLength:
		n, err := strconv.ParseUint(string(f.value), 10, 63)
		if err != nil || h.length >= 0 && h.length != int64(n) {
			h.meanings |= 1 << meansMalformed
		}
		h.length = int64(n)
	}
	if f.meaning != meansNothing || !h.has(meansMethod) {
		h.fields = append(h.fields, field{name: h.texts.add(f.name), value: h.texts.add(f.value)})
	}
}
