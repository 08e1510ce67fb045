package compile

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"ratelimit/src/rules"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// newDescriptor returns what the limits of cfg at the path p have in common.
func (p *compilePath) newDescriptor(cfg *LimitsConfig) *rules.Descriptor {
	return rules.NewDescriptor(rules.Descriptor{
		Domain: p.domain.Name, FullName: p.ruleName, Pos: cfg.Pos, Path: p.levels,
		ShadowMode: cfg.ShadowMode, QuotaMode: cfg.QuotaMode, DetailedMetric: cfg.DetailedMetric,
		ChargesAllOrNone: p.allOrNoneSetting != nil, HasChargePath: p.chargePathSetting != nil,
		AnswerMetadata: cfg.AnswerMetadata,
	})
}

// compileLimit compiles a limit of p.descriptor, and adds it to the set. Its name is the descriptor's and suffix.
func (c *Compiler) compileLimit(limit *RateLimitConfig, p compilePath, at rules.Pos, suffix string) *rules.Rule {
	r := &rules.Rule{
		Descriptor: p.descriptor, Index: len(c.parts.Rules), FullName: p.ruleName + suffix, Pos: at, Name: limit.Name,
		Rate:      rules.Rate{Requests: limit.RequestsPerUnit, Unit: rules.ParseUnit(limit.Unit), UnitMultiplier: 1},
		Unlimited: limit.Unlimited,
	}
	if limit.UnitMultiplier != nil {
		r.UnitMultiplier = *limit.UnitMultiplier
	}
	if limit.RequestsPerUnit > algorithm.MaxCapacity {
		c.problems.Add(limit.Pos, fmt.Sprintf("write 0 to %d", uint64(algorithm.MaxCapacity)),
			"requests_per_unit is out of range: \"%d\"", limit.RequestsPerUnit)
	}
	if limit.LacksRequests && !limit.Unlimited {
		c.warnings.Add(limit.Pos, "add it; 0 if that is what you want", "without requests_per_unit everything is refused")
	}
	c.parts.Rules = append(c.parts.Rules, r)
	c.setReplacedNames(r, p, limit.Replaces)
	if r.Unlimited {
		c.checkBesideUnlimited(r, limit, p)
	} else {
		c.setLimit(r, limit, p.domain)
		if p.domain.HasQuotaBuckets {
			c.checkDivisible(&r.Limit, limit)
		}
		r.Fallback = parseWord(&c.report, p.domain.Fallback, limit.Fallback, &backend.Fallbacks)
		c.setCounting(r, limit, p.domain)
		c.setEnforcement(r, limit)
		c.setNotification(r, limit, p.notify)
	}
	return r
}

func (c *Compiler) setReplacedNames(r *rules.Rule, p compilePath, list []Positioned[string]) {
	if len(list) == 0 {
		return
	}
	c.replacingRules = append(c.replacingRules, replacingRule{r, list})
	p.domain.HasReplacingRules = true
	for _, other := range list {
		r.Replaces = append(r.Replaces, other.Value)
		switch other.Value {
		case "":
			c.problems.Add(other.Pos, "add `name: <the rule to replace>`", "an entry of replaces has no name")
		case r.Name:
			c.problems.Add(other.Pos, "remove it, or name another rule", "rule %s replaces itself", rules.Quote(r.Name))
		}
	}
}

// checkBesideUnlimited checks the settings beside `unlimited: true`. In an ordered list requests_per_unit has a
// meaning: answers to divvy's clients have it.
func (c *limitCompiler) checkBesideUnlimited(r *rules.Rule, limit *RateLimitConfig, p compilePath) {
	chargesAbove := len(p.limitsAbove) > 0
	switch {
	case limit.UnitMultiplier != nil:
		c.problems.Add(limit.Pos, "remove one of them", "unlimited and unit_multiplier exclude each other")
	case r.Unit != rules.UnitUnknown:
		c.problems.Add(limit.UnitPos, "remove one of them", "unlimited and unit exclude each other")
	case p.hasNoNestedRules && r.ShadowMode:
		c.warnings.Add(r.Descriptor.Pos, "remove it, or shadow_mode",
			"the rule has no effect: in shadow_mode it decides nothing, and it is not counted")
	case p.hasNoNestedRules:
	default:
		if r.Requests > 0 {
			c.warnings.Add(limit.Pos, "remove it", "requests_per_unit has no effect beside unlimited")
		}
		if chargesAbove && (r.ShadowMode || r.DetailedMetric) {
			c.warnings.Add(r.Descriptor.Pos, "remove it", "shadow_mode and detailed_metric have no effect on an unlimited rule")
		} else if !chargesAbove && (r.ShadowMode || r.QuotaMode || r.DetailedMetric || r.AnswerMetadata != nil) {
			c.warnings.Add(r.Descriptor.Pos, "remove it",
				"shadow_mode, quota_mode, detailed_metric and metadata have no effect on an unlimited rule")
		}
	}
	c.refuseBesideUnlimited(limit)
}

