package rules

import (
	"net/netip"
	"regexp/syntax"
	"strings"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/rules/datafile"
)

// Rule is a limit as configured. It is immutable.
//
// FindRule may also return a Rule that is not a limit itself. It stands for a descriptor that has several limits, or none of its own and
// `charge: path`. Its Index is -1, and only FullName, Domain, Path, Pos, QuotaMode, AnswerMetadata, ChargedLimits and
// ChargesAllOrNone are set.
type Rule struct {
	Index int // Index is the rule's own number in its Set, below Set.RuleSlots.
	// FullName is the name of the rule: the domain and the levels down to the rule, such as "basic.parent_p.child". The second and later
	// limits of a list add their Name, or their number if it is empty: "basic.parent_p.child.2".
	FullName string
	Domain   string
	Path     []Level // Path has the levels from the top down. It is empty in ordered lists and trees of limits.
	Pos      Pos     // Pos is the position of the descriptor, or that of the limit if the descriptor has several.
	Name     string  // Name is the name that answers have in current_limit; it may be empty.
	Rate
	Unlimited      bool           // Unlimited lets every request pass without a call of the store. Limit is then empty.
	ShadowMode     bool           // ShadowMode says that the rule is charged but never refuses.
	QuotaMode      bool           // QuotaMode says that the rule refuses a request only together with all its other quota rules.
	DetailedMetric bool           // DetailedMetric counts each combination of request values separately in statistics.
	AnswerMetadata map[string]any // AnswerMetadata is sent with answers; nil for none. Read only.
	Replaces       []string       // Replaces names rules that do not apply to requests that this rule applies to. Read only.
	Limit          algorithm.Limit
	HoldIDKey      string           // HoldIDKey is the key of the entry that names a hold of Limit; empty if Limit has no holds.
	Fallback       backend.Fallback // Fallback decides when the store does not answer.
	Enforcement    *Enforcement     // Enforcement is nil if Limit is enforced for all counters.
	ListSettings   *ListSettings    // ListSettings is nil for rules outside ordered lists.
	// LimitsFile is set if the limits are those of a file. Limit is a placeholder then. For a request, FindRule returns a copy of the rule
	// with the limit of the value, and without LimitsFile.
	LimitsFile *datafile.File

	// ChargedLimits are the limits that a match is charged to: those of levels above, outermost first, then its own. Their own
	// ChargedLimits are ignored. Nil stands for this rule alone.
	ChargedLimits []*Rule
	// ChargedWithOthers is set if some ChargedLimits have this rule together with others. Such limits can have the same key and
	// different windows, so stores must tell their counters apart, and must keep them on one server.
	ChargedWithOthers bool
	// ChargesAllOrNone charges a match only if all its ChargedLimits pass.
	ChargesAllOrNone bool

	HasChargePath bool // HasChargePath says that charge: path holds for the rule.
	HasPeriod     bool // HasPeriod says that the rule file has a period instead of a unit.

	hasSharedLevel      bool      // hasSharedLevel says that some level of Path has ShareThreshold.
	hasDerivedValue     bool      // hasDerivedValue says that some level of Path has ShareThreshold or count_by_prefix.
	metricNameHasValues bool      // metricNameHasValues is the result of MetricNameHasValues, but for DetailedMetric.
	limitSuffixLen      int32     // limitSuffixLen is the length of the end of FullName that tells apart limits of one descriptor, such as ".2".
	matchHoldIDKey      string    // matchHoldIDKey is the HoldIDKey of those LimitsToCharge that have holds; empty if none has.
	matchHasConcurrency bool      // matchHasConcurrency says that one of LimitsToCharge is a concurrency, so that requests must name a hold.
	wordPath            *wordPath // wordPath leads to the limit in a tree of limits; nil elsewhere.
}

// ListSettings are the settings that only rules of an ordered list have.
type ListSettings struct {
	MatchPairs []MatchPair // MatchPairs is sorted by key.
	PerKeys    []string    // PerKeys names the keys whose values each have a counter. A missing key counts as an empty value.
	// IsCanary is set if the rule has shadow_mode in its file, even for the last rule, whose shadow_mode has no effect.
	IsCanary bool

	// keyFormat and divvyKeyFormat write the keys of the counters. Both are nil if the rule stands for several limits. divvyKeyFormat is
	// also nil if divvy does not support such a limit.
	keyFormat, divvyKeyFormat *listKeyFormat
}

