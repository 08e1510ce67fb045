package rules

import (
	"strings"

	"ratelimit/src/rules/wildcard"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/rules/datafile"
)

// Rule is a limit as configured. It is immutable.
//
// FindRule may also return a Rule that is not a limit itself. It stands for a descriptor that has several limits, or
// none of its own and `charge: path`. Its Index is -1, and only FullName, Domain, Path, Pos, QuotaMode, AnswerMetadata,
// ChargedLimits and ChargesAllOrNone are set.
type Rule struct {
	Index int // the rule's own number in its Set, below Set.RuleSlots
	// FullName is the name of the rule: the domain and the levels down to the rule, such as "basic.parent_p.child". The
	// second and later limits of a list add their Name, or their number if it is empty: "basic.parent_p.child.2".
	FullName string
	Domain   string
	Path     []Level // the levels from the top down. It is empty in ordered lists and trees of limits
	Pos      Pos     // the position of the descriptor, or that of the limit if the descriptor has several
	Name     string  // the name that answers have in current_limit; it may be empty
	Rate
	Unlimited      bool           // lets every request pass without a call of the store. Limit is then empty.
	ShadowMode     bool           // the rule is charged but never refuses
	QuotaMode      bool           // the rule refuses a request only together with all its other quota rules
	DetailedMetric bool           // counts each combination of request values separately in statistics.
	AnswerMetadata map[string]any // sent with answers; nil for none. Read only
	Replaces       []string       // names rules that do not apply to requests that this rule applies to. Read only.
	Limit          algorithm.Limit
	HoldIDKey      string           // the key of the entry that names a hold of Limit; empty if Limit has no holds
	Fallback       backend.Fallback // decides when the store does not answer.
	Enforcement    *Enforcement     // nil if Limit is enforced for all counters
	ListSettings   *ListSettings    // nil for rules outside ordered lists
	// LimitsFile is set if the limits are those of a file. Limit is a placeholder then. For a request, FindRule returns a
	// copy of the rule with the limit of the value, and without LimitsFile.
	LimitsFile *datafile.File

	// ChargedLimits are the limits that a match is charged to: those of levels above, outermost first, then its own. Their
	// own ChargedLimits are ignored. Nil stands for this rule alone.
	ChargedLimits []*Rule
	// ChargedWithOthers is set if some ChargedLimits have this rule together with others. Such limits can have the same
	// key and different windows, so stores must tell their counters apart, and must keep them on one server.
	ChargedWithOthers bool
	// ChargesAllOrNone charges a match only if all its ChargedLimits pass.
	ChargesAllOrNone bool

	MatchHoldIDKey      string    // the HoldIDKey of those LimitsToCharge that have holds; empty if none has
	MatchHasConcurrency bool      // one of LimitsToCharge is a concurrency, so that requests must name a hold
	Words               *WordPath // leads to the limit in a tree of limits; nil elsewhere.

	HasChargePath bool // charge: path holds for the rule
	HasPeriod     bool // the rule file has a period instead of a unit

	hasSharedLevel      bool  // some level of Path has ShareThreshold
	hasDerivedValue     bool  // some level of Path has ShareThreshold or count_by_prefix
	metricNameHasValues bool  // the result of MetricNameHasValues, but for DetailedMetric
	limitSuffixLen      int32 // the length of the end of FullName that tells apart limits of one descriptor, such as ".2"
}

// NewRule returns a rule of the descriptor at path, without limits. FullName is name and suffix, which tells apart
// limits of one descriptor.
func NewRule(d *Domain, path []Level, name, suffix string, at Pos) *Rule {
	r := &Rule{Index: -1, FullName: name + suffix, Domain: d.Name, Path: path, Pos: at, limitSuffixLen: int32(len(suffix))}
	for i := range path {
		l := &path[i]
		r.hasSharedLevel = r.hasSharedLevel || l.ShareThreshold
		r.hasDerivedValue = r.hasDerivedValue || l.ShareThreshold || l.Addresses.CountsNetworks()
		r.metricNameHasValues = r.metricNameHasValues || strings.Contains(l.Key(), "*") || l.metricShowsValue()
	}
	return r
}

// ListSettings are the settings that only rules of an ordered list have.
type ListSettings struct {
	MatchPairs []MatchPair // sorted by key
	PerKeys    []string    // names the keys whose values each have a counter. A missing key counts as an empty value.
	// IsCanary is set if the rule has shadow_mode in its file, even for the last rule, whose shadow_mode has no effect.
	IsCanary bool

	// keyFormat and divvyKeyFormat write the keys of the counters. Both are nil if the rule stands for several limits.
	// divvyKeyFormat is also nil if divvy does not support such a limit.
	keyFormat, divvyKeyFormat *listKeyFormat
}

// MatchPair is a key that a request must have and the pattern of its value. The pattern "*" matches any value, also an
// empty one; in other patterns each `*` matches any bytes.
type MatchPair struct {
	Key, Pattern string
}

// PatternMatches reports whether value matches the pattern of a MatchPair. A nil value, which means no entry, never
// matches.
func PatternMatches(pattern string, value []byte) bool {
	if value == nil || !strings.Contains(pattern, "*") {
		return value != nil && string(value) == pattern
	}
	p := wildcard.Compile(pattern)
	return p.Matches(value)
}

// WordPath is the path to a limit in a tree of limits.
type WordPath struct {
	Names    []string // those of the levels from the top down, with `*` for any word
	TagWords int      // the number of words in the tag of the limit's keys, see KeyFormat.AppendKey
}

// WordPath returns the words from the top of a tree of limits down to r, with `*` for any word. It is nil for other
// rules. Callers must not change it.
func (r *Rule) WordPath() []string {
	if r.Words == nil {
		return nil
	}
	return r.Words.Names
}

// LimitsToCharge returns the limits that a match of r is charged to: its ChargedLimits, or r alone.
func (r *Rule) LimitsToCharge() []*Rule {
	if r.ChargedLimits != nil {
		return r.ChargedLimits
	}
	return []*Rule{r}
}

// MetricNameHasValues reports whether the result of AppendMetricName depends on the entries.
func (r *Rule) MetricNameHasValues() bool { return r.DetailedMetric || r.metricNameHasValues }

// AppendMetricName appends the name of the metric that counts a hit: FullName, with the request's values if the rule
// has detailed_metric or value_to_metric. The first len(Path) entries must be those that led to the rule. dot stands
// for each dot within a key or a value.
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

// MetricName returns FullName with dot in the place of each dot within a key or a value. The dots of the domain, those
// between the levels, and those of a name that the file gives to a rule stay.
func (r *Rule) MetricName(dot byte) string {
	if dot == '.' {
		return r.FullName
	}
	var parts []string // parts are the keys and values in FullName, in order.
	for i := range r.Path {
		parts = append(parts, r.Path[i].name)
	}
	if r.Words != nil {
		parts = r.Words.Names
	}
	if r.ListSettings != nil {
		for _, p := range r.ListSettings.MatchPairs {
			parts = append(parts, LevelName(p.Key, p.Pattern))
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

// appendMetricLevel appends the name of one level. As in envoyproxy/ratelimit, a level with a wildcard in its key
// becomes the request's key, "_" and the whole wildcard. An empty value adds no "_", except in detailed names of rules
// without a shared level.
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
		if network, ok := l.Addresses.countedNetwork(e.Value); ok {
			return network.AppendTo(dst)
		}
		return append(dst, e.Value...)
	case !l.hasWildcard:
		return append(dst, l.name...)
	}
	return append(append(append(dst, e.Key...), '_'), l.valuePattern(e.Key)...)
}
