package rules

import (
	"fmt"
	"strings"
	"time"

	"ratelimit/src/algorithm"
)

// Keys writes the keys of the counters in the stores. <value> is the request's value; a level with share_threshold has the pattern
// instead.
//
//	<prefix><domain>_<key>_<value>_<key>_<value>_                                                  tree of descriptors
//	<prefix><domain>_:<key>_<pattern>_:<key>_<value>_:<requests>/<period>_<algorithm>_             ordered list
//	<prefix><domain>_<word>_<word>_                                                                tree of limits
//
// A key in an ordered list has the rule's match, the request's values of `per`, and the limit. Keys in ordered lists and trees of
// limits are always escaped.
type Keys struct {
	// Prefix is put in front of every key, without escapes.
	Prefix string
	// Escape gives different descriptors different keys. Without it, as in envoyproxy/ratelimit, nothing is escaped, and
	// [a=x_b_y] and [a=x][b=y] share a key.
	//
	// With it the bytes %_{}|: and control characters are escaped in domain, keys and values: `_` becomes %5F. So each part ends
	// at the next `_`. A level with share_threshold is <key>_<key of the rule>:<value of the rule>_, where only it can have a `:`.
	Escape bool
	// Divvy writes the keys of limits that Button's divvy supports as divvy does, without prefix and escapes: those of first-hit
	// windows in ordered lists. A canary then shares the counter of a rule that differs only in shadow_mode.
	//
	//	divvy:<key>=<pattern> <key>=<pattern>:<value>:<requests>:<seconds>
	Divvy bool
}

// AsDivvy reports whether Append writes r's keys as divvy does.
func (k *Keys) AsDivvy(r *Rule) bool {
	return k.Divvy && r != nil && r.Listed != nil && r.Listed.divvy != nil
}

// Append appends the key of the counter of r for a request's entries in d. It also returns the length in bytes of the key's tag, see
// backend.Hit.Tag: prefix, domain and first entry. In an ordered list the tag is all but the limit, so all limits of a rule share it.
//
// r is the rule that the entries led to, or a rule of a level above; the key of the latter has only the entries down to its level. r
// is nil for a limit that came with the request.
func (k *Keys) Append(dst []byte, d *Domain, r *Rule, entries []Entry) (key []byte, tag int) {
	switch {
	case k.AsDivvy(r):
		return r.Listed.divvy.append(dst, len(dst), entries)
	case r != nil && r.Listed != nil && r.Listed.key != nil:
		return r.Listed.key.append(k.domain(dst, d, true), len(dst), entries)
	case r != nil && r.words != nil:
		return r.words.append(k.domain(dst, d, true), len(dst), entries)
	case r != nil && len(r.Path) < len(entries):
		entries = entries[:len(r.Path)]
	}
	start := len(dst)
	_, listed := d.matcher.(*orderedList)
	escape := k.Escape || listed
	dst = k.domain(dst, d, escape)
	tag = len(dst) - start
	shared := r != nil && r.shared
	for i := range entries {
		e := &entries[i]
		dst = append(appendPart(dst, e.Key, escape), '_')
		switch {
		case !shared || !r.Path[i].ShareThreshold:
			dst = appendPart(dst, e.Value, escape)
		case escape:
			dst = append(appendEscaped(dst, r.Path[i].Key()), ':')
			dst = appendEscaped(dst, r.Path[i].Value())
		default:
			dst = append(dst, r.Path[i].pattern(e.Key)...)
		}
		dst = append(dst, '_')
		if i == 0 {
			tag = len(dst) - start
		}
	}
	return dst, tag
}

// domain appends the prefix and the domain, which start every key.
func (k *Keys) domain(dst []byte, d *Domain, escape bool) []byte {
	name := d.Name
	if escape {
		name = d.escapedName
	}
	return append(append(append(dst, k.Prefix...), name...), '_')
}

// listKey has the constant parts of the keys of a limit in an ordered list. A rule that is moved or renamed keeps its counters; a rule
// whose match, per or limit changes starts new ones.
type listKey struct {
	head   string   // the rule's match
	per    []string // the keys whose values are in the key
	labels []string // per, escaped and with "_" appended
	tail   string   // the limit, and a number if an earlier limit would have the same key
	divvy  bool     // the key is in divvy's form, without labels and escapes
}

