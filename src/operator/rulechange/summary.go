package rulechange

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"ratelimit/src/operator/output"
	"ratelimit/src/rules"
)

const (
	maxNamed     = 5   // bounds the rules of a kind, and the files of values, that a Summary names.
	maxNameBytes = 120 // bounds each name, each limit and each setting.
	maxSettings  = 3   // bounds the settings of a rule that a Summary names.
)

// Summary returns what differs between two Sets of one Joiner, on one line: "1 rule tightened: shop.ip (10 per minute
// -> 5 per minute); tenants.csv: 2 added, 1 removed". It is empty if no limit and no file of values differs.
func Summary(before, after *rules.Set) string {
	added, removed := after.Changes(before)
	pairs := Pairs(rulesOf(removed), rulesOf(added))
	moved := Moved(pairs)
	c := Comparer{Files: rules.FileComparer{Gentle: true}}
	changed, files := make(map[string][]string), make(map[string]string)
	for _, p := range pairs {
		kind, settings := c.Compare(p, moved[p.After])
		c.addFiles(files, p)
		differs := slices.ContainsFunc(settings, func(s Setting) bool { return !isFile(s) })
		if kind != "" && differs || kind == Added || kind == Removed {
			changed[kind] = append(changed[kind], nameOf(p, settings))
		}
	}
	var parts []string
	for _, kind := range Kinds {
		if names := changed[kind]; len(names) > 0 {
			parts = append(parts, fmt.Sprintf("%s %s: %s", output.Plural(len(names), "rule"), kind, firstOf(names)))
		}
	}
	return strings.Join(append(parts, filesText(files)...), "; ")
}

func rulesOf(sets []*rules.Set) (list []*rules.Rule) {
	for _, s := range sets {
		list = append(list, s.Rules()...)
	}
	return list
}

// addFiles adds what differs between the files of values of a pair, by their path.
func (c *Comparer) addFiles(files map[string]string, p Pair) {
	if p.Before == nil || p.After == nil {
		return
	}
	for i := range min(len(p.Before.Path), len(p.After.Path)) {
		if change := c.Files.Compare(&p.Before.Path[i], &p.After.Path[i]); change.HasChanged() {
			files[change.Path] = change.Text()
		}
	}
}

func isFile(s Setting) bool {
	return s.Name == rules.LevelValuesFrom.String() || s.Name == rules.LevelLimitsFrom.String()
}

// nameOf returns the name of the rule of a pair and its limit, or both limits if they differ, and the other settings
// that differ: "shop.ip (10 per minute, shadow_mode: false -> true)".
func nameOf(p Pair, settings []Setting) string {
	r, limit := p.After, ""
	others := slices.DeleteFunc(slices.Clone(settings), func(s Setting) bool {
		return s.Name == limitSetting || s.Name == orderSetting || isFile(s)
	})
	switch {
	case p.After == nil:
		r, limit = p.Before, cut(p.Before.LimitInWords())
	case p.Before == nil:
		limit = cut(p.After.LimitInWords())
	default:
		if limit = cut(p.After.LimitInWords()); limit != cut(p.Before.LimitInWords()) {
			limit = cut(p.Before.LimitInWords()) + " -> " + limit
		}
	}
	for i, s := range others {
		if i == maxSettings {
			limit += " and " + output.Plural(len(others)-i, "more setting")
			break
		}
		limit += ", " + cut(s.Text())
	}
	return fmt.Sprintf("%s (%s)", cut(output.Printable(r.FullName)), limit)
}

// cut returns text, or its start if it is long.
func cut(text string) string {
	if len(text) <= maxNameBytes {
		return text
	}
	return strings.ToValidUTF8(text[:maxNameBytes], "") + "..."
}

// firstOf returns the first names, and how many more there are.
func firstOf(names []string) string {
	text := strings.Join(names[:min(len(names), maxNamed)], ", ")
	if more := len(names) - maxNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// filesText tells what differs in the first files of values.
func filesText(files map[string]string) (parts []string) {
	for i, path := range slices.Sorted(maps.Keys(files)) {
		if i == maxNamed {
			return append(parts, output.Plural(len(files)-i, "more file")+" changed")
		}
		parts = append(parts, fmt.Sprintf("%s: %s", cut(output.Printable(path)), files[path]))
	}
	return parts
}
