package rulechange

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"math/bits"
	"slices"
	"strings"

	"ratelimit/src/algorithm"
	"ratelimit/src/operator/output"
	"ratelimit/src/rules"
)

// Kinds of changes.
const (
	Added     = "added"
	Removed   = "removed"
	Tightened = "tightened"
	Loosened  = "loosened"
	Changed   = "changed"
	Renamed   = "renamed"
	MovedRule = "moved"
)

// Kinds are all kinds of changes, in the order of reports.
var Kinds = []string{Added, Removed, Tightened, Loosened, Changed, Renamed, MovedRule}

// Comparer compares the rules of pairs. Its zero value is ready to use.
type Comparer struct{ Files rules.FileComparer }

// Compare returns what kind of change a pair is, and the settings that differ. hasMoved says that the rule changed
// places among rules of which the first match decides. The kind is empty if nothing differs.
func (c *Comparer) Compare(p Pair, hasMoved bool) (kind string, list []Setting) {
	switch {
	case p.Before == nil:
		return Added, nil
	case p.After == nil:
		return Removed, nil
	}
	list, total := c.compareSettings(p.Before, p.After)
	if kind = total.kind(); p.Before.FullName != p.After.FullName {
		kind = cmp.Or(kind, Renamed)
	}
	if hasMoved {
		list = append(list, Setting{Name: orderSetting, New: "among rules of which the first match decides"})
		kind = cmp.Or(kind, MovedRule)
	}
	return kind, list
}

// Names of settings that no rule file has.
const limitSetting, orderSetting = "limit", "order"

// Setting is a setting of a rule that differs. A value is empty if the rule does not have the setting.
type Setting struct {
	Name string `json:"name"`
	Old  string `json:"old"`
	New  string `json:"new"`
	// Effect is "looser" or "tighter"; empty if the setting is neither.
	Effect string `json:"effect,omitempty"`
}

// Text returns the setting for people: "on_store_failure: error -> allow".
func (s *Setting) Text() string {
	if s.Name == orderSetting {
		return "order: " + s.New
	}
	return fmt.Sprintf("%s: %s -> %s", s.Name, output.Printable(cmp.Or(s.Old, "none")),
		output.Printable(cmp.Or(s.New, "none")))
}

// effect collects what settings do: let more requests pass, fewer, or something that is neither.
type effect struct{ looser, tighter, other, incomparable bool }

// incomparable is the effect of a change that lets other requests pass.
var incomparable = effect{other: true, incomparable: true}

func (e effect) String() string {
	switch {
	case e.looser && !e.tighter:
		return "looser"
	case e.tighter && !e.looser:
		return "tighter"
	}
	return ""
}

// kind returns the kind of a change with this effect; empty if there is none.
func (e effect) kind() string {
	switch {
	case e == effect{}:
		return ""
	case e.incomparable || e.looser == e.tighter:
		return Changed
	case e.looser:
		return Loosened
	}
	return Tightened
}

func (e effect) plus(f effect) effect {
	return effect{e.looser || f.looser, e.tighter || f.tighter, e.other || f.other, e.incomparable || f.incomparable}
}

// settingsByName are the settings of limits in the order of reports.
var settingsByName = slices.SortedFunc(slices.Values(rules.Settings),
	func(a, b rules.Setting) int { return strings.Compare(a.Name, b.Name) })

// compareSettings returns the settings that differ, and their effect together.
func (c *Comparer) compareSettings(before, after *rules.Rule) (list []Setting, total effect) {
	add := func(name, was, is string, e effect) {
		if was != is {
			list = append(list, Setting{name, was, is, e.String()})
			total = total.plus(e)
		}
	}
	add(limitSetting, before.LimitInWords(), after.LimitInWords(), limitEffect(before, after))
	old, now := maps.Collect(before.LimitSettings()), maps.Collect(after.LimitSettings())
	for i := range settingsByName {
		switch s := &settingsByName[i]; {
		case s.InWords: // The words of the limit tell it.
		case s.Name == "algorithm" && old[s.Name] != now[s.Name]:
			add(s.Name, settingText(algorithmOf(before)), settingText(algorithmOf(after)), incomparable)
		case s.Name == "on_store_failure" && !before.Unlimited && !after.Unlimited: // The default has a name, too.
			add(s.Name, before.Fallback.String(), after.Fallback.String(), effect{other: true})
		default:
			add(s.Name, settingText(old[s.Name]), settingText(now[s.Name]), effect{other: true})
		}
	}
	for _, flag := range []struct {
		name    string
		was, is bool
		e       effect // the effect of true.
	}{
		{"shadow_mode", before.ShadowMode, after.ShadowMode, effect{looser: true}},
		{"quota_mode", before.QuotaMode, after.QuotaMode, effect{looser: true}},
		{"charge: path", before.HasChargePath, after.HasChargePath, effect{other: true}},
		{"on_reject: none", before.ChargesAllOrNone, after.ChargesAllOrNone, effect{other: true}},
		{"detailed_metric", before.DetailedMetric, after.DetailedMetric, effect{other: true}},
	} {
		if flag.was {
			flag.e.looser, flag.e.tighter = flag.e.tighter, flag.e.looser
		}
		add(flag.name, fmt.Sprint(flag.was), fmt.Sprint(flag.is), flag.e)
	}
	add("metadata", metadataText(before), metadataText(after), effect{other: true})
	shared := func(l *rules.Level) bool { return l.ShareThreshold }
	was, is := levelKeys(before, shared), levelKeys(after, shared)
	share := effect{tighter: true}
	if len(was) > len(is) {
		share = effect{looser: true}
	}
	add("share_threshold", strings.Join(was, ", "), strings.Join(is, ", "), share)
	inMetric := func(l *rules.Level) bool { return l.ValueToMetric }
	was, is = levelKeys(before, inMetric), levelKeys(after, inMetric)
	add("value_to_metric", strings.Join(was, ", "), strings.Join(is, ", "), effect{other: true})
	add("cidr", networksText(before), networksText(after), incomparable)
	c.addChangedFiles(before, after, add)
	add("count_by_prefix", prefixesText(before), prefixesText(after), incomparable)
	wasMatch, wasPer := listInWords(before)
	match, per := listInWords(after)
	add("match", wasMatch, match, incomparable)
	add("per", wasPer, per, incomparable)
	return list, total
}