func newListKey(r *Rule) *listKey {
	k := &listKey{head: ":", per: r.Listed.Per}
	for _, p := range r.Listed.Match {
		k.head += escaped(p.Key) + "_" + escaped(p.Pattern) + "_"
	}
	k.head += ":"
	for _, key := range k.per {
		k.labels = append(k.labels, escaped(key)+"_")
	}
	lim := &r.Limit
	k.tail = fmt.Sprintf(":%d/%s_%v_", lim.Max, FormatDuration(lim.Period), lim.Kind)
	if lim.Kind == algorithm.GCRA {
		k.tail += fmt.Sprintf("burst:%d_", lim.Burst)
	}
	if lim.MinInterval > 0 {
		k.tail += "min:" + FormatDuration(lim.MinInterval) + "_"
	}
	if lim.CountBlocked != CountsBlocked(lim.Kind) {
		k.tail += fmt.Sprintf("blocked:%t_", lim.CountBlocked)
	}
	return k
}

// newDivvyKey returns the key of a limit in divvy's form; nil if divvy does not support such a limit.
func newDivvyKey(r *Rule) *listKey {
	lim := &r.Limit
	if lim.Kind != algorithm.FirstHitWindow || lim.Max == 0 || lim.Period%time.Second != 0 || lim.CountBlocked || len(r.Listed.Per) > 1 {
		return nil
	}
	tail := fmt.Sprintf(":%d:%d", lim.Max, lim.Period/time.Second)
	return &listKey{head: "divvy:" + r.Operation() + ":", per: r.Listed.Per, tail: tail, divvy: true}
}

// text joins the constant parts. Two limits with the same text would share their counters.
func (l *listKey) text() string { return l.head + strings.Join(l.labels, "") + l.tail }

// append appends the key to dst and returns the length of its tag: all but the limit, or all of a key in divvy's form. The key started
// at dst[start].
func (l *listKey) append(dst []byte, start int, entries []Entry) (key []byte, tag int) {
	dst = append(dst, l.head...)
	for i, key := range l.per {
		value := valueOf(entries, key)
		if l.divvy {
			dst = append(dst, value...)
		} else {
			dst = append(appendEscaped(append(dst, l.labels[i]...), value), '_')
		}
	}
	tag = len(dst) - start
	if dst = append(dst, l.tail...); l.divvy {
		tag = len(dst) - start
	}
	return dst, tag
}

// valueOf returns the value of the last entry with the key; nil if no entry has it.
func valueOf(entries []Entry, key string) []byte {
	for i := len(entries) - 1; i >= 0; i-- {
		if string(entries[i].Key) == key {
			return entries[i].Value
		}
	}
	return nil
}

// append appends the request's words down to the limit, and returns the length of the tag, which has the first tagWords words. The key
// started at dst[start].
func (w *wordPath) append(dst []byte, start int, entries []Entry) (key []byte, tag int) {
	n := 0
	for word := range words(entries) {
		if n == len(w.names) {
			break
		}
		dst = append(appendEscaped(dst, word), '_')
		if n++; n == w.tagWords {
			tag = len(dst) - start
		}
	}
	return dst, tag
}

// appendPart appends text, escaped if escape is set.
func appendPart(dst, text []byte, escape bool) []byte {
	if escape {
		return appendEscaped(dst, text)
	}
	return append(dst, text...)
}

// reserved has the bytes that are escaped in keys: separators of the key format, the `{}` of Redis' hash tags, and control
// characters.
var reserved = func() (set [256]bool) {
	for c := range 0x20 {
		set[c] = true
	}
	for _, c := range "\x7f%_{}|:" {
		set[c] = true
	}
	return set
}()

func appendEscaped[T string | []byte](dst []byte, text T) []byte {
	const hex = "0123456789ABCDEF"
	from := 0
	for i := range len(text) {
		if c := text[i]; reserved[c] {
			dst = append(dst, text[from:i]...)
			dst = append(dst, '%', hex[c>>4], hex[c&15])
			from = i + 1
		}
	}
	return append(dst, text[from:]...)
}

func escaped(text string) string { return string(appendEscaped(nil, text)) }
