package rules

import (
	"fmt"
	"slices"
	"time"

	"ratelimit/src/algorithm"
)

// HoldActionKey is the key of the entry that settles or releases a hold: `hold=settle` or `hold=release`.
const HoldActionKey = "hold"

// HoldAction is what a request does with the hold that it names.
type HoldAction uint8

const (
	TakeHold    HoldAction = iota // TakeHold opens the hold. It is the action of a request without an entry `hold`.
	SettleHold                    // SettleHold replaces the hold by the amount that was used.
	ReleaseHold                   // ReleaseHold gives the whole hold back.
)

// String returns the action as the entry `hold` has it; "take" for TakeHold, which has no such entry.
func (a HoldAction) String() string { return [...]string{"take", "settle", "release"}[a] }

// parseHoldAction returns the action that the value of an entry `hold` names.
func parseHoldAction(value []byte) (a HoldAction, known bool) {
	switch string(value) {
	case "settle":
		return SettleHold, true
	case "release":
		return ReleaseHold, true
	}
	return TakeHold, false
}

// HoldOf returns the name of the hold that a request's entries name, and what they do with it. r is the rule that FindRule returned for
// the entries, or a canary. Of the LimitsToCharge, those with a HoldIDKey have holds. The name is empty for a request that names no
// hold, and for rules without holds.
//
// An error says what is wrong with the request: an unknown action, an action without the name of a hold, or a missing name of a hold
// where one of the limits is a concurrency. HoldOf allocates nothing unless it returns an error.
func (r *Rule) HoldOf(entries []Entry) (name []byte, action HoldAction, err error) {
	if r.matchHoldIDKey == "" {
		return nil, TakeHold, nil
	}
	var actionEntry *Entry
	if r.ListSettings != nil {
		name = lastValueOfKey(entries, r.matchHoldIDKey)
		if i := lastIndexOfKey(entries, HoldActionKey); i >= 0 {
			actionEntry = &entries[i]
		}
	} else if below := entries[min(len(r.Path), len(entries)):]; len(below) > 0 {
		if string(below[0].Key) == r.matchHoldIDKey {
			name, below = below[0].Value, below[1:]
		}
		switch len(below) {
		case 1:
			actionEntry = &below[0]
		case 2:
			return nil, TakeHold, fmt.Errorf("rule %s: the entry %s, which names the hold, comes after the entry hold: send %s=<an id of the call> before it",
				r.FullName, r.matchHoldIDKey, r.matchHoldIDKey)
		}
	}
	if actionEntry != nil {
		var known bool
		if action, known = parseHoldAction(actionEntry.Value); !known {
			return nil, TakeHold, unknownHoldAction(r, string(actionEntry.Value))
		}
	}
	if len(name) == 0 && (actionEntry != nil || r.matchHasConcurrency) {
		return nil, TakeHold, fmt.Errorf("rule %s: the entry %s, which names the hold, is missing or empty: send %s=<an id of the call>",
			r.FullName, r.matchHoldIDKey, r.matchHoldIDKey)
	}
	return name, action, nil
}

// unknownHoldAction returns the error of a request whose entry hold has an unknown value.
func unknownHoldAction(r *Rule, value string) error {
	hint := ""
	if meant := NearestWord(value, slices.Values([]string{SettleHold.String(), ReleaseHold.String()})); meant != "" {
		hint = "did you mean hold=" + meant + "? "
	}
	return fmt.Errorf("rule %s: hold=%s is unknown: %ssend hold=settle or hold=release, or no such entry to take a hold", r.FullName, Shorten(value), hint)
}

// WithoutHold returns the entries of a request that do not name a hold or say what to do with it. r is the rule that FindRule returned.
func (r *Rule) WithoutHold(entries []Entry) []Entry {
	switch {
	case r.matchHoldIDKey == "":
		return entries
	case r.ListSettings == nil:
		return entries[:min(len(r.Path), len(entries))]
	}
	return slices.DeleteFunc(slices.Clone(entries), func(e Entry) bool {
		return string(e.Key) == r.matchHoldIDKey || string(e.Key) == HoldActionKey
	})
}

// acceptsBelow reports whether entries, which follow those that lead to r in a tree of descriptors, name a hold and perhaps an action.
// HoldOf reports an empty name and an unknown action. r must have a hold.
func (r *Rule) acceptsBelow(entries []Entry) bool {
	return string(entries[0].Key) == r.matchHoldIDKey && (len(entries) == 1 || len(entries) == 2 && string(entries[1].Key) == HoldActionKey)
}

// lacksHoldName reports whether entries, which no descriptor below r matches, have an action before the name of a hold, or without it,
// which HoldOf reports. r must have a hold.
func (r *Rule) lacksHoldName(entries []Entry) bool {
	return string(entries[0].Key) == HoldActionKey && (len(entries) == 1 || len(entries) == 2 && string(entries[1].Key) == r.matchHoldIDKey)
}

// setMatchHold sets which holds requests that match r can name. r is what compileMatchedRule returns for the limits own, all others of
// its LimitsToCharge are of levels above.
func (c *Compiler) setMatchHold(r *Rule, own []*Rule) {
	var first *Rule
	for _, limit := range r.LimitsToCharge() {
		r.matchHasConcurrency = r.matchHasConcurrency || limit.Limit.Kind == algorithm.Concurrency
		switch {
		case limit.HoldIDKey == "":
		case first == nil:
			first, r.matchHoldIDKey = limit, limit.HoldIDKey
		case limit.HoldIDKey != first.HoldIDKey && slices.Contains(own, limit):
			c.problems.Add(c.holdIDPos[limit], "write the same hold_id: a request names one hold",
				"the limit at %v, which is charged too, has another hold_id: %s", first.Pos, Quote(first.HoldIDKey))
		}
	}
}

