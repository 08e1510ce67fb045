// Package diff tells what changes between two sets of rules: rules that are added, removed, loosened or tightened, and
// counters that start anew. With a recording it also tells which requests get another answer.
//
//	diff.go      what differs, as package rulechange tells it
//	counters.go  whether the counters go on
//	replay.go    the requests of a recording, decided by the old rules and judged by the new ones
//	text.go, markdown.go, command.go
package diff

import (
	"cmp"
	"slices"
	"strings"

	"ratelimit/src/operator/rulechange"
	"ratelimit/src/rules"
	"ratelimit/src/tools/check"
)

// Report is what changes between two sets of rules. Its JSON is that of --format json.
type Report struct {
	Changed bool         `json:"changed"` // Something differs.
	Old     Size         `json:"old"`
	New     Size         `json:"new"`
	Rules   []RuleChange `json:"rules"` // sorted by kind, and of one kind as in the files
	// Exempt are descriptors without a limit of their own. Requests that match them do not meet the limits of wildcards
	// and of keys alone.
	Exempt      NameChanges     `json:"without_limit"`
	Domains     NameChanges     `json:"domains"`
	NewWarnings []check.Finding `json:"new_warnings"`     // about the new rules, and not about the old ones
	Replay      *Replay         `json:"replay,omitempty"` // nil without a recording
}

// Size counts the contents of a set of rules.
type Size struct {
	Files   int `json:"files"`
	Domains int `json:"domains"`
	Rules   int `json:"rules"`
}

// NameChanges are names that only one side has.
type NameChanges struct {
	Added   []string `json:"added"`
	Removed []string `json:"removed"`
}

// RuleChange is a rule that differs.
type RuleChange struct {
	Kind string `json:"change"`
	// Rule is the full name of the new rule, or that of a removed one. OldName is set if the name differs.
	Rule    string `json:"rule"`
	OldName string `json:"old_rule,omitempty"`
	// At and OldAt are the places as file:line:column, and the limits are in words. Those of a side that does not have the
	// rule are empty.
	At       string               `json:"at,omitempty"`
	OldAt    string               `json:"old_at,omitempty"`
	Limit    string               `json:"limit,omitempty"`
	OldLimit string               `json:"old_limit,omitempty"`
	Settings []rulechange.Setting `json:"settings,omitempty"`
	// Instead has the rules of the other side that requests for an added or removed rule are charged to.
	Instead     []InsteadRule `json:"instead,omitempty"`
	Counters    string        `json:"counters"`               // whether they go on: one of the constants Counters…
	CountersWhy string        `json:"counters_why,omitempty"` // why they do not, or how they do
}

// InsteadRule is a rule that answers requests on the other side.
type InsteadRule struct {
	Rule  string `json:"rule"`
	Limit string `json:"limit"`
}

// side is one set of rules, the old or the new one.
type side struct {
	check.Result
	root string // the path that the user named.
}

// file returns the name of a rule's file in the directory; empty if the user named a single file.
func (s *side) file(name string) string {
	if inside, ok := strings.CutPrefix(name, strings.TrimRight(s.root, "/")+"/"); ok {
		return inside
	}
	return ""
}

func (s *side) size() Size { return Size{s.Files, len(s.Set.Domains()), len(s.Set.Rules())} }

// compare returns what changes from before to after. Both have a Set.
func compare(before, after *side, keys rules.KeyFormat) *Report {
	rep := &Report{Old: before.size(), New: after.size(), Rules: []RuleChange{}}
	pairs := rulechange.Pairs(before.Set.Rules(), after.Set.Rules())
	moved := rulechange.Moved(pairs)
	var comparer rulechange.Comparer
	counters := counterComparer{keys: keys, before: before.Set, after: after.Set}
	for _, p := range pairs {
		c := ruleChange(p)
		c.Kind, c.Settings = comparer.Compare(p, moved[p.After])
		c.addFile(before, after, p)
		c.Counters, c.CountersWhy = counters.compare(p)
		if c.Kind == "" && c.Counters != CountersKept && c.Counters != CountersNone {
			c.Kind = rulechange.Changed
		}
		if c.Kind != "" {
			c.Instead = counters.instead(p)
			rep.Rules = append(rep.Rules, c)
		}
	}
	slices.SortStableFunc(rep.Rules, func(a, b RuleChange) int {
		return cmp.Compare(slices.Index(rulechange.Kinds, a.Kind), slices.Index(rulechange.Kinds, b.Kind))
	})
	rep.Domains = compareNames(domainNames(before.Set), domainNames(after.Set))
	rep.Exempt = compareNames(exemptNames(before.Set), exemptNames(after.Set))
	rep.NewWarnings = newWarnings(before, after)
	rep.Changed = len(rep.Rules)+len(rep.Domains.Added)+len(rep.Domains.Removed)+len(rep.Exempt.Added)+len(
		rep.Exempt.Removed)+len(rep.NewWarnings) > 0
	return rep
}

// ruleChange returns the names, places and limits of a pair.
func ruleChange(p rulechange.Pair) (c RuleChange) {
	if p.Before != nil {
		c.Rule, c.OldAt, c.OldLimit = p.Before.FullName, p.Before.Pos.String(), p.Before.LimitInWords()
	}
	if p.After != nil {
		c.Rule, c.At, c.Limit = p.After.FullName, p.After.Pos.String(), p.After.LimitInWords()
	}
	if p.Before != nil && p.After != nil && p.Before.FullName != p.After.FullName {
		c.OldName = p.Before.FullName
	}
	return c
}

// addFile adds that the rule of a pair is in another file now.
func (c *RuleChange) addFile(before, after *side, p rulechange.Pair) {
	if p.Before == nil || p.After == nil {
		return
	}
	if was, is := before.file(p.Before.Pos.File), after.file(p.After.Pos.File); was != is && was != "" && is != "" {
		c.Settings, c.Kind = append(c.Settings, rulechange.Setting{Name: "file", Old: was, New: is}),
			cmp.Or(c.Kind, rulechange.MovedRule)
	}
}

func domainNames(set *rules.Set) (names []string) {
	for _, d := range set.Domains() {
		names = append(names, d.Name)
	}
	return names
}

// exemptNames returns the names of the descriptors that have no limit themselves.
func exemptNames(set *rules.Set) (names []string) {
	limited := make(map[string]bool)
	for _, r := range set.Rules() {
		limited[r.FullName] = true
	}
	for _, d := range set.Domains() {
		for _, name := range d.DescriptorNames {
			if !limited[name] {
				names = append(names, name)
			}
		}
	}
	return names
}

// compareNames returns the names that only one of the lists has, in their order.
func compareNames(before, after []string) NameChanges {
	return NameChanges{Added: without(after, before), Removed: without(before, after)}
}

func without(list, other []string) []string {
	known := make(map[string]bool, len(other))
	for _, name := range other {
		known[name] = true
	}
	return slices.DeleteFunc(append([]string{}, list...), func(name string) bool { return known[name] })
}

// newWarnings returns the warnings about the new rules that the old rules do not have in the same file. Lines may move,
// so that they are not compared.
func newWarnings(before, after *side) []check.Finding {
	type warning struct{ file, message string }
	known := make(map[warning]int)
	for _, w := range before.Warnings {
		known[warning{before.file(w.File), w.Message}]++
	}
	list := []check.Finding{}
	for _, w := range after.Warnings {
		same := warning{after.file(w.File), w.Message}
		if known[same]--; known[same] < 0 {
			list = append(list, check.FindingOf(w))
		}
	}
	return list
}
