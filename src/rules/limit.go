package rules

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"ratelimit/src/algorithm"
)

// newRule returns a rule at p that has no limit yet.
func (p *path) newRule(cfg *LimitsConfig) *Rule {
	return &Rule{
		Index: -1, Key: p.key, Domain: p.domain.Name, Path: p.levels, Pos: cfg.Pos,
		Quota: cfg.QuotaMode, Metadata: cfg.Metadata, AllOrNone: p.allOrNone != nil,
	}
}

// rule compiles a limit of a descriptor or rule. Suffix is what the limit's name has behind that of the descriptor.
func (c *Compiler) rule(cfg *LimitsConfig, limit *RateLimitConfig, p path, at Pos, suffix string) *Rule {
	r := p.newRule(cfg)
	r.Index, r.Pos, r.Name = len(c.set.rules), at, limit.Name
	r.Key, r.suffixLen = p.key+suffix, int32(len(suffix))
	r.Quantity = Quantity{Requests: limit.RequestsPerUnit, Unit: ParseUnit(limit.Unit), Multiplier: 1}
	r.Unlimited, r.Shadow, r.Detailed, r.ChargePath = limit.Unlimited, cfg.ShadowMode, cfg.DetailedMetric, p.chargePath != nil
	for i := range r.Path {
		l := &r.Path[i]
		r.shared = r.shared || l.ShareThreshold
		r.perValue = r.perValue || strings.Contains(l.Key(), "*") || l.showsValue()
	}
	if limit.UnitMultiplier != nil {
		r.Multiplier = *limit.UnitMultiplier
	}
	c.set.rules = append(c.set.rules, r)
	c.replaces(r, p, limit.Replaces)
	if r.Unlimited {
		c.unlimited(r, cfg, limit, p)
	} else {
		c.window(r, limit)
		r.Fallback = c.fallback(p.fallback, limit.Fallback)
	}
	return r
}

// replaces notes which names r replaces.
func (c *Compiler) replaces(r *Rule, p path, list []Placed[string]) {
	if len(list) == 0 {
		return
	}
	c.replacing = append(c.replacing, replacing{r, list})
	p.domain.Replacing = true
	for _, other := range list {
		r.Replaces = append(r.Replaces, other.Value)
		switch other.Value {
		case "":
			c.problems.Add(other.Pos, "add `name: <the rule to replace>`", "an entry of replaces has no name")
		case r.Name:
			c.problems.Add(other.Pos, "remove it, or name another rule", "rule %s replaces itself", Quote(r.Name))
		}
	}
}

// unlimited checks what is written beside `unlimited: true`. In an ordered list requests_per_unit is what divvy's clients are told.
func (c *Compiler) unlimited(r *Rule, cfg *LimitsConfig, limit *RateLimitConfig, p path) {
	charged := len(p.above) > 0 // to limits above
	switch {
	case limit.UnitMultiplier != nil:
		c.problems.Add(limit.Pos, "remove one of them", "unlimited and unit_multiplier exclude each other")
	case r.Unit != UnitUnknown:
		c.problems.Add(limit.UnitPos, "remove one of them", "unlimited and unit exclude each other")
	case p.flat && r.Shadow:
		c.warnings.Add(cfg.Pos, "remove it, or shadow_mode",
			"the rule has no effect: in shadow_mode it decides nothing, and it is not counted")
	case p.flat:
	default:
		if r.Requests > 0 {
			c.warnings.Add(limit.Pos, "remove it", "requests_per_unit has no effect beside unlimited")
		}
		if charged && (r.Shadow || r.Detailed) {
			c.warnings.Add(cfg.Pos, "remove it", "shadow_mode and detailed_metric have no effect on an unlimited rule")
		} else if !charged && (r.Shadow || r.Quota || r.Detailed || r.Metadata != nil) {
			c.warnings.Add(cfg.Pos, "remove it", "shadow_mode, quota_mode, detailed_metric and metadata have no effect on an unlimited rule")
		}
	}
	exclude(c, "algorithm", limit.Algorithm)
	exclude(c, "period", limit.Period)
	exclude(c, "burst", limit.Burst)
	exclude(c, "min_interval", limit.MinInterval)
	exclude(c, "count_blocked", limit.CountBlocked)
	exclude(c, "on_store_failure", limit.Fallback)
}

