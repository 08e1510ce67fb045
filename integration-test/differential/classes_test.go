package differential

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// class is a kind of differences that are meant.
type class struct {
	name     string
	sentence string // of docs/migrating.md
	explains func(d *difference) bool
	diverges bool // afterwards the counters of both programs differ, so that nothing more of the trial is compared
}

// classOf returns the first class that explains a difference, or nil.
func classOf(d *difference) *class {
	for i := range classes {
		if classes[i].explains(d) {
			return &classes[i]
		}
	}
	return nil
}

var classes = []class{
	{
		name: "codes", sentence: "Errors are `INVALID_ARGUMENT` and `UNAVAILABLE` instead of `UNKNOWN`",
		explains: func(d *difference) bool {
			return d.what == "answer gRPC code" && strings.HasPrefix(d.upstream, "Unknown") && strings.HasPrefix(d.here, "InvalidArgument")
		},
	},
	{
		name: "method", sentence: "405 for methods other than POST", diverges: true,
		explains: func(d *difference) bool { return d.request != nil && d.request.get },
	},
	{
		name: "addends", sentence: "Addends are capped at 2^48.", diverges: true,
		explains: func(d *difference) bool {
			return slices.ContainsFunc(d.asked, func(q *request) bool { return q.anyAddend(func(n uint64) bool { return n > maxAddend }) })
		},
	},
	{
		name: "headers of the largest limit", sentence: "A limit of 4,294,967,295 of which all is left has headers, too.",
		explains: func(d *difference) bool {
			return d.what == "answer headers" && d.upstream == "" && strings.Contains(d.here, ": 4294967295, ")
		},
	},
	{
		name: "retry-after", sentence: "A refusal has a fourth header, `Retry-After`.",
		explains: func(d *difference) bool {
			rest, ok := strings.CutPrefix(d.here, d.upstream)
			return d.what == "answer headers" && ok && strings.HasPrefix(rest, ", Retry-After: ")
		},
	},
	{
		name: "bytes", sentence: "is matched and counted as the bytes that were sent", diverges: true,
		explains: func(d *difference) bool { return d.request != nil && d.request.badText },
	},
	{
		name: "joined text", sentence: "**Exact rules compare key and value separately.**", diverges: true,
		explains: func(d *difference) bool {
			if d.what == "load" {
				return d.upstream == "refused" && d.rules.sameJoined()
			}
			return d.request != nil && d.request.anyEntry(func(key, value string) bool {
				return d.rules.any(func(r *descriptor) bool { return r.key != key && (r.joined() == key+"_"+value || r.joined() == key) })
			})
		},
	},
	{
		name: "unlimited in /rlconfig", sentence: "It shows unlimited rules as `unlimited`",
		explains: func(d *difference) bool {
			return d.what == "rlconfig" && strings.Contains(d.upstream, "unit=UNKNOWN") && strings.Contains(d.here, ": unlimited, ")
		},
	},
	{
		name: "ban", sentence: "**`requests_per_unit: 0` refuses a `hits_addend` of 0**", diverges: true,
		explains: func(d *difference) bool {
			theirs := d.answers[0].response.GetStatuses()
			for i, s := range d.answers[1].response.GetStatuses() {
				if banned := s.GetCurrentLimit() != nil && s.GetCurrentLimit().GetRequestsPerUnit() == 0; banned && i < len(theirs) && s.GetCode() != theirs[i].GetCode() {
					return true
				}
			}
			return false
		},
	},
	{
		name: "no key for nothing", sentence: "A counter that nothing is charged to gets no key.",
		explains: func(d *difference) bool {
			return d.env.has("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT") && strings.HasPrefix(d.what, "redis ") && d.upstream == "0" && d.here == "no such key"
		},
	},
	{
		name: "stop is atomic", sentence: "The counter that refuses does not grow, and rules in shadow mode refuse nothing.", diverges: true,
		explains: func(d *difference) bool {
			return d.env.has("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT") && (d.refuses() || d.rules.any(func(r *descriptor) bool { return r.hasFlag("shadow_mode") })) &&
				(strings.HasPrefix(d.what, "redis ") || strings.HasPrefix(d.what, "answer ") && slices.ContainsFunc(decided, func(end string) bool { return strings.HasSuffix(d.what, end) }))
		},
	},
	{
		name: "near_limit with stop", sentence: "`near_limit` counts each refusal, since the counter no longer grows",
		explains: func(d *difference) bool {
			return d.env.has("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT") && strings.HasPrefix(d.what, "counters ") && strings.Contains(d.what, ".near_limit")
		},
	},
	{
		name: "text of a limit", sentence: "The text of `limit` has single spaces, and `WEEK` instead of `7`.",
		explains: func(d *difference) bool {
			return strings.HasSuffix(d.what, "dynamic metadata descriptors") && strings.Contains(d.upstream, "unit:7") && strings.Contains(d.here, "unit:WEEK")
		},
	},
	{
		name: "over-limit cache", sentence: "a limit of a request has an entry of its own", diverges: true,
		explains: func(d *difference) bool {
			return d.env.has("LOCAL_CACHE_SIZE_IN_BYTES") && (d.next != nil || d.sharedCounter())
		},
	},
	{
		name: "limit without entries", sentence: "A limit of a request without entries counts as `domain.total_hits`",
		explains: func(d *difference) bool {
			return strings.HasPrefix(d.what, "counters "+serviceStats+"rate_limit."+d.domain) && slices.ContainsFunc(d.asked, func(q *request) bool {
				return slices.ContainsFunc(q.message.GetDescriptors(), func(m *commonv3.RateLimitDescriptor) bool { return m.GetLimit() != nil && keyText(m) == "" })
			}) && slices.ContainsFunc([]string{".", ".."}, func(dots string) bool {
				return hitCounter.MatchString(strings.TrimPrefix(d.what, "counters "+serviceStats+"rate_limit."+d.domain+dots))
			})
		},
	},
	{
		name: "control characters", sentence: "Control characters in names are replaced by `_`",
		explains: func(d *difference) bool {
			return strings.HasPrefix(d.what, "counters ") && slices.ContainsFunc(d.asked, func(q *request) bool {
				return q.anyEntry(func(key, value string) bool { return strings.ContainsFunc(key+value, unicode.IsControl) })
			})
		},
	},
	{
		name: "older: metadata", sentence: "It refuses rules with `metadata`.",
		explains: func(d *difference) bool {
			return d.what == "load" && d.upstream == "refused" && d.rules.any(func(r *descriptor) bool { return r.metadata != "" || strings.HasPrefix(r.mistake, "metadata") })
		},
	},
	{
		name: "older: stars", sentence: "A `*` in a rule stands for other text only at the end of `key_value`", diverges: true,
		explains: func(d *difference) bool {
			if d.what == "load" {
				return d.upstream == "refused" && d.rules.any(func(r *descriptor) bool { return r.hasFlag("share_threshold") && !strings.HasSuffix(r.joined(), "*") })
			}
			return d.request != nil && d.request.anyEntry(func(key, value string) bool {
				return d.rules.any(func(r *descriptor) bool { return r.innerStar() && matches(r.joined(), key+"_"+value) })
			})
		},
	},
	{
		name: "older: quota mode", sentence: "A quota rule that is over never refuses a request, and its status is `OK` without a time until reset.",
		explains: func(d *difference) bool {
			return d.olderQuota() && (strings.HasPrefix(d.what, "answer status") || strings.HasPrefix(d.what, "answer dynamic metadata quotaMode") ||
				d.what == "answer headers" || d.what == "answer overall code" || d.what == "answer HTTP status")
		},
	},
	{
		name: "older: quota mode and global shadow mode", sentence: "A quota rule that is over never refuses a request, and its status is `OK` without a time until reset.",
		explains: func(d *difference) bool {
			return strings.Contains(d.what, ".global_shadow_mode") && (d.env.has("QUOTA_MODE") || d.rules.any(func(r *descriptor) bool { return r.hasFlag("quota_mode") }))
		},
	},
	{
		name: "older: quota fields", sentence: "Dynamic metadata have no `quotaModeEnabled` and `quotaModeViolations`.",
		explains: func(d *difference) bool { return d.what == "answer dynamic metadata quotaModeEnabled" },
	},
	{
		name: "crash", sentence: "A limit in a request without a valid unit is answered `INVALID_ARGUMENT`.", diverges: true,
		explains: func(d *difference) bool { return d.request != nil && d.request.asksWithLimit(noUnit) },
	},
}

