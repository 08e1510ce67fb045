package compile

import (
	"slices"

	"ratelimit/src/rules"
	"ratelimit/src/rules/match"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/rules/datafile"
)

// maxDataFilesPerKey is the most descriptors with values_from or limits_from that a key has on one level. Each is a
// search of its own.
const maxDataFilesPerKey = 100

// compileDataFile compiles values_from or limits_from, whichever v is. It returns nil if there is a problem.
func (c *report) compileDataFile(v *Positioned[string], kind datafile.Kind, files datafile.Files) *datafile.File {
	file := files[datafile.Reference{Name: v.Value, Kind: kind}]
	if file == nil {
		c.problems.Add(v.Pos, "put the rules into a file beside the data file, or write descriptors with `value`",
			"%v needs rules in a file: rules of a management server cannot name files", kind)
		return nil
	}
	if file.Table != nil {
		return file
	}
	for _, p := range file.Problems {
		if p.Line == 0 {
			c.problems.Add(v.Pos, p.Fix, "%v %s: %s %s", kind, rules.Quote(v.Value), file.Path, p.Message)
			return nil
		}
		c.problems.Add(rules.Pos{File: file.Path, Line: p.Line, Col: p.Col}, p.Fix, "%s", p.Message)
	}
	c.problems.Add(v.Pos, "correct the file", "%v %s: %s has problems, the first is in line %d", kind,
		rules.Quote(v.Value), file.Path, file.Problems[0].Line)
	return nil
}

// addDataFile makes child the descriptor of a data file below n.
func (c *report) addDataFile(n, child *match.Node) {
	l, at := child.Level(), child.Descriptor.Pos
	list := &n.MatchersOf(l.Key()).Data
	for _, other := range *list {
		if other.File.Path == l.DataFile.Path && other.Kind == l.Kind {
			c.problems.Add(at, "remove one, or join their limits and descriptors",
				"%v %s of the key %s is already at %v, on the same level",
				l.Kind, rules.Quote(l.Value()), rules.Quote(l.Key()), other.Node.Descriptor.Pos)
			return
		}
	}
	if len(*list) == maxDataFilesPerKey {
		c.problems.Add(at, "join files", "the key %s has more than %d files on one level", rules.Quote(l.Key()),
			maxDataFilesPerKey)
		return
	}
	if l.DataFile.Table.Len() == 0 {
		c.warnings.Add(at, "add values, or remove the descriptor", "%s has no values, so the descriptor matches nothing",
			l.DataFile.Path)
	}
	*list = append(*list, match.DataNode{Kind: l.Kind, File: l.DataFile, Node: child})
}

// limitsOfDescriptor returns the limits of a descriptor. Those of limits_from get a placeholder for the numbers that
// the file has.
func (c *report) limitsOfDescriptor(cfg *DescriptorConfig) *LimitsConfig {
	v, limit := cfg.LimitsFrom, cfg.RateLimit
	if v == nil {
		return &cfg.LimitsConfig
	}
	if cfg.ShareThreshold {
		c.problems.Add(v.Pos, "remove one of them",
			"limits_from and share_threshold exclude each other: each value has a limit of its own")
	}
	limits := cfg.LimitsConfig
	switch {
	case cfg.RateLimits != nil:
		c.problems.Add(v.Pos, "write a rate_limit, and a descriptor above or below for other limits",
			"limits_from and rate_limits exclude each other")
	case limit == nil:
		c.problems.Add(v.Pos, "add `rate_limit: {unit: hour}`, or another window; the file has the numbers",
			"limits_from needs a rate_limit")
	case limit.Unlimited:
		c.problems.Add(limit.Pos, "write unlimited in the lines of the file", "limits_from and unlimited exclude each other")
	case !limit.LacksRequests:
		c.problems.Add(limit.Pos, "remove requests_per_unit; for values that are not in the file, add a descriptor with "+
			"the key alone", "limits_from and requests_per_unit exclude each other: the file has the number")
	case limit.Burst != nil:
		c.problems.Add(limit.Burst.Pos, "write it into the lines of the file, behind the number of requests",
			"limits_from and burst exclude each other")
	}
	if limit != nil {
		placeholder := *limit
		placeholder.RequestsPerUnit, placeholder.LacksRequests, placeholder.Burst = 1, false, nil
		limits.RateLimit = &placeholder
	}
	return &limits
}

