package rules

import (
	"cmp"
	"slices"
	"strings"
)

// Charged returns what Find returns in set for matches that are charged to other limits than one of their own,
// in the order of the files.
func Charged(set *Set) []*Rule {
	var found []*Rule
	var walk func(n *node)
	walk = func(n *node) {
		if n.rule != nil && n.rule.ChargedLimits != nil {
			found = append(found, n.rule)
		}
		if n.children == nil {
			return
		}
		for _, k := range n.children.groupsByKey.all() {
			for child := range k.nodes() {
				walk(child)
			}
		}
	}
	var words func(n *limitNode)
	words = func(n *limitNode) {
		if n.rule != nil && n.rule.ChargedLimits != nil {
			found = append(found, n.rule)
		}
		for _, child := range n.childrenByKeyOrValue.all() {
			words(child)
		}
		if n.anyWordChild != nil {
			words(n.anyWordChild)
		}
	}
	for _, d := range set.domains {
		switch m := d.matcher.(type) {
		case *descriptorTree:
			walk(&m.root)
		case *limitTree:
			words(&m.root)
		case *orderedList:
			for _, r := range m.rules {
				if r.rule.ChargedLimits != nil {
					found = append(found, r.rule)
				}
			}
		}
	}
	slices.SortFunc(found, func(a, b *Rule) int {
		return cmp.Or(strings.Compare(a.Pos.File, b.Pos.File), a.Pos.Line-b.Pos.Line, a.Pos.Col-b.Pos.Col, strings.Compare(a.FullName, b.FullName))
	})
	return found
}

// MaxUnmatched, LevelName and KeyParts are for tests of this folder.
const MaxUnmatched = maxUnmatchedRulesListed

var LevelName = levelName

// KeyParts is what the keys of a listed limit's counters are made of, joined.
func KeyParts(r *Rule) string {
	return r.ListSettings.keyFormat.constantText()
}

var ParseAddress = parseAddress
