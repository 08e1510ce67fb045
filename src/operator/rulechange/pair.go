// Package rulechange tells what differs between two sets of rules: `ratelimit diff` reports it, and the service logs it
// when it reloads.
//
//	pair.go     which old rule is which new rule, and which ones changed places where the first match decides
//	setting.go  what differs between the two, and whether that is looser or tighter
//	summary.go  all changes in a line
package rulechange

import (
	"slices"
	"sort"
	"strconv"
	"strings"

	"ratelimit/src/rules"
)

// Pair is a rule before and after the change. One of the two is nil if only one side has the rule.
type Pair struct {
	Before, After      *rules.Rule
	oldPlace, newPlace int // in the lists that were paired
}

// Pairs finds the new rule of each old rule. Rules that match the same requests belong together; else rules of the
// same `name` in one domain, and the rules of a renamed domain. The result has the new rules in their order, and then
// the old ones without a new one.
func Pairs(before, after []*rules.Rule) []Pair {
	p := pairing{newOf: make(map[*rules.Rule]*rules.Rule), oldOf: make(map[*rules.Rule]*rules.Rule)}
	p.pairEqual(before, after, func(r *rules.Rule) string { return matchText(r, true) })
	p.pairEqual(before, after, func(r *rules.Rule) string { return matchText(r, false) })
	p.pairUnique(before, after, func(r *rules.Rule) string {
		if r.Name == "" {
			return ""
		}
		return r.Domain + "\x00" + r.Name
	})
	oldDomains, newDomains := domainsOf(before), domainsOf(after)
	p.pairUnique(before, after, func(r *rules.Rule) string {
		if oldDomains[r.Domain] && newDomains[r.Domain] {
			return ""
		}
		return strings.TrimPrefix(matchText(r, true), r.Domain)
	})
	pairs, oldPlaces := make([]Pair, 0, len(after)), make(map[*rules.Rule]int, len(before))
	for i, r := range before {
		oldPlaces[r] = i
	}
	for i, r := range after {
		pairs = append(pairs, Pair{p.oldOf[r], r, oldPlaces[p.oldOf[r]], i})
	}
	for i, r := range before {
		if p.newOf[r] == nil {
			pairs = append(pairs, Pair{Before: r, oldPlace: i})
		}
	}
	return pairs
}

func domainsOf(list []*rules.Rule) map[string]bool {
	names := make(map[string]bool)
	for _, r := range list {
		names[r.Domain] = true
	}
	return names
}

// pairing has the pairs that are found so far.
type pairing struct{ newOf, oldOf map[*rules.Rule]*rules.Rule }

func (p *pairing) add(before, after *rules.Rule) { p.newOf[before], p.oldOf[after] = after, before }

// unpaired returns the rules of list that are not in known, by their text. Rules with an empty text are left out.
func unpaired(list []*rules.Rule, known map[*rules.Rule]*rules.Rule,
	text func(*rules.Rule) string,
) map[string][]*rules.Rule {
	groups := make(map[string][]*rules.Rule)
	for _, r := range list {
		if known[r] != nil {
			continue
		}
		if t := text(r); t != "" {
			groups[t] = append(groups[t], r)
		}
	}
	return groups
}

// pairEqual pairs rules with the same text: first those with the same window, then with the same name, then others.
func (p *pairing) pairEqual(before, after []*rules.Rule, text func(*rules.Rule) string) {
	olds := unpaired(before, p.newOf, text)
	for t, news := range unpaired(after, p.oldOf, text) {
		for _, same := range []func(a, b *rules.Rule) bool{
			func(a, b *rules.Rule) bool { return a.Name == b.Name && a.Limit.Window() == b.Limit.Window() },
			func(a, b *rules.Rule) bool { return a.Limit.Window() == b.Limit.Window() && a.Unlimited == b.Unlimited },
			func(a, b *rules.Rule) bool { return a.Name == b.Name },
			func(*rules.Rule, *rules.Rule) bool { return true },
		} {
			news = slices.DeleteFunc(news, func(n *rules.Rule) bool {
				i := slices.IndexFunc(olds[t], func(o *rules.Rule) bool { return same(o, n) })
				if i >= 0 {
					p.add(olds[t][i], n)
					olds[t] = slices.Delete(olds[t], i, i+1)
				}
				return i >= 0
			})
		}
	}
}

