package rules

import (
	"fmt"
	"strings"
	"time"

	"ratelimit/src/algorithm"
)

// Keys writes the keys that stores count under. The values are the request's; on a level that shares its threshold the pattern
// stands for them.
//
//	<prefix><domain>_<key>_<value>_<key>_<value>_                                                  tree of descriptors
//	<prefix><domain>_:<key>_<pattern>_:<key>_<value>_:<requests>/<period>_<algorithm>_             ordered list
//	<prefix><domain>_<word>_<word>_                                                                tree of limits
//
// A key in an ordered list has what the rule matches, counts by and allows. Keys in ordered lists and trees of limits are always
// escaped.
type Keys struct {
	// Prefix is in front of every key, as it is.
	Prefix string
	// Escape keeps different descriptors apart. Without it all parts are written as they are, as envoyproxy/ratelimit does, and
	// [a=x_b_y] and [a=x][b=y] share a key.
	//
	// With it the bytes %_{}|: and control characters are written as %5F and so on in domain, keys and values, so each part ends
	// at the next `_`. A level that shares its threshold is <key>_<key of the rule>:<value of the rule>_; no value has a `:`.
	Escape bool
	// Divvy writes the keys of first-hit windows in ordered lists as Button's divvy does, if divvy can have such a limit, without
	// prefix and escapes. A canary then shares the counter of a rule that is the same but for shadow_mode.
	//
	//	divvy:<key>=<pattern> <key>=<pattern>:<value>:<requests>:<seconds>
	Divvy bool
}

// AsDivvy reports whether Append writes r's keys as divvy does.
func (k *Keys) AsDivvy(r *Rule) bool {
	return k.Divvy && r != nil && r.Listed != nil && r.Listed.divvy != nil
}

// Append appends the key of a descriptor of d. It also returns the length of the key's tag, see backend.Hit.Tag: prefix, domain and
// first entry; in an ordered list all but the limit, so the limits of one rule stay together.
//
// r is the rule that the entries led to, or one of a level above, whose key has the entries down to it; nil for a limit that came
// with the request.
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

// domain appends what is in front of all entries.
func (k *Keys) domain(dst []byte, d *Domain, escape bool) []byte {
	name := d.Name
	if escape {
		name = d.escaped
	}
	return append(append(append(dst, k.Prefix...), name...), '_')
}

// listKey is how a listed limit's keys are written. The rule's place, name and comment are not in it: a rule may be moved or renamed
// and keeps its counters, and a changed limit starts new ones.
type listKey struct {
	head   string   // what the rule matches
	per    []string // keys to count by
	labels []string // of per, each escaped and with its "_"
	tail   string   // the limit, and a number if a rule before it has the same key
	divvy  bool     // as divvy writes it: without labels and escapes
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

// newDivvyKey returns how divvy writes the keys of a limit; nil if divvy has no such limit.
func newDivvyKey(r *Rule) *listKey {
	lim := &r.Limit
	if lim.Kind != algorithm.FirstHitWindow || lim.Max == 0 || lim.Period%time.Second != 0 || lim.CountBlocked || len(r.Listed.Per) > 1 {
		return nil
	}
	tail := fmt.Sprintf(":%d:%d", lim.Max, lim.Period/time.Second)
	return &listKey{head: "divvy:" + r.Operation() + ":", per: r.Listed.Per, tail: tail, divvy: true}
}

// text tells apart listed limits whose keys would be the same.
func (l *listKey) text() string { return l.head + strings.Join(l.labels, "") + l.tail }

// append appends the key, which starts at start. The tag is all but the limit, or in divvy's keys all.
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

// valueOf is the value of the last entry with the key; nil if there is none.
func valueOf(entries []Entry, key string) []byte {
	for i := len(entries) - 1; i >= 0; i-- {
		if string(entries[i].Key) == key {
			return entries[i].Value
		}
	}
	return nil
}

// append appends the words of the entries down to the limit. The tag ends with the outermost of the levels that are charged together.
func (w *wordPath) append(dst []byte, start int, entries []Entry) (key []byte, tag int) {
	n := 0
	for word := range words(entries) {
		if n == len(w.names) {
			break
		}
		dst = append(appendEscaped(dst, word), '_')
		if n++; n == w.tag {
			tag = len(dst) - start
		}
	}
	return dst, tag
}

func appendPart(dst, text []byte, escape bool) []byte {
	if escape {
		return appendEscaped(dst, text)
	}
	return append(dst, text...)
}

// reserved are the bytes that escaped parts of a key do not have: those that the format and Redis' hash tags use, and control
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