// setHold sets what the limit l of r has for its holds: hold, hold_id and unsettled.
func (c *Compiler) setHold(r *Rule, l *algorithm.Limit, cfg *RateLimitConfig) {
	hold, id, isConcurrency := cfg.Hold, cfg.HoldID, l.Kind == algorithm.Concurrency
	switch {
	case hold == nil && isConcurrency:
		c.problems.Add(cfg.Pos, "add `hold: 30s`: the longest time that one call may take", "concurrency needs a hold")
	case hold == nil:
		refuseWithoutHold(c, "hold_id", id)
		refuseWithoutHold(c, "unsettled", cfg.Unsettled)
		return
	case id == nil:
		c.problems.Add(hold.Pos, "add `hold_id: <key>`: the entry of the request that names the hold, such as request_id", "hold needs a hold_id")
	}
	if hold != nil {
		l.Hold = hold.Value
		c.checkHoldTime(hold)
	}
	if id != nil {
		r.HoldIDKey, c.holdIDPos[r] = id.Value, id.Pos
		switch id.Value {
		case "":
			c.problems.Add(id.Pos, "write the key of an entry, such as request_id", "hold_id is empty")
		case HoldActionKey:
			c.problems.Add(id.Pos, "write another key, such as request_id", "hold_id is hold, the key of the entry that settles or releases")
		}
	}
	if v := cfg.CountBlocked; v != nil && v.Value && !isConcurrency {
		c.problems.Add(v.Pos, "remove one of them", "hold and count_blocked: true exclude each other: a refused hit holds nothing")
	}
	if v := cfg.MinInterval; v != nil && !isConcurrency {
		c.problems.Add(v.Pos, "remove one of them", "hold and min_interval exclude each other")
	}
	switch v := cfg.Unsettled; {
	case v == nil:
	case isConcurrency:
		c.problems.Add(v.Pos, "remove it", "unsettled means nothing to the algorithm concurrency, which always releases holds that expire")
	case v.Value == "release":
		l.ReleaseUnsettled = true
	case v.Value != "charge":
		c.problems.Add(v.Pos, SuggestFix(v.Value, []string{"charge", "release"}, "write charge or release"), "unsettled is neither charge nor release: %s", Quote(v.Value))
	}
}

// refuseWithoutHold reports a setting that needs a hold. v is nil if the setting is missing.
func refuseWithoutHold(c *Compiler, name string, v *Positioned[string]) {
	if v != nil {
		c.problems.Add(v.Pos, "add `hold: <duration>`, or remove it", "%s means nothing without hold", name)
	}
}

func (c *Compiler) checkHoldTime(v *Positioned[time.Duration]) {
	text := FormatDuration(v.Value)
	switch {
	case v.Value <= 0:
		c.problems.Add(v.Pos, "write a longer one", "a hold of %s is not positive", text)
	case v.Value > algorithm.MaxHold:
		c.problems.Add(v.Pos, "write 24h or less", "a hold of %s is longer than 24 hours", text)
	case v.Value%time.Microsecond != 0:
		c.problems.Add(v.Pos, "write whole microseconds", "a hold of %s has a fraction of a microsecond", text)
	}
}

// checkConcurrency reports settings that mean nothing to a limit without a window.
func (c *Compiler) checkConcurrency(cfg *RateLimitConfig) {
	refuse := func(at Pos, name string) {
		c.problems.Add(at, "remove it, or use an algorithm that has a window", "%s means nothing to the algorithm concurrency, which has no window", name)
	}
	if cfg.Unit != "" {
		refuse(cfg.UnitPos, "unit")
	}
	if cfg.UnitMultiplier != nil {
		refuse(cfg.Pos, "unit_multiplier")
	}
	if v := cfg.Period; v != nil {
		refuse(v.Pos, "period")
	}
	if v := cfg.CountBlocked; v != nil {
		c.problems.Add(v.Pos, "remove it", "count_blocked means nothing to the algorithm concurrency: a refused hit holds nothing")
	}
	c.checkOpenHolds(cfg.Pos, cfg.RequestsPerUnit)
}

// checkOpenHolds checks how many holds a concurrency has at a time.
func (c *Compiler) checkOpenHolds(at Pos, holds uint32) {
	if holds > algorithm.MaxOpenHolds {
		c.problems.Add(at, fmt.Sprintf("write at most %d", algorithm.MaxOpenHolds), "concurrency remembers each hold, and %d are too many", holds)
	}
}

// warnUnlikelyHold warns of values of a hold that are probably mistakes.
func (c *Compiler) warnUnlikelyHold(r *Rule, l *algorithm.Limit, cfg *RateLimitConfig) {
	v := cfg.Hold
	if v == nil {
		return
	}
	switch {
	case l.Hold < time.Second:
		c.warnings.Add(v.Pos, "write the longest time that one call may take",
			"a hold of %s expires before most calls are done, and its units are free again", FormatDuration(l.Hold))
	case l.Kind != algorithm.Concurrency && l.Hold > l.Period:
		c.warnings.Add(v.Pos, "write a shorter hold, or a longer window",
			"a hold of %s is longer than the window of %s: units that were reserved in one window refuse hits in the next", FormatDuration(l.Hold),
			FormatDuration(l.Period))
	}
	if slices.ContainsFunc(r.Path, func(level Level) bool { return level.Key() == r.HoldIDKey }) {
		c.warnHoldIDCounted(r)
	}
}

// warnHoldIDCounted warns of a limit that has a counter for each hold.
func (c *Compiler) warnHoldIDCounted(r *Rule) {
	c.warnings.Add(c.holdIDPos[r], "count by another key, such as the user",
		"the rule counts by %s, too, so each hold has a counter of its own, and the limit refuses nothing", Quote(r.HoldIDKey))
}
