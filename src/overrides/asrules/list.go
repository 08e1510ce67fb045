package asrules

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"ratelimit/src/overrides"
	"ratelimit/src/rules"
	"ratelimit/src/rules/match"
)

// listExporter writes an ordered list. In front of a rule it writes one for each pattern whose subjects have another
// limit, the most specific first.
//
// The match of a rule cannot say that a request lacks a key. So subjects with more keys of `per` come first, with the
// limit that they have, and those that lack some come behind them.
type listExporter struct {
	*exporter
	list    *match.List
	wanted  map[string][]wantedPattern // by Override.Rule
	told    map[string]bool            // what is not written, and why
	scratch rules.SearchScratch
}

// wantedPattern is an override with its pattern.
type wantedPattern struct {
	overrides.Pattern
	*overrides.Override
}

// part is a part of the requests that a rule of the list matches, which all have the same limits.
type part struct {
	match  []rules.MatchPair
	keys   []rules.CounterKey // those of per that the requests have
	from   []wantedPattern    // the overrides whose pattern it has
	limits []*rules.Rule
	text   string // of limits
}

// maxFreeKeys is how many keys of per a rule may have that requests may lack.
const maxFreeKeys = 5

// writeList writes all rules of l, with the overrides in wanted.
func (x *exporter) writeList(l *match.List, wanted []wantedPattern) {
	e := listExporter{exporter: x, list: l, wanted: make(map[string][]wantedPattern), told: make(map[string]bool)}
	slices.SortFunc(wanted, compareSpecific)
	for _, w := range wanted {
		e.wanted[w.Rule] = append(e.wanted[w.Rule], w)
	}
	x.line(0, "domain: %s", quote(x.domain.Name))
	x.line(0, "rules:")
	for i := 0; i < len(l.Rules) && x.text.Len() < maxBytes; i++ {
		parts := e.partsOf(i)
		for j := range parts {
			e.write(&l.Rules[i], &parts[j], j == len(parts)-1)
		}
	}
}

// compareSpecific orders patterns as the search for an override tries them: exact ones, and then the longest ones.
func compareSpecific(a, b wantedPattern) int {
	rank := func(p *overrides.Pattern) (entries, prefix int) {
		switch n := len(p.Entries); p.End {
		case overrides.PrefixEnd:
			return n - 1, len(p.Entries[n-1].Value)
		case overrides.MoreEnd:
			return n, -1
		}
		return 1 << 16, 0
	}
	entries, prefix := rank(&a.Pattern)
	otherEntries, otherPrefix := rank(&b.Pattern)
	return cmp.Or(cmp.Compare(otherEntries, entries), cmp.Compare(otherPrefix, prefix), cmp.Compare(a.Subject, b.Subject))
}

// wantedFor returns the overrides that name a limit of m, the most specific patterns first.
func (x *listExporter) wantedFor(m *rules.Match) (list []wantedPattern) {
	names := []string{"", m.FullName, m.FullName + ".1"}
	for _, r := range m.Limits {
		names = append(names, r.FullName, m.FullName+"."+r.Name)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if slices.ContainsFunc(m.Limits, func(r *rules.Rule) bool { return overrides.Names(name, r) }) {
			list = append(list, x.wanted[name]...)
		}
	}
	if !slices.IsSortedFunc(list, compareSpecific) {
		slices.SortFunc(list, compareSpecific)
	}
	return list
}

// partsOf returns the parts of rule i in order. The last one is the rule itself.
func (x *listExporter) partsOf(i int) []part {
	rule := &x.list.Rules[i]
	settings := rule.Match.ListSettings
	unchanged := []part{{match: settings.MatchPairs, limits: rule.Match.Limits}}
	wanted := x.wantedFor(rule.Match)
	var free []string
	for _, key := range settings.PerKeys {
		if pairOf(settings.MatchPairs, key) == nil {
			free = append(free, key)
		}
	}
	switch {
	case len(wanted) == 0:
		return unchanged
	case len(settings.PerKeys) == 0:
		return []part{x.wholePart(rule.Match, wanted)}
	case len(free) > maxFreeKeys:
		x.cannotAll(wanted, "%v counts by more than %d keys that requests may lack", rule.Match.Pos, maxFreeKeys)
		return unchanged
	}
	var all []part
	for _, lacked := range subsets(free) {
		all = append(all, x.partsWithout(lacked, i, wanted)...)
	}
	all = withoutRedundant(all)
	if last := len(all) - 1; rule.IsCanary && last > 0 {
		for _, p := range all {
			x.cannotAll(p.from, "%v is in shadow mode, and would count these requests, too", rule.Match.Pos)
		}
		return unchanged
	}
	return all
}

