package rules

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// rule compiles one limit of a descriptor. Item is what stands behind the
// descriptor's name in that of the rule.
func (c *Compiler) rule(cfg *DescriptorConfig, limit *RateLimitConfig, p path, at Pos, item string) *Rule {
	r := &Rule{
		Index:  len(c.set.rules),
		Key:    p.key + item,
		Domain: p.domain.Name,
		Path:   p.levels,
		Pos:    at,
		Name:   limit.Name,
		Quantity: Quantity{
			Requests:   limit.RequestsPerUnit,
			Unit:       ParseUnit(limit.Unit),
			Multiplier: 1,
		},
		Unlimited:  limit.Unlimited,
		Shadow:     cfg.ShadowMode,
		Quota:      cfg.QuotaMode,
		Detailed:   cfg.DetailedMetric,
		Metadata:   cfg.Metadata,
		AllOrNone:  p.allOrNone != nil,
		ChargePath: p.path != nil,
		item:       int32(len(item)),
		name:       -1,
	}
	for i := range r.Path {
		l := &r.Path[i]
		r.shared = r.shared || l.ShareThreshold
		r.perValue = r.perValue || strings.Contains(l.Key(), "*") ||
			l.ValueToMetric && (l.wildcard && !l.ShareThreshold || !l.wildcard && l.Value() == "")
	}
	if limit.UnitMultiplier != nil {
		r.Multiplier = *limit.UnitMultiplier
	}
	c.set.rules = append(c.set.rules, r)
	if len(limit.Replaces) > 0 {
		c.replacing = append(c.replacing, replacing{r, limit.Replaces})
		r.replaces = &replaces{}
	}
	for _, cfg := range limit.Replaces {
		r.replaces.names = append(r.replaces.names, cfg.Name)
		switch cfg.Name {
		case "":
			c.problems.Add(cfg.Pos, "add `name: <the rule to replace>`", "an entry of replaces has no name")
		case r.Name:
			c.problems.Add(cfg.Pos, "remove it, or name another rule", "rule %s replaces itself", Quote(r.Name))
		}
	}
	if r.Unlimited {
		c.unlimited(r, cfg, limit, p)
	} else {
		c.window(r, limit)
		r.Fallback = c.onFailure(p.onFailure, limit.Fallback)
	}
	return r
}

// unlimited looks at what stands beside `unlimited: true`. In an ordered list
// requests_per_unit is what divvy's clients are told.
func (c *Compiler) unlimited(r *Rule, cfg *DescriptorConfig, limit *RateLimitConfig, p path) {
	charged := len(p.above) > 0 // limits above are, all the same
	switch {
	case limit.UnitMultiplier != nil:
		c.problems.Add(limit.Pos, "remove one of them", "unlimited and unit_multiplier exclude each other")
	case r.Unit != UnitUnknown:
		c.problems.Add(limit.UnitPos, "remove one of them", "unlimited and unit exclude each other")
	default:
		if r.Requests > 0 && !p.ordered {
			c.warnings.Add(limit.Pos, "remove it", "requests_per_unit has no effect beside unlimited")
		}
		switch {
		case p.ordered && r.Shadow:
			c.warnings.Add(cfg.Pos, "remove it, or shadow_mode", "the rule has no effect: in shadow_mode it decides nothing, and it is not counted")
		case p.ordered:
		case charged && (r.Shadow || r.Detailed):
			c.warnings.Add(cfg.Pos, "remove it", "shadow_mode and detailed_metric have no effect on an unlimited rule")
		case !charged && (r.Shadow || r.Quota || r.Detailed || r.Metadata != nil):
			c.warnings.Add(cfg.Pos, "remove it", "shadow_mode, quota_mode, detailed_metric and metadata have no effect on an unlimited rule")
		}
	}
	exclude := func(name string, at Pos) {
		c.problems.Add(at, "remove one of them", "unlimited and %s exclude each other", name)
	}
	if v := limit.Algorithm; v != nil {
		exclude("algorithm", v.Pos)
	}
	if v := limit.Period; v != nil {
		exclude("period", v.Pos)
	}
	if v := limit.Burst; v != nil {
		exclude("burst", v.Pos)
	}
	if v := limit.MinInterval; v != nil {
		exclude("min_interval", v.Pos)
	}
	if v := limit.CountBlocked; v != nil {
		exclude("count_blocked", v.Pos)
	}
	if v := limit.Fallback; v != nil {
		exclude("on_store_failure", v.Pos)
	}
}

