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
	c.entries = c.entries[:0]
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
	varintType = uint64(protowire.VarintType)
	bytesType  = uint64(protowire.BytesType)
)

// fields iterates over the fields of a protobuf message.
type fields struct {
	rest []byte
	// The field that next has read.
	tag    uint64 // number<<3 | type
	number uint64 // of a varint
	bytes  []byte
	err    error // set when next reports false because the message is malformed
}

// next reports whether there is another field.
func (f *fields) next() bool {
	if len(f.rest) == 0 {
		return false
	}
	number, kind, n := protowire.ConsumeTag(f.rest)
	if n >= 0 {
		f.tag, f.rest = protowire.EncodeTag(number, kind), f.rest[n:]
		switch uint64(kind) {
		case varintType:
			f.number, n = protowire.ConsumeVarint(f.rest)
		case bytesType:
			f.bytes, n = protowire.ConsumeBytes(f.rest)
		default:
			n = protowire.ConsumeFieldValue(number, kind, f.rest)
		}
	}
	if n < 0 {
		f.err = errMalformed
		return false
	}
	f.rest = f.rest[n:]
	return true
}

// unit returns the unit with the number n of the enum of responses. The enum of requests has the
// same numbers, without WEEK. Unknown numbers are UnitUnknown.
func unit(n int32) rules.Unit {
	if n < 0 || n > int32(rules.Week) {
		return rules.UnitUnknown
	}
	return rules.Unit(n)
}

// described is a request as a span shows it: the text of the message, without unset fields.
type described limiter.Request

// maxDescribed bounds about how long, in bytes, the text and each of its strings get, so
// that describing a large request does not take longer than deciding on it.
const maxDescribed = 4 << 10

// String returns the text, with "…" where it is cut.
func (r *described) String() string {
	b := fmt.Appendf(nil, "domain:%q", short(r.Domain))
	for i := range r.Descriptors {
		if len(b) > maxDescribed {
			b = append(b, " …"...)
			break
		}
		b = appendDescriptor(b, &r.Descriptors[i])
	}
	if r.Hits > 0 {
		b = fmt.Appendf(b, " hits_addend:%d", r.Hits)
	}
	return string(b)
}

func appendDescriptor(b []byte, d *limiter.Descriptor) []byte {
	b = append(b, " descriptors:{"...)
	for i, e := range d.Entries {
		if i > 0 {
			b = append(b, ' ')
		}
		if len(b) > maxDescribed {
			b = append(b, "…"...)
			break
		}
		b = fmt.Appendf(b, "entries:{key:%q value:%q}", short(e.Key), short(e.Value))
	}
	if d.HasLimit {
		b = fmt.Appendf(b, " limit:{requests_per_unit:%d unit:%v unit_multiplier:%d}", d.Limit.Requests, d.Limit.Unit, d.Limit.Multiplier)
	}
	if d.HasHits {
		b = fmt.Appendf(b, " hits_addend:{value:%d}", d.Hits)
	}
	if d.Refund {
		b = append(b, " is_negative_hits:true"...)
	}
	return append(b, '}')
}

func short(s []byte) []byte { return s[:min(len(s), maxDescribed)] }