// subsets returns all subsets of keys, the smaller ones first.
func subsets(keys []string) [][]string {
	all := [][]string{nil}
	for _, key := range keys {
		for _, s := range all[:len(all):len(all)] {
			all = append(all, append(slices.Clone(s), key))
		}
	}
	slices.SortStableFunc(all, func(a, b []string) int { return cmp.Compare(len(a), len(b)) })
	return all
}

// partsWithout returns the parts of rule i for requests that have all keys of per but those in lacked.
func (x *listExporter) partsWithout(lacked []string, i int, wanted []wantedPattern) (parts []part) {
	m := x.list.Rules[i].Match
	all := slices.Clone(m.ListSettings.MatchPairs)
	var keys []rules.CounterKey
	for _, key := range m.ListSettings.PerKeys {
		if slices.Contains(lacked, key) {
			continue
		}
		keys = append(keys, rules.CounterKey{Key: key})
		if pairOf(all, key) == nil {
			all = append(all, rules.MatchPair{Key: key, Pattern: "*"})
		}
	}
	slices.SortFunc(all, func(a, b rules.MatchPair) int { return cmp.Compare(a.Key, b.Key) })
	at := make(map[string]int) // the indexes of parts by their match
	add := func(pairs []rules.MatchPair, from ...wantedPattern) {
		text := fmt.Sprintf("%q", pairs)
		j, known := at[text]
		if !known {
			j = len(parts)
			at[text] = j
			parts = append(parts, part{match: pairs, keys: keys})
		}
		parts[j].from = append(parts[j].from, from...)
	}
	for _, w := range wanted {
		if !w.MayName(keys) {
			continue
		}
		pairs, err := narrowed(all, &w.Pattern)
		switch {
		case err != nil:
			x.cannotAll([]wantedPattern{w}, "%v: %v", m.Pos, err)
		case pairs != nil:
			add(pairs, w)
		}
	}
	add(all)
	parts = slices.DeleteFunc(parts, func(p part) bool {
		_, isHidden := x.list.FirstHidingRule(i, p.match, &x.scratch)
		return isHidden && !slices.Equal(p.match, m.ListSettings.MatchPairs)
	})
	for j := range parts {
		parts[j].limits = x.limitsOf(m, sampleOf(parts[j].match, keys))
		for _, r := range parts[j].limits {
			parts[j].text += limitText(r)
		}
	}
	return parts
}

// wholePart returns a rule that counts by its match alone, so it has one subject.
func (x *listExporter) wholePart(m *rules.Match, wanted []wantedPattern) part {
	p := part{match: m.ListSettings.MatchPairs, limits: x.limitsOf(m, nil)}
	keys := m.Limits[0].CounterKeys()
	for _, w := range wanted {
		isNamed := w.MayName(keys)
		for i := range min(len(w.Entries), len(keys)) {
			isNamed = isNamed && (p.match[i].Pattern == string(w.Entries[i].Value) ||
				w.IsPrefix(i) && strings.HasPrefix(p.match[i].Pattern, string(w.Entries[i].Value)))
		}
		if isNamed {
			p.from = append(p.from, w)
		}
	}
	return p
}

