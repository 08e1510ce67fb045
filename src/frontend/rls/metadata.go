package rls

import (
	"fmt"
	"math"
	"strings"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
)

// metadata is the dynamic_metadata of an answer: what was asked, and what the
// rules that passed have to say.
func metadata(msg *pb.RateLimitRequest, a *limiter.Answer) (*structpb.Struct, error) {
	descriptors := make([]*structpb.Value, len(msg.GetDescriptors()))
	for i, d := range msg.GetDescriptors() {
		about := describe(d)
		if i < len(a.Statuses) && (len(a.Statuses[i].Charges) > 1 || hasBurst(&a.Statuses[i])) {
			about.Fields["charges"] = charges(&a.Statuses[i])
		}
		if a.Domain != nil && a.Domain.Words() && len(a.Statuses[i].Charges) > 0 {
			about.Fields["summary"] = summary(&a.Statuses[i])
		}
		if f := a.Statuses[i].Fallback; f != backend.FallbackError {
			about.Fields["degraded"] = structpb.NewStringValue(f.String())
		}
		descriptors[i] = structpb.NewStructValue(about)
	}
	fields := map[string]*structpb.Value{
		"domain":      structpb.NewStringValue(msg.GetDomain()),
		"descriptors": structpb.NewListValue(&structpb.ListValue{Values: descriptors}),
	}
	if n := msg.GetHitsAddend(); n != 0 {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(n))
	}
	var merged map[string]any
	for i := range a.Statuses {
		st := &a.Statuses[i]
		if st.Over || st.Rule == nil || st.Rule.Unlimited {
			continue
		}
		merged = merge(merged, st.Rule.Metadata)
	}
	if len(merged) > 0 {
		v, err := structpb.NewValue(merged)
		if err != nil {
			return nil, fmt.Errorf("rls: metadata of a rule: %w", err)
		}
		fields["metadata"] = v
	}
	return &structpb.Struct{Fields: fields}, nil
}

func describe(d *common.RateLimitDescriptor) *structpb.Struct {
	entries := make([]*structpb.Value, len(d.GetEntries()))
	for i, e := range d.GetEntries() {
		entries[i] = structpb.NewStringValue(e.GetKey() + "=" + e.GetValue())
	}
	fields := map[string]*structpb.Value{"entries": structpb.NewListValue(&structpb.ListValue{Values: entries})}
	if limit := d.GetLimit(); limit != nil {
		// The text form of protobuf, without the random blanks in it.
		fields["limit"] = structpb.NewStringValue(strings.Join(strings.Fields(limit.String()), " "))
	}
	if hits := d.GetHitsAddend(); hits != nil {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(hits.GetValue()))
	}
	return &structpb.Struct{Fields: fields}
}

// hasBurst reports whether st was charged to a bucket that lets another number pass at once
// than its current_limit says.
func hasBurst(st *limiter.Status) bool {
	return len(st.Charges) == 1 && st.Charges[0].Rule != nil && st.Charges[0].Rule.Limit.Capacity() != uint64(st.Charges[0].Limit.Requests)
}

// charges are all limits of a descriptor that has several, of which the status
// tells one only, or that has a burst: in the order of the rules, with the waits
// in seconds.
func charges(st *limiter.Status) *structpb.Value {
	list := make([]*structpb.Value, len(st.Charges))
	for i := range st.Charges {
		c := &st.Charges[i]
		fields := map[string]*structpb.Value{
			"limit":      structpb.NewNumberValue(float64(c.Limit.Requests)),
			"remaining":  structpb.NewNumberValue(float64(c.Verdict.Remaining)),
			"over":       structpb.NewBoolValue(c.Verdict.Over),
			"resetAfter": structpb.NewNumberValue(c.Verdict.ResetAfter.Seconds()),
		}
		if c.Rule != nil {
			fields["rule"] = structpb.NewStringValue(strings.TrimPrefix(c.Rule.Key, c.Rule.Domain+"."))
			if l := &c.Rule.Limit; l.Kind == algorithm.GCRA {
				fields["atOnce"] = structpb.NewNumberValue(float64(l.Capacity()))
			}
		}
		if c.Verdict.Over && c.Verdict.RetryAfter != algorithm.Never {
			fields["retryAfter"] = structpb.NewNumberValue(c.Verdict.RetryAfter.Seconds())
		}
		if c.Verdict.Fallback != backend.FallbackError {
			fields["degraded"] = structpb.NewStringValue(c.Verdict.Fallback.String())
		}
		if c.Canary {
			fields["canary"] = structpb.NewBoolValue(true)
		}
		list[i] = structpb.NewStructValue(&structpb.Struct{Fields: fields})
	}
	return structpb.NewListValue(&structpb.ListValue{Values: list})
}

// summary is all levels of a path in a tree of limits folded into one, as
// [limited, limit, remaining, retry after, reset after]: any, the smallest, the
// smallest, the longest and the longest, each for itself. Times are in seconds,
// rounded up; -1 is a retry that there is no need for, or no use of.
//
// Source: bradennapier's gist on redis-cell.
func summary(st *limiter.Status) *structpb.Value {
	limited, limit, remaining := 0.0, math.Inf(1), math.Inf(1)
	retry, reset := int64(-1), int64(0)
	for i := range st.Charges {
		c := &st.Charges[i]
		v := &c.Verdict
		if v.Over {
			limited = 1
			if v.RetryAfter != algorithm.Never {
				retry = max(retry, wholeSeconds(v.RetryAfter))
			}
		}
		limit, remaining = min(limit, float64(c.Limit.Requests)), min(remaining, float64(v.Remaining))
		reset = max(reset, wholeSeconds(v.ResetAfter))
	}
	list := &structpb.ListValue{}
	for _, n := range []float64{limited, limit, remaining, float64(retry), float64(reset)} {
		list.Values = append(list.Values, structpb.NewNumberValue(n))
	}
	return structpb.NewListValue(list)
}

// merge returns a with what b has beyond it; where both have a map, the two
// merged. Neither is changed: they belong to rules.
func merge(a, b map[string]any) map[string]any {
	if len(a) == 0 {
		return b
	}
	merged := make(map[string]any, len(a)+len(b))
	for k, v := range a {
		merged[k] = v
	}
	for k, v := range b {
		mine, taken := merged[k]
		if !taken {
			merged[k] = v
			continue
		}
		inner, ok := mine.(map[string]any)
		other, ok2 := v.(map[string]any)
		if ok && ok2 {
			merged[k] = merge(inner, other)
		}
	}
	return merged
}
