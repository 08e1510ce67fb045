package rules

import (
	"slices"
	"strconv"
	"strings"
)

// MaxPairs bounds the keys in match, and the keys in per, of one rule of an ordered list.
const MaxPairs = 100

// maxReachSteps bounds the search for rules that no request can reach, in compared patterns and keys.
const maxReachSteps = 50_000_000

// list compiles the ordered list of a domain.
func (c *Compiler) list(l *orderedList, cfg *DomainConfig, p path) {
	list := cfg.Rules.Value
	matches := make([][]Pair, len(list))
	for i := range list {
		var size int
		matches[i], size = c.pairs(&list[i])
		if !c.addName(list[i].Pos, 2*(len(p.key)+size)) {
			return
		}
		want := make([]condition, len(matches[i]))
		for j, pair := range matches[i] {
			want[j] = newCondition(l.slot(pair.Key), pair.Pattern)
		}
		// A last rule that matches everything decides even in shadow mode, because no later rule can.
		isDefault := i == len(list)-1 && list[i].Match != nil && len(list[i].Match.Value) == 0
		l.rules = append(l.rules, orderedRule{
			want:       want,
			canary:     list[i].ShadowMode && !isDefault,
			incomplete: list[i].Match == nil || list[i].Incomplete || len(list[i].Match.Value) != len(matches[i]),
		})
	}
	l.index()
	names := l.names(list, matches)
	canaries, most := 0, 0 // limits of all canaries, and the most limits of one other rule
	for i := range list {
		limits := c.listRule(&list[i], &l.rules[i], matches[i], p, names[i])
		if l.rules[i].canary {
			canaries += limits
		} else {
			most = max(most, limits)
		}
	}
	if canaries+most > maxCharges {
		c.problems.Add(cfg.Rules.Pos, "use fewer rules in shadow mode",
			"what matches may be charged to %d limits, and %d are the most: rules in shadow mode are charged besides the one that decides",
			canaries+most, maxCharges)
	}
	var s Scratch
	for i := range min(len(list), maxReachSteps/(len(l.others)+len(l.slots)+1)) {
		if by, hidden := l.unreachable(i, matches[i], &s); hidden && !l.rules[i].incomplete {
			c.problems.Add(list[i].Pos, "put the narrower one first, or remove one",
				"no request gets to the rule %s: that at %v, %s, takes all of them", list[i].text(), list[by].Pos, list[by].text())
		}
	}
	l.setKeys()
}

// pairs returns the match of a rule, sorted by key, and the length of its name and keys in bytes. A rule with problems has no pairs.
func (c *Compiler) pairs(cfg *RuleConfig) (match []Pair, size int) {
	switch {
	case cfg.Match == nil && cfg.Incomplete:
		return nil, 0
	case cfg.Match == nil:
		c.problems.Add(cfg.Pos, "add `match: {key: pattern}`, or `match: {}` if it is for all", "the rule has no match")
		return nil, 0
	case len(cfg.Match.Value) > MaxPairs:
		c.problems.Add(cfg.Match.Pos, "use fewer", "the rule matches by more than %d keys", MaxPairs)
		return nil, 0
	case len(cfg.Per) > MaxPairs:
		c.problems.Add(cfg.Pos, "use fewer", "the rule counts by more than %d keys", MaxPairs)
		return nil, 0
	}
	for _, p := range cfg.Match.Value {
		c.warnLiteral(p.Pos, p.Key, p.Pattern)
		match = append(match, Pair{p.Key, p.Pattern})
		size += len(p.Key) + len(p.Pattern) + len("._")
	}
	for i, per := range cfg.Per {
		size += len(per.Value) + len("_")
		if slices.ContainsFunc(cfg.Per[:i], func(o Placed[string]) bool { return o.Value == per.Value }) {
			c.problems.Add(per.Pos, "remove one of them", "per names the key %s twice", Quote(per.Value))
		}
	}
	slices.SortFunc(match, func(a, b Pair) int { return strings.Compare(a.Key, b.Key) })
	return match, size
}