// WordPath returns the words from the top of a tree of limits down to r, with `*` for any word. It is nil for other rules. Callers must
// not change it.
func (r *Rule) WordPath() []string {
	if r.wordPath == nil {
		return nil
	}
	return r.wordPath.words
}

// LimitsToCharge returns the limits that a match of r is charged to: its ChargedLimits, or r alone.
func (r *Rule) LimitsToCharge() []*Rule {
	if r.ChargedLimits != nil {
		return r.ChargedLimits
	}
	return []*Rule{r}
}

// Level is one key and value, or a key alone, of a rule's path.
type Level struct {
	levelName      string // levelName is "key_value", or "key" if any value matches.
	keyLen         int32  // keyLen is the length of the key in levelName.
	hasWildcard    bool   // hasWildcard says that levelName has a `*`.
	ValueToMetric  bool   // ValueToMetric adds the request's value to the name of the metric.
	ShareThreshold bool   // ShareThreshold lets all values that the level matches share a counter.
	Kind           LevelKind
	addresses      *addressLevel  // addresses is nil for a level without cidr and count_by_prefix.
	data           *datafile.File // data is nil for a level without values_from and limits_from.
}

// newLevel returns the level of cfg, whose levelName is text.
func newLevel(cfg *DescriptorConfig, match *valueMatch, text string) Level {
	return Level{
		levelName: text, keyLen: int32(len(cfg.Key)), hasWildcard: match.kind == LevelValue && strings.Contains(text, "*"),
		ValueToMetric: cfg.ValueToMetric, ShareThreshold: cfg.ShareThreshold, Kind: match.kind, addresses: match.addresses, data: match.data,
	}
}

// levelName returns the name of a level: "key_value", or "key" if value is empty.
func levelName(key, value string) string {
	if value == "" {
		return key
	}
	return key + "_" + value
}

// Key returns the key of the level.
func (l *Level) Key() string { return l.levelName[:l.keyLen] }

// Value returns the value of the level: the first network of LevelCIDR, the expression of LevelRegex, the file of LevelValuesFrom and
// LevelLimitsFrom as written. It is empty if the level matches any value, or if LevelExact matches the empty one.
func (l *Level) Value() string {
	if int(l.keyLen) == len(l.levelName) {
		return ""
	}
	return l.levelName[l.keyLen+1:]
}

// Networks returns the networks of LevelCIDR. Callers must not change it.
func (l *Level) Networks() []netip.Prefix {
	if l.addresses == nil {
		return nil
	}
	return l.addresses.networks
}

// Data returns the values of LevelValuesFrom and LevelLimitsFrom; nil for others.
func (l *Level) Data() *datafile.Table {
	if l.data == nil {
		return nil
	}
	return l.data.Table
}

// CountedPrefixes returns the lengths of the networks by which addresses are counted; 0 if each address is counted by itself.
func (l *Level) CountedPrefixes() (v4, v6 int) {
	if l.addresses == nil {
		return 0, 0
	}
	return int(l.addresses.v4Bits), int(l.addresses.v6Bits)
}

// CountsNetworks reports whether the level counts addresses by network.
func (l *Level) CountsNetworks() bool { return l.addresses.countsNetworks() }

// SampleValue returns a value that the level matches. It returns Value if it finds none, and for LevelValue, unless the level counts
// networks.
func (l *Level) SampleValue() string {
	switch l.Kind {
	case LevelCIDR:
		if networks := l.Networks(); len(networks) > 0 {
			return networks[0].Addr().String()
		}
	case LevelValuesFrom, LevelLimitsFrom:
		if t := l.Data(); t.Len() > 0 {
			return string(t.Sample())
		}
	case LevelValue:
		if v4, v6 := l.CountedPrefixes(); v4 > 0 {
			return "192.0.2.1"
		} else if v6 > 0 {
			return "2001:db8::1"
		}
	case LevelRegex:
		if parsed, err := syntax.Parse(l.Value(), syntax.Perl); err == nil {
			var b strings.Builder
			if writeSample(&b, parsed); b.Len() > 0 {
				return b.String()
			}
		}
	}
	return l.Value()
}

