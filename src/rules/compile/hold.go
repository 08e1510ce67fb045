package compile

import (
	"fmt"
	"slices"
	"time"

	"ratelimit/src/rules"

	"ratelimit/src/algorithm"
)

// setMatchHold sets which holds requests that match m can name. own are its own limits, of cfg; the others are of
// levels above.
func (c *report) setMatchHold(m *rules.Match, own []*rules.Rule, cfg *LimitsConfig) {
	var first *rules.Rule
	for _, limit := range m.Limits {
		m.HasConcurrency = m.HasConcurrency || limit.Limit.Kind == algorithm.Concurrency
		switch {
		case limit.HoldIDKey == "":
		case first == nil:
			first, m.HoldIDKey = limit, limit.HoldIDKey
		case limit.HoldIDKey == first.HoldIDKey:
		case slices.Contains(own, limit):
			c.problems.Add(cfg.limit(slices.Index(own, limit)).HoldID.Pos, "write the same hold_id: a request names one hold",
				"the limit at %v, which is charged too, has another hold_id: %s", first.Pos, rules.Quote(first.HoldIDKey))
		}
	}
}

// setReservation sets what a check reserves. The limit l of r has its own holds already.
func (c *limitCompiler) setReservation(r *rules.Rule, l *algorithm.Limit, cfg *RateLimitConfig) {
	v := cfg.Reserve
	if v == nil || l.Kind == algorithm.Concurrency {
		return
	}
	switch {
	case cfg.Hold != nil && v.For != nil:
		c.problems.Add(v.For.Pos, "remove it: hold is also the time of a reservation", "hold and for exclude each other")
	case cfg.Hold == nil && v.For == nil:
		c.problems.Add(v.Pos, "add `for: 2m`: the longest time until a request is charged", "reserve_on_check has no for")
	case cfg.Hold == nil:
		l.Hold, l.ReleaseUnsettled = v.For.Value, true
		c.checkHoldTime(v.For)
	}
	r.Reserve = &rules.Reservation{For: l.Hold}
	if v.Estimate != nil {
		r.Reserve.Estimate = uint64(v.Estimate.Value)
	}
	if e := v.Estimate; e != nil && r.Reserve.Estimate > l.Max && l.Max > 0 && !isOfFile(r) {
		c.problems.Add(e.Pos, "write a smaller one", "an estimate of %d is above the limit of %d, so all checks are refused",
			r.Reserve.Estimate, l.Max)
	}
	if b := cfg.CountBlocked; b != nil && b.Value && cfg.Hold == nil {
		c.problems.Add(b.Pos, "remove one of them",
			"reserve_on_check and count_blocked: true exclude each other: a refused check reserves nothing")
	}
}

// setHold sets what the limit l of r has for its holds: hold, hold_id and unsettled.
func (c *limitCompiler) setHold(r *rules.Rule, l *algorithm.Limit, cfg *RateLimitConfig) {
	hold, id, isConcurrency := cfg.Hold, cfg.HoldID, l.Kind == algorithm.Concurrency
	switch {
	case hold == nil && isConcurrency:
		c.problems.Add(cfg.Pos, "add `hold: 30s`: the longest time that one call may take", "concurrency needs a hold")
	case hold == nil:
		return
	case id == nil:
		c.problems.Add(hold.Pos, "add `hold_id: <key>`: the entry of the request that names the hold, such as request_id",
			"hold needs a hold_id")
	}
	if hold != nil {
		l.Hold = hold.Value
		c.checkHoldTime(hold)
	}
	if id != nil {
		r.HoldIDKey = id.Value
		switch id.Value {
		case "":
			c.problems.Add(id.Pos, "write the key of an entry, such as request_id", "hold_id is empty")
		case rules.HoldActionKey:
			c.problems.Add(id.Pos, "write another key, such as request_id",
				"hold_id is hold, the key of the entry that settles or releases")
		}
	}
	if v := cfg.CountBlocked; v != nil && v.Value && !isConcurrency {
		c.problems.Add(v.Pos, "remove one of them",
			"hold and count_blocked: true exclude each other: a refused hit holds nothing")
	}
	switch v := cfg.Unsettled; {
	case v == nil, isConcurrency:
	case v.Value == "release":
		l.ReleaseUnsettled = true
	case v.Value != "charge":
		c.problems.Add(v.Pos, rules.SuggestFix(v.Value, []string{"charge", "release"}, "write charge or release"),
			"unsettled is neither charge nor release: %s", rules.Quote(v.Value))
	}
}

// holdPos returns the position of what gives the limit holds.
func (cfg *RateLimitConfig) holdPos() rules.Pos {
	switch {
	case cfg.Hold != nil:
		return cfg.Hold.Pos
	case cfg.Reserve != nil:
		return cfg.Reserve.Pos
	}
	return cfg.Pos
}

func (c *limitCompiler) checkHoldTime(v *Positioned[time.Duration]) {
	text := rules.FormatDuration(v.Value)
	switch {
	case v.Value <= 0:
		c.problems.Add(v.Pos, "write a longer one", "a hold of %s is not positive", text)
	case v.Value > algorithm.MaxHold:
		c.problems.Add(v.Pos, "write 24h or less", "a hold of %s is longer than 24 hours", text)
	case v.Value%time.Microsecond != 0:
		c.problems.Add(v.Pos, "write whole microseconds", "a hold of %s has a fraction of a microsecond", text)
	}
}

// checkOpenHolds checks how many holds a concurrency has at a time.
func (c *report) checkOpenHolds(at rules.Pos, holds uint64) {
	if holds > algorithm.MaxOpenHolds {
		c.problems.Add(at, fmt.Sprintf("write at most %d", algorithm.MaxOpenHolds),
			"concurrency remembers each hold, and %d are too many", holds)
	}
}

// warnUnlikelyHold warns of values of a hold that are probably mistakes.
func (c *limitCompiler) warnUnlikelyHold(r *rules.Rule, l *algorithm.Limit, cfg *RateLimitConfig) {
	v := cfg.Hold
	if v == nil && cfg.Reserve != nil {
		v = cfg.Reserve.For
	}
	if v == nil {
		return
	}
	switch {
	case l.Hold < time.Second:
		c.warnings.Add(v.Pos, "write the longest time that one call may take",
			"a hold of %s expires before most calls are done, and its units are free again", rules.FormatDuration(l.Hold))
	case l.Kind != algorithm.Concurrency && l.Hold > l.Period:
		c.warnings.Add(v.Pos, "write a shorter hold, or a longer window",
			"a hold of %s is longer than the window of %s: units that were reserved in one window refuse hits in the next",
			rules.FormatDuration(l.Hold),
			rules.FormatDuration(l.Period))
	}
	if slices.ContainsFunc(r.Path, func(level rules.Level) bool { return level.Key() == r.HoldIDKey }) && cfg.Hold != nil {
		warnHoldIDCounted(&c.warnings, cfg.HoldID)
	}
}

// warnHoldIDCounted warns of a limit that has a counter for each hold.
func warnHoldIDCounted(warnings *rules.Problems, holdID *Positioned[string]) {
	warnings.Add(holdID.Pos, "count by another key, such as the user",
		"the rule counts by %s, too, so each hold has a counter of its own, and the limit refuses nothing",
		rules.Quote(holdID.Value))
}