// listRule compiles a rule into r, and returns how many limits it has.
func (c *Compiler) listRule(cfg *RuleConfig, r *orderedRule, match []Pair, p path, name string) int {
	if cfg.ShadowMode && !r.canary {
		c.warnings.Add(cfg.Pos, "remove shadow_mode, or add `- match: {}` with `unlimited: true` below it",
			"the last rule matches everything, and its own verdict is the answer, shadow_mode or not")
	}
	if cfg.RateLimit == nil && cfg.RateLimits == nil && !cfg.Incomplete {
		c.problems.Add(cfg.Pos, "add one; `rate_limit: {unlimited: true}` lets everything pass", "the rule has no rate_limit")
		return 0
	}
	here := p
	here.key, here.flat = p.key+"."+name, true
	here.inherited = c.inherit(p.inherited, nil, cfg.OnReject)
	limits := cfg.LimitsConfig
	limits.ShadowMode = r.canary
	p.domain.keys = append(p.domain.keys, here.key)
	own := c.limits(&limits, here)
	rule := c.match(&limits, here, own)
	if rule == nil {
		return 0 // it has a problem
	}
	var per []string
	for _, key := range cfg.Per {
		per = append(per, key.Value)
	}
	for _, r := range append(slices.Clone(own), rule) {
		r.Listed = &Listed{Match: match, Per: per, Canary: cfg.ShadowMode}
	}
	r.rule = rule
	return len(own)
}

// canariesLast yields all rules with their indexes, the canaries last. Names and keys are given in this order, so adding a canary
// changes neither for other rules.
func (l *orderedList) canariesLast(yield func(int, *orderedRule) bool) {
	for _, canaries := range []bool{false, true} {
		for i := range l.rules {
			if r := &l.rules[i]; r.canary == canaries && !yield(i, r) {
				return
			}
		}
	}
}

// names returns a different name for each rule: the name of its limit, else its match, else "default". If the name is taken, a rule
// adds ".2", ".3" and so on; a canary adds ".canary", ".canary.2" and so on.
func (l *orderedList) names(list []RuleConfig, matches [][]Pair) []string {
	type kind struct {
		name   string
		canary bool
	}
	names := make([]string, len(list))
	taken := make(map[string]bool)
	tried := make(map[kind]int)
	for i, r := range l.canariesLast {
		name := ""
		if limit := list[i].RateLimit; limit != nil {
			name = limit.Name
		}
		if name == "" {
			name = listName(matches[i])
		}
		names[i] = name
		for taken[names[i]] {
			k := kind{name, r.canary}
			tried[k]++
			switch n := tried[k]; {
			case !r.canary:
				names[i] = name + "." + strconv.Itoa(n+1)
			case n == 1:
				names[i] = name + ".canary"
			default:
				names[i] = name + ".canary." + strconv.Itoa(n)
			}
		}
		taken[names[i]] = true
	}
	return names
}

// listName returns a match in the form of descriptor names, "path_/pay.ip_*", or "default" for an empty one.
func listName(match []Pair) string {
	if len(match) == 0 {
		return "default"
	}
	parts := make([]string, len(match))
	for i, p := range match {
		parts[i] = composite(p.Key, p.Pattern)
	}
	return strings.Join(parts, ".")
}

// setKeys sets Listed.key and Listed.divvy of each limit. No two limits get the same key.
func (l *orderedList) setKeys() {
	seen := make(map[string]int)
	for _, r := range l.canariesLast {
		if r.rule == nil {
			continue
		}
		for _, limit := range r.rule.Limits() {
			k := newListKey(limit)
			text := k.text()
			if seen[text]++; seen[text] > 1 {
				k.tail += "twin:" + strconv.Itoa(seen[text]) + "_"
			}
			limit.Listed.key, limit.Listed.divvy = k, newDivvyKey(limit)
		}
	}
}