// setLimit sets r.Limit for a rule of d that is not unlimited.
func (c *limitCompiler) setLimit(r *rules.Rule, cfg *RateLimitConfig, d *rules.Domain) {
	problems := len(c.problems)
	kind, known := c.parseAlgorithm(cfg.Algorithm)
	l := algorithm.Limit{Kind: kind, Max: cfg.RequestsPerUnit}
	// An unknown algorithm with a hold and without a window was probably meant to be concurrency.
	if l.Kind == algorithm.Concurrency || !known && cfg.Hold != nil && cfg.Unit == "" && cfg.Period == nil {
		r.Unit, r.UnitMultiplier = rules.UnitUnknown, 1
	} else {
		l.Period = c.windowLength(r, cfg)
	}
	if !known {
		return
	}
	c.checkSettings(cfg, l.Kind, d.Counting)
	if l.Kind == algorithm.Concurrency {
		c.checkOpenHolds(cfg.Pos, cfg.RequestsPerUnit)
	}
	l.Calendar = c.compileCalendar(r, cfg, l.Kind)
	c.setHold(r, &l, cfg)
	c.setReservation(r, &l, cfg)
	if l.Kind == algorithm.Concurrency {
		l.Period = l.Hold
	}
	c.setCountBlocked(r, &l, cfg.CountBlocked)
	if l.Kind == algorithm.GCRA && l.Max > 0 {
		l.Burst = l.Max - 1
	}
	if v := cfg.Burst; v != nil {
		l.Burst = v.Value
		if v.Value >= algorithm.MaxCapacity && l.Kind == algorithm.GCRA {
			c.problems.Add(v.Pos, fmt.Sprintf("write 0 to %d", uint64(algorithm.MaxCapacity-1)),
				"burst is out of range: \"%d\"", v.Value)
		}
	}
	if v := cfg.MinInterval; v != nil {
		l.MinInterval = v.Value
		c.checkMinInterval(&l, v)
	}
	if len(c.problems) > problems || cfg.HasReadProblem || !c.checkCountable(&l, cfg) {
		return
	}
	c.checkStoreSupport(&l, cfg)
	r.Limit = l
	c.warnUselessSettings(&l, cfg)
	c.warnUnlikelyHold(r, &l, cfg)
	c.warnBudget(&l, cfg)
}

// minBudget is from how many units on a gcra of a day or more is taken for a budget.
const minBudget = 10_000

// warnBudget warns of a gcra that is probably meant as a budget of a day or more.
func (c *limitCompiler) warnBudget(l *algorithm.Limit, cfg *RateLimitConfig) {
	if l.Kind == algorithm.GCRA && l.Period >= 24*time.Hour && l.Burst+1 >= l.Max && (l.Hold > 0 || l.Max >= minBudget) {
		c.warnings.Add(cfg.Algorithm.Pos, "write `algorithm: fixed_window` for a budget, with `calendar: true` for days of a "+
			"time zone, or a smaller burst", "this gcra refills all the time, so nearly twice %d can pass in %s", l.Max,
			rules.FormatDuration(l.Period))
	}
}

// parseAlgorithm returns the algorithm that v names; fixed_window if v is nil.
func (c *report) parseAlgorithm(v *Positioned[string]) (kind algorithm.Kind, known bool) {
	if v == nil {
		return algorithm.FixedWindow, true
	}
	if kind, known = algorithm.ParseKind(v.Value); !known {
		names := algorithm.KindNames()
		c.problems.Add(v.Pos, rules.SuggestFix(v.Value, names, "write "+rules.JoinWithOr(names)),
			"the algorithm %s is not known", rules.Quote(v.Value))
	}
	return kind, known
}

