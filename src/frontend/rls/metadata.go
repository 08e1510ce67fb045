package rls

import (
	"fmt"
	"maps"
	"math"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// dynamicMetadata returns the dynamic_metadata of the answer.
func (c *call) dynamicMetadata() (*structpb.Struct, error) {
	fields, err := structpb.NewStruct(c.metadata())
	if err != nil {
		return nil, fmt.Errorf("rls: metadata of a rule: %w", err)
	}
	return fields, nil
}

// metadata returns the request, the state of its limits, and the merged metadata of the rules
// that allow it.
func (c *call) metadata() map[string]any {
	descriptors := make([]any, len(c.req.Descriptors))
	for i := range c.req.Descriptors {
		about, st := describe(&c.req.Descriptors[i]), &c.answer.Statuses[i]
		if c.req.Descriptors[i].HasLimit {
			about["limit"] = limitText(c.req.Descriptors[i].Limit)
		}
		if len(st.Charges) > 1 || hasBurst(st) {
			about["charges"] = charges(st)
		}
		if d := c.answer.Domain; d != nil && d.Words() && len(st.Charges) > 0 {
			about["summary"] = summary(st)
		}
		if st.Fallback != backend.FallbackError {
			about["degraded"] = st.Fallback.String()
		}
		descriptors[i] = about
	}
	fields := map[string]any{"domain": validText(c.req.Domain), "descriptors": descriptors}
	if c.req.Hits != 0 {
		fields["hitsAddend"] = c.req.Hits
	}
	var merged map[string]any
	for i := range c.answer.Statuses {
		if st := &c.answer.Statuses[i]; !st.Over && st.Rule != nil && !st.Rule.Unlimited {
			merged = merge(merged, st.Rule.Metadata)
		}
	}
	if len(merged) > 0 {
		fields["metadata"] = merged
	}
	return fields
}

func describe(d *limiter.Descriptor) map[string]any {
	entries := make([]any, len(d.Entries))
	for i, e := range d.Entries {
		entries[i] = validText(e.Key) + "=" + validText(e.Value)
	}
	fields := map[string]any{"entries": entries}
	if d.HasHits {
		fields["hitsAddend"] = d.Hits
	}
	return fields
}

// validText returns text with U+FFFD for each run of bytes that is not UTF-8.
func validText(text []byte) string { return strings.ToValidUTF8(string(text), "\uFFFD") }

// limitText returns the limit that came with a request in the text form of protobuf.
func limitText(q rules.Quantity) string {
	text := fmt.Sprintf("unit:%v", q.Unit)
	if q.Requests > 0 {
		text = fmt.Sprintf("requests_per_unit:%d %s", q.Requests, text)
	}
	if q.Multiplier > 1 {
		text += fmt.Sprintf(" unit_multiplier:{value:%d}", q.Multiplier)
	}
	return text
}

// hasBurst reports whether st was charged to a bucket that lets another number pass at once
// than its current_limit says.
func hasBurst(st *limiter.Status) bool {
	return len(st.Charges) == 1 && st.Charges[0].Rule != nil && st.Charges[0].Rule.Limit.Capacity() != uint64(st.Charges[0].Limit.Requests)
}

// charges describes all limits of a descriptor in the order of the rules, with times in
// seconds.
func charges(st *limiter.Status) []any {
	list := make([]any, len(st.Charges))
	for i := range st.Charges {
		c := &st.Charges[i]
		fields := map[string]any{
			"limit":      c.Limit.Requests,
			"remaining":  c.Verdict.Remaining,
			"over":       c.Verdict.Over,
			"resetAfter": c.Verdict.ResetAfter.Seconds(),
		}
		if c.Rule != nil {
			fields["rule"] = c.RuleName()
			if c.Algorithm.Kind == algorithm.GCRA {
				fields["atOnce"] = c.Algorithm.Capacity()
			}
		}
		if wait, ok := c.Retry(); ok {
			fields["retryAfter"] = wait.Seconds()
		}
		if c.Verdict.Fallback != backend.FallbackError {
			fields["degraded"] = c.Verdict.Fallback.String()
		}
		if c.Canary {
			fields["canary"] = true
		}
		list[i] = fields
	}
	return list
}

// summary combines all levels of a path in a tree of limits: [limited, limit, remaining,
// retry after, reset after] are any, the smallest, the smallest, the longest and the
// longest of all levels. Times are in seconds, rounded up; a retry of -1 means that the
// request need not or cannot wait.
//
// Source: bradennapier's gist on redis-cell.
func summary(st *limiter.Status) []any {
	limited, limit, remaining := 0, uint32(math.MaxUint32), uint64(math.MaxUint64)
	retry, reset := int64(-1), int64(0)
	for i := range st.Charges {
		c := &st.Charges[i]
		if c.Verdict.Over {
			limited = 1
		}
		if wait, ok := c.Retry(); ok {
			retry = max(retry, limiter.Seconds(wait))
		}
		limit, remaining = min(limit, c.Limit.Requests), min(remaining, c.Verdict.Remaining)
		reset = max(reset, limiter.Seconds(c.Verdict.ResetAfter))
	}
	return []any{limited, limit, remaining, retry, reset}
}

// merge returns a and what b adds to it; where both have a map, the two merged. It changes
// neither: they belong to rules.
func merge(a, b map[string]any) map[string]any {
	if len(a) == 0 {
		return b
	}
	merged := maps.Clone(a)
	for k, v := range b {
		first, taken := merged[k]
		if !taken {
			merged[k] = v
			continue
		}
		inner, ok := first.(map[string]any)
		other, ok2 := v.(map[string]any)
		if ok && ok2 {
			merged[k] = merge(inner, other)
		}
	}
	return merged
}
