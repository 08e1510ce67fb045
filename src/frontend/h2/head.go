package h2

import (
	"bytes"
	"net/http"
	"net/textproto"
	"time"
)

// head is the header block that opens a stream.
type head struct {
	meanings uint32 // meanings has a bit for each meaning of a field.
	timeout  time.Duration
	length   int64 // length is the content-length; -1 if there is none.
	bytes    int   // bytes is the size of the header list.
	// verb, path and authority are the values of pseudo-header fields. They and fields are valid until the next block.
	verb, path, authority []byte
	// fields are the other fields. A request to Config.Path only has those that gRPC defines here.
	fields []field
}

func (h *head) has(m meaning) bool { return h.meanings&(1<<m) != 0 }

// isCall reports whether Decide can answer the request, if its message is regular.
func (h *head) isCall() bool {
	return h.has(meansMethod) && h.has(meansPost) && h.has(meansGRPC) && !h.has(meansOtherType) && !h.has(meansEncoding)
}

// readHead decodes a header block that opens a stream. An error is a connError, or a streamError without a
// stream if only this request is malformed.
func (c *conn) readHead(block []byte) (*head, error) {
	h := &c.head
	if len(block) > 0 && bytes.Equal(block, c.headBlock) {
		return h, nil // Clients send the same block for many calls.
	}
	*h = head{length: -1, fields: h.fields[:0]}
	c.headBlock = c.headBlock[:0]
	problem := ""
	c.decoder.begin(block)
	for {
		f, err := c.decoder.next()
		if err != nil {
			return nil, err
		}
		if f == nil {
			break
		}
		// After a problem the block is still decoded, because it may change the dynamic table.
		if h.bytes += f.size(); h.bytes <= c.server.cfg.MaxHeaderBytes && problem == "" {
			problem = h.add(f)
		}
	}
	switch {
	case h.bytes > c.server.cfg.MaxHeaderBytes:
		return nil, streamError{code: codeEnhanceYourCalm, reason: "the header list is too long"}
	case problem != "":
		return nil, streamError{code: codeProtocol, reason: problem}
	case h.meanings&verbMeanings == 0 || h.meanings&pathMeanings == 0 || !h.has(meansScheme):
		return nil, streamError{code: codeProtocol, reason: "a pseudo-header field is missing"}
	}
	if c.decoder.isRepeatable && len(block) <= maxHeadBlock {
		c.headBlock = append(c.headBlock, block...)
	}
	return h, nil
}

// maxHeadBlock is how long a block may be that is recognized when it comes again.
const maxHeadBlock = 64

// add adds a field. It returns the reason if the request is malformed (RFC 9113 sections 8.2 and 8.3).
func (h *head) add(f *field) (problem string) {
	if f.meaning.isPseudo() && h.meanings&^pseudoMeanings != 0 {
		return "a pseudo-header field follows another field"
	}
	before := h.meanings
	h.meanings |= 1 << f.meaning
	switch f.meaning {
	case meansMalformed:
		return "a header field is malformed"
	case meansUnsupported:
		return "the method CONNECT is not supported"
	case meansPath, meansMethod:
		h.path = f.value
		return repeated(before & pathMeanings)
	case meansPost, meansOtherVerb:
		h.verb = f.value
		return repeated(before & verbMeanings)
	case meansScheme:
		return repeated(before & (1 << meansScheme))
	case meansAuthority:
		h.authority = f.value
		return repeated(before & (1 << meansAuthority))
	case meansTimeout:
		h.timeout, _ = parseTimeout(f.value) // Without a valid timeout, Handler answers.
		if h.timeout == 0 {
			h.meanings |= 1 << meansEncoding
		}
	case meansLength:
		n := parseLength(f.value)
		if n < 0 || h.length >= 0 && n != h.length {
			return "content-length is malformed"
		}
		h.length = n
	}
	if f.meaning != meansNothing || !h.has(meansMethod) {
		h.fields = append(h.fields, *f)
	}
	return ""
}

// repeated returns the problem of a pseudo-header field whose meanings have been there before.
func repeated(before uint32) (problem string) {
	if before != 0 {
		return "a pseudo-header field is repeated"
	}
	return ""
}

// readTrailers decodes a header block that ends a request. Its fields are not used.
func (c *conn) readTrailers(block []byte) (isMalformed bool, err error) {
	c.headBlock = c.headBlock[:0]
	c.decoder.begin(block)
	for {
		f, err := c.decoder.next()
		if f == nil {
			return isMalformed, err
		}
		isMalformed = isMalformed || f.meaning.isPseudo() || f.meaning == meansMalformed
	}
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
