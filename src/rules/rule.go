package rules

import (
	"strings"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// Rule is a limit as configured. It is immutable.
//
// Find may also return a Rule that is not a limit itself. It stands for a descriptor that has several limits, or none of its own and
// `charge: path`. Its Index is -1, and only Key, Domain, Path, Pos, Quota, Metadata, Charges and AllOrNone are set.
type Rule struct {
	Index int // in Set.Rules
	// Key is the name of the rule: the domain and the levels down to the rule, such as "basic.parent_p.child". The second and later
	// limits of a list add their Name, or their number if it is empty: "basic.parent_p.child.2".
	Key    string
	Domain string
	Path   []Level // the levels from the top down; empty in ordered lists and trees of limits
	Pos    Pos     // of the descriptor; of the limit if it is one of a list
	Name   string  // current_limit's name in answers; may be empty
	Quantity
	Unlimited bool           // lets everything pass and is never sent to a store; Limit is empty
	Shadow    bool           // charged, but never refuses
	Quota     bool           // refuses a request only if all its quota rules do
	Detailed  bool           // counted separately for each combination of request values
	Metadata  map[string]any // sent with answers; nil for none. Read only.
	Replaces  []string       // names of rules that do not apply to requests that this rule applies to. Read only.
	Limit     algorithm.Limit
	Fallback  backend.Fallback // decides when the store does not answer
	Listed    *Listed          // set for rules of an ordered list only

	// Charges are the limits that a match is charged to: those of levels above, outermost first, then its own. Their own Charges
	// are ignored. Nil: this rule alone.
	Charges []*Rule
	// Joint is set if some Charges hold this rule together with others. Such limits can have the same key and different windows, so
	// stores must tell their counters apart, and must keep them on one server.
	Joint bool
	// AllOrNone charges a match only if all its Charges pass.
	AllOrNone bool

	ChargePath bool      // charge: path holds here
	ByPeriod   bool      // the rule file has a period instead of a unit
	shared     bool      // some level has ShareThreshold
	perValue   bool      // see PerValue
	suffixLen  int32     // length of the part of Key that names one of several limits: ".2"
	words      *wordPath // its path in a tree of limits; nil for other rules
}

// Listed holds the settings that only rules of an ordered list have.
type Listed struct {
	Match []Pair   // sorted by key
	Per   []string // each combination of values of these keys has a counter; a missing key counts as empty
	// Canary is set if the rule has shadow_mode in its file, even for the last rule, whose shadow_mode has no effect.
	Canary bool

	// key and divvy write the keys of the counters. Both are nil if the rule stands for several limits. divvy is nil as well if divvy
	// does not support such a limit.
	key, divvy *listKey
}

// Names returns the words from the top of a tree of limits down to r, `*` for any word; nil for other rules. Read only.
func (r *Rule) Names() []string {
	if r.words == nil {
		return nil
	}
	return r.words.names
}

// Limits returns the limits that a match of r is charged to: its Charges, or r alone.
func (r *Rule) Limits() []*Rule {
	if r.Charges != nil {
		return r.Charges
	}
	return []*Rule{r}
}

// Level is one step of a rule's path, as configured.
type Level struct {
	text           string // "key_value", or "key"
	keyLen         int32  // of the key in text
	wildcard       bool   // text has a `*`
	ValueToMetric  bool   // the name of the metric has the request's value
	ShareThreshold bool   // all values that the wildcard matches share a counter
}

// newLevel returns the level of cfg. text is its composite name.
func newLevel(cfg *DescriptorConfig, text string) Level {
	return Level{
		text: text, keyLen: int32(len(cfg.Key)), wildcard: strings.Contains(text, "*"),
		ValueToMetric: cfg.ValueToMetric, ShareThreshold: cfg.ShareThreshold,
	}
}

// composite returns the name of one level: "key_value", or "key" if value is empty.
func composite(key, value string) string {
	if value == "" {
		return key
	}
	return key + "_" + value
}

// Key returns the key of the level.
func (l *Level) Key() string { return l.text[:l.keyLen] }

// Value returns the value of the level; empty: any value.
func (l *Level) Value() string {
	if int(l.keyLen) == len(l.text) {
		return ""
	}
	return l.text[l.keyLen+1:]
}

// showsValue reports whether the name of the metric has the request's value. It has it with value_to_metric, unless all requests have
// the same value or share the threshold.
func (l *Level) showsValue() bool {
	return l.ValueToMetric && !l.ShareThreshold && (l.wildcard || l.Value() == "")
}

// pattern returns the wildcard without "key_" in front. If the key has a `*` too, it returns the whole wildcard. key is the request's.
func (l *Level) pattern(key []byte) string {
	if n := len(key); len(l.text) > n && l.text[:n] == string(key) && l.text[n] == '_' {
		return l.text[n+1:]
	}
	return l.text
}

// PerValue reports whether the result of AppendName depends on the entries.
func (r *Rule) PerValue() bool { return r.Detailed || r.perValue }

// AppendName appends the name of the metric that counts a hit: Key, with the request's values if the rule has detailed_metric or
// value_to_metric. The first len(Path) entries must be those that led to the rule.
//
// Source: envoyproxy/ratelimit, README sections "Detailed metrics" and "Value to metric".
func (r *Rule) AppendName(dst []byte, entries []Entry) []byte {
	if !r.PerValue() {
		return append(dst, r.Key...)
	}
	dst = append(dst, r.Domain...)
	for i := range min(len(entries), len(r.Path)) {
		dst = r.appendLevel(append(dst, '.'), &r.Path[i], &entries[i])
	}
	return append(dst, r.Key[len(r.Key)-int(r.suffixLen):]...)
}

// appendLevel appends the name of one level. As in envoyproxy/ratelimit, a level with a wildcard in its key becomes the request's key,
// "_" and the whole wildcard. An empty value adds no "_", except in detailed names of rules without a shared level.
func (r *Rule) appendLevel(dst []byte, l *Level, e *Entry) []byte {
	switch {
	case r.Detailed && l.ShareThreshold:
	case r.Detailed && len(e.Value) == 0 && !r.shared:
		return append(append(dst, e.Key...), '_')
	case r.Detailed, l.showsValue():
		if len(e.Value) == 0 {
			return append(dst, e.Key...)
		}
		return append(append(append(dst, e.Key...), '_'), e.Value...)
	case !l.wildcard:
		return append(dst, l.text...)
	}
	return append(append(append(dst, e.Key...), '_'), l.pattern(e.Key)...)
}
