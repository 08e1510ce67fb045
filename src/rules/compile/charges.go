package compile

import (
	"slices"
	"strconv"

	"ratelimit/src/rules"
)

// maxChargesPerDescriptor is the most limits that one descriptor of a request can be charged to.
const maxChargesPerDescriptor = 100

// inheritableYAMLKey is a key with two values, whose setting holds for all levels below.
type inheritableYAMLKey struct {
	yamlName, offValue, onValue  string
	noEffectWarning, noEffectFix string // the warning if a setting has no effect, and noEffectFix tells how to fix it
}

var (
	chargeYAMLKey = inheritableYAMLKey{
		"charge", "leaf", "path", "charge: path has no effect: nothing here has a limit on a level above it",
		"remove it, or give a level above a rate_limit",
	}
	onRejectYAMLKey = inheritableYAMLKey{
		"on_reject", "each", "none", "on_reject: none is about several limits, and no descriptor here is charged to more " +
			"than one",
		"remove it, or add limits with rate_limits or charge: path",
	}
)

// effectiveSetting returns the setting of a descriptor that inherits above and has the value v for the key. It returns
// nil if the key is off, and above if v is nil.
func (c *Compiler) effectiveSetting(key *inheritableYAMLKey, above *inheritedSetting,
	v *Positioned[string],
) *inheritedSetting {
	switch {
	case v == nil:
	case v.Value == key.offValue:
		return nil
	case v.Value != key.onValue:
		c.problems.Add(v.Pos, "write "+key.offValue+" or "+key.onValue,
			"%s is neither %s nor %s: %s", key.yamlName, key.offValue, key.onValue, rules.Quote(v.Value))
	case above == nil:
		above = &inheritedSetting{yamlKey: key, pos: v.Pos}
		c.inheritedSettings = append(c.inheritedSettings, above)
	}
	return above
}

// inheritanceWith returns what a descriptor or file has that inherits in, and sets charge and onReject unless these are
// nil.
func (c *Compiler) inheritanceWith(in inheritance, charge, onReject *Positioned[string]) inheritance {
	if in.chargePathSetting = c.effectiveSetting(&chargeYAMLKey, in.chargePathSetting,
		charge); in.chargePathSetting == nil {
		in.limitsAbove = nil
	}
	in.allOrNoneSetting = c.effectiveSetting(&onRejectYAMLKey, in.allOrNoneSetting, onReject)
	if s := &c.options.Store; s.CannotChargeAllOrNone && onReject != nil && onReject.Value == onRejectYAMLKey.onValue {
		c.problems.Add(onReject.Pos, "remove it, or use "+s.adviseOtherStores(),
			"%s cannot charge several limits all or none", s.StoreName)
	}
	return in
}

// compileOwnLimits compiles the limits of a descriptor or rule into rules, adds these to the set and returns them.
func (c *Compiler) compileOwnLimits(cfg *LimitsConfig, p compilePath) []*rules.Rule {
	first := len(c.parts.Rules)
	if cfg.RateLimit != nil {
		c.compileLimit(cfg.RateLimit, p, cfg.Pos, "")
	}
	list := cfg.RateLimits
	switch {
	case list == nil:
	case len(list.Value) == 0:
		c.problems.Add(list.Pos, "write `- unit: ...` below it, or remove it", "rate_limits is empty")
	case len(p.limitsAbove)+len(list.Value) > maxChargesPerDescriptor:
		c.problems.Add(list.Pos, "use fewer", "what matches is charged to more than %d limits", maxChargesPerDescriptor)
	default:
		if cfg.RateLimit != nil {
			c.problems.Add(list.Pos, "move the rate_limit into the list", "rate_limit and rate_limits exclude each other")
		}
		c.compileLimitList(list.Value, p)
	}
	return c.parts.Rules[first:]
}

