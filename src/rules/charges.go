package rules

import (
	"slices"
	"strconv"
)

// maxCharges is the most limits that one descriptor of a request can be charged to.
const maxCharges = 100

// inherited holds the settings and limits that a descriptor inherits from the levels above it.
type inherited struct {
	chargePath *setting // charge: path; nil: leaf
	allOrNone  *setting // on_reject: none; nil: each
	// above are the limits of the levels from where charge: path starts, outermost first. A match here is charged to them too.
	above []*Rule
}

// setting is one `charge: path` or `on_reject: none` in a file. It holds for its descriptor and all levels below.
type setting struct {
	*toggle
	at     Pos
	effect bool // the setting changes how some descriptor is charged
}

// toggle describes a key with two values that holds for all levels below.
type toggle struct {
	key, off, on string
	unused, fix  string // the warning where it has no effect
}

var (
	chargePath = toggle{
		"charge", "leaf", "path", "charge: path has no effect: nothing here has a limit on a level above it",
		"remove it, or give a level above a rate_limit",
	}
	rejectNone = toggle{
		"on_reject", "each", "none", "on_reject: none is about several limits, and no descriptor here is charged to more than one",
		"remove it, or add limits with rate_limits or charge: path",
	}
)

// toggle returns the setting that holds at a descriptor that inherits in and has the value v; nil for off. A nil v keeps in.
func (c *Compiler) toggle(t *toggle, in *setting, v *Placed[string]) *setting {
	switch {
	case v == nil:
	case v.Value == t.off:
		return nil
	case v.Value != t.on:
		c.problems.Add(v.Pos, "write "+t.off+" or "+t.on, "%s is neither %s nor %s: %s", t.key, t.off, t.on, Quote(v.Value))
	case in == nil:
		in = &setting{toggle: t, at: v.Pos}
		c.settings = append(c.settings, in)
	}
	return in
}

// inherit returns in with the settings of a descriptor or file applied. charge and onReject are nil if it has none.
func (c *Compiler) inherit(in inherited, charge, onReject *Placed[string]) inherited {
	if in.chargePath = c.toggle(&chargePath, in.chargePath, charge); in.chargePath == nil {
		in.above = nil
	}
	in.allOrNone = c.toggle(&rejectNone, in.allOrNone, onReject)
	if s := &c.opt.Store; s.NoGroups && onReject != nil && onReject.Value == rejectNone.on {
		c.problems.Add(onReject.Pos, "remove it, or use "+s.other(), "%s cannot charge several limits all or none", s.Name)
	}
	return in
}

// limits compiles the limits of a descriptor or rule into rules, and returns these.
func (c *Compiler) limits(cfg *LimitsConfig, p path) []*Rule {
	first := len(c.set.rules)
	if cfg.RateLimit != nil {
		c.rule(cfg, cfg.RateLimit, p, cfg.Pos, "")
	}
	list := cfg.RateLimits
	switch {
	case list == nil:
	case len(list.Value) == 0:
		c.problems.Add(list.Pos, "write `- unit: ...` below it, or remove it", "rate_limits is empty")
	case len(p.above)+len(list.Value) > maxCharges:
		c.problems.Add(list.Pos, "use fewer", "what matches is charged to more than %d limits", maxCharges)
	default:
		if cfg.RateLimit != nil {
			c.problems.Add(list.Pos, "move the rate_limit into the list", "rate_limit and rate_limits exclude each other")
		}
		c.listed(cfg, list.Value, p)
	}
	return c.set.rules[first:]
}

// listed compiles the items of rate_limits.
func (c *Compiler) listed(cfg *LimitsConfig, list []RateLimitConfig, p path) {
	first := len(c.set.rules)
	names := make(map[string]bool)
	for i := range list {
		limit, suffix := &list[i], ""
		if i > 0 {
			suffix = "." + limit.Name
			if limit.Name == "" || names[limit.Name] {
				suffix = "." + strconv.Itoa(i+1)
			}
			if !c.addName(limit.Pos, len(p.key)+len(suffix)) {
				return
			}
			p.domain.keys = append(p.domain.keys, p.key+suffix)
		}
		names[limit.Name] = true
		r := c.rule(cfg, limit, p, limit.Pos, suffix)
		if r.Unlimited && len(list) > 1 {
			c.problems.Add(limit.Pos, "remove it, or all others", "an unlimited one of several rate_limits changes nothing")
		}
		before := c.set.rules[first : first+i]
		same := func(other *Rule) bool {
			return r.Limit.Period > 0 && r.Limit.Period == other.Limit.Period && r.Limit.Kind == other.Limit.Kind
		}
		if j := slices.IndexFunc(before, same); j >= 0 {
			c.problems.Add(limit.Pos, "keep the smaller one, or change the window or the algorithm of one",
				"the limit at %v has the same algorithm and window: they would share a counter, and each hit count twice", before[j].Pos)
		}
	}
}

// match returns the rule that Find returns for the descriptor cfg, whose own limits are own. It is nil if a match is charged to no
// limit.
func (c *Compiler) match(cfg *LimitsConfig, p path, own []*Rule) *Rule {
	if p.allOrNone != nil {
		c.refuseBlocked(p.above)
		c.refuseBlocked(own)
	}
	if len(own) == 1 && len(p.above) == 0 {
		return own[0]
	}
	charges := p.above
	if len(own) > 0 {
		charges = slices.Concat(p.above, own)
	}
	if len(charges) == 0 {
		return nil
	}
	if len(charges) > maxCharges && len(p.above) <= maxCharges { // else there is a problem at a level above
		c.problems.Add(cfg.Pos, "use fewer levels with limits, or charge: leaf", "what matches is charged to more than %d limits",
			maxCharges)
	}
	if len(p.above) > 0 {
		p.chargePath.effect = true
	}
	if len(charges) > 1 {
		for _, r := range charges {
			r.Joint = true
		}
		if p.allOrNone != nil {
			p.allOrNone.effect = true
		}
		c.warnReplaced(own, charges)
	}
	if len(own) == 1 {
		own[0].Charges = charges
		return own[0]
	}
	r := p.newRule(cfg)
	r.Charges = charges
	return r
}

// refuseBlocked reports each limit with count_blocked: true once. charges have on_reject: none, which charges no refused hit.
func (c *Compiler) refuseBlocked(charges []*Rule) {
	for _, r := range charges {
		if at, written := c.blocked[r]; written {
			c.problems.Add(at, "remove count_blocked, or write `on_reject: each` on the descriptor",
				"count_blocked: true and on_reject: none exclude each other: nothing is charged when a limit refuses, so refused hits cannot count")
			delete(c.blocked, r)
		}
	}
}

// after returns what the children of a descriptor inherit. r is the result of match for the descriptor.
func (in inherited) after(r *Rule) inherited {
	if in.chargePath != nil && r != nil {
		in.above = r.Limits()
	}
	return in
}

// warnReplaced warns of limits that never apply, because all their hits are also charged to one that replaces them.
func (c *Compiler) warnReplaced(own, charges []*Rule) {
	replaced := 0
	for _, r := range charges {
		replaced += len(r.Replaces)
	}
	if replaced == 0 || replaced > maxCompared {
		return
	}
	for _, r := range own {
		i := slices.IndexFunc(charges, func(by *Rule) bool { return by != r && slices.Contains(by.Replaces, r.Name) })
		if i >= 0 && r.Name != "" && !r.Unlimited {
			c.warnings.Add(r.Pos, "remove one of them",
				"the limit %s never applies: what is charged to it is also charged to the one at %v, which replaces it", Quote(r.Name), charges[i].Pos)
		}
	}
}
