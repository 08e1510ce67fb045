package rules

import (
	"strings"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// Rule is a limit as configured. It is immutable.
//
// Find may also return a Rule that is no limit of its own: it stands for a descriptor with several limits, or for one without limits
// that is charged to those above it. Its Index is -1, and only Key to Pos, Quota, Metadata, Charges and AllOrNone are set.
type Rule struct {
	Index int // in Set.Rules
	// Key is the name of the rule: the domain and the levels down to the rule, as configured, "basic.parent_p.child". The second and
	// further limits of a list add their name, or else their number: "basic.parent_p.child.2".
	Key    string
	Domain string
	Path   []Level // from the top down; empty in ordered lists and trees of limits
	Pos    Pos     // of the descriptor; of the limit if it is one of a list
	Name   string  // current_limit's name in answers; may be empty
	Quantity
	Unlimited bool           // lets everything pass and is never sent to a store; Limit is empty
	Shadow    bool           // charged, but never refuses
	Quota     bool           // refuses a request only if all its quota rules do
	Detailed  bool           // counted separately for each combination of request values
	Metadata  map[string]any // sent with answers; nil for none. Read only.
	Replaces  []string       // names of rules that do not apply where this one does. Read only.
	Limit     algorithm.Limit
	Fallback  backend.Fallback // what decides when the store does not answer
	Listed    *Listed          // set for rules of an ordered list only

	// Charges are the limits that a match is charged to: those of levels above, outermost first, then its own. Charges of these do
	// not apply. Nil: this rule alone.
	Charges []*Rule
	// Joint rules are among others in some Charges. Stores must keep counters with windows of several lengths under one key apart,
	// and levels that are charged together in one place.
	Joint bool
	// AllOrNone charges a match only if all its Charges pass.
	AllOrNone bool

	ChargePath bool // charge: path holds here
	ByPeriod   bool // written with period, not with unit
	shared     bool // some level shares its threshold
	perValue   bool // see PerValue
	suffixLen  int32
	words      *wordPath // where it is in a tree of limits; nil: elsewhere
}

// Listed is what only rules of an ordered list have.
type Listed struct {
	Match []Pair   // sorted by key
	Per   []string // keys whose values are counted separately; a missing one counts as empty
	// Canary says that the rule was written with shadow_mode. It still is a canary where it answers because no other rule matches.
	Canary bool

	// For the keys of its counters. Nil if the rule stands for several limits; divvy also if divvy has no such limit.
	key, divvy *listKey
}

// Names is the way to a limit in a tree of limits, `*` for any word; nil for other rules. Read only.
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
	keyLen         int32
	wildcard       bool // text has a `*`
	ValueToMetric  bool // the counter's name shows the request's value
	ShareThreshold bool // all values that the wildcard matches share a counter
}

// newLevel is the level of cfg, whose composite name is text.
func newLevel(cfg *DescriptorConfig, text string) Level {
	return Level{
		text: text, keyLen: int32(len(cfg.Key)), wildcard: strings.Contains(text, "*"),
		ValueToMetric: cfg.ValueToMetric, ShareThreshold: cfg.ShareThreshold,
	}
}

// composite is the name of one level: "key_value", or "key".
func composite(key, value string) string {
	if value == "" {
		return key
	}
	return key + "_" + value
}

// Key is the key of the entry.
func (l *Level) Key() string { return l.text[:l.keyLen] }

// Value is the value of the entry; empty: any value.
func (l *Level) Value() string {
	if int(l.keyLen) == len(l.text) {
		return ""
	}
	return l.text[l.keyLen+1:]
}

// showsValue reports whether the counter's name has the request's value here: with value_to_metric, unless there is one value only.
func (l *Level) showsValue() bool {
	return l.ValueToMetric && !l.ShareThreshold && (l.wildcard || l.Value() == "")
}

// pattern is the wildcard without "key_" in front; all of it where the key has a `*` too.
func (l *Level) pattern(key []byte) string {
	if n := len(key); len(l.text) > n && l.text[:n] == string(key) && l.text[n] == '_' {
		return l.text[n+1:]
	}
	return l.text
}

// PerValue reports whether AppendName depends on the entries.
func (r *Rule) PerValue() bool { return r.Detailed || r.perValue }

// AppendName appends the name under which a hit is counted: Key, with the request's values where the rule asks for them. The first
// of the entries must be those that led to the rule.
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

// appendLevel appends the name of one level. As in envoyproxy/ratelimit, a wildcard in the key is shown as the request's key with
// the whole wildcard behind it, and an empty value leaves no "_" behind, except in detailed names without a shared level.
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
