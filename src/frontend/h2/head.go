package h2

import (
	"bytes"
	"net/http"
	"net/textproto"
	"time"
)

const (
	// maxBlockBytes and maxContinuations bound a header block before its decompression: full frames are enough for so many bytes.
	maxBlockBytes    = 64 << 10
	maxContinuations = 16
	maxHeadBlock     = 64 // maxHeadBlock is how long a block may be that is recognized when it comes again.
)

// blockReader reads the header blocks of a connection. Only the reader uses it.
type blockReader struct {
	decoder   decoder
	block     headerBlock // block is incomplete.
	head      head        // head is that of the last block.
	headBlock []byte      // headBlock is the block of head if decoding it again would change nothing, else empty.
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
		return connError(codeProtocol, "HEADERS is for a stream that clients cannot open")
	}
	if err := f.removePadding(); err != nil {
		return err
	}
	if f.has(flagPriority) {
		if len(f.payload) < priorityBytes {
			return connError(codeFrameSize, "HEADERS is shorter than its priority")
		}
		if err := c.receivePriority(f); err != nil {
			return err
		}
		f.payload = f.payload[priorityBytes:]
	}
	if f.has(flagEndHeaders) {
		return c.receiveBlock(f.streamID, f.payload, f.has(flagEndStream))
	}
	c.block = headerBlock{bytes: bytes.Clone(f.payload), streamID: f.streamID, endsStream: f.has(flagEndStream)}
	c.hold(int64(len(f.payload)))
	return nil
}

func (c *conn) receiveContinuation(f *frame) error {
	b := &c.block
	if b.streamID == 0 || f.streamID != b.streamID {
		return connError(codeProtocol, "CONTINUATION without HEADERS")
	}
	b.continuations++
	b.bytes = append(b.bytes, f.payload...)
	c.hold(int64(len(f.payload)))
	if len(b.bytes) > maxBlockBytes || b.continuations > maxContinuations {
		return connError(codeEnhanceYourCalm, "a header block is too long")
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
	problem, err := c.readHead(block)
	if err != nil {
		return err
	}
	c.lastStreamID = id
	if problem != codeNone {
		return streamError(id, problem)
	}
	return c.openStream(id, &c.head, endsStream)
}

// receiveTrailers handles the header block that ends a request. Its fields are not used.
func (c *conn) receiveTrailers(id uint32, block []byte, endsStream bool) error {
	c.headBlock = c.headBlock[:0]
	c.decoder.begin(block)
	isMalformed := !endsStream
	for {
		f, err := c.decoder.next()
		if err != nil {
			return err
		}
		if f == nil {
			break
		}
		isMalformed = isMalformed || f.meaning.isPseudo() || f.meaning == meansMalformed
	}
	s := c.find(id)
	if s == nil || s.isReceived {
		if err := c.checkClosed(id); err != nil {
			return err
		}
	}
	switch {
	case isMalformed:
		return streamError(id, codeProtocol)
	case s == nil:
		return nil // The server has reset the stream.
	}
	return c.endReceipt(s, s.body)
}

// head is the header block that opens a stream.
type head struct {
	meanings uint32 // meanings has a bit for each meaning of a field.
	timeout  time.Duration
	length   int64 // length is the content-length; -1 if there is none.
	bytes    int   // bytes is the size of the header list.
	// verb, path and authority are the values of pseudo-header fields. They and fields are valid until the next block.
	verb, path, authority []byte
	fields                []field // fields are the other fields. A request to Config.Path only has those that gRPC defines here.
}

func (h *head) has(m meaning) bool { return h.meanings&(1<<m) != 0 }

// isCall reports whether Decide can answer the request, if its message is regular.
func (h *head) isCall() bool {
	return h.has(meansMethod) && h.has(meansPost) && h.has(meansGRPC) && !h.has(meansOtherType) && !h.has(meansEncoding)
}

// readHead decodes a header block that opens a stream into c.head. A problem concerns only this stream.
func (c *conn) readHead(block []byte) (problem errorCode, err error) {
	h := &c.head
	if len(block) > 0 && bytes.Equal(block, c.headBlock) {
		return codeNone, nil // Clients send the same block for many calls.
	}
	*h = head{length: -1, fields: h.fields[:0]}
	c.headBlock = c.headBlock[:0]
	isValid, most := true, c.server.cfg.MaxHeaderBytes
	c.decoder.begin(block)
	for {
		f, err := c.decoder.next()
		if err != nil {
			return codeNone, err
		}
		if f == nil {
			break
		}
		// After a problem the block is still decoded, because it may change the dynamic table.
		if h.bytes += f.size(); h.bytes <= most {
			isValid = isValid && h.add(f)
		}
	}
	switch {
	case h.bytes > most:
		return codeEnhanceYourCalm, nil
	case !isValid || h.meanings&verbMeanings == 0 || h.meanings&pathMeanings == 0 || !h.has(meansScheme):
		return codeProtocol, nil
	case c.decoder.isRepeatable && len(block) <= maxHeadBlock:
		c.headBlock = append(c.headBlock, block...)
	}
	return codeNone, nil
}

// add adds a field. It returns false if the request is malformed (RFC 9113 sections 8.2 and 8.3).
func (h *head) add(f *field) (isValid bool) {
	before := h.meanings
	h.meanings |= 1 << f.meaning
	if f.meaning.isPseudo() {
		same := uint32(1) << f.meaning // same has the meanings of fields with the same name.
		switch f.meaning {
		case meansPath, meansMethod:
			same, h.path = pathMeanings, f.value
		case meansPost, meansOtherVerb:
			same, h.verb = verbMeanings, f.value
		case meansAuthority:
			h.authority = f.value
		}
		return before&same == 0 && before&^pseudoMeanings == 0
	}
	switch f.meaning {
	case meansMalformed:
		return false
	case meansTimeout:
		if h.timeout = parseTimeout(f.value); h.timeout == 0 {
			h.meanings |= 1 << meansEncoding // Handler answers.
		}
	case meansLength:
		n := parseLength(f.value)
		if n < 0 || h.length >= 0 && n != h.length {
			return false
		}
		h.length = n
	}
	if f.meaning != meansNothing || !h.has(meansMethod) {
		h.fields = append(h.fields, *f)
	}
	return true
}

// httpHeader returns the fields of h for Handler.
func (h *head) httpHeader() http.Header {
	header := make(http.Header, len(h.fields))
	for i := range h.fields {
		key := textproto.CanonicalMIMEHeaderKey(string(h.fields[i].name))
		header[key] = append(header[key], string(h.fields[i].value))
	}
	return header
}
