package simulate

import (
	"errors"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"ratelimit/src/frontend/rls"
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
	dst, err := rls.AppendJSON(dst, &r.answer)
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
	v, name, wait := &c.Verdict, []byte(`""`), []byte("null")
	if c.Rule != nil { // else the limit came with the request
		name = r.names[c.Rule.Index]
	}
	if d, ok := c.Retry(); ok {
		wait = strconv.AppendInt(nil, limiter.Microseconds(d), 10)
	}
	dst = append(append(dst, `{"rule":`...), name...)
	dst = appendString(append(dst, `,"key":`...), c.Key[len(r.cfg.KeyPrefix):])
	dst = append(append(dst, `,"algorithm":"`...), c.Algorithm.Kind.String()...)
	dst = strconv.AppendBool(append(dst, `","over":`...), v.Over)
	dst = strconv.AppendUint(append(dst, `,"limit":`...), c.Algorithm.Capacity(), 10)
	dst = strconv.AppendUint(append(dst, `,"remaining":`...), v.Remaining, 10)
	dst = append(append(dst, `,"retry_after_us":`...), wait...)
	dst = strconv.AppendInt(append(dst, `,"reset_after_us":`...), limiter.Microseconds(v.ResetAfter), 10)
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
	dst = append(append(dst, `,"error":{"code":"`...), code...)
	dst = appendString(append(dst, `","message":`...), err.Error())
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
