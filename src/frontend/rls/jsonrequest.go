package rls

import (
	"strconv"
	"unicode/utf8"

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// AppendJSONRequest appends req as a RateLimitRequest in proto3 JSON, which ParseJSON reads as the same request. In
// texts, bytes that are not UTF-8 become U+FFFD.
func AppendJSONRequest(b []byte, req *limiter.Request) []byte {
	b = AppendJSONString(append(b, `{"domain":`...), req.Domain)
	b = append(b, `,"descriptors":[`...)
	for i := range req.Descriptors {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendJSONDescriptor(b, &req.Descriptors[i])
	}
	b = append(b, `],`...)
	return closeJSONBracket(appendJSONNumberField(b, `"hitsAddend":`, req.DefaultAmount), '}')
}

func appendJSONDescriptor(b []byte, d *limiter.Descriptor) []byte {
	b = append(b, `{"entries":[`...)
	for i := range d.Entries {
		e := &d.Entries[i]
		b = AppendJSONString(append(b, `{"key":`...), e.Key)
		if len(e.Value) > 0 {
			b = AppendJSONString(append(b, `,"value":`...), e.Value)
		}
		b = append(b, `},`...)
	}
	b = append(closeJSONBracket(b, ']'), ',')
	if d.HasLimit {
		b = append(appendJSONLimit(append(b, `"limit":`...), d.Limit), ',')
	}
	if d.HasAmount {
		b = append(strconv.AppendUint(append(b, `"hitsAddend":"`...), d.Amount, 10), `",`...)
	}
	if d.IsRefund {
		b = append(b, `"isNegativeHits":true,`...)
	}
	return closeJSONBracket(b, '}')
}

// appendJSONLimit appends the limit that a request brings. The enum of requests has no WEEK, so a week is a number.
func appendJSONLimit(b []byte, q rules.Rate) []byte {
	b = appendJSONNumberField(append(b, '{'), `"requestsPerUnit":`, q.Requests)
	switch q.Unit {
	case rules.UnitUnknown:
	case rules.UnitWeek:
		b = appendJSONNumberField(b, `"unit":`, uint64(q.Unit))
	default:
		b = append(append(append(b, `"unit":"`...), q.Unit.String()...), `",`...)
	}
	if q.UnitMultiplier != 1 {
		b = append(strconv.AppendUint(append(b, `"unitMultiplier":`...), uint64(q.UnitMultiplier), 10), ',')
	}
	return closeJSONBracket(b, '}')
}

// AppendJSONString appends text as a JSON string. Bytes that are not UTF-8 become U+FFFD.
func AppendJSONString[T string | []byte](b []byte, text T) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	start := 0 // text[start:i] is appended as it is.
	for i := 0; i < len(text); {
		c := text[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(string(text[i:min(i+utf8.UTFMax, len(text))]))
			if r == utf8.RuneError && size == 1 {
				b = append(append(b, text[start:i]...), "\uFFFD"...)
				start = i + 1
			}
			i += size
			continue
		}
		i++
		if c >= ' ' && c != '"' && c != '\\' && c != 0x7f {
			continue
		}
		b = append(b, text[start:i-1]...)
		start = i
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, `\n`...)
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(append(b, text[start:]...), '"')
}
