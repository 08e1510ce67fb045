package differential

import (
	"regexp"
	"slices"
	"strings"
	"unicode"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// What classes ask about a difference.

// is reports whether the thing that differs has a name that begins so.
func (d *difference) is(start string) bool { return strings.HasPrefix(d.what, start) }

// decides reports whether a part of the answer differs that says what was decided.
func (d *difference) decides() bool {
	return d.is("answer ") && slices.ContainsFunc([]string{" code", "HTTP status", " remaining", "headers"},
		func(end string) bool {
			return strings.HasSuffix(d.what, end)
		})
}

// anyAsked reports whether f is true for one of the requests so far.
func (d *difference) anyAsked(f func(*request) bool) bool { return slices.ContainsFunc(d.asked, f) }

// allRules returns the rules of both halves of the trial.
func (d *difference) allRules() *rules {
	if d.next == nil {
		return d.rules
	}
	return &rules{descriptors: slices.Concat(d.rules.descriptors, d.next.descriptors)}
}

// hasFlag reports whether a rule has the flag.
func (d *difference) hasFlag(name string) bool {
	return d.allRules().any(func(r *descriptor) bool { return r.hasFlag(name) })
}

// refuses reports whether one of the answers has a status that is over its limit.
func (d *difference) refuses() bool {
	return slices.ContainsFunc(d.answers[:], func(a answer) bool {
		return slices.ContainsFunc(a.response.GetStatuses(), isOver)
	})
}

func isOver(s *rlsv3.RateLimitResponse_DescriptorStatus) bool {
	return s.GetCode() == rlsv3.RateLimitResponse_OVER_LIMIT
}

// bans reports whether a status of a limit of 0 is over the limit in one of the answers only.
func (d *difference) bans() bool {
	theirs := d.answers[0].response.GetStatuses()
	for i, s := range d.answers[1].response.GetStatuses() {
		isBan := s.GetCurrentLimit() != nil && s.GetCurrentLimit().GetRequestsPerUnit() == 0
		if isBan && i < len(theirs) && isOver(s) != isOver(theirs[i]) {
			return true
		}
	}
	return false
}

// olderQuota reports whether upstream's answer has a status as quota rules that are over have it in older versions:
// with a limit, and without a time until reset.
func (d *difference) olderQuota() bool {
	return slices.ContainsFunc(d.answers[0].response.GetStatuses(),
		func(s *rlsv3.RateLimitResponse_DescriptorStatus) bool {
			return s.GetCurrentLimit() != nil && s.GetDurationUntilReset() == nil
		})
}

// sharesCounter reports whether the requests so far asked for one counter with two limits, one of which came with a
// request.
func (d *difference) sharesCounter() bool {
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

// counterOfDomain matches what follows a domain in the name of a counter that has no rule: total_hits, with tags.
var counterOfDomain = regexp.MustCompile(`^\.{1,2}[a-z_]+(\.__.*)?$`)

// isCounterOfDomain reports whether a counter differs that is one of the domain, and not of a rule.
func (d *difference) isCounterOfDomain() bool {
	rest, ok := strings.CutPrefix(d.what, "counters "+serviceStats+"rate_limit."+d.domain)
	return ok && counterOfDomain.MatchString(rest)
}

// What classes ask about rules.

// any reports whether f is true for a descriptor of the rules.
func (all *rules) any(f func(*descriptor) bool) (found bool) {
	all.walk(func(d *descriptor) { found = found || f(d) })
	return found
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

// What classes ask about a request.

// meets reports whether f is true for a descriptor of the rules and an entry of the request.
func (q *request) meets(all *rules, f func(r *descriptor, key, value string) bool) bool {
	return q.anyEntry(func(key, value string) bool {
		return all.any(func(r *descriptor) bool { return f(r, key, value) })
	})
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

// hasControl reports whether the request has a control character.
func (q *request) hasControl() bool {
	return q.anyEntry(func(key, value string) bool { return strings.ContainsFunc(key+value, unicode.IsControl) })
}

// isAboveCap reports whether the request has more hits than this service charges at once.
func (q *request) isAboveCap() bool {
	return slices.ContainsFunc(q.message.GetDescriptors(), func(d *commonv3.RateLimitDescriptor) bool {
		return d.GetHitsAddend().GetValue() > maxAddend
	})
}

// hasBareLimit reports whether a descriptor has a limit of its own, and no entries.
func (q *request) hasBareLimit() bool {
	return slices.ContainsFunc(q.message.GetDescriptors(), func(d *commonv3.RateLimitDescriptor) bool {
		return d.GetLimit() != nil && keyText(d) == ""
	})
}

// asksWithLimit reports whether a descriptor has a limit of its own for which f is true.
func (q *request) asksWithLimit(f func(*commonv3.RateLimitDescriptor_RateLimitOverride) bool) bool {
	return slices.ContainsFunc(q.message.GetDescriptors(), func(d *commonv3.RateLimitDescriptor) bool {
		return d.GetLimit() != nil && f(d.GetLimit())
	})
}

// noUnit reports whether a limit of a request has no unit that upstream knows.
func noUnit(l *commonv3.RateLimitDescriptor_RateLimitOverride) bool {
	return l.GetUnit() == 0 || l.GetUnit() > 7
}