// setCountBlocked sets l.CountBlocked of r, whose other fields are set, from v, the value of count_blocked.
func (c *limitCompiler) setCountBlocked(r *rules.Rule, l *algorithm.Limit, v *Positioned[bool]) {
	if v == nil {
		l.CountBlocked = rules.CountsBlockedByDefault(l)
		return
	}
	if l.CountBlocked = v.Value; !v.Value {
		return
	}
	c.countBlockedPos[r] = v.Pos
	if c.options.ChargesAllOrNothing {
		c.warnings.Add(v.Pos, "remove it, or set STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=false",
			"count_blocked: true has no effect with STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true, which charges nothing of "+
				"a refused request")
	}
}

// windowLength returns the length of the window, and sets Unit and UnitMultiplier of r, which callers are told.
func (c *limitCompiler) windowLength(r *rules.Rule, cfg *RateLimitConfig) time.Duration {
	if p := cfg.Period; p != nil {
		r.Unit, r.UnitMultiplier = rules.InLargestUnit(p.Value)
		r.HasPeriod = true
		switch {
		case cfg.Unit != "":
			c.problems.Add(p.Pos, "remove one of them", "period and unit exclude each other")
		case cfg.UnitMultiplier != nil:
			c.problems.Add(p.Pos, "make the period longer instead", "period and unit_multiplier exclude each other")
		case p.Value <= 0:
			c.problems.Add(p.Pos, "write a longer one", "a period of %s is not positive", rules.FormatDuration(p.Value))
		case p.Value > algorithm.MaxPeriod:
			c.problems.Add(p.Pos, "write 876000h or less", "a period of %s is longer than 100 years",
				rules.FormatDuration(p.Value))
		}
		return p.Value
	}
	l, err := r.FixedWindowLimit()
	switch {
	case r.UnitMultiplier == 0:
		c.problems.Add(cfg.Pos, "write 1 or more, or leave it out", "unit_multiplier is 0")
	case err == nil:
	case errors.Is(err, rules.ErrWindowTooLong):
		c.problems.Add(cfg.Pos, "use a smaller unit_multiplier",
			"a window of %d %ss is longer than 100 years", r.UnitMultiplier, strings.ToLower(r.Unit.String()))
	case cfg.Unit == "":
		c.problems.Add(cfg.UnitPos, "add `unit: second`, minute, hour, day, week, month or year, or `unlimited: true`",
			"the rate_limit has no unit")
	default:
		words := []string{"second", "minute", "hour", "day", "week", "month", "year"}
		c.problems.Add(cfg.UnitPos, rules.SuggestFix(cfg.Unit, words, "write "+rules.JoinWithOr(words)),
			"unit %s is not known", rules.Quote(cfg.Unit))
	}
	return l.Period
}

// checkMinInterval checks v, the value of min_interval.
func (c *limitCompiler) checkMinInterval(l *algorithm.Limit, v *Positioned[time.Duration]) {
	text := rules.FormatDuration(v.Value)
	switch {
	case l.Kind != algorithm.SlidingWindow && l.Kind != algorithm.GCRA: // checkSettings has reported it.
	case v.Value < 0:
		c.problems.Add(v.Pos, "write 0s or more", "a min_interval of %s is negative", text)
	case v.Value > algorithm.MaxPeriod:
		c.problems.Add(v.Pos, "write 876000h or less", "a min_interval of %s is longer than 100 years", text)
	case v.Value%time.Microsecond != 0:
		c.problems.Add(v.Pos, "write whole microseconds", "a min_interval of %s has a fraction of a microsecond", text)
	}
}

