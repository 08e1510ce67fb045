package compile

import (
	"iter"
	"slices"
	"strconv"
	"strings"

	"ratelimit/src/rules"
	"ratelimit/src/rules/match"
)

// MaxKeysPerRule is the most keys in match, and the most in per, of one rule of an ordered list.
const MaxKeysPerRule = 100

// maxReachabilitySteps is the most patterns and keys that are compared in the search for rules that no request can
// reach.
const maxReachabilitySteps = 50_000_000

// compileOrderedList compiles the ordered list of cfg into l.
func (c *Compiler) compileOrderedList(l *match.List, cfg *DomainConfig, p compilePath) {
	list := cfg.Rules.Value
	matches, complete := c.addListRules(l, list, p)
	if !complete {
		return
	}
	names := ruleNames(l, list, matches)
	canaryLimits, mostLimits := 0, 0 // the most that one other rule has
	for i := range list {
		limits := c.compileListRule(&list[i], &l.Rules[i], matches[i], p, names[i])
		if l.Rules[i].IsCanary {
			canaryLimits += limits
		} else {
			mostLimits = max(mostLimits, limits)
		}
		p.domain.ListRules = append(p.domain.ListRules, l.Rules[i].Match)
	}
	if canaryLimits+mostLimits > maxChargesPerDescriptor {
		c.problems.Add(cfg.Rules.Pos, "use fewer rules in shadow mode",
			"what matches may be charged to %d limits, and %d are the most: rules in shadow mode are charged besides the one "+
				"that decides", canaryLimits+mostLimits, maxChargesPerDescriptor)
	}
	refuseUnreachableRules(&c.problems, l, list, matches)
	var valid []*rules.Match
	for _, r := range rulesCanariesLast(l) {
		if r.Match != nil {
			valid = append(valid, r.Match)
		}
	}
	rules.SetListKeys(valid, c.options.PeerKey)
	c.setCountingOfPeers(l, list)
}

// addListRules adds the rules of list, without their limits, to l, and returns the match of each. It returns false if
// all names together are too long.
func (c *Compiler) addListRules(l *match.List, list []RuleConfig, p compilePath) ([][]rules.MatchPair, bool) {
	matches := make([][]rules.MatchPair, len(list))
	for i := range list {
		var size int
		matches[i], size = c.sortedMatchPairs(&list[i])
		if !c.countNameBytes(list[i].Pos, 2*(len(p.ruleName)+size)) {
			return nil, false
		}
		conditions := make([]match.Condition, len(matches[i]))
		for j, pair := range matches[i] {
			conditions[j] = match.NewCondition(l.SlotOfKey(pair.Key), pair.Pattern)
		}
		// A last rule that matches everything decides even in shadow mode, because no later rule can.
		isDefault := i == len(list)-1 && list[i].Match != nil && len(list[i].Match.Value) == 0
		l.Rules = append(l.Rules, match.ListRule{
			Conditions: conditions,
			IsCanary:   list[i].ShadowMode && !isDefault,
			IsInvalid:  list[i].Match == nil || list[i].HasReadProblem || len(list[i].Match.Value) != len(matches[i]),
		})
	}
	l.BuildIndexes()
	return matches, true
}

// refuseUnreachableRules reports rules whose requests an earlier rule takes. It stops after maxReachabilitySteps.
func refuseUnreachableRules(
	problems *rules.Problems, l *match.List, list []RuleConfig, matches [][]rules.MatchPair,
) {
	var s rules.SearchScratch
	for i := range min(len(list), maxReachabilitySteps/(len(l.WithoutExactValue)+len(l.SlotByKey)+1)) {
		if by, hidden := l.FirstHidingRule(i, matches[i], &s); hidden && !l.Rules[i].IsInvalid {
			problems.Add(list[i].Pos, "put the narrower one first, or remove one",
				"rule %s is unreachable: %s at %v matches first", list[i].shortText(), list[by].shortText(), list[by].Pos)
		}
	}
}

// sortedMatchPairs returns the match of a rule, sorted by key, and the length of its name and keys in bytes. If the
// rule has a problem, it returns no pairs.
func (c *report) sortedMatchPairs(cfg *RuleConfig) (match []rules.MatchPair, size int) {
	switch {
	case cfg.Match == nil && cfg.HasReadProblem:
		return nil, 0
	case cfg.Match == nil:
		c.problems.Add(cfg.Pos, "add `match: {key: pattern}`, or `match: {}` if it is for all", "the rule has no match")
		return nil, 0
	case len(cfg.Match.Value) > MaxKeysPerRule:
		c.problems.Add(cfg.Match.Pos, "use fewer", "the rule matches by more than %d keys", MaxKeysPerRule)
		return nil, 0
	case len(cfg.PerKeys) > MaxKeysPerRule:
		c.problems.Add(cfg.Pos, "use fewer", "the rule counts by more than %d keys", MaxKeysPerRule)
		return nil, 0
	}
	for _, p := range cfg.Match.Value {
		warnMisleadingValue(&c.warnings, p.Pos, p.Key, p.Pattern, true)
		match = append(match, rules.MatchPair{Key: p.Key, Pattern: p.Pattern})
		size += len(p.Key) + len(p.Pattern) + len("._")
	}
	for i, per := range cfg.PerKeys {
		size += len(per.Value) + len("_")
		if slices.ContainsFunc(cfg.PerKeys[:i], func(o Positioned[string]) bool { return o.Value == per.Value }) {
			c.problems.Add(per.Pos, "remove one of them", "per names the key %s twice", rules.Quote(per.Value))
		}
	}
	slices.SortFunc(match, func(a, b rules.MatchPair) int { return strings.Compare(a.Key, b.Key) })
	return match, size
}

