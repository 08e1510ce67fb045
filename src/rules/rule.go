package rules

import (
	"strings"

	"ratelimit/src/rules/wildcard"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/rules/datafile"
)

// Descriptor is a descriptor of a tree, a rule of an ordered list, or a node of a tree of limits: what its limits have
// in common. It is immutable.
type Descriptor struct {
	Domain           string
	FullName         string // the domain and the levels down to the descriptor, such as "basic.parent_p.child"
	Pos              Pos
	Path             []Level        // the levels from the top down; empty in ordered lists and trees of limits
	ShadowMode       bool           // the limits are charged but never refuse
	QuotaMode        bool           // a limit refuses a request only together with all its other limits in quota mode
	DetailedMetric   bool           // each combination of request values is counted separately in statistics
	ChargesAllOrNone bool           // a match is charged only if all its Limits pass
	HasChargePath    bool           // charge: path holds
	AnswerMetadata   map[string]any // sent with answers; nil for none. Read only
	ListSettings     *ListSettings  // nil outside ordered lists
	Words            *WordPath      // nil outside trees of limits

	// NewDescriptor sets these.
	MetricNameHasValues bool // the result of AppendMetricName depends on the entries
	hasSharedLevel      bool // some level of Path has ShareThreshold
	hasDerivedValue     bool // some level of Path has ShareThreshold or count_by_prefix
}

// NewDescriptor returns d with what follows from its Path.
func NewDescriptor(d Descriptor) *Descriptor {
	d.MetricNameHasValues = d.DetailedMetric
	for i := range d.Path {
		l := &d.Path[i]
		d.hasSharedLevel = d.hasSharedLevel || l.ShareThreshold
		d.hasDerivedValue = d.hasDerivedValue || l.ShareThreshold || l.Addresses.CountsNetworks()
		d.MetricNameHasValues = d.MetricNameHasValues || strings.Contains(l.Key(), "*") || l.metricShowsValue()
	}
	return &d
}

// Match is what a request's descriptor leads to: the limits that it is charged to. It is immutable.
type Match struct {
	*Descriptor
	// Limits has those of levels above, outermost first, and then the descriptor's own. There is at least one.
	Limits         []*Rule
	HoldIDKey      string // the HoldIDKey of those Limits that have holds; empty if none has
	HasConcurrency bool   // one of Limits is a concurrency, so requests must name a hold
}

// OwnLimit returns the limit of the descriptor itself; nil if it has none, or several.
func (m *Match) OwnLimit() *Rule {
	last := len(m.Limits) - 1
	if m.Limits[last].Descriptor != m.Descriptor || last > 0 && m.Limits[last-1].Descriptor == m.Descriptor {
		return nil
	}
	return m.Limits[last]
}

// IsUnlimited reports whether the descriptor itself is unlimited. Limits of levels above may be charged nevertheless.
func (m *Match) IsUnlimited() bool {
	own := m.OwnLimit()
	return own != nil && own.Unlimited
}

// Rule is one limit of a descriptor, which counts the requests that lead to the descriptor, or to one below it. It is
// immutable.
type Rule struct {
	*Descriptor
	Index int // the rule's own number in its Set, below Set.RuleSlots
	// Owner is a hash of Domain and FullName, which stays the same over reloads and restarts. It is 0 before a Join.
	Owner uint32
	// The small fields are together, because there may be a million rules.
	Unlimited bool             // every request passes without a call of the store. Limit is then empty
	HasPeriod bool             // the rule file has a period instead of a unit
	Fallback  backend.Fallback // decides when the store does not answer
	Counting  backend.Counting
	// OnContention is Wait unless Counting is Leased.
	OnContention backend.Contention
	// ChargedWithOthers is set if some Match has this rule together with others. Such limits can have the same key and
	// different windows, so stores must tell their counters apart, and must keep them on one server.
	ChargedWithOthers bool
	// Overridden says that this is a copy of a rule with the limit of an override; see package overrides.
	Overridden bool

	// FullName is the descriptor's. The second and later limits of a list add their Name, or their number if it is empty:
	// "basic.parent_p.child.2".
	FullName string
	Pos      Pos    // the descriptor's, or the limit's own if the descriptor has several
	Name     string // the name that answers have in current_limit; it may be empty
	Rate
	Replaces  []string // names of rules that do not apply to requests that this rule applies to. Read only
	Limit     algorithm.Limit
	HoldIDKey string       // the key of the entry that names a hold of Limit; empty if Limit has no holds
	Reserve   *Reservation // what a request for 0 units reserves; nil for nothing
	// WhyExact says why the limit is counted exactly although its domain or file asks for leases; empty if nothing does.
	WhyExact    string
	Enforcement *Enforcement // nil if Limit is enforced for all counters
	// LimitsFile is set if a file has the limits. Limit is a placeholder then. For a request, FindRule finds a copy of the
	// rule with the limit of the value, and without LimitsFile.
	LimitsFile *datafile.File
	PeerKey    *PeerKey // writes the keys of the counters instead of a KeyFormat; nil in most cases
	// Notify says when somebody is told about subjects that use much of Limit; nil for never.
	Notify *Notification

	listKey *listKeyFormat // nil outside ordered lists
}

// ListSettings are the settings that only rules of an ordered list have.
type ListSettings struct {
	MatchPairs []MatchPair // sorted by key
	PerKeys    []string    // names the keys whose values each have a counter. A missing key counts as an empty value.
	// IsCanary is set if the rule has shadow_mode in its file, even for the last rule, whose shadow_mode has no effect.
	IsCanary bool
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

// WordPath returns the words from the top of a tree of limits down to d, with `*` for any word. It is nil for others.
// Callers must not change it.
func (d *Descriptor) WordPath() []string {
	if d.Words == nil {
		return nil
	}
	return d.Words.Names
}

// AppendMetricName appends the name of the metric that counts a hit: FullName, with the request's values if the rule
// has detailed_metric or value_to_metric. The first len(Path) entries must be those that led to the rule. dot stands
// for each dot within a key or a value.
//
// Source: envoyproxy/ratelimit, README sections "Detailed metrics" and "Value to metric".
func (r *Rule) AppendMetricName(dst []byte, entries []Entry, dot byte) []byte {
	if !r.MetricNameHasValues {
		return append(dst, r.MetricName(dot)...)
	}
	dst = append(dst, r.Domain...)
	for i := range min(len(entries), len(r.Path)) {
		start := len(dst) + len(".")
		dst = r.appendMetricLevel(append(dst, '.'), &r.Path[i], &entries[i])
		ReplaceDots(dst[start:], dot)
	}
	return append(dst, r.FullName[len(r.Descriptor.FullName):]...)
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
	case !l.HasWildcard:
		return append(dst, l.name...)
	}
	return append(append(append(dst, e.Key...), '_'), l.valuePattern(e.Key)...)
}
