package rls

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

var (
	errDescriptors    = fmt.Errorf("%w: more than %d descriptors", limiter.ErrTooLarge, limiter.MaxDescriptors)
	errEntries        = fmt.Errorf("%w: more than %d entries", limiter.ErrTooLarge, maxEntries)
	errTooManyObjects = fmt.Errorf("%w: more than %d descriptors or %d entries", limiter.ErrTooLarge, limiter.MaxDescriptors, maxEntries)
	errMalformed      = fmt.Errorf("%w: not a RateLimitRequest: malformed protobuf", limiter.ErrRequest)
)

// maxEntries bounds the entries of all descriptors of a request together.
const maxEntries = 16 * limiter.MaxDescriptors

// scan reads a RateLimitRequest into c.req in one pass. It takes what protobuf
// takes: fields it does not know are skipped, and of a field that comes twice the
// last one counts. Unlike protobuf it also takes text that is not UTF-8: Envoy sends
// header values as they come, and a request that failed for one byte would pass where
// the filter lets failures pass. The texts of c.req are the bytes in data. Errors wrap
// limiter.ErrRequest or limiter.ErrTooLarge; c.req then holds what came before the error.
func (c *call) scan(data []byte) error {
	c.entries, c.limits = c.entries[:0], c.limits[:0]
	c.req = limiter.Request{Descriptors: c.req.Descriptors[:0]}
	f := fields{rest: data}
	for f.next() {
		switch f.tag {
		case 1<<3 | bytesType:
			c.req.Domain = f.bytes
		case 2<<3 | bytesType:
			if len(c.req.Descriptors) == limiter.MaxDescriptors {
				return errDescriptors
			}
			if err := c.scanDescriptor(f.bytes); err != nil {
				return err
			}
		case 3<<3 | varintType:
			c.req.Hits = uint64(uint32(f.number))
		}
	}
	return f.err
}

func (c *call) scanDescriptor(data []byte) error {
	first := len(c.entries)
	d := limiter.Descriptor{}
	hasMultiplier := false
	f := fields{rest: data}
	for f.next() {
		var err error
		switch f.tag {
		case 1<<3 | bytesType:
			if len(c.entries) == maxEntries {
				return errEntries
			}
			err = c.scanEntry(f.bytes)
		case 2<<3 | bytesType:
			if !d.HasLimit {
				d.HasLimit, d.Limit = true, rules.Quantity{Unit: unit(0), Multiplier: 1}
			}
			c.limits = append(c.limits, limitField{len(c.req.Descriptors), f.bytes})
			err = scanLimit(f.bytes, &d.Limit, &hasMultiplier)
		case 3<<3 | bytesType:
			d.HasHits = true
			err = scanWrapped(f.bytes, &d.Hits)
		case 4<<3 | varintType:
			d.Refund = f.number != 0
		}
		if err != nil {
			return err
		}
	}
	d.Entries = c.entries[first:len(c.entries):len(c.entries)]
	c.req.Descriptors = append(c.req.Descriptors, d)
	return f.err
}

// limitField is a limit as it was sent. A descriptor may have several, which are one
// message in parts.
type limitField struct {
	descriptor int
	bytes      []byte
}

func (c *call) scanEntry(data []byte) error {
	var e rules.Entry
	f := fields{rest: data}
	for f.next() {
		switch f.tag {
		case 1<<3 | bytesType:
			e.Key = f.bytes
		case 2<<3 | bytesType:
			e.Value = f.bytes
		}
	}
	c.entries = append(c.entries, e)
	return f.err
}

// scanLimit adds the fields of a RateLimitOverride to q, whose Multiplier is 1
// until hasMultiplier.
func scanLimit(data []byte, q *rules.Quantity, hasMultiplier *bool) error {
	f := fields{rest: data}
	for f.next() {
		switch f.tag {
		case 1<<3 | varintType:
			q.Requests = uint32(f.number)
		case 2<<3 | varintType:
			q.Unit = unit(int32(f.number))
		case 3<<3 | bytesType:
			m := uint64(q.Multiplier)
			if !*hasMultiplier {
				m, *hasMultiplier = 0, true
			}
			if err := scanWrapped(f.bytes, &m); err != nil {
				return err
			}
			q.Multiplier = uint32(m)
		}
	}
	return f.err
}

// scanWrapped reads a UInt64Value or UInt32Value.
func scanWrapped(data []byte, to *uint64) error {
	f := fields{rest: data}
	for f.next() {
		if f.tag == 1<<3|varintType {
			*to = f.number
		}
	}
	return f.err
}

const (
	varintType = byte(protowire.VarintType)
	bytesType  = byte(protowire.BytesType)
)

// fields goes through the fields of a message.
type fields struct {
	rest []byte
	// Of the field that next came to.
	tag    byte   // number<<3 | type; 0 for a field that no message here has
	number uint64 // of a varint
	bytes  []byte
	err    error // set when next reports false because the message is malformed
}

// next reports whether there is another field.
func (f *fields) next() bool {
	if len(f.rest) == 0 {
		return false
	}
	f.tag = f.rest[0]
	if kind := f.tag & 7; f.tag < 1<<3 || f.tag >= 1<<7 || kind != varintType && kind != bytesType {
		return f.skip()
	}
	v, n := protowire.ConsumeVarint(f.rest[1:])
	if n < 0 {
		return f.malformed()
	}
	rest := f.rest[1+n:]
	f.number = v
	if f.tag&7 == bytesType {
		if v > uint64(len(rest)) {
			return f.malformed()
		}
		f.bytes, rest = rest[:v:v], rest[v:]
	}
	f.rest = rest
	return true
}

// skip is next for fields that are written in more than a byte, which small
// numbers may be, and for those of other types.
func (f *fields) skip() bool {
	number, kind, n := protowire.ConsumeTag(f.rest)
	if n < 0 {
		return f.malformed()
	}
	size := protowire.ConsumeFieldValue(number, kind, f.rest[n:])
	if size < 0 {
		return f.malformed()
	}
	f.tag = 0
	if value := f.rest[n : n+size]; number < 1<<4 && (kind == protowire.VarintType || kind == protowire.BytesType) {
		f.tag = byte(number)<<3 | byte(kind)
		if kind == protowire.VarintType {
			f.number, _ = protowire.ConsumeVarint(value)
		} else {
			f.bytes, _ = protowire.ConsumeBytes(value)
		}
	}
	f.rest = f.rest[n+size:]
	return true
}

func (f *fields) malformed() bool {
	f.err = errMalformed
	return false
}

// unit takes the enum of a request, which lacks WEEK, by its number, as the
// enum of responses has it. Unknown numbers become UnitUnknown.
func unit(n int32) rules.Unit {
	if n < 0 || n > int32(rules.Week) {
		return rules.UnitUnknown
	}
	return rules.Unit(n)
}