// decided are the ends of the names of what a decision gives.
var decided = []string{" code", "HTTP status", " remaining", "headers"}

// hitCounter matches the last part of a counter's name, with tags.
var hitCounter = regexp.MustCompile(`^[a-z_]+(\.__.*)?$`)

// any reports whether f is true for a descriptor of the rules.
func (all *rules) any(f func(*descriptor) bool) (found bool) {
	all.walk(func(d *descriptor) { found = found || f(d) })
	return found
}

// refuses reports whether one of the answers has a status that is over its limit.
func (d *difference) refuses() bool {
	return slices.ContainsFunc(d.answers[:], func(a answer) bool {
		return slices.ContainsFunc(a.response.GetStatuses(), func(s *rlsv3.RateLimitResponse_DescriptorStatus) bool {
			return s.GetCode() == rlsv3.RateLimitResponse_OVER_LIMIT
		})
	})
}

// olderQuota reports whether upstream's answer has a status as quota rules that are over have it in older versions: with a limit, and
// without a time until reset.
func (d *difference) olderQuota() bool {
	return slices.ContainsFunc(d.answers[0].response.GetStatuses(), func(s *rlsv3.RateLimitResponse_DescriptorStatus) bool {
		return s.GetCurrentLimit() != nil && s.GetDurationUntilReset() == nil
	})
}

