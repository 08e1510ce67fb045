package rules

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"ratelimit/src/algorithm"
)

// maxPairs bounds what a rule of an ordered list matches by, and what it counts
// by.
const MaxPairs = 100

// maxMasked bounds the search for rules that no request gets to: so many
// patterns and keys are looked at.
const maxMasked = 50_000_000

// ordered compiles the ordered list of a domain.
func (c *Compiler) ordered(d *Domain, cfg *DomainConfig, p path) {
	list := cfg.Rules.Value
	l := &orderedList{}
	d.list = l
	matches := make([][]Pair, len(list))
	for i := range list {
		var size int
		matches[i], size = c.pairs(&list[i])
		if c.names > maxNames || !c.named(list[i].Pos, 2*(len(p.key)+size)) {
			return // it was noted when it happened
		}
		want := make([]condition, len(matches[i]))
		for j, pair := range matches[i] {
			want[j] = newCondition(l.slot(pair.Key), pair.Pattern)
		}
		l.rules = append(l.rules, orderedRule{
			want:   want,
			canary: list[i].ShadowMode && !isDefault(list, i),
			bad:    list[i].Match == nil || list[i].Incomplete || len(list[i].Match.Value) != len(matches[i]),
		})
	}
	l.index()
	names := l.names(list, matches)
	charged, most := 0, 0 // by canaries, and by one that decides
	for i := range list {
		limits := c.orderedRule(d, list, i, &l.rules[i], matches[i], p, names[i])
		if l.rules[i].canary {
			charged += limits
		} else {
			most = max(most, limits)
		}
	}
	if charged+most > maxCharges {
		c.problems.Add(cfg.Rules.Pos, "use fewer rules in shadow mode",
			"what matches may be charged to %d limits, and %d are the most: rules in shadow mode are charged besides the one that decides", charged+most, maxCharges)
	}
	var values [][]byte
	for i := range min(len(list), maxMasked/(len(l.others)+len(l.slots)+1)) {
		if by, masked := l.masked(i, matches[i], &values); masked && !l.rules[i].bad {
			c.problems.Add(list[i].Pos, "put the narrower one first, or remove one",
				"no request gets to the rule %s: that at %v, %s, takes all of them", list[i].text(), list[by].Pos, list[by].text())
		}
	}
	l.counters()
}

// isDefault reports whether rule i is the last and matches everything. In shadow
// mode it answers all the same, as there is no other to do so.
func isDefault(list []RuleConfig, i int) bool {
	return i == len(list)-1 && list[i].Match != nil && len(list[i].Match.Value) == 0
}

// pairs returns what a rule matches by, sorted, and how long it is.
func (c *Compiler) pairs(cfg *RuleConfig) (match []Pair, size int) {
	if cfg.Match == nil && cfg.Incomplete {
		return nil, 0
	}
	if cfg.Match == nil {
		c.problems.Add(cfg.Pos, "add `match: {key: pattern}`, or `match: {}` if it is for all", "the rule has no match")
		return nil, 0
	}
	if len(cfg.Match.Value) > MaxPairs {
		c.problems.Add(cfg.Match.Pos, "use fewer", "the rule matches by more than %d keys", MaxPairs)
		return nil, 0
	}
	if len(cfg.Per) > MaxPairs {
		c.problems.Add(cfg.Pos, "use fewer", "the rule counts by more than %d keys", MaxPairs)
		return nil, 0
	}
	for _, p := range cfg.Match.Value {
		c.literal(p.Pos, p.Key, p.Pattern)
		match = append(match, Pair{p.Key, p.Pattern})
		size += len(p.Key) + len(p.Pattern) + len("._")
	}
	for i, per := range cfg.Per {
		size += len(per.Value) + len("_")
		if slices.ContainsFunc(cfg.Per[:i], func(o Placed[string]) bool { return o.Value == per.Value }) {
			c.problems.Add(per.Pos, "remove one of them", "per names the key %s twice", Quote(per.Value))
		}
	}
	sortPairs(match)
	return match, size
}

func sortPairs(match []Pair) {
	slices.SortFunc(match, func(a, b Pair) int { return strings.Compare(a.Key, b.Key) })
}

func newCondition(slot int, text string) condition {
	switch {
	case text == "*":
		return condition{slot: slot, how: KeyAlone}
	case strings.Contains(text, "*"):
		return condition{slot: slot, how: Wildcard, glob: compilePattern(text)}
	}
	return condition{slot: slot, how: Exact, exact: []byte(text)}
}

