package simulate

import (
	"errors"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// ruleNames returns the names of the rules as JSON: as operators see them, but without the
// domain, which the request names.
func ruleNames(set *rules.Set) [][]byte {
	names := make([][]byte, len(set.Rules()))
	for i, r := range set.Rules() {
		names[i] = appendString(nil, strings.TrimPrefix(r.Key, r.Domain+"."))
	}
	return names
}

// appendDecision appends the line of output for the answer to a request.
func (r *run) appendDecision(dst []byte, at time.Time) ([]byte, error) {
	dst = appendInstant(dst, at)
	dst = append(dst, `,"response":`...)
	dst, err := r.json.Append(dst, &r.answer)
	if err != nil {
		return nil, err
	}
	dst = append(dst, `,"verdicts":[`...)
	for i := range r.answer.Statuses {
		st := &r.answer.Statuses[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, '[')
		for j := range st.Charges {
			if j > 0 {
				dst = append(dst, ',')
			}
			dst = r.appendVerdict(dst, &st.Charges[j])
		}
		dst = append(dst, ']')
	}
	return append(dst, "]}\n"...), nil
}

// appendVerdict appends the verdict on one limit.
func (r *run) appendVerdict(dst []byte, c *limiter.Charge) []byte {
	v := &c.Verdict
	dst = append(dst, `{"rule":`...)
	if c.Rule == nil { // the limit came with the request
		dst = append(dst, `""`...)
	} else {
		dst = append(dst, r.names[c.Rule.Index]...)
	}
	dst = append(dst, `,"key":`...)
	dst = appendString(dst, c.Key[len(r.cfg.KeyPrefix):])
	dst = append(dst, `,"algorithm":"`...)
	dst = append(dst, c.Algorithm.Kind.String()...)
	dst = append(dst, `","over":`...)
	dst = strconv.AppendBool(dst, v.Over)
	dst = append(dst, `,"limit":`...)
	dst = strconv.AppendUint(dst, c.Algorithm.Capacity(), 10)
	dst = append(dst, `,"remaining":`...)
	dst = strconv.AppendUint(dst, v.Remaining, 10)
	dst = append(dst, `,"retry_after_us":`...)
	if wait, ok := c.Retry(); ok {
		dst = strconv.AppendInt(dst, limiter.Microseconds(wait), 10)
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"reset_after_us":`...)
	dst = strconv.AppendInt(dst, limiter.Microseconds(v.ResetAfter), 10)
	dst = append(dst, `,"reasons":[`...)
	for i, reason := range c.Reasons() {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(dst, reason)
	}
	return append(dst, "]}"...)
}

// appendFailure appends the line of output for a request that the service would refuse as
// invalid. The replay goes on after it.
func appendFailure(dst []byte, at time.Time, err error) []byte {
	dst = appendInstant(dst, at)
	code := "INVALID_ARGUMENT"
	if errors.Is(err, limiter.ErrTooLarge) {
		code = "RESOURCE_EXHAUSTED"
	}
	dst = append(dst, `,"error":{"code":"`...)
	dst = append(dst, code...)
	dst = append(dst, `","message":`...)
	dst = appendString(dst, err.Error())
	return append(dst, "}}\n"...)
}

// appendInstant appends the beginning of a line of output.
func appendInstant(dst []byte, at time.Time) []byte {
	dst = append(dst, `{"at":"`...)
	dst = at.AppendFormat(dst, time.RFC3339Nano)
	return append(dst, '"')
}

// appendString appends text as JSON. What is not UTF-8 becomes U+FFFD.
func appendString[T string | []byte](dst []byte, text T) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for i := 0; i < len(text); {
		c := text[i]
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, `\n`...)
		case c < ' ' || c == 0x7f:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		case c < utf8.RuneSelf:
			dst = append(dst, c)
		default:
			r, size := utf8.DecodeRuneInString(string(text[i:min(i+utf8.UTFMax, len(text))]))
			dst = utf8.AppendRune(dst, r)
			i += size - 1
		}
		i++
	}
	return append(dst, '"')
}
