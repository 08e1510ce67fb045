package rls

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"ratelimit/src/limiter"
)

// errCrowd is a text with far more than a request may have.
var errCrowd = fmt.Errorf("%w: more than %d descriptors or %d entries", limiter.ErrTooLarge, limiter.MaxDescriptors, maxEntries)

// ParseJSON reads a RateLimitRequest in proto3 JSON, for who asks the limiter
// without a service in between. What it returns has memory of its own. Its
// errors say what is wrong and at which column of the text; limiter.ErrRequest
// is a request that has too much of something.
func ParseJSON(text []byte) (*limiter.Request, error) {
	if crowded(text) {
		return nil, errCrowd
	}
	msg := new(pb.RateLimitRequest)
	if err := protojson.Unmarshal(text, msg); err != nil {
		return nil, errors.New(jsonProblem(err))
	}
	return Request(msg), nil
}

// place is how most of protojson's problems begin.
var place = regexp.MustCompile(`^(?:syntax error )?\(line (\d+):(\d+)\): `)

// jsonProblem is what protojson says, always in the same words: it puts one of
// two kinds of blank behind "proto:", at random, so that nobody relies on them.
func jsonProblem(err error) string {
	text := strings.TrimSpace(strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto:"))
	at := place.FindStringSubmatch(text)
	switch {
	case at == nil:
		return text
	case at[1] == "1":
		return "column " + at[2] + ": " + text[len(at[0]):]
	}
	return "line " + at[1] + ", column " + at[2] + ": " + text[len(at[0]):]
}

// AppendJSON appends the RateLimitResponse that says a, the answer to a request
// with descriptors, in proto3 JSON as /json writes it, without response headers
// and dynamic metadata.
func AppendJSON(dst []byte, a *limiter.Answer) ([]byte, error) {
	begun := len(dst)
	dst = append(dst, `{"overallCode":"`...)
	dst = append(dst, codeName(a.Over)...)
	dst = append(dst, `","statuses":[`...)
	for i := range a.Statuses {
		if i > 0 {
			dst = append(dst, ',')
		}
		var ok bool
		if dst, ok = appendStatusJSON(dst, &a.Statuses[i]); !ok {
			text, err := marshal(response(a))
			return append(dst[:begun], text...), err
		}
	}
	return append(dst, "]}"...), nil
}

// appendStatusJSON is descriptorStatus and protojson in one, at a hundredth of
// their cost. It reports false for a name that does not stand in quotes as it
// is, which is left to them.
func appendStatusJSON(dst []byte, st *limiter.Status) (_ []byte, ok bool) {
	dst = append(dst, `{"code":"`...)
	dst = append(dst, codeName(st.Over)...)
	dst = append(dst, '"')
	remaining := uint64(0)
	if st.Unlimited() {
		remaining = math.MaxUint32
	}
	c := st.Binding
	if c == nil {
		return append(appendField(dst, "limitRemaining", remaining), '}'), true
	}
	dst = append(dst, `,"currentLimit":{`...)
	first := len(dst)
	if c.Rule != nil && c.Rule.Name != "" {
		if !plain(c.Rule.Name) {
			return dst, false
		}
		dst = append(dst, `,"name":"`...)
		dst = append(dst, c.Rule.Name...)
		dst = append(dst, '"')
	}
	dst = appendField(dst, "requestsPerUnit", uint64(c.Limit.Requests))
	if c.Limit.Unit != 0 {
		dst = append(dst, `,"unit":"`...)
		dst = append(dst, c.Limit.Unit.String()...)
		dst = append(dst, '"')
	}
	if c.Limit.Multiplier > 1 {
		dst = appendField(dst, "unitMultiplier", uint64(c.Limit.Multiplier))
	}
	if len(dst) > first { // no comma before the first
		copy(dst[first:], dst[first+1:])
		dst = dst[:len(dst)-1]
	}
	dst = append(dst, '}')
	dst = appendField(dst, "limitRemaining", min(c.Verdict.Remaining, math.MaxUint32))
	dst = append(dst, `,"durationUntilReset":"`...)
	dst = appendDuration(dst, st.ResetAfter)
	return append(dst, `"}`...), true
}

func codeName(over bool) string {
	if over {
		return "OVER_LIMIT"
	}
	return "OK"
}

// appendField appends a field of a number behind others, but for 0, which is the
// same as no field.
func appendField(dst []byte, name string, v uint64) []byte {
	if v == 0 {
		return dst
	}
	dst = append(dst, `,"`...)
	dst = append(dst, name...)
	dst = append(dst, `":`...)
	return strconv.AppendUint(dst, v, 10)
}

// appendDuration appends d, which is not negative, as proto3 JSON has it: with
// 0, 3, 6 or 9 digits of a second.
func appendDuration(dst []byte, d time.Duration) []byte {
	dst = strconv.AppendInt(dst, int64(d/time.Second), 10)
	if rest := int64(d % time.Second); rest > 0 {
		digits := strconv.AppendInt(nil, rest+int64(time.Second), 10) // a 1 in front keeps the zeros
		digits[0] = '.'
		for strings.HasSuffix(string(digits), "000") {
			digits = digits[:len(digits)-3]
		}
		dst = append(dst, digits...)
	}
	return append(dst, 's')
}

// plain reports whether s stands in JSON as it is.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}
