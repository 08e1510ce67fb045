package rls

import (
	"fmt"
	"maps"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/frontend/rediscell"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// dynamicMetadata returns the dynamic_metadata of the answer to req: the request, the state of its
// limits, and the merged metadata of the rules that allow it.
func dynamicMetadata(req *limiter.Request, a *limiter.Answer) (*structpb.Struct, error) {
	var merged map[string]any
	descriptors := make([]any, len(req.Descriptors))
	for i := range req.Descriptors {
		st := &a.Statuses[i]
		descriptors[i] = descriptorMetadata(&req.Descriptors[i], st, a.Domain)
		if !st.Over && st.Match != nil && !st.Match.IsUnlimited() {
			merged = mergeMetadata(merged, st.Match.AnswerMetadata)
		}
	}
	fields := map[string]any{"domain": validUTF8Text(req.Domain), "descriptors": descriptors}
	if req.DefaultAmount != 0 {
		fields["hitsAddend"] = req.DefaultAmount
	}
	if len(merged) > 0 {
		fields["metadata"] = merged
	}
	metadata, err := structpb.NewStruct(fields)
	if err != nil {
		return nil, fmt.Errorf("rls: metadata of a rule: %w", err)
	}
	return metadata, nil
}

// descriptorMetadata returns the fields for the descriptor d with its status st. domain may be nil.
func descriptorMetadata(d *limiter.Descriptor, st *limiter.Status, domain *rules.Domain) map[string]any {
	entries := make([]any, len(d.Entries))
	for i, e := range d.Entries {
		entries[i] = validUTF8Text(e.Key) + "=" + validUTF8Text(e.Value)
	}
	fields := map[string]any{"entries": entries}
	if d.HasAmount {
		fields["hitsAddend"] = d.Amount
	}
	if d.HasLimit {
		fields["limit"] = limitText(d.Limit)
	}
	if len(st.Charges) > 1 || hasBurst(st) {
		fields["charges"] = chargesMetadata(st)
	}
	if domain != nil && domain.Form == rules.LimitTree && len(st.Charges) > 0 {
		fields["summary"] = limitTreeSummary(st)
	}
	if st.Fallback != backend.FallbackError {
		fields["degraded"] = st.Fallback.String()
	}
	return fields
}

// validUTF8Text returns text with U+FFFD for each run of bytes that is not UTF-8.
func validUTF8Text(text []byte) string { return strings.ToValidUTF8(string(text), "\uFFFD") }

// limitText returns the limit that came with a request in the text form of protobuf.
func limitText(q rules.Rate) string {
	text := fmt.Sprintf("unit:%v", q.Unit)
	if q.Requests > 0 {
		text = fmt.Sprintf("requests_per_unit:%d %s", q.Requests, text)
	}
	if q.UnitMultiplier > 1 {
		text += fmt.Sprintf(" unit_multiplier:{value:%d}", q.UnitMultiplier)
	}
	return text
}

// hasBurst reports whether the only charge of st allows another number of units at once than
// its current_limit says, as a gcra limit with a burst does.
func hasBurst(st *limiter.Status) bool {
	return len(st.Charges) == 1 && st.Charges[0].Rule != nil &&
		st.Charges[0].Rule.Limit.Capacity() != st.Charges[0].Limit.Requests
}

// chargesMetadata describes the limits of a descriptor in the order of the rules. Times are in seconds.
func chargesMetadata(st *limiter.Status) []any {
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
		if wait, ok := c.RetryWait(); ok {
			fields["retryAfter"] = wait.Seconds()
		}
		if c.Verdict.Fallback != backend.FallbackError {
			fields["degraded"] = c.Verdict.Fallback.String()
		}
		if c.IsCanary {
			fields["canary"] = true
		}
		list[i] = fields
	}
	return list
}

// limitTreeSummary returns the summary of all levels of a path in a tree of limits: [limited, limit, remaining, retry
// after, reset after].
func limitTreeSummary(st *limiter.Status) []any {
	s, limited := rediscell.OfStatus(st), 0
	if s.Limited {
		limited = 1
	}
	return []any{limited, s.Limit, s.Remaining, s.RetrySeconds, s.ResetSeconds}
}

// mergeMetadata returns the fields of a and those that only b has. It merges maps that both have. It
// changes neither argument, because rules own them.
func mergeMetadata(a, b map[string]any) map[string]any {
	if len(a) == 0 {
		return b
	}
	merged := maps.Clone(a)
	for name, value := range b {
		earlier, exists := merged[name]
		inner, innerOK := earlier.(map[string]any)
		other, otherOK := value.(map[string]any)
		if !exists {
			merged[name] = value
		} else if innerOK && otherOK {
			merged[name] = mergeMetadata(inner, other)
		}
	}
	return merged
}
