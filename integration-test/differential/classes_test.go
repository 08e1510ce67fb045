package differential

import (
	"path/filepath"
	"strings"
	"testing"

	"ratelimit/testbed/testfiles"
)

// class is a kind of differences that are meant.
type class struct {
	name     string
	sentence string // of docs/migrating.md
	explains func(d *difference) bool
	diverges bool // afterwards the counters of both programs differ, so that the rest of the trial needs another domain
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

const (
	stopSetting  = "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT"
	cacheSetting = "LOCAL_CACHE_SIZE_IN_BYTES"

	quotaSentence = "A quota rule that is over never refuses a request, and its status is `OK` without a time until reset."
)

// classes are tried in this order. Those about the request come first: what it asks decides what both do with it.
var classes = []class{
	{
		name: "codes", sentence: "Errors are `INVALID_ARGUMENT` and `UNAVAILABLE` instead of `UNKNOWN`",
		explains: func(d *difference) bool {
			return d.what == "answer gRPC code" && d.upstream == "Unknown" && d.here == "InvalidArgument"
		},
	},
	{
		name: "method", sentence: "405 for methods other than POST", diverges: true,
		explains: func(d *difference) bool { return d.request != nil && d.request.get },
	},
	{
		name: "addends", sentence: "Addends are capped at 2^48.", diverges: true,
		explains: func(d *difference) bool { return d.anyAsked((*request).isAboveCap) },
	},
	{
		name: "crash", sentence: "A limit in a request without a valid unit is answered `INVALID_ARGUMENT`.", diverges: true,
		explains: func(d *difference) bool { return d.request != nil && d.request.asksWithLimit(noUnit) },
	},
	{
		name: "bytes", sentence: "is matched and counted as the bytes that were sent", diverges: true,
		explains: func(d *difference) bool { return d.request != nil && d.request.badText },
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
		name: "text of a limit", sentence: "The text of `limit` has single spaces, and `WEEK` instead of `7`.",
		explains: func(d *difference) bool {
			return d.what == "answer dynamic metadata descriptors" &&
				strings.ReplaceAll(d.upstream, "unit:7", "unit:WEEK") == d.here
		},
	},
	{
		name: "joined text", sentence: "**Exact rules compare key and value separately.**", diverges: true,
		explains: func(d *difference) bool {
			if d.what == "load" {
				return d.upstream == "refused" && d.rules.sameJoined()
			}
			return d.request != nil && d.request.meets(d.allRules(), func(r *descriptor, key, value string) bool {
				return r.key != key && (r.joined() == key+"_"+value || r.joined() == key)
			})
		},
	},
	{
		name: "unlimited in /rlconfig", sentence: "It shows unlimited rules as `unlimited`",
		explains: func(d *difference) bool {
			return d.what == "rlconfig" && strings.Contains(d.upstream, ": unit=UNKNOWN ") &&
				strings.Contains(d.here, ": unlimited, ")
		},
	},
	{
		name: "ban", sentence: "**`requests_per_unit: 0` refuses a `hits_addend` of 0**", diverges: true,
		explains: (*difference).bans,
	},
	{
		name: "no key for nothing", sentence: "A counter that nothing is charged to gets no key.",
		explains: func(d *difference) bool {
			return d.env.has(stopSetting) && d.is("redis ") && d.upstream == "0" && d.here == "no such key"
		},
	},
	{
		name: "stop is atomic", sentence: "The counter that refuses does not grow, and rules in shadow mode refuse nothing.",
		diverges: true,
		explains: func(d *difference) bool {
			return d.env.has(stopSetting) && (d.refuses() || d.hasFlag("shadow_mode")) && (d.is("redis ") || d.decides())
		},
	},
	{
		name: "near_limit with stop", sentence: "`near_limit` counts each refusal, since the counter no longer grows",
		explains: func(d *difference) bool {
			return d.env.has(stopSetting) && d.is("counters ") && strings.Contains(d.what, ".near_limit")
		},
	},
	{
		name: "over-limit cache", sentence: "a limit of a request has an entry of its own", diverges: true,
		explains: func(d *difference) bool { return d.env.has(cacheSetting) && (d.next != nil || d.sharesCounter()) },
	},
	{
		name: "limit without entries", sentence: "A limit of a request without entries counts as `domain.total_hits`",
		explains: func(d *difference) bool { return d.isCounterOfDomain() && d.anyAsked((*request).hasBareLimit) },
	},
	{
		name: "control characters", sentence: "Control characters in names are replaced by `_`",
		explains: func(d *difference) bool { return d.is("counters ") && d.anyAsked((*request).hasControl) },
	},
	{
		name: "older: metadata", sentence: "It refuses rules with `metadata`.",
		explains: func(d *difference) bool {
			return d.what == "load" && d.upstream == "refused" && d.allRules().any(func(r *descriptor) bool {
				return r.metadata != "" || strings.HasPrefix(r.mistake, "metadata")
			})
		},
	},
	{
		name: "older: stars", sentence: "A `*` in a rule stands for other text only at the end of `key_value`",
		diverges: true,
		explains: func(d *difference) bool {
			if d.what == "load" {
				return d.upstream == "refused" && d.allRules().any(func(r *descriptor) bool {
					return r.hasFlag("share_threshold") && !strings.HasSuffix(r.joined(), "*")
				})
			}
			return d.request != nil && d.request.meets(d.allRules(), func(r *descriptor, key, value string) bool {
				return r.innerStar() && matches(r.joined(), key+"_"+value)
			})
		},
	},
	{
		name: "older: quota mode", sentence: quotaSentence,
		explains: func(d *difference) bool {
			return d.olderQuota() && (d.decides() || d.is("answer status") || d.is("answer dynamic metadata quotaMode"))
		},
	},
	{
		name: "older: quota mode and global shadow mode", sentence: quotaSentence,
		explains: func(d *difference) bool {
			return strings.Contains(d.what, ".global_shadow_mode") && (d.env.has("QUOTA_MODE") || d.hasFlag("quota_mode"))
		},
	},
	{
		name: "older: quota fields", sentence: "Its dynamic metadata lack `quotaModeEnabled` and `quotaModeViolations`.",
		explains: func(d *difference) bool { return d.what == "answer dynamic metadata quotaModeEnabled" },
	},
}

// TestClassesAreDocumented holds each class against the page that users read.
func TestClassesAreDocumented(t *testing.T) {
	page := testfiles.Read(t, filepath.Join("..", "..", "docs", "migrating.md"))
	text := strings.Join(strings.Fields(string(page)), " ")
	for _, c := range classes {
		if !strings.Contains(text, c.sentence) {
			t.Errorf("the class %q quotes %q, which docs/migrating.md does not say", c.name, c.sentence)
		}
	}
}