// metricShowsValue reports whether the name of the metric has the request's value, because of value_to_metric. It has not if all
// requests have the same value or share a counter.
func (l *Level) metricShowsValue() bool {
	return l.ValueToMetric && !l.ShareThreshold && !l.hasOneValue()
}

// hasOneValue reports whether all requests that the level matches have the same value.
func (l *Level) hasOneValue() bool {
	return l.Kind == LevelExact || l.Kind == LevelValue && !l.hasWildcard && l.Value() != ""
}

// valuePattern returns the pattern "key_value" without "key_", the key of the request, in front. If the pattern does not start so,
// because its key has a `*`, it returns the whole pattern.
func (l *Level) valuePattern(key []byte) string {
	if n := len(key); len(l.levelName) > n && l.levelName[:n] == string(key) && l.levelName[n] == '_' {
		return l.levelName[n+1:]
	}
	return l.levelName
}

// MetricNameHasValues reports whether the result of AppendMetricName depends on the entries.
func (r *Rule) MetricNameHasValues() bool { return r.DetailedMetric || r.metricNameHasValues }

// AppendMetricName appends the name of the metric that counts a hit: FullName, with the request's values if the rule has detailed_metric
// or value_to_metric. The first len(Path) entries must be those that led to the rule. dot stands for each dot within a key or a value.
//
// Source: envoyproxy/ratelimit, README sections "Detailed metrics" and "Value to metric".
func (r *Rule) AppendMetricName(dst []byte, entries []Entry, dot byte) []byte {
	if !r.MetricNameHasValues() {
		return append(dst, r.MetricName(dot)...)
	}
	dst = append(dst, r.Domain...)
	for i := range min(len(entries), len(r.Path)) {
		start := len(dst) + len(".")
		dst = r.appendMetricLevel(append(dst, '.'), &r.Path[i], &entries[i])
		ReplaceDots(dst[start:], dot)
	}
	return append(dst, r.FullName[len(r.FullName)-int(r.limitSuffixLen):]...)
}

// ReplaceDots replaces each dot in text, a part of a metric's name, by dot.
func ReplaceDots(text []byte, dot byte) {
	for i := range text {
		if text[i] == '.' {
			text[i] = dot
		}
	}
}

// MetricName returns FullName with dot in the place of each dot within a key or a value. The dots of the domain, those between the levels,
// and those of a name that the file gives to a rule stay.
func (r *Rule) MetricName(dot byte) string {
	if dot == '.' {
		return r.FullName
	}
	var parts []string // parts are the keys and values in FullName, in order.
	for i := range r.Path {
		parts = append(parts, r.Path[i].levelName)
	}
	if r.wordPath != nil {
		parts = r.wordPath.words
	}
	if r.ListSettings != nil {
		for _, p := range r.ListSettings.MatchPairs {
			parts = append(parts, levelName(p.Key, p.Pattern))
		}
	}
	name, rest := []byte(r.Domain), r.FullName[len(r.Domain):]
	for _, part := range parts {
		before, behind, found := strings.Cut(rest, "."+part)
		if !found {
			continue
		}
		name = append(append(name, before...), '.')
		start := len(name)
		name = append(name, part...)
		ReplaceDots(name[start:], dot)
		rest = behind
	}
	return string(append(name, rest...))
}

// appendMetricLevel appends the name of one level. As in envoyproxy/ratelimit, a level with a wildcard in its key becomes the request's
// key, "_" and the whole wildcard. An empty value adds no "_", except in detailed names of rules without a shared level.
func (r *Rule) appendMetricLevel(dst []byte, l *Level, e *Entry) []byte {
	switch {
	case r.DetailedMetric && l.ShareThreshold:
	case r.DetailedMetric && len(e.Value) == 0 && !r.hasSharedLevel:
		return append(append(dst, e.Key...), '_')
	case r.DetailedMetric, l.metricShowsValue():
		if len(e.Value) == 0 {
			return append(dst, e.Key...)
		}
		dst = append(append(dst, e.Key...), '_')
		if network, ok := l.addresses.countedNetwork(e.Value); ok {
			return network.AppendTo(dst)
		}
		return append(dst, e.Value...)
	case !l.hasWildcard:
		return append(dst, l.levelName...)
	}
	return append(append(append(dst, e.Key...), '_'), l.valuePattern(e.Key)...)
}
