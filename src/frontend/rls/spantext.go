package rls

import (
	"fmt"

	"ratelimit/src/limiter"
)

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
