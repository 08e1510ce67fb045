package differential

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// compareAnswers returns all differences between two answers.
func compareAnswers(theirs, ours answer) []difference {
	var found []difference
	compare := func(what string, a, b any) {
		if !reflect.DeepEqual(a, b) {
			found = append(found, difference{what: "answer " + what, upstream: fmt.Sprint(a), here: fmt.Sprint(b)})
		}
	}
	compare("gRPC code", theirs.code.String(), ours.code.String())
	compare("HTTP status", theirs.http, ours.http)
	a, b := theirs.response, ours.response
	if a == nil || b == nil {
		return found
	}
	compare("overall code", a.GetOverallCode(), b.GetOverallCode())
	compare("number of statuses", len(a.GetStatuses()), len(b.GetStatuses()))
	for i := range min(len(a.GetStatuses()), len(b.GetStatuses())) {
		compareStatuses(fmt.Sprintf("status %d ", i), a.GetStatuses()[i], b.GetStatuses()[i], compare)
	}
	compare("headers", headers(a.GetResponseHeadersToAdd()), headers(b.GetResponseHeadersToAdd()))
	compareMetadata(a.GetDynamicMetadata().AsMap(), b.GetDynamicMetadata().AsMap(), compare)
	compare("other fields", len(a.GetRequestHeadersToAdd())+len(a.GetRawBody()),
		len(b.GetRequestHeadersToAdd())+len(b.GetRawBody()))
	return found
}

func compareStatuses(place string, a, b *rlsv3.RateLimitResponse_DescriptorStatus,
	compare func(what string, a, b any),
) {
	compare(place+"code", a.GetCode(), b.GetCode())
	compare(place+"limit", limitText(a.GetCurrentLimit()), limitText(b.GetCurrentLimit()))
	compare(place+"remaining", a.GetLimitRemaining(), b.GetLimitRemaining())
	compare(place+"reset", a.GetDurationUntilReset().AsDuration(), b.GetDurationUntilReset().AsDuration())
	compare(place+"quota", a.GetQuota() != nil, b.GetQuota() != nil)
}

func limitText(l *rlsv3.RateLimitResponse_RateLimit) string {
	if l == nil {
		return "none"
	}
	return fmt.Sprintf("%q %d %v %v", l.GetName(), l.GetRequestsPerUnit(), l.GetUnit(), l.GetUnitMultiplier().GetValue())
}

func headers(list []*corev3.HeaderValue) string {
	var texts []string
	for _, h := range list {
		texts = append(texts, h.GetKey()+": "+h.GetValue()+string(h.GetRawValue()))
	}
	return strings.Join(texts, ", ")
}

// compareMetadata compares each part of the dynamic metadata. A limit of the request is shown as text whose spaces
// vary.
func compareMetadata(a, b map[string]any, compare func(what string, a, b any)) {
	parts := maps.Clone(a)
	maps.Copy(parts, b)
	for _, part := range slices.Sorted(maps.Keys(parts)) {
		compare("dynamic metadata "+part, metadataText(a[part]), metadataText(b[part]))
	}
}

// metadataText is a part of the dynamic metadata as text; the limits of descriptors have single spaces.
func metadataText(part any) string {
	list, _ := part.([]any)
	for _, d := range list {
		if fields, ok := d.(map[string]any); ok && fields["limit"] != nil {
			fields["limit"] = strings.Join(strings.Fields(fmt.Sprint(fields["limit"])), " ")
		}
	}
	data, _ := json.Marshal(part) // it came as JSON does
	return string(data)
}

// keyComparison compares the keys in both Redis after each request of a trial.
type keyComparison struct {
	expiries bool            // whether both programs choose the same ones
	seen     map[string]bool // the keys that both had before: such a key may be gone in one of them
}

// compare returns the differences.
func (c *keyComparison) compare(theirs, ours map[string]counter) []difference {
	var found []difference
	differ := func(what, key, a, b string) {
		found = append(found, difference{what: what + strconv.Quote(key), upstream: a, here: b})
	}
	for key, a := range theirs {
		b, both := ours[key]
		switch {
		case !both && !c.seen[key]:
			differ("redis ", key, a.value, "no such key")
		case !both:
		case a.value != b.value:
			differ("redis ", key, a.value, b.value)
		case c.expiries && (a.ttl-b.ttl).Abs() > 1500*time.Millisecond:
			differ("redis expiry ", key, a.ttl.String(), b.ttl.String())
		default:
			c.seen[key] = true
		}
	}
	for key, b := range ours {
		if _, both := theirs[key]; !both && !c.seen[key] {
			differ("redis ", key, "no such key", b.value)
		}
	}
	return found
}