// window compiles the arithmetic of a rule that is not unlimited.
func (c *Compiler) window(r *Rule, cfg *RateLimitConfig) {
	problems := len(c.problems)
	l := algorithm.Limit{Max: uint64(cfg.RequestsPerUnit), Period: c.period(r, cfg)}
	if a := cfg.Algorithm; a != nil {
		var known bool
		if l.Kind, known = algorithm.ParseKind(a.Value); !known {
			c.problems.Add(a.Pos, "write "+OneOf(algorithm.Kinds()), "the algorithm %s is not known", Quote(a.Value))
			return
		}
	}
	l.CountBlocked = CountsBlocked(l.Kind)
	if v := cfg.CountBlocked; v != nil {
		if l.CountBlocked = v.Value; v.Value {
			c.blocked[r] = v.Pos
			if c.opt.AllOrNothing {
				c.warnings.Add(v.Pos, "remove it, or set STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=false",
					"count_blocked: true has no effect with STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true, which charges nothing of a refused request")
			}
		}
	}
	if l.Kind == algorithm.GCRA && l.Max > 0 {
		l.Burst = l.Max - 1
	}
	if v := cfg.Burst; v != nil {
		l.Burst = uint64(v.Value)
		switch {
		case !takesBurst(l.Kind):
			c.problems.Add(v.Pos, "write `algorithm: gcra`, or remove it", "burst means nothing to the algorithm %v", l.Kind)
		case v.Value == math.MaxUint32: // one more has 32 bits too
			c.problems.Add(v.Pos, "write 0 to 4294967294", "burst is out of range: \"%d\"", v.Value)
		}
	}
	if v := cfg.MinInterval; v != nil {
		l.MinInterval = v.Value
		c.distance(&l, v)
	}
	if len(c.problems) > problems || cfg.Incomplete {
		return
	}
	if at, mend, what := refused(&l, cfg); what != "" {
		c.problems.Add(at, mend, "%s", what)
		return
	}
	c.storable(&l, cfg)
	r.Limit = l
	c.warnUseless(&l, cfg)
}

// onFailure is what on_store_failure says, or else what holds above.
func (c *Compiler) onFailure(above backend.Fallback, v *Placed[string]) backend.Fallback {
	if v == nil {
		return above
	}
	f, known := backend.ParseFallback(v.Value)
	if !known {
		c.problems.Add(v.Pos, "write "+OneOf(backend.Fallbacks()), "on_store_failure is not known: %s", Quote(v.Value))
	}
	return f
}

// countBlocked is the default of count_blocked: envoyproxy/ratelimit counts
// what it refuses.
func CountsBlocked(k algorithm.Kind) bool { return k == algorithm.FixedWindow }

// takesBurst and takesInterval tell to which algorithms burst and min_interval
// mean something.
func takesBurst(k algorithm.Kind) bool { return k == algorithm.GCRA }

func takesInterval(k algorithm.Kind) bool {
	return k == algorithm.SlidingWindow || k == algorithm.GCRA
}

// period returns the length of the window, and tells r how callers are told
// of it.
func (c *Compiler) period(r *Rule, cfg *RateLimitConfig) time.Duration {
	if p := cfg.Period; p != nil {
		r.Unit, r.Multiplier = inUnits(p.Value)
		r.ByPeriod = true
		switch {
		case cfg.Unit != "":
			c.problems.Add(p.Pos, "remove one of them", "period and unit exclude each other")
		case cfg.UnitMultiplier != nil:
			c.problems.Add(p.Pos, "make the period longer instead", "period and unit_multiplier exclude each other")
		case p.Value <= 0:
			c.problems.Add(p.Pos, "write a longer one", "a period of %s is no time at all", FormatDuration(p.Value))
		case p.Value > algorithm.MaxPeriod:
			c.problems.Add(p.Pos, "write 876000h or less", "a period of %s is longer than 100 years", FormatDuration(p.Value))
		}
		return p.Value
	}
	if r.Multiplier == 0 {
		c.problems.Add(cfg.Pos, "write 1 or more, or leave it out", "unit_multiplier is 0")
		return 0
	}
	l, err := r.Window()
	switch {
	case err == nil:
	case errors.Is(err, ErrTooLong):
		c.problems.Add(cfg.Pos, "use a smaller unit_multiplier",
			"a window of %d %ss is longer than 100 years", r.Multiplier, strings.ToLower(r.Unit.String()))
	case cfg.Unit == "":
		c.problems.Add(cfg.UnitPos, "add `unit: second`, minute, hour, day, week, month or year, or `unlimited: true`",
			"the rate_limit has no unit")
	default:
		c.problems.Add(cfg.UnitPos, "write "+OneOf(unitWords()),
			"unit %s is not known", Quote(cfg.Unit))
	}
	return l.Period
}

