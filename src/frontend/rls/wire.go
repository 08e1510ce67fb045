package rls

import (
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// scan reads a RateLimitRequest as clients write them into c.req, whose bytes
// are then those of data. It reports false for anything else, right or wrong:
// unknown fields, fields that are there twice, text that is not UTF-8, numbers
// out of range, too many of something. All that is for unmarshal, which must
// come to the same for what scan takes: a fuzz target compares the two.
func (c *call) scan(data []byte) bool {
	c.entries = c.entries[:0]
	c.req = limiter.Request{Descriptors: c.req.Descriptors[:0]}
	f := fields{rest: data}
	var seen uint8
	for f.next() {
		switch f.tag {
		case 1<<3 | bytesType:
			if !f.once(&seen) || !utf8.Valid(f.bytes) {
				return false
			}
			c.req.Domain = f.bytes
		case 2<<3 | bytesType:
			if len(c.req.Descriptors) == limiter.MaxDescriptors || !c.scanDescriptor(f.bytes) {
				return false
			}
		case 3<<3 | varintType:
			if !f.once(&seen) || f.number > math.MaxUint32 {
				return false
			}
			c.req.Hits = f.number
		default:
			return false
		}
	}
	return !f.bad
}

func (c *call) scanDescriptor(data []byte) bool {
	first := len(c.entries)
	d := limiter.Descriptor{}
	f := fields{rest: data}
	var seen uint8
	for f.next() {
		switch f.tag {
		case 1<<3 | bytesType:
			if len(c.entries) == maxEntries || !c.scanEntry(f.bytes) {
				return false
			}
			continue
		case 2<<3 | bytesType:
			if !scanLimit(f.bytes, &d.Limit) {
				return false
			}
			d.HasLimit = true
		case 3<<3 | bytesType:
			if !scanWrapped(f.bytes, &d.Hits) {
				return false
			}
			d.HasHits = true
		case 4<<3 | varintType:
			d.Refund = f.number != 0
		default:
			return false
		}
		if !f.once(&seen) {
			return false
		}
	}
	d.Entries = c.entries[first:len(c.entries):len(c.entries)]
	c.req.Descriptors = append(c.req.Descriptors, d)
	return !f.bad
}

func (c *call) scanEntry(data []byte) bool {
	var e rules.Entry
	f := fields{rest: data}
	var seen uint8
	for f.next() {
		if !f.once(&seen) || !utf8.Valid(f.bytes) {
			return false
		}
		switch f.tag {
		case 1<<3 | bytesType:
			e.Key = f.bytes
		case 2<<3 | bytesType:
			e.Value = f.bytes
		default:
			return false
		}
	}
	c.entries = append(c.entries, e)
	return !f.bad
}

func scanLimit(data []byte, q *rules.Quantity) bool {
	*q = rules.Quantity{Unit: unit(0), Multiplier: 1}
	f := fields{rest: data}
	var seen uint8
	for f.next() {
		if !f.once(&seen) {
			return false
		}
		switch f.tag {
		case 1<<3 | varintType:
			if f.number > math.MaxUint32 {
				return false
			}
			q.Requests = uint32(f.number)
		case 2<<3 | varintType:
			if f.number > math.MaxInt32 {
				return false
			}
			q.Unit = unit(int32(f.number))
		case 3<<3 | bytesType:
			var m uint64
			if !scanWrapped(f.bytes, &m) || m > math.MaxUint32 {
				return false
			}
			q.Multiplier = uint32(m)
		default:
			return false
		}
	}
	return !f.bad
}

// scanWrapped reads a UInt64Value or UInt32Value.
func scanWrapped(data []byte, to *uint64) bool {
	f := fields{rest: data}
	var seen uint8
	for f.next() {
		if f.tag != 1<<3|varintType || !f.once(&seen) {
			return false
		}
		*to = f.number
	}
	return !f.bad
}

const (
	varintType = byte(protowire.VarintType)
	bytesType  = byte(protowire.BytesType)
)

// fields goes through the fields of a message, as long as they are varints or
// bytes with numbers below 8.
type fields struct {
	rest []byte
	// Of the field that next came to.
	tag    byte // number<<3 | type
	number uint64
	bytes  []byte
	bad    bool
}

// next reports whether there is another field. At the end, bad says whether it
// was one.
func (f *fields) next() bool {
	if len(f.rest) == 0 {
		return false
	}
	f.tag = f.rest[0]
	v, n := protowire.ConsumeVarint(f.rest[1:])
	if n < 0 || f.tag < 1<<3 || f.tag >= 1<<6 {
		f.bad = true
		return false
	}
	rest := f.rest[1+n:]
	switch f.tag & 7 {
	case varintType:
		f.number = v
	case bytesType:
		if v > uint64(len(rest)) {
			f.bad = true
			return false
		}
		f.bytes, rest = rest[:v:v], rest[v:]
	default:
		f.bad = true
		return false
	}
	f.rest = rest
	return true
}

// once reports whether the field comes for the first time, and notes it in
// seen.
func (f *fields) once(seen *uint8) bool {
	bit := uint8(1) << (f.tag >> 3)
	first := *seen&bit == 0
	*seen |= bit
	return first
}