// compileLimitList compiles the items of rate_limits.
func (c *Compiler) compileLimitList(list []RateLimitConfig, p compilePath) {
	first := len(c.parts.Rules)
	names := make(map[string]bool)
	for i := range list {
		limit, suffix := &list[i], ""
		if i > 0 {
			suffix = "." + limit.Name
			if limit.Name == "" || names[limit.Name] {
				suffix = "." + strconv.Itoa(i+1)
			}
			if !c.countNameBytes(limit.Pos, len(p.ruleName)+len(suffix)) {
				return
			}
			p.domain.DescriptorNames = append(p.domain.DescriptorNames, p.ruleName+suffix)
		}
		names[limit.Name] = true
		r := c.compileLimit(limit, p, limit.Pos, suffix)
		if r.Unlimited && len(list) > 1 {
			c.problems.Add(limit.Pos, "remove it, or all others", "an unlimited one of several rate_limits changes nothing")
		}
		before := c.parts.Rules[first : first+i]
		same := func(other *rules.Rule) bool {
			return r.Limit.Period > 0 && r.Limit.Window() == other.Limit.Window()
		}
		if j := slices.IndexFunc(before, same); j >= 0 {
			c.problems.Add(limit.Pos, "keep the smaller one, or change the window or the algorithm of one",
				"the limit at %v has the same algorithm and window: they would share a counter, and each hit count twice",
				before[j].Pos)
		}
	}
}

// compileMatch returns what FindRule returns for the descriptor of cfg. ownLimits are the limits of that descriptor. It
// is nil if a match is charged to no limit.
func (c *Compiler) compileMatch(cfg *LimitsConfig, p compilePath, ownLimits []*rules.Rule) *rules.Match {
	if p.allOrNoneSetting != nil {
		c.refuseCountBlocked(p.limitsAbove)
		c.refuseCountBlocked(ownLimits)
	}
	limits := p.limitsAbove
	switch {
	case len(p.limitsAbove) == 0 && len(ownLimits) == 0:
		return nil
	case len(p.limitsAbove) == 0:
		limits = slices.Clip(ownLimits)
	case len(ownLimits) > 0:
		limits = slices.Concat(p.limitsAbove, ownLimits)
	}
	m := &rules.Match{Descriptor: p.descriptor, Limits: limits}
	if len(p.limitsAbove) > 0 {
		p.chargePathSetting.hasEffect = true
		c.refuseLimitsOfFileAbove(cfg.Pos, p.limitsAbove)
	}
	// If limitsAbove are too many, a level above has this problem.
	if len(m.Limits) > maxChargesPerDescriptor && len(p.limitsAbove) <= maxChargesPerDescriptor {
		c.problems.Add(cfg.Pos, "use fewer levels with limits, or charge: leaf",
			"what matches is charged to more than %d limits", maxChargesPerDescriptor)
	}
	if len(m.Limits) > 1 {
		for _, r := range m.Limits {
			r.ChargedWithOthers = true
		}
		if p.allOrNoneSetting != nil {
			p.allOrNoneSetting.hasEffect = true
		}
		warnReplacedLimits(&c.warnings, ownLimits, m.Limits)
	}
	c.setMatchHold(m, ownLimits, cfg)
	return m
}

// refuseCountBlocked reports each of the limits that has count_blocked: true, once. Their hits are charged all or none,
// so that no refused hit can count.
func (c *limitCompiler) refuseCountBlocked(limits []*rules.Rule) {
	for _, r := range limits {
		if at, written := c.countBlockedPos[r]; written {
			c.problems.Add(at, "remove count_blocked, or write `on_reject: each` on the descriptor",
				"count_blocked: true and on_reject: none exclude each other: nothing is charged when a limit refuses, so refused "+
					"hits cannot count")
			delete(c.countBlockedPos, r)
		}
	}
}

// forChildren returns what the children of a descriptor inherit. m is what compileMatch returned for the descriptor.
func (in inheritance) forChildren(m *rules.Match) inheritance {
	if in.chargePathSetting != nil && m != nil {
		in.limitsAbove = m.Limits
	}
	return in
}

// warnReplacedLimits warns of own limits that never apply, because all their hits are also charged to a limit that
// replaces them.
func warnReplacedLimits(warnings *rules.Problems, ownLimits, charges []*rules.Rule) {
	names := 0
	for _, r := range charges {
		names += len(r.Replaces)
	}
	if names == 0 || names > maxComparedItems {
		return
	}
	for _, r := range ownLimits {
		i := slices.IndexFunc(charges, func(by *rules.Rule) bool { return by != r && slices.Contains(by.Replaces, r.Name) })
		if i >= 0 && r.Name != "" && !r.Unlimited {
			warnings.Add(r.Pos, "remove one of them",
				"the limit %s never applies: what is charged to it is also charged to the one at %v, which replaces it",
				rules.Quote(r.Name), charges[i].Pos)
		}
	}
}
