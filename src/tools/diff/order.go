package diff

import (
	"slices"
	"sort"
	"strings"

	"ratelimit/src/rules"
)

// movedRules returns the new rules that changed places among rules of which the first match decides: those of an
// ordered list, and wildcards, and regular expressions of one key, on one level of a tree. Of two rules that changed
// places it returns one.
func movedRules(pairs []rulePair) map[*rules.Rule]bool {
	// Each group is a list of rules of which the first match decides. A rule with wildcards on several levels is in
	// several groups.
	groups := make(map[string][]rulePair)
	for _, p := range pairs {
		if p.before == nil || p.after == nil {
			continue
		}
		if p.after.ListSettings != nil && p.before.ListSettings != nil {
			groups[p.after.Domain] = append(groups[p.after.Domain], p)
		}
		above := p.after.Domain + "\x00tree"
		for i := range p.after.Path {
			l := &p.after.Path[i]
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
		slices.SortFunc(group, func(a, b rulePair) int { return a.after.Index - b.after.Index })
		kept := longestIncreasing(group)
		for i, p := range group {
			if !kept[i] {
				moved[p.after] = true
			}
		}
	}
	return moved
}

// longestIncreasing reports which pairs belong to a longest sequence whose old rules are in their old order.
func longestIncreasing(group []rulePair) []bool {
	// ends[n] is the pair with the lowest index that ends a sequence of n+1 pairs.
	ends, previous := []int{}, make([]int, len(group))
	for i, p := range group {
		n := sort.Search(len(ends), func(n int) bool { return group[ends[n]].before.Index >= p.before.Index })
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
