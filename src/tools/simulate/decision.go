package simulate

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"ratelimit/src/frontend/rls"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// ruleNamesAsJSON returns the names of the rules, by their index, as quoted JSON strings. They lack the domain, which
// the request names.
func ruleNamesAsJSON(set *rules.Set) [][]byte {
	names := make([][]byte, len(set.Rules()))
	for i, r := range set.Rules() {
		names[i] = rls.AppendJSONString(nil, strings.TrimPrefix(r.FullName, r.Domain+"."))
	}
	return names
}

// appendDecision appends the line of output for the answer to a request.
func (r *run) appendDecision(dst []byte, at time.Time) ([]byte, error) {
	dst = appendLineStart(dst, at)
	dst = append(dst, `,"response":`...)
	dst, err := rls.AppendJSONResponse(dst, &r.answer)
	if err != nil {
		return nil, err
	}
	dst = append(dst, `,"verdicts":[`...)
	for i := range r.answer.Statuses {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, '[')
		charges := r.answer.Statuses[i].Charges
		for j := range charges {
			if j > 0 {
				dst = append(dst, ',')
			}
			dst = r.appendVerdict(dst, &charges[j])
		}
		dst = append(dst, ']')
	}
	return append(dst, "]}\n"...), nil
}

// appendVerdict appends the verdict on one limit.
func (r *run) appendVerdict(dst []byte, c *limiter.Charge) []byte {
	rule, retryAfter := []byte(`""`), "null"
	if c.Rule != nil { // A limit that came with the request has no rule.
		rule = r.ruleNames[c.Rule.Index]
	}
	if d, ok := c.RetryWait(); ok {
		retryAfter = strconv.FormatInt(limiter.MicrosecondsRoundedUp(d), 10)
	}
	reasons, _ := json.Marshal(c.OverReasons()) // json.Marshal never fails for strings.
	dst = append(append(dst, `{"rule":`...), rule...)
	dst = rls.AppendJSONString(append(dst, `,"key":`...), c.CounterKey[len(r.cfg.KeyPrefix):])
	return fmt.Appendf(
		dst, `,"algorithm":"%v","over":%t,"limit":%d,"remaining":%d,"retry_after_us":%s,"reset_after_us":%d,"reasons":%s}`,
		c.Algorithm.Kind, c.Verdict.Over, c.Algorithm.Capacity(), c.Verdict.Remaining, retryAfter,
		limiter.MicrosecondsRoundedUp(c.Verdict.ResetAfter), reasons)
}

// appendRefusal appends the line of output for a request that the service would refuse as invalid. The replay goes on
// after it.
func appendRefusal(dst []byte, at time.Time, err error) []byte {
	code := "INVALID_ARGUMENT"
	if errors.Is(err, limiter.ErrRequestTooLarge) {
		code = "RESOURCE_EXHAUSTED"
	}
	dst = fmt.Appendf(appendLineStart(dst, at), `,"error":{"code":"%s","message":`, code)
	return append(rls.AppendJSONString(dst, err.Error()), "}}\n"...)
}

// appendLineStart appends {"at":"...", the beginning of all lines of output.
func appendLineStart(dst []byte, at time.Time) []byte {
	dst = append(dst, `{"at":"`...)
	dst = at.AppendFormat(dst, time.RFC3339Nano)
	return append(dst, '"')
}