// distance looks at a min_interval.
func (c *Compiler) distance(l *algorithm.Limit, v *Placed[time.Duration]) {
	switch {
	case !takesInterval(l.Kind):
		c.problems.Add(v.Pos, "write `algorithm: sliding_window` or gcra, or remove it",
			"min_interval means nothing to the algorithm %v", l.Kind)
	case v.Value < 0:
		c.problems.Add(v.Pos, "write 0s or more", "a min_interval of %s is less than nothing", FormatDuration(v.Value))
	case v.Value > algorithm.MaxPeriod:
		c.problems.Add(v.Pos, "write 876000h or less", "a min_interval of %s is longer than 100 years", FormatDuration(v.Value))
	case v.Value%time.Microsecond != 0:
		c.problems.Add(v.Pos, "write whole microseconds", "a min_interval of %s has a fraction of a microsecond", FormatDuration(v.Value))
	}
}

// refused says in the words of rule files why l.Validate refuses values that
// are good each for itself; nothing if it does not.
func refused(l *algorithm.Limit, cfg *RateLimitConfig) (at Pos, mend, what string) {
	err := l.Validate()
	at = cfg.Pos
	if cfg.Period != nil {
		at = cfg.Period.Pos
	}
	switch {
	case err == nil:
		return at, "", ""
	case l.Kind == algorithm.FixedWindow && l.Period%time.Second != 0:
		return at, "write whole seconds, or use another algorithm: " + OneOf(algorithm.Kinds()[1:]),
			fmt.Sprintf("fixed_window needs a period of whole seconds, and %s is not", FormatDuration(l.Period))
	case l.Period%time.Microsecond != 0:
		return at, "write whole microseconds", fmt.Sprintf("a period of %s has a fraction of a microsecond", FormatDuration(l.Period))
	case l.Kind == algorithm.SlidingWindow && l.Max > algorithm.MaxLogged:
		return cfg.Pos, fmt.Sprintf("write at most %d, or use sliding_window_counter, which has no such bound", algorithm.MaxLogged),
			fmt.Sprintf("sliding_window remembers each hit, and %d are too many", l.Max)
	case l.Kind == algorithm.GCRA && l.Emission() == 0:
		return cfg.Pos, "use a smaller requests_per_unit, or a longer window",
			fmt.Sprintf("gcra lets one hit pass in a nanosecond at most, and %d in %s are more", l.Max, FormatDuration(l.Period))
	case l.Kind == algorithm.GCRA && cfg.Burst != nil:
		return cfg.Burst.Pos, "write a smaller one",
			fmt.Sprintf("a burst of %d takes longer than 100 years to come back, with %d in %s", l.Burst, l.Max, FormatDuration(l.Period))
	}
	return at, "", strings.TrimPrefix(err.Error(), "algorithm: ")
}

// pointless warns of a limit that can do less than its author meant.
func (c *Compiler) warnUseless(l *algorithm.Limit, cfg *RateLimitConfig) {
	if v := cfg.Burst; v != nil && v.Value > 0 && l.Max == 0 {
		c.warnings.Add(v.Pos, "remove it", "burst has no effect where requests_per_unit is 0")
	}
	// Hits of one, as far apart as they must be, never become too many. Refused
	// ones may, if they count.
	v := cfg.MinInterval
	if v == nil || l.MinInterval == 0 || l.CountBlocked || l.Max == 0 {
		return
	}
	if l.MinInterval > l.Period/time.Duration(l.Max) { // the same as MinInterval x Max > Period
		c.warnings.Add(v.Pos, "use a shorter min_interval, a smaller requests_per_unit or a longer window",
			"hits that are %s apart never exceed %d in %s, so the count refuses nothing", FormatDuration(l.MinInterval), l.Max, FormatDuration(l.Period))
	}
}

// oneOf is "a, b or c".
func OneOf(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
