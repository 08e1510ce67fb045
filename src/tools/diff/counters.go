package diff

import (
	"bytes"
	"fmt"
	"strings"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
	"ratelimit/src/operator/output"
	"ratelimit/src/operator/rulechange"
	"ratelimit/src/rules"
)

// What becomes of the counters of a rule.
const (
	CountersKept = "kept" // The counters go on.
	CountersNew  = "new"  // The counters start anew, in every store.
	// CountersNewRemote: only in Redis and Memcached, whose names tell limits of one descriptor apart.
	CountersNewRemote = "new in Redis and Memcached"
	CountersNone      = "none" // The rule is unlimited, so it has no counters.
)

// counterComparer compares the names of counters, and their windows, as stores see them.
type counterComparer struct {
	keys          rules.KeyFormat
	before, after *rules.Set
}

// compare tells what becomes of the counters of p.After, or of a removed rule, and why.
func (c *counterComparer) compare(p rulechange.Pair) (counters, why string) {
	switch {
	case p.After == nil && p.Before.Unlimited, p.After != nil && p.After.Unlimited:
		return CountersNone, ""
	case p.After == nil:
		if r := c.sameCounters(p.Before, c.before, c.after); r != nil {
			return CountersKept, "rule " + r.FullName + " counts on"
		}
		return CountersNone, "they expire with their windows"
	case p.Before == nil:
		if r := c.sameCounters(p.After, c.after, c.before); r != nil {
			return CountersKept, "those of rule " + r.FullName + " go on"
		}
		return CountersNew, "the rule is new"
	case p.Before.Unlimited:
		return CountersNew, "the rule was unlimited and counted nothing"
	}
	entries := sampleEntries(p.After)
	for i := range min(len(p.Before.Path), len(p.After.Path)) {
		// A sample that is an address shows whether the old rule counted networks.
		if l := &p.Before.Path[i]; l.CountsNetworks() && p.After.Path[i].Kind == rules.LevelValue {
			entries[i].Value = []byte(l.SampleValue())
		}
	}
	if p.After.ListSettings != nil && p.Before.ListSettings != nil {
		entries = append(entries, sampleEntries(p.Before)...)
	}
	return c.difference(p.Before, p.After, entries)
}

// difference compares the counters of two rules for the same entries.
func (c *counterComparer) difference(before, after *rules.Rule, entries []rules.Entry) (counters, why string) {
	oldHit, newHit := c.hit(c.before, before, entries), c.hit(c.after, after, entries)
	reasons := windowReasons(&before.Limit, &after.Limit)
	if !bytes.Equal(oldHit.Key, newHit.Key) {
		reasons = append(reasons, fmt.Sprintf("the key is %s instead of %s", keyText(newHit.Key), keyText(oldHit.Key)))
	}
	if len(reasons) > 0 {
		return CountersNew, strings.Join(reasons, "; ")
	}
	const now = 0 // Both names have the same start of a window.
	was, is := remote.AppendKey(nil, oldHit, now, c.keys.EscapeKeys), remote.AppendKey(nil, newHit, now, c.keys.EscapeKeys)
	if !bytes.Equal(was, is) {
		return CountersNewRemote, fmt.Sprintf("there the key is %s instead of %s", keyText(is), keyText(was))
	}
	return CountersKept, ""
}

// keyText returns the key of sampleEntries for people, with `*` for any text.
func keyText(key []byte) string {
	return output.Printable(strings.ReplaceAll(string(key), anyText, "*"))
}

// hit returns a hit on the counter of r that entries lead to.
func (c *counterComparer) hit(set *rules.Set, r *rules.Rule, entries []rules.Entry) *backend.Hit {
	h := &backend.Hit{Limit: &r.Limit, SharesKey: r.ChargedWithOthers}
	h.Key, h.TagLength = c.keys.AppendKey(nil, set.Domain([]byte(r.Domain)), r, entries)
	return h
}

// windowReasons says what differs between the windows of two limits; nothing if algorithm.Limit.Window is equal.
func windowReasons(before, after *algorithm.Limit) (reasons []string) {
	was, is := before.Window(), after.Window()
	if was == is {
		return nil
	}
	if was.Kind != is.Kind {
		reasons = append(reasons, fmt.Sprintf("the algorithm is %v instead of %v", is.Kind, was.Kind))
	}
	if before.Period != after.Period {
		reasons = append(reasons, fmt.Sprintf("the window is %s instead of %s", rules.FormatDuration(after.Period),
			rules.FormatDuration(before.Period)))
	}
	if was.CalendarID != is.CalendarID {
		reasons = append(reasons, "the borders of the windows differ: calendar")
	}
	if was.IsHeld != is.IsHeld {
		reasons = append(reasons, "only one of the two has holds")
	}
	return reasons
}

// sameCounters returns the rule of set that a request for r is charged to, and that has the counters of r; or nil.
func (c *counterComparer) sameCounters(r *rules.Rule, own, set *rules.Set) *rules.Rule {
	entries := sampleEntries(r)
	mine := c.hit(own, r, entries)
	for _, other := range chargedBy(set, r.Domain, entries) {
		if !other.Unlimited && other.Limit.Window() == r.Limit.Window() &&
			bytes.Equal(c.hit(set, other, entries).Key, mine.Key) {
			return other
		}
	}
	return nil
}

// instead returns the rules of the other side that requests for an added or removed rule are charged to.
func (c *counterComparer) instead(p rulechange.Pair) (list []InsteadRule) {
	var found []*rules.Rule
	switch {
	case p.Before == nil:
		found = chargedBy(c.before, p.After.Domain, sampleEntries(p.After))
	case p.After == nil:
		found = chargedBy(c.after, p.Before.Domain, sampleEntries(p.Before))
	}
	for _, r := range found {
		list = append(list, InsteadRule{r.FullName, r.LimitInWords()})
	}
	return list
}

// chargedBy returns the limits that a request with these entries is charged to.
func chargedBy(set *rules.Set, domain string, entries []rules.Entry) []*rules.Rule {
	d := set.Domain([]byte(domain))
	if d == nil {
		return nil
	}
	m := d.FindRule(entries, new(rules.SearchScratch))
	if m == nil {
		return nil
	}
	return m.Limits
}

// anyText stands for any bytes in sampleEntries. No rule is likely to name it.
const anyText = "any\u00b7text"

// sampleEntries returns entries that r matches, as long as no other rule takes them. Each `*` is any text.
func sampleEntries(r *rules.Rule) (list []rules.Entry) {
	add := func(key, value string) {
		list = append(list, rules.Entry{
			Key:   []byte(strings.ReplaceAll(key, "*", anyText)),
			Value: []byte(strings.ReplaceAll(value, "*", anyText)),
		})
	}
	switch words := r.WordPath(); {
	case words != nil:
		for _, word := range words {
			add(word, "")
		}
	case r.ListSettings != nil:
		for _, key := range r.ListSettings.PerKeys {
			add(key, "*")
		}
		for _, pair := range r.ListSettings.MatchPairs { // The last value of a key counts.
			add(pair.Key, pair.Pattern)
		}
	default:
		for i := range r.Path {
			l := &r.Path[i]
			switch value := l.Value(); {
			case l.Kind != rules.LevelValue || l.CountsNetworks():
				add(l.Key(), l.SampleValue())
			case value == "" && !strings.Contains(l.Key(), "*"):
				add(l.Key(), "*")
			default:
				add(l.Key(), value)
			}
		}
	}
	return list
}