// compileListRule compiles a rule into r and returns the number of its limits.
func (c *Compiler) compileListRule(
	cfg *RuleConfig, r *match.ListRule, pairs []rules.MatchPair, p compilePath, name string,
) int {
	if cfg.ShadowMode && !r.IsCanary {
		c.warnings.Add(cfg.Pos, "remove shadow_mode, or add `- match: {}` with `unlimited: true` below it",
			"the last rule matches everything, and its own verdict is the answer, shadow_mode or not")
	}
	if cfg.RateLimit == nil && cfg.RateLimits == nil && !cfg.HasReadProblem {
		c.problems.Add(cfg.Pos, "add one; `rate_limit: {unlimited: true}` lets everything pass", "the rule has no rate_limit")
		return 0
	}
	here := p
	here.ruleName, here.hasNoNestedRules = p.ruleName+"."+name, true
	here.inheritance = c.inheritanceWith(p.inheritance, nil, cfg.OnReject)
	limits := cfg.LimitsConfig
	limits.ShadowMode = r.IsCanary
	p.domain.DescriptorNames = append(p.domain.DescriptorNames, here.ruleName)
	var per []string
	for _, key := range cfg.PerKeys {
		per = append(per, key.Value)
	}
	here.descriptor = here.newDescriptor(&limits)
	here.descriptor.ListSettings = &rules.ListSettings{MatchPairs: pairs, PerKeys: per, IsCanary: cfg.ShadowMode}
	own := c.compileOwnLimits(&limits, here)
	if r.Match = c.compileMatch(&limits, here, own); r.Match == nil {
		return 0 // The rule has a problem.
	}
	for i, limit := range own {
		written := limits.limit(i)
		if len(per) == 0 && limit.Enforcement != nil {
			warnOneCounter(&c.warnings, limit, written.EnforcePercent.Pos)
		}
		if limit.HoldIDKey == "" {
			continue
		}
		if slices.Contains(per, limit.HoldIDKey) {
			warnHoldIDCounted(&c.warnings, written.HoldID)
		}
		if slices.ContainsFunc(pairs, func(p rules.MatchPair) bool { return p.Key == limit.HoldIDKey && p.Pattern != "*" }) {
			c.warnings.Add(written.HoldID.Pos, "match by another key, or write \"*\" for any hold",
				"the rule matches only some values of %s, which names the hold, so it limits only these holds",
				rules.Quote(limit.HoldIDKey))
		}
	}
	return len(own)
}

// rulesCanariesLast yields all rules with their indexes, the canaries last. Rules get their names and keys in this
// order, so a new canary does not rename other rules or change their keys.
func rulesCanariesLast(l *match.List) iter.Seq2[int, *match.ListRule] {
	return func(yield func(int, *match.ListRule) bool) {
		for _, canaries := range []bool{false, true} {
			for i := range l.Rules {
				if r := &l.Rules[i]; r.IsCanary == canaries && !yield(i, r) {
					return
				}
			}
		}
	}
}

// ruleNames returns a different name for each rule: the name of its limit, else its match, else "default". If that name
// is taken, it adds ".2", ".3" and so on for a rule, and ".canary", ".canary.2" and so on for a canary.
func ruleNames(l *match.List, list []RuleConfig, matches [][]rules.MatchPair) []string {
	names := make([]string, len(list))
	taken := make(map[string]bool)
	used := make(map[string]int) // the last number that was added to a name
	for i, r := range rulesCanariesLast(l) {
		name := ""
		if limit := list[i].RateLimit; limit != nil {
			name = limit.Name
		}
		if name == "" {
			name = matchName(matches[i])
		}
		names[i] = name
		if r.IsCanary {
			name += ".canary"
		} else {
			used[name] = max(used[name], 1)
		}
		for taken[names[i]] {
			used[name]++
			if names[i] = name; used[name] > 1 {
				names[i] += "." + strconv.Itoa(used[name])
			}
		}
		taken[names[i]] = true
	}
	return names
}

// matchName returns a match in the form of descriptor names, "path_/pay.ip_*", or "default" for an empty match.
func matchName(match []rules.MatchPair) string {
	if len(match) == 0 {
		return "default"
	}
	parts := make([]string, len(match))
	for i, p := range match {
		parts[i] = rules.LevelName(p.Key, p.Pattern)
	}
	return strings.Join(parts, ".")
}