func exclude[T any](c *Compiler, name string, v *Placed[T]) {
	if v != nil {
		c.problems.Add(v.Pos, "remove one of them", "unlimited and %s exclude each other", name)
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
		case l.Kind != algorithm.GCRA:
			c.problems.Add(v.Pos, "write `algorithm: gcra`, or remove it", "burst means nothing to the algorithm %v", l.Kind)
		case v.Value == math.MaxUint32: // one more has 32 bits too
			c.problems.Add(v.Pos, "write 0 to 4294967294", "burst is out of range: \"%d\"", v.Value)
		}
	}
	if v := cfg.MinInterval; v != nil {
		l.MinInterval = v.Value
		c.checkInterval(&l, v)
	}
	if len(c.problems) > problems || cfg.Incomplete {
		return
	}
	if !c.validate(&l, cfg) {
		return
	}
	c.checkStore(&l, cfg)
	r.Limit = l
	c.warnUseless(&l, cfg)
}

// CountsBlocked is the default of count_blocked: as in envoyproxy/ratelimit, refused hits count in a fixed window.
func CountsBlocked(k algorithm.Kind) bool { return k == algorithm.FixedWindow }

// period returns the length of the window, and sets the window that callers are told.
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
			c.problems.Add(p.Pos, "write a longer one", "a period of %s is not positive", FormatDuration(p.Value))
		case p.Value > algorithm.MaxPeriod:
			c.problems.Add(p.Pos, "write 876000h or less", "a period of %s is longer than 100 years", FormatDuration(p.Value))
		}
		return p.Value
	}
	l, err := r.Window()
	switch {
	case r.Multiplier == 0:
		c.problems.Add(cfg.Pos, "write 1 or more, or leave it out", "unit_multiplier is 0")
	case err == nil:
	case errors.Is(err, ErrTooLong):
		c.problems.Add(cfg.Pos, "use a smaller unit_multiplier",
			"a window of %d %ss is longer than 100 years", r.Multiplier, strings.ToLower(r.Unit.String()))
	case cfg.Unit == "":
		c.problems.Add(cfg.UnitPos, "add `unit: second`, minute, hour, day, week, month or year, or `unlimited: true`",
			"the rate_limit has no unit")
	default:
		c.problems.Add(cfg.UnitPos, "write second, minute, hour, day, week, month or year", "unit %s is not known", Quote(cfg.Unit))
	}
	return l.Period
}

// checkInterval checks a min_interval.
func (c *Compiler) checkInterval(l *algorithm.Limit, v *Placed[time.Duration]) {
	text := FormatDuration(v.Value)
	switch {
	case l.Kind != algorithm.SlidingWindow && l.Kind != algorithm.GCRA:
		c.problems.Add(v.Pos, "write `algorithm: sliding_window` or gcra, or remove it",
			"min_interval means nothing to the algorithm %v", l.Kind)
	case v.Value < 0:
		c.problems.Add(v.Pos, "write 0s or more", "a min_interval of %s is negative", text)
	case v.Value > algorithm.MaxPeriod:
		c.problems.Add(v.Pos, "write 876000h or less", "a min_interval of %s is longer than 100 years", text)
	case v.Value%time.Microsecond != 0:
		c.problems.Add(v.Pos, "write whole microseconds", "a min_interval of %s has a fraction of a microsecond", text)
	}
}

