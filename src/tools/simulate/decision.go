package simulate

import (
	"errors"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// ruleNames are the rules' names as JSON: as operators see them everywhere, but
// without the domain, which the request names.
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
	asked := r.tap.asked
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
			dst = r.appendVerdict(dst, st, &st.Charges[j], &asked[j])
		}
		dst = append(dst, ']')
		asked = asked[len(st.Charges):]
	}
	return append(dst, "]}\n"...), nil
}

func (r *run) appendVerdict(dst []byte, st *limiter.Status, c *limiter.Charge, asked *asked) []byte {
	v := &c.Verdict
	dst = append(dst, `{"rule":`...)
	if c.Rule == nil { // the limit came with the request
		dst = append(dst, `""`...)
	} else {
		dst = append(dst, r.names[c.Rule.Index]...)
	}
	dst = append(dst, `,"key":`...)
	dst = appendString(dst, asked.key)
	dst = append(dst, `,"algorithm":"`...)
	dst = append(dst, asked.kind.String()...)
	dst = append(dst, `","over":`...)
	dst = strconv.AppendBool(dst, v.Over)
	dst = append(dst, `,"limit":`...)
	dst = strconv.AppendUint(dst, asked.capacity, 10)
	dst = append(dst, `,"remaining":`...)
	dst = strconv.AppendUint(dst, v.Remaining, 10)
	dst = append(dst, `,"retry_after_us":`...)
	if !v.Over || v.RetryAfter == algorithm.Never {
		dst = append(dst, "null"...)
	} else {
		dst = appendMicroseconds(dst, v.RetryAfter)
	}
	dst = append(dst, `,"reset_after_us":`...)
	dst = appendMicroseconds(dst, v.ResetAfter)
	dst = append(dst, `,"reasons":`...)
	dst = append(dst, reasons(v, st.Amount, asked.capacity)...)
	return append(dst, '}')
}

// reasons are those for which v is over.
func reasons(v *backend.Verdict, amount, capacity uint64) string {
	count, interval := v.Reasons(amount, capacity)
	switch {
	case count && interval:
		return `["count","interval"]`
	case count:
		return `["count"]`
	case interval:
		return `["interval"]`
	}
	return "[]"
}

// appendFailure appends the line of output for a request that the service would
// answer with an error: whoever is told so is at fault, so the replay goes on.
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

// appendMicroseconds rounds up: who comes back earlier is refused again.
func appendMicroseconds(dst []byte, d time.Duration) []byte {
	return strconv.AppendInt(dst, int64((d+time.Microsecond-1)/time.Microsecond), 10)
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