// pairUnique pairs rules whose text no other unpaired rule of their side has.
func (p *pairing) pairUnique(before, after []*rules.Rule, text func(*rules.Rule) string) {
	olds := unpaired(before, p.newOf, text)
	for t, news := range unpaired(after, p.oldOf, text) {
		if len(news) == 1 && len(olds[t]) == 1 {
			p.add(olds[t][0], news[0])
		}
	}
}

// matchText tells which requests match r: the domain first, then the levels, the words or the match. withPer adds the
// keys by which a rule of an ordered list counts.
func matchText(r *rules.Rule, withPer bool) string {
	parts := []string{r.Domain}
	switch {
	case r.ListSettings != nil:
		parts = append(parts, "list", strconv.FormatBool(r.ListSettings.IsCanary))
		for _, pair := range r.ListSettings.MatchPairs {
			parts = append(parts, pair.Key, pair.Pattern)
		}
		if withPer {
			parts = append(append(parts, "per"), r.ListSettings.PerKeys...)
		}
	case r.WordPath() != nil:
		parts = append(append(parts, "words"), r.WordPath()...)
	default:
		parts = append(parts, "tree")
		for i := range r.Path {
			parts = append(parts, r.Path[i].Key(), r.Path[i].Kind.String(), r.Path[i].Value())
		}
	}
	return strings.Join(parts, "\x00")
}

// Moved returns the new rules that changed places among rules of which the first match decides: those of an
// ordered list, and wildcards, and regular expressions of one key, on one level of a tree. Of two rules that changed
// places it returns one.
func Moved(pairs []Pair) map[*rules.Rule]bool {
	// Each group is a list of rules of which the first match decides. A rule with wildcards on several levels is in
	// several groups.
	groups := make(map[string][]Pair)
	for _, p := range pairs {
		if p.Before == nil || p.After == nil {
			continue
		}
		if p.After.ListSettings != nil && p.Before.ListSettings != nil {
			groups[p.After.Domain] = append(groups[p.After.Domain], p)
		}
		above := p.After.Domain + "\x00tree"
		for i := range p.After.Path {
			l := &p.After.Path[i]
			text := l.Key() + "\x00" + l.Kind.String() + "\x00" + l.Value()
			switch {
			case l.Kind == rules.LevelRegex:
				group := above + "\x00regex\x00" + l.Key()
				groups[group] = append(groups[group], p)
			case l.Kind == rules.LevelValue && strings.Contains(text, "*"):
				groups[above] = append(groups[above], p)
			}
			above += "\x00" + text
		}
	}
	moved := make(map[*rules.Rule]bool)
	for _, group := range groups {
		slices.SortFunc(group, func(a, b Pair) int { return a.newPlace - b.newPlace })
		kept := longestIncreasing(group)
		for i, p := range group {
			if !kept[i] {
				moved[p.After] = true
			}
		}
	}
	return moved
}

// longestIncreasing reports which pairs belong to a longest sequence whose old rules are in their old order.
func longestIncreasing(group []Pair) []bool {
	// ends[n] is the pair with the lowest index that ends a sequence of n+1 pairs.
	ends, previous := []int{}, make([]int, len(group))
	for i, p := range group {
		n := sort.Search(len(ends), func(n int) bool { return group[ends[n]].oldPlace >= p.oldPlace })
		if previous[i] = -1; n > 0 {
			previous[i] = ends[n-1]
		}
		if n == len(ends) {
			ends = append(ends, i)
		} else {
			ends[n] = i
		}
	}
	kept := make([]bool, len(group))
	if len(ends) > 0 {
		for i := ends[len(ends)-1]; i >= 0; i = previous[i] {
			kept[i] = true
		}
	}
	return kept
}