// orderedRule compiles rule i of list into r, and returns how many limits it has.
func (c *Compiler) orderedRule(d *Domain, list []RuleConfig, i int, r *orderedRule, match []Pair, p path, name string) int {
	cfg := &list[i]
	if cfg.ShadowMode && !r.canary {
		c.warnings.Add(cfg.Pos, "remove shadow_mode, or add `- match: {}` with `unlimited: true` below it",
			"the last rule matches everything, and its own verdict is the answer, shadow_mode or not")
	}
	if cfg.RateLimit == nil && cfg.RateLimits == nil && !cfg.Incomplete {
		c.problems.Add(cfg.Pos, "add one; `rate_limit: {unlimited: true}` lets everything pass", "the rule has no rate_limit")
		return 0
	}
	here := path{domain: d, key: p.key + "." + name, inherited: c.inherit(p.inherited, nil, cfg.OnReject), ordered: true, onFailure: p.onFailure}
	as := DescriptorConfig{
		Pos: cfg.Pos, RateLimit: cfg.RateLimit, RateLimits: cfg.RateLimits,
		ShadowMode: r.canary, QuotaMode: cfg.QuotaMode, Metadata: cfg.Metadata,
	}
	d.keys = append(d.keys, here.key)
	own := c.limits(&as, here)
	rule := c.match(&as, here, own)
	c.warnUnused(p.inherited, here.inherited, nil, cfg.OnReject)
	if rule == nil {
		return 0 // it was noted why
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

// names are what the rules of a list are called wherever operators meet
// them: by their name, or else by what they match, and `default` if that is
// everything. Those that decide choose first, so that no canary beside them
// changes what they are called.
func (l *orderedList) names(list []RuleConfig, matches [][]Pair) []string {
	names := make([]string, len(list))
	taken := make(map[string]bool)
	tried := make(map[string]int) // so many of the ways to tell apart what has one name
	choose := func(i int, ways func(name string, n int) string) {
		name := ""
		if limit := list[i].RateLimit; limit != nil {
			name = limit.Name
		}
		if name == "" {
			name = operation(matches[i])
		}
		names[i] = name
		for taken[names[i]] {
			tried[name]++
			names[i] = ways(name, tried[name]+1)
		}
		taken[names[i]] = true
	}
	for i := range list {
		if !l.rules[i].canary {
			choose(i, func(name string, n int) string { return name + "." + strconv.Itoa(n) })
		}
	}
	clear(tried) // canaries have ways of their own
	for _, i := range l.canaries {
		choose(i, func(name string, n int) string {
			if n == 2 {
				return name + ".canary"
			}
			return name + ".canary." + strconv.Itoa(n-1)
		})
	}
	return names
}

// operation is what a rule matches by, in the form that names of descriptors
// have.
func operation(match []Pair) string {
	if len(match) == 0 {
		return "default"
	}
	parts := make([]string, len(match))
	for i, p := range match {
		parts[i] = composite(&DescriptorConfig{Key: p.Key, Value: p.Pattern})
	}
	return strings.Join(parts, ".")
}

// orderedKey is what the keys of a limit's counters are made of; see Keys. It
// tells the limit by what its rule matches and counts by, and by what it allows:
// its place, name and comment may change without the counts being lost, and a
// changed limit begins anew. Canaries that are twins of a rule, or of each other,
// have a number.
type orderedKey struct {
	head string   // what the rule matches
	per  []string // keys to count by, each with the sign behind it
	tail string   // the limit, and the number

	// What stands in divvy's key before and behind the value that is counted by;
	// empty where divvy has no such limit.
	divvyHead, divvyTail string
}

// counters gives each limit of a list its counters. Those that decide come
// first, so that no canary beside them changes their keys.
func (l *orderedList) counters() {
	twins := make(map[string]int)
	for _, canaries := range []bool{false, true} {
		for i := range l.rules {
			if l.rules[i].canary != canaries || l.rules[i].rule == nil {
				continue
			}
			for _, r := range l.rules[i].rule.limits() {
				k := newOrderedKey(r)
				id := k.head + strings.Join(k.per, "") + k.tail
				if twins[id]++; twins[id] > 1 {
					k.tail += "twin:" + strconv.Itoa(twins[id]) + "_"
				}
				r.Listed.key = k
			}
		}
	}
}

func newOrderedKey(r *Rule) *orderedKey {
	k := &orderedKey{}
	head := ":"
	for _, p := range r.Listed.Match {
		head += escaped(p.Key) + "_" + escaped(p.Pattern) + "_"
	}
	k.head = head + ":"
	for _, key := range r.Listed.Per {
		k.per = append(k.per, escaped(key)+"_")
	}
	lim := &r.Limit
	k.tail = fmt.Sprintf(":%d/%s_%v_", lim.Max, FormatDuration(lim.Period), lim.Kind)
	if lim.Kind == algorithm.GCRA {
		k.tail += fmt.Sprintf("burst:%d_", lim.Burst)
	}
	if lim.MinInterval > 0 {
		k.tail += "min:" + FormatDuration(lim.MinInterval) + "_"
	}
	if lim.CountBlocked != CountsBlocked(lim.Kind) {
		k.tail += fmt.Sprintf("blocked:%t_", lim.CountBlocked)
	}
	if lim.Kind == algorithm.FirstHitWindow && lim.Max > 0 && lim.Period%time.Second == 0 && !lim.CountBlocked && len(r.Listed.Per) < 2 {
		k.divvyHead = "divvy:" + r.Operation() + ":"
		k.divvyTail = fmt.Sprintf(":%d:%d", lim.Max, lim.Period/time.Second)
	}
	return k
}
