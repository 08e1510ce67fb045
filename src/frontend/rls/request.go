package rls

import (
	"fmt"

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

var (
	errTooManyDescriptors = fmt.Errorf("%w: more than %d descriptors", limiter.ErrRequestTooLarge, limiter.MaxDescriptors)
	errTooManyEntries     = fmt.Errorf("%w: more than %d entries", limiter.ErrRequestTooLarge, maxRequestEntries)
	errTooManyJSONObjects = fmt.Errorf("%w: more than %d descriptors or %d entries",
		limiter.ErrRequestTooLarge, limiter.MaxDescriptors, maxRequestEntries)
	errMalformedProtobuf = fmt.Errorf("%w: not a RateLimitRequest: malformed protobuf", limiter.ErrInvalidRequest)
)

// maxRequestEntries is how many entries all descriptors of a request together may have.
const maxRequestEntries = 16 * limiter.MaxDescriptors

// decodeRequest reads the RateLimitRequest in data into c.req, whose texts point into data. Unlike protobuf, it accepts
// text that is not UTF-8: Envoy forwards header values unchanged, and clients must not escape a limit with an invalid
// byte. Errors wrap limiter.ErrInvalidRequest or limiter.ErrRequestTooLarge; c.req then holds what was read before.
func (c *callMemory) decodeRequest(data []byte) error {
	c.entries = c.entries[:0]
	return c.decode(data, &c.req)
}

// requestDecoder reads requests. It holds the entries of all their descriptors.
type requestDecoder struct {
	entries      []rules.Entry
	requestStart int // the number of the first entry of the current request.
}

// decode reads the RateLimitRequest in data into req, as decodeRequest does, and adds its entries to d.
func (d *requestDecoder) decode(data []byte, req *limiter.Request) error {
	d.requestStart = len(d.entries)
	*req = limiter.Request{Descriptors: req.Descriptors[:0]}
	f := Fields{Message: data}
	for f.Next() {
		switch f.Tag {
		case 1<<3 | BytesType:
			req.Domain = f.Bytes
		case 2<<3 | BytesType:
			if len(req.Descriptors) == limiter.MaxDescriptors {
				return errTooManyDescriptors
			}
			if err := d.decodeDescriptor(f.Bytes, req); err != nil {
				return err
			}
		case 3<<3 | VarintType:
			req.DefaultAmount = uint64(uint32(f.Number))
		}
	}
	return f.Err
}

func (d *requestDecoder) decodeDescriptor(data []byte, req *limiter.Request) error {
	first := len(d.entries)
	descriptor := limiter.Descriptor{}
	hasMultiplier := false
	f := Fields{Message: data}
	for f.Next() {
		var err error
		switch f.Tag {
		case 1<<3 | BytesType:
			if len(d.entries)-d.requestStart == maxRequestEntries {
				return errTooManyEntries
			}
			err = d.decodeEntry(f.Bytes)
		case 2<<3 | BytesType:
			if !descriptor.HasLimit {
				descriptor.HasLimit, descriptor.Limit = true, rules.Rate{Unit: unitFromNumber(0), UnitMultiplier: 1}
			}
			err = decodeLimitOverride(f.Bytes, &descriptor.Limit, &hasMultiplier)
		case 3<<3 | BytesType:
			descriptor.HasAmount = true
			err = decodeWrappedNumber(f.Bytes, &descriptor.Amount)
		case 4<<3 | VarintType:
			descriptor.IsRefund = f.Number != 0
		}
		if err != nil {
			return err
		}
	}
	descriptor.Entries = d.entries[first:len(d.entries):len(d.entries)]
	req.Descriptors = append(req.Descriptors, descriptor)
	return f.Err
}

func (d *requestDecoder) decodeEntry(data []byte) error {
	var e rules.Entry
	f := Fields{Message: data}
	for f.Next() {
		switch f.Tag {
		case 1<<3 | BytesType:
			e.Key = f.Bytes
		case 2<<3 | BytesType:
			e.Value = f.Bytes
		}
	}
	d.entries = append(d.entries, e)
	return f.Err
}

// decodeLimitOverride reads the fields of a RateLimitOverride into q. It sets hasMultiplier if data has a multiplier;
// before, that of q is the default of 1.
func decodeLimitOverride(data []byte, q *rules.Rate, hasMultiplier *bool) error {
	f := Fields{Message: data}
	for f.Next() {
		switch f.Tag {
		case 1<<3 | VarintType:
			q.Requests = uint64(uint32(f.Number))
		case 2<<3 | VarintType:
			q.Unit = unitFromNumber(int32(f.Number))
		case 3<<3 | BytesType:
			m := uint64(q.UnitMultiplier)
			if !*hasMultiplier {
				m, *hasMultiplier = 0, true
			}
			if err := decodeWrappedNumber(f.Bytes, &m); err != nil {
				return err
			}
			q.UnitMultiplier = uint32(m)
		}
	}
	return f.Err
}

// decodeWrappedNumber reads a UInt64Value or a UInt32Value into to.
func decodeWrappedNumber(data []byte, to *uint64) error {
	f := Fields{Message: data}
	for f.Next() {
		if f.Tag == 1<<3|VarintType {
			*to = f.Number
		}
	}
	return f.Err
}

// unitFromNumber returns the unit with the number n in the enum of responses, or UnitUnknown. The enum of requests has
// the same numbers, without WEEK.
func unitFromNumber(n int32) rules.Unit {
	if n < 0 || n > int32(rules.UnitWeek) {
		return rules.UnitUnknown
	}
	return rules.Unit(n)
}

// requestText formats a request for trace spans, without unset fields.
type requestText limiter.Request

// maxRequestTextBytes is about how many bytes the text of a request, and each string in it, may have: formatting must
// not take longer than deciding.
const maxRequestTextBytes = 4 << 10

// String returns the text of the request, with "…" for each part that was left out.
func (r *requestText) String() string {
	b := fmt.Appendf(nil, "domain:%q", shortenText(r.Domain))
	for i := range r.Descriptors {
		if len(b) > maxRequestTextBytes {
			b = append(b, " …"...)
			break
		}
		b = appendDescriptorText(b, &r.Descriptors[i])
	}
	if r.DefaultAmount > 0 {
		b = fmt.Appendf(b, " hits_addend:%d", r.DefaultAmount)
	}
	return string(b)
}

func appendDescriptorText(b []byte, d *limiter.Descriptor) []byte {
	b = append(b, " descriptors:{"...)
	for i, e := range d.Entries {
		if i > 0 {
			b = append(b, ' ')
		}
		if len(b) > maxRequestTextBytes {
			b = append(b, "…"...)
			break
		}
		b = fmt.Appendf(b, "entries:{key:%q value:%q}", shortenText(e.Key), shortenText(e.Value))
	}
	if d.HasLimit {
		b = fmt.Appendf(b, " limit:{requests_per_unit:%d unit:%v unit_multiplier:%d}", d.Limit.Requests, d.Limit.Unit,
			d.Limit.UnitMultiplier)
	}
	if d.HasAmount {
		b = fmt.Appendf(b, " hits_addend:{value:%d}", d.Amount)
	}
	if d.IsRefund {
		b = append(b, " is_negative_hits:true"...)
	}
	return append(b, '}')
}

func shortenText(s []byte) []byte { return s[:min(len(s), maxRequestTextBytes)] }