// sharedCounter reports whether the requests so far asked for one counter with two limits, one of which came with a request.
func (d *difference) sharedCounter() bool {
	limits := make(map[string]string) // by the text that makes the key of a counter
	for _, q := range d.asked {
		for _, question := range q.message.GetDescriptors() {
			key, limit := keyText(question), question.GetLimit().String()
			if other, seen := limits[key]; seen && other != limit {
				return true
			}
			limits[key] = limit
		}
	}
	return false
}

// keyText is what a descriptor of a request contributes to the key of its counter.
func keyText(d *commonv3.RateLimitDescriptor) string {
	var b strings.Builder
	for _, e := range d.GetEntries() {
		b.WriteString(e.GetKey() + "_" + e.GetValue() + "_")
	}
	return b.String()
}

// innerStar reports whether the joined text has a star before its end.
func (d *descriptor) innerStar() bool {
	return strings.Contains(strings.TrimSuffix(d.joined(), "*"), "*")
}

// matches reports whether a text matches a pattern, in which each star stands for any bytes.
func matches(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	last := len(parts) - 1
	text, ok := strings.CutPrefix(text, parts[0])
	for _, part := range parts[1:last] {
		_, rest, found := strings.Cut(text, part)
		text, ok = rest, ok && found
	}
	return ok && strings.HasSuffix(text, parts[last])
}

// sameJoined reports whether two siblings have the same joined text.
func (all *rules) sameJoined() bool {
	same := func(list []*descriptor) bool {
		seen := make(map[string]bool)
		for _, d := range list {
			if seen[d.joined()] {
				return true
			}
			seen[d.joined()] = true
		}
		return false
	}
	return same(all.descriptors) || all.any(func(d *descriptor) bool { return same(d.children) })
}

// anyEntry reports whether f is true for an entry of the request.
func (q *request) anyEntry(f func(key, value string) bool) bool {
	for _, d := range q.message.GetDescriptors() {
		for _, e := range d.GetEntries() {
			if f(e.GetKey(), e.GetValue()) {
				return true
			}
		}
	}
	return false
}

// TestClassesAreDocumented holds each class against the page that users read.
func TestClassesAreDocumented(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "migrating.md"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(string(page)), " ")
	for _, c := range classes {
		if !strings.Contains(text, c.sentence) {
			t.Errorf("the class %q quotes %q, which docs/migrating.md does not say", c.name, c.sentence)
		}
	}
}
