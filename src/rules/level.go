package rules

import "strings"

// Level is one step of a rule's path, as configured.
type Level struct {
	text   string // "key_value", or "key"
	keyLen int32
	// ValueToMetric shows the request's value in the counter's name.
	ValueToMetric bool
	// ShareThreshold makes all values that the wildcard matches share a counter.
	ShareThreshold bool

	wildcard bool // text holds a `*`
}

// newLevel is the level of cfg, whose composite name is text.
func newLevel(cfg *DescriptorConfig, text string) Level {
	return Level{
		text: text, keyLen: int32(len(cfg.Key)), wildcard: strings.Contains(text, "*"),
		ValueToMetric: cfg.ValueToMetric, ShareThreshold: cfg.ShareThreshold,
	}
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

// pattern is what stands for the value of an entry with the given key where
// the wildcard is shown instead: the wildcard without "key_" in front, and the
// whole of it where the key itself has a `*`.
func (l *Level) pattern(key []byte) string {
	if n := len(key); len(l.text) > n && l.text[:n] == string(key) && l.text[n] == '_' {
		return l.text[n+1:]
	}
	return l.text
}

// PerValue reports whether the name of the rule's counters depends on the
// values of the request: see AppendName.
func (r *Rule) PerValue() bool { return r.Detailed || r.perValue }

// AppendName appends the name under which a hit on the rule is counted, with
// the request's values where the rule asks for them. Entries must be those
// that led to the rule, or beyond it. Without PerValue it is r.Key.
//
// Source: envoyproxy/ratelimit, README sections "Detailed metrics" and
// "Value to metric".
func (r *Rule) AppendName(dst []byte, entries []Entry) []byte {
	if !r.PerValue() {
		return append(dst, r.Key...)
	}
	dst = append(dst, r.Domain...)
	for i := range min(len(entries), len(r.Path)) {
		dst = append(dst, '.')
		if r.Detailed {
			dst = r.appendDetailed(dst, &r.Path[i], &entries[i])
		} else {
			dst = appendLevel(dst, &r.Path[i], &entries[i])
		}
	}
	return append(dst, r.Key[len(r.Key)-int(r.item):]...)
}

// appendDetailed shows a level with its request value. With a shared level in
// the path, empty values leave no "_" behind.
func (r *Rule) appendDetailed(dst []byte, l *Level, e *Entry) []byte {
	dst = append(dst, e.Key...)
	switch {
	case l.ShareThreshold:
		dst = append(dst, '_')
		return append(dst, l.pattern(e.Key)...)
	case len(e.Value) == 0 && r.shared:
		return dst
	}
	dst = append(dst, '_')
	return append(dst, e.Value...)
}

// appendLevel shows a level as configured, or with its request value where it
// has value_to_metric. A wildcard in the key comes out odd, as upstream: the
// request's key, and behind it the whole wildcard.
func appendLevel(dst []byte, l *Level, e *Entry) []byte {
	switch {
	case l.ValueToMetric && !l.ShareThreshold && len(e.Value) == 0 && (l.wildcard || l.Value() == ""):
		return append(dst, e.Key...)
	case l.ValueToMetric && !l.ShareThreshold && (l.wildcard || l.Value() == ""):
		dst = append(dst, e.Key...)
		dst = append(dst, '_')
		return append(dst, e.Value...)
	case l.wildcard:
		dst = append(dst, e.Key...)
		dst = append(dst, '_')
		return append(dst, l.pattern(e.Key)...)
	}
	return append(dst, l.text...)
}