// validate checks whether values that are valid one by one are so together.
func (c *Compiler) validate(l *algorithm.Limit, cfg *RateLimitConfig) bool {
	err := l.Validate()
	at, period := cfg.Pos, FormatDuration(l.Period)
	if cfg.Period != nil {
		at = cfg.Period.Pos
	}
	switch {
	case err == nil:
		return true
	case l.Kind == algorithm.FixedWindow && l.Period%time.Second != 0:
		c.problems.Add(at, "write whole seconds, or use another algorithm: "+OneOf(algorithm.Kinds()[1:]),
			"fixed_window needs a period of whole seconds, and %s is not", period)
	case l.Period%time.Microsecond != 0:
		c.problems.Add(at, "write whole microseconds", "a period of %s has a fraction of a microsecond", period)
	case l.Kind == algorithm.SlidingWindow && l.Max > algorithm.MaxLogged:
		fix := fmt.Sprintf("write at most %d, or use sliding_window_counter, which has no such bound", algorithm.MaxLogged)
		c.problems.Add(cfg.Pos, fix, "sliding_window remembers each hit, and %d are too many", l.Max)
	case l.Kind == algorithm.GCRA && l.Emission() == 0:
		c.problems.Add(cfg.Pos, "use a smaller requests_per_unit, or a longer window",
			"gcra lets one hit pass in a nanosecond at most, and %d in %s are more", l.Max, period)
	case l.Kind == algorithm.GCRA && cfg.Burst != nil:
		c.problems.Add(cfg.Burst.Pos, "write a smaller one",
			"a burst of %d takes longer than 100 years to come back, with %d in %s", l.Burst, l.Max, period)
	default:
		c.problems.Add(at, "", "%s", strings.TrimPrefix(err.Error(), "algorithm: "))
	}
	return false
}

// warnUseless warns of a part of a limit that has no effect beside the others.
func (c *Compiler) warnUseless(l *algorithm.Limit, cfg *RateLimitConfig) {
	if v := cfg.Burst; v != nil && v.Value > 0 && l.Max == 0 {
		c.warnings.Add(v.Pos, "remove it", "burst has no effect where requests_per_unit is 0")
	}
	v := cfg.MinInterval
	if v == nil || l.MinInterval == 0 || l.CountBlocked || l.Max == 0 {
		return
	}
	if l.MinInterval > l.Period/time.Duration(l.Max) { // MinInterval x Max > Period, without overflow
		c.warnings.Add(v.Pos, "use a shorter min_interval, a smaller requests_per_unit or a longer window",
			"hits that are %s apart never exceed %d in %s, so the count refuses nothing", FormatDuration(l.MinInterval), l.Max, FormatDuration(l.Period))
	}
}

// checkStore checks whether the store can count by l.
func (c *Compiler) checkStore(l *algorithm.Limit, cfg *RateLimitConfig) {
	s := &c.opt.Store
	if len(s.Kinds) > 0 && !slices.Contains(s.Kinds, l.Kind) {
		at := cfg.Pos
		if cfg.Algorithm != nil {
			at = cfg.Algorithm.Pos
		}
		var kinds []string
		for _, k := range s.Kinds {
			kinds = append(kinds, k.String())
		}
		c.problems.Add(at, "use "+strings.Join(kinds, " or ")+", or "+s.other(), "%s cannot count by %v", s.Name, l.Kind)
		return
	}
	switch v := cfg.CountBlocked; {
	case !s.CountsBlocked || l.CountBlocked:
	case v != nil:
		c.problems.Add(v.Pos, "write `count_blocked: true`, or use "+s.other(), "%s always counts refused hits", s.Name)
	default:
		c.problems.Add(cfg.Pos, "add `count_blocked: true`, or use "+s.other(),
			"%s always counts refused hits, and %v does not by default", s.Name, l.Kind)
	}
}

// other returns advice for a limit that s cannot count: the stores that can.
func (s *Store) other() string { return "another store: " + OneOf(s.Others) }