// addLimitsOfFile adds a match for each limit of a file, if cfg, the descriptor of the child of n, has limits_from.
// They share all but the limit with child.Match.
func (c *Compiler) addLimitsOfFile(n, child *match.Node, cfg *DescriptorConfig) {
	if cfg.LimitsFrom == nil || child.Match == nil {
		return
	}
	last := len(child.Match.Limits) - 1
	base := child.Match.Limits[last]
	// There is no own limit, or one without a window, which is a problem.
	if base.Descriptor != child.Match.Descriptor || base.Limit.Period == 0 {
		return
	}
	list := n.MatchersOf(cfg.Key).Data
	i := slices.IndexFunc(list, func(d match.DataNode) bool { return d.Node == child })
	if i < 0 {
		return // The descriptor has a problem.
	}
	d, problems := &list[i], len(c.problems)
	base.LimitsFile = d.File
	d.NodesByLimit = make([]*match.Node, len(d.File.Table.Limits()))
	for i, of := range d.File.Table.Limits() {
		n, m, r := *d.Node, *child.Match, c.ruleWithLimit(base, d.File.Path, of)
		m.Limits = slices.Clone(m.Limits)
		m.Limits[last] = r
		m.HasConcurrency = m.HasConcurrency && !r.Unlimited
		c.parts.Copies = append(c.parts.Copies, rules.RuleCopy{Rule: base, Copy: r})
		n.Match, d.NodesByLimit[i] = &m, &n
	}
	if len(c.problems) > problems {
		c.problems.Add(cfg.LimitsFrom.Pos, "correct the file, or the rate_limit",
			"limits_from %s: %s has limits that the rate_limit cannot have, the first is in line %d",
			rules.Quote(cfg.LimitsFrom.Value), d.File.Path, c.problems[problems].Line)
	}
}

// ruleWithLimit returns base with a limit of a file.
func (c *limitCompiler) ruleWithLimit(base *rules.Rule, path string, of datafile.Limit) *rules.Rule {
	r := *base
	r.LimitsFile = nil
	if of.Unlimited {
		r.Unlimited, r.Rate, r.Limit = true, rules.Rate{UnitMultiplier: 1}, algorithm.Limit{}
		r.HasPeriod, r.HoldIDKey, r.Reserve, r.Enforcement = false, "", nil, nil
		r.Counting, r.OnContention, r.WhyExact = backend.Exact, backend.Wait, ""
		return &r
	}
	at := rules.Pos{File: path, Line: of.Line, Col: of.Col}
	r.Requests, r.Limit.Max = of.Requests, of.Requests
	if r.Limit.Kind == algorithm.GCRA {
		r.Limit.Burst = max(r.Limit.Max, 1) - 1
		if of.HasBurst {
			r.Limit.Burst = of.Burst
		}
	}
	switch {
	case of.HasBurst && r.Limit.Kind != algorithm.GCRA:
		c.problems.Add(at, "remove it, or write `algorithm: gcra` in the rule",
			"burst means nothing to the algorithm %v of the rule at %v", r.Limit.Kind, r.Pos)
	case r.Limit.Kind == algorithm.Concurrency:
		c.checkOpenHolds(at, of.Requests)
	default:
		cfg := RateLimitConfig{Pos: at}
		if of.HasBurst {
			cfg.Burst = &Positioned[uint64]{at, of.Burst}
		}
		c.checkCountable(&r.Limit, &cfg)
	}
	r.ExactUnlessLeasable()
	return &r
}

// refuseLimitsOfFileAbove reports a limit above that comes from a file: it depends on a value that only the search
// knows.
func (c *report) refuseLimitsOfFileAbove(at rules.Pos, above []*rules.Rule) {
	if i := slices.IndexFunc(above, isOfFile); i >= 0 {
		c.problems.Add(at, "write `charge: leaf` here, or give the levels below descriptors of their own in the request",
			"charge: path cannot charge the limit at %v, which is one of limits_from", above[i].Pos)
	}
}