// checkCountable checks the values of l together, each of which is valid. It returns false if there is a problem.
func (c *limitCompiler) checkCountable(l *algorithm.Limit, cfg *RateLimitConfig) bool {
	err := l.Validate()
	at, period := cfg.Pos, rules.FormatDuration(l.Period)
	if cfg.Period != nil {
		at = cfg.Period.Pos
	}
	switch {
	case err == nil:
		return true
	case l.Kind == algorithm.FixedWindow && l.Period%time.Second != 0:
		c.problems.Add(
			at, "write whole seconds, or use another algorithm: "+rules.JoinWithOr(
				algorithm.KindNames()[algorithm.FirstHitWindow:algorithm.Concurrency]),
			"fixed_window needs a period of whole seconds, and %s is not", period)
	case l.Period%time.Microsecond != 0:
		c.problems.Add(at, "write whole microseconds", "a period of %s has a fraction of a microsecond", period)
	case l.Kind == algorithm.SlidingWindow && l.Max > algorithm.MaxLoggedHits:
		fix := fmt.Sprintf("write at most %d, or use sliding_window_counter, which has no such bound",
			algorithm.MaxLoggedHits)
		c.problems.Add(cfg.Pos, fix, "sliding_window remembers each hit, and %d are too many", l.Max)
	case l.Kind == algorithm.GCRA && l.EmissionInterval() == 0:
		c.problems.Add(cfg.Pos, "use a smaller requests_per_unit, or a longer window",
			"gcra lets one hit pass in a nanosecond at most, and %d in %s are more", l.Max, period)
	case l.Kind == algorithm.GCRA && !l.HasExactRate():
		below, above := l.NearestExactRates()
		c.problems.Add(cfg.Pos, fmt.Sprintf("write %d or %d, or a rate of at most 1000000 in a second", below, above),
			"gcra counts in whole nanoseconds, which cannot be %d in %s within 0.1 %%", l.Max, period)
	case l.Kind == algorithm.GCRA && cfg.Burst != nil:
		c.problems.Add(cfg.Burst.Pos, "write a smaller one",
			"a burst of %d takes longer than 100 years to come back, with %d in %s", l.Burst, l.Max, period)
	default:
		c.problems.Add(at, "", "%s", strings.TrimPrefix(err.Error(), "algorithm: "))
	}
	return false
}

// warnUselessSettings warns of a setting of a limit that has no effect beside the others.
func (c *limitCompiler) warnUselessSettings(l *algorithm.Limit, cfg *RateLimitConfig) {
	if v := cfg.Burst; v != nil && v.Value > 0 && l.Max == 0 {
		c.warnings.Add(v.Pos, "remove it", "burst has no effect where requests_per_unit is 0")
	}
	v := cfg.MinInterval
	if v == nil || l.MinInterval == 0 || l.CountBlocked || l.Max == 0 {
		return
	}
	if l.MinInterval > l.Period/time.Duration(l.Max) { // MinInterval * Max could overflow.
		c.warnings.Add(v.Pos, "use a shorter min_interval, a smaller requests_per_unit or a longer window",
			"hits that are %s apart never exceed %d in %s, so the count refuses nothing", rules.FormatDuration(l.MinInterval),
			l.Max, rules.FormatDuration(l.Period))
	}
}

func (c *limitCompiler) checkStoreSupport(l *algorithm.Limit, cfg *RateLimitConfig) {
	s := &c.options.Store
	if s.WhyNoHolds != "" && l.Hold > 0 {
		c.problems.Add(cfg.holdPos(), "use "+s.adviseOtherStores(), "%s cannot keep holds: %s", s.StoreName, s.WhyNoHolds)
		return
	}
	if len(s.Algorithms) > 0 && !slices.Contains(s.Algorithms, l.Kind) {
		at := cfg.Pos
		if cfg.Algorithm != nil {
			at = cfg.Algorithm.Pos
		}
		var kinds []string
		for _, k := range s.Algorithms {
			kinds = append(kinds, k.String())
		}
		c.problems.Add(at, "use "+strings.Join(kinds, " or ")+", or "+s.adviseOtherStores(), "%s cannot count by %v",
			s.StoreName, l.Kind)
		return
	}
	switch v := cfg.CountBlocked; {
	case !s.AlwaysCountsBlocked || l.CountBlocked:
	case v != nil:
		c.problems.Add(v.Pos, "write `count_blocked: true`, or use "+s.adviseOtherStores(), "%s always counts refused hits",
			s.StoreName)
	default:
		c.problems.Add(cfg.Pos, "add `count_blocked: true`, or use "+s.adviseOtherStores(),
			"%s always counts refused hits, and %v does not by default", s.StoreName, l.Kind)
	}
}

// adviseOtherStores names the stores that support everything, as a part of a fix.
func (s *StoreSupport) adviseOtherStores() string {
	return "another store: " + rules.JoinWithOr(s.AlternativeStores)
}

// parseWord returns what v, the value of a setting, means: one of words. If v is nil, it returns the inherited value.
func parseWord[T ~uint8](c *report, inherited T, v *Positioned[string], words *backend.Words[T]) T {
	if v == nil {
		return inherited
	}
	value, known := words.Parse(v.Value)
	if !known {
		all := words.Names()
		c.problems.Add(v.Pos, rules.SuggestFix(v.Value, all, "write "+rules.JoinWithOr(all)), "%s is not known: %s",
			words.Setting, rules.Quote(v.Value))
	}
	return value
}