func algorithmOf(r *rules.Rule) any {
	if r.Unlimited {
		return nil
	}
	return r.Limit.Kind.String()
}

// settingText returns a value of rules.Rule.LimitSettings as text; empty for nil.
func settingText(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case []string:
		return strings.Join(v, ", ")
	}
	return fmt.Sprint(v)
}

func metadataText(r *rules.Rule) string {
	if r.AnswerMetadata == nil {
		return ""
	}
	return fmt.Sprint(r.AnswerMetadata) // fmt sorts the keys of maps.
}

// levelKeys returns the keys of the levels of r that have something.
func levelKeys(r *rules.Rule, has func(*rules.Level) bool) (keys []string) {
	for i := range r.Path {
		if has(&r.Path[i]) {
			keys = append(keys, r.Path[i].Key())
		}
	}
	return keys
}

// networksText returns the networks of the levels of r that have several: the first is a part of the rule's name.
func networksText(r *rules.Rule) string {
	const shown = 20 // A level can have 100,000 networks.
	var parts []string
	for i := range r.Path {
		networks := r.Path[i].Networks()
		if len(networks) < 2 {
			continue
		}
		text := fmt.Sprint(networks[:min(len(networks), shown)])
		if more := len(networks) - shown; more > 0 {
			hash := fnv.New64a()
			for _, network := range networks {
				fmt.Fprintln(hash, network)
			}
			text += fmt.Sprintf(" and %d more (%x)", more, hash.Sum64())
		}
		parts = append(parts, r.Path[i].Key()+" "+text)
	}
	return strings.Join(parts, ", ")
}

// prefixesText returns the levels of r that count addresses by network.
func prefixesText(r *rules.Rule) string {
	var parts []string
	for i := range r.Path {
		if v4, v6 := r.Path[i].CountedPrefixes(); v4+v6 > 0 {
			parts = append(parts, fmt.Sprintf("%s {v4: %d, v6: %d}", r.Path[i].Key(), v4, v6))
		}
	}
	return strings.Join(parts, ", ")
}

// listInWords returns match and per of a rule of an ordered list; both are empty for others.
func listInWords(r *rules.Rule) (match, per string) {
	if r.ListSettings == nil {
		return "", ""
	}
	return "{" + r.MatchText() + "}", strings.Join(r.ListSettings.PerKeys, ", ")
}

// limitEffect compares two limits. One is looser if it allows at least as many requests over a long time, and at least
// as many at once, and if it does not ask for longer pauses, count more, or be enforced for more counters. Limits with
// different algorithms or calendars are neither.
func limitEffect(before, after *rules.Rule) effect {
	old, now := &before.Limit, &after.Limit
	switch {
	case before.Unlimited || after.Unlimited:
		return effect{looser: after.Unlimited && !before.Unlimited, tighter: before.Unlimited && !after.Unlimited}
	case old.Kind != now.Kind || old.Calendar.ID() != now.Calendar.ID():
		return incomparable
	}
	e := effect{other: true}
	direction := func(sign int) {
		e.looser, e.tighter = e.looser || sign > 0, e.tighter || sign < 0
	}
	direction(compareRates(old, now))
	direction(cmp.Compare(now.Capacity(), old.Capacity()))
	direction(cmp.Compare(old.MinInterval, now.MinInterval))
	direction(cmp.Compare(before.EnforcePercent(), after.EnforcePercent()))
	if old.CountBlocked != now.CountBlocked {
		e.looser, e.tighter = e.looser || old.CountBlocked, e.tighter || now.CountBlocked
	}
	return e
}

// compareRates returns 1 if now allows more per time than old does, -1 if it allows less, else 0.
func compareRates(old, now *algorithm.Limit) int {
	if old.Kind == algorithm.Concurrency {
		return cmp.Compare(now.Max, old.Max)
	}
	nowHigh, nowLow := bits.Mul64(now.Max, uint64(old.Period))
	oldHigh, oldLow := bits.Mul64(old.Max, uint64(now.Period))
	return cmp.Or(cmp.Compare(nowHigh, oldHigh), cmp.Compare(nowLow, oldLow))
}

// addChangedFiles calls add for each file of values of the rules that has changed.
func (c *Comparer) addChangedFiles(before, after *rules.Rule, add func(name, was, is string, e effect)) {
	for i := range min(len(before.Path), len(after.Path)) {
		was, is := &before.Path[i], &after.Path[i]
		change := c.Files.Compare(was, is)
		if !change.HasChanged() {
			continue
		}
		values := func(l *rules.Level) string { return output.Plural(l.Data().Len(), "value") }
		// What added and removed values do depends on the other rules of the level.
		add(is.Kind.String(), values(was), values(is)+": "+change.Text(),
			effect{
				looser: change.Raised.Count > 0, tighter: change.Lowered.Count > 0, other: true,
				incomparable: change.Added.Count+change.Removed.Count > 0,
			})
	}
}