// narrowed returns pairs for the subjects that p names alone; nil if they match none.
func narrowed(pairs []rules.MatchPair, p *overrides.Pattern) ([]rules.MatchPair, error) {
	pairs = slices.Clone(pairs)
	for i, e := range p.Entries {
		pair, value := pairOf(pairs, string(e.Key)), string(e.Value)
		switch isPrefix := p.IsPrefix(i); {
		case !utf8.ValidString(value):
			return nil, errors.New("the subject is not UTF-8")
		case !isPrefix && !rules.PatternMatches(pair.Pattern, e.Value):
			return nil, nil
		case strings.Contains(value, "*"):
			return nil, errors.New("the subject has a * in its text")
		case !isPrefix:
			pair.Pattern = value
		default:
			begin, rest, isPattern := strings.Cut(pair.Pattern, "*")
			switch {
			case strings.HasPrefix(begin, value): // All values begin so.
			case !isPattern || !strings.HasPrefix(value, begin):
				return nil, nil
			case rest != "":
				return nil, fmt.Errorf("the rule matches %s=%s, of which the prefix is a part", pair.Key, pair.Pattern)
			default:
				pair.Pattern = value + "*"
			}
		}
	}
	return pairs, nil
}

func pairOf(pairs []rules.MatchPair, key string) *rules.MatchPair {
	for i := range pairs {
		if pairs[i].Key == key {
			return &pairs[i]
		}
	}
	return nil
}

// sampleOf returns a request with the keys that pairs match, and no narrower part of the rule.
func sampleOf(pairs []rules.MatchPair, keys []rules.CounterKey) (entries []rules.Entry) {
	for _, key := range keys {
		value := strings.ReplaceAll(pairOf(pairs, key.Key).Pattern, "*", unknown)
		entries = append(entries, rules.Entry{Key: []byte(key.Key), Value: []byte(value)})
	}
	return entries
}

// withoutRedundant returns the parts without those whose requests have the same limits by the parts behind them. Of
// these, parts with other keys do not match the requests.
func withoutRedundant(parts []part) []part {
	last := len(parts) - 1
	kept := []part{parts[last]} // The last ones, from the end.
	for _, p := range slices.Backward(parts[:last]) {
		isNeeded := p.text != parts[last].text || slices.ContainsFunc(kept, func(k part) bool {
			return k.text != p.text && isSubset(k.keys, p.keys) && mayOverlap(k.match, p.match)
		})
		if isNeeded {
			kept = append(kept, p)
		}
	}
	slices.Reverse(kept)
	return kept
}

func isSubset(keys, all []rules.CounterKey) bool {
	return !slices.ContainsFunc(keys, func(key rules.CounterKey) bool { return !slices.Contains(all, key) })
}

// mayOverlap reports whether a request may match both a and b.
func mayOverlap(a, b []rules.MatchPair) bool {
	return !slices.ContainsFunc(a, func(p rules.MatchPair) bool {
		other := pairOf(b, p.Key)
		if other == nil {
			return false
		}
		begin, _, isPattern := strings.Cut(p.Pattern, "*")
		otherBegin, _, isOtherPattern := strings.Cut(other.Pattern, "*")
		return !isPattern && !rules.PatternMatches(other.Pattern, []byte(p.Pattern)) ||
			!isOtherPattern && !rules.PatternMatches(p.Pattern, []byte(other.Pattern)) ||
			!strings.HasPrefix(begin, otherBegin) && !strings.HasPrefix(otherBegin, begin)
	})
}

// cannotAll writes a comment for each of list that it is not written, once for each reason.
func (x *listExporter) cannotAll(list []wantedPattern, why string, args ...any) {
	text := fmt.Sprintf(why, args...)
	for _, w := range list {
		if told := fmt.Sprint(text, w.ID()); !x.told[told] {
			x.told[told] = true
			x.cannot(w.Override, text)
		}
	}
}

// write writes a part of a rule, or with isRule the rule itself.
func (x *listExporter) write(rule *match.ListRule, p *part, isRule bool) {
	d := rule.Match.Descriptor
	for _, w := range p.from {
		x.line(1, "# %s", noteOf(w.Override))
	}
	match := make(map[string]string, len(p.match))
	for _, pair := range p.match {
		match[pair.Key] = pair.Pattern
	}
	x.line(1, "- match: %s", jsonOf(match))
	if len(d.ListSettings.PerKeys) > 0 {
		x.line(2, "per: %s", jsonOf(d.ListSettings.PerKeys))
	}
	x.writeLimits(2, p.limits)
	x.writeSettings(2, d, d.ShadowMode || isRule && d.ListSettings.IsCanary, nil)
}
