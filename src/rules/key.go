package rules

import (
	"fmt"
	"iter"
	"strconv"
	"strings"

	"ratelimit/src/algorithm"
)

// KeyFormat writes the keys of the counters in the stores. <value> is the request's value; a level with share_threshold
// has the pattern instead, and one with count_by_prefix the network of an address.
//
//	<prefix><domain>_<key>_<value>_<key>_<value>_                                                  tree of descriptors
//	<prefix><domain>_:<key>_<pattern>_:<key>_<value>_:<requests>/<period>_<algorithm>_             ordered list
//	<prefix><domain>_<word>_<word>_                                                                tree of limits
//
// The entries that name and settle a hold are in no key.
//
// A key in an ordered list has the rule's match, the request's values of `per`, and the limit. Keys in ordered lists
// and trees of limits are always escaped.
type KeyFormat struct {
	// Prefix starts every key, without escapes.
	Prefix string
	// EscapeKeys gives different descriptors different keys. Without it, as in envoyproxy/ratelimit, nothing is escaped,
	// and [a=x_b_y] and [a=x][b=y] share a key.
	//
	// With it the bytes %_{}|: and control characters are escaped in domain, keys and values: `_` becomes %5F. So each
	// part ends at the next `_`. Only these levels have a `:`, so they share no key with others:
	//
	//	<key>_<key of the rule>:<value of the rule>_         share_threshold
	//	<key>_<key of the rule>:cidr:<first network>_        share_threshold beside cidr
	//	<key>_<key of the rule>:regex:<regular expression>_  share_threshold beside regex
	//	<key>_<key of the rule>:values_from:<file>_          share_threshold beside values_from
	//	<key>_:<network>_                                    count_by_prefix
	EscapeKeys bool
}

// PeerKey is the key of a limit of an ordered list in the form of another program that counts in the same store: Start,
// the request's value, and End. It has no prefix, domain or escapes, the whole key is its tag, and its counter holds
// what remains, see backend.Hit.StoresRemaining. All limits with the same key share its counter.
type PeerKey struct {
	Start, End string
	PerKeys    []string // names the entry whose value is in the key; at most one
}

// appendKey appends the key for a request's entries to dst.
func (p *PeerKey) appendKey(dst []byte, entries []Entry) []byte {
	dst = append(dst, p.Start...)
	for _, key := range p.PerKeys {
		dst = append(dst, lastValueOfKey(entries, key)...)
	}
	return append(dst, p.End...)
}

// AppendKey appends the key of the counter of r for a request's entries in d. It also returns the length in bytes of
// the key's tag, see backend.Hit.TagLength: prefix, domain and first entry. In an ordered list the tag is all but the
// limit, so all limits of a rule share it.
//
// r is the rule that the entries led to, or a rule of a level above; the key of the latter has only the entries down to
// its level. r is nil for a limit that came with the request.
func (k *KeyFormat) AppendKey(dst []byte, d *Domain, r *Rule, entries []Entry) (key []byte, tag int) {
	switch {
	case r != nil && r.PeerKey != nil:
		start := len(dst)
		dst = r.PeerKey.appendKey(dst, entries)
		return dst, len(dst) - start
	case r != nil && r.listKey != nil:
		return r.listKey.appendKey(k.appendDomain(dst, d, true), len(dst), entries)
	case r != nil && r.Words != nil:
		return r.Words.appendKey(k.appendDomain(dst, d, true), len(dst), entries)
	case r != nil && len(r.Path) < len(entries):
		entries = entries[:len(r.Path)]
	}
	start := len(dst)
	escape := k.EscapeKeys || d.Form == OrderedList
	dst = k.appendDomain(dst, d, escape)
	tag = len(dst) - start
	derived := r != nil && r.hasDerivedValue
	for i := range entries {
		e := &entries[i]
		dst = append(appendKeyPart(dst, e.Key, escape), '_')
		if derived {
			dst = r.Path[i].appendCounterValue(dst, e, escape)
		} else {
			dst = appendKeyPart(dst, e.Value, escape)
		}
		dst = append(dst, '_')
		if i == 0 {
			tag = len(dst) - start
		}
	}
	return dst, tag
}

// appendCounterValue appends the part of a key that stands for the value of e on level l.
func (l *Level) appendCounterValue(dst []byte, e *Entry, escape bool) []byte {
	network, counted := l.Addresses.countedNetwork(e.Value)
	switch {
	case counted && escape:
		var text [maxNetworkText]byte
		return appendEscaped(append(dst, ':'), network.AppendTo(text[:0]))
	case counted:
		return network.AppendTo(dst)
	case !l.ShareThreshold:
		return appendKeyPart(dst, e.Value, escape)
	case !escape:
		return append(dst, l.valuePattern(e.Key)...)
	}
	dst = append(appendEscaped(dst, l.Key()), ':')
	if l.Kind != LevelValue {
		dst = append(append(dst, l.Kind.String()...), ':')
	}
	return appendEscaped(dst, l.Value())
}

// AppendCounterEntries appends the entries that tell the counter of r from other counters of r, for a request's
// entries. A value that shares its counter with others has the pattern of the rule or its network instead. r is the
// rule that the entries led to, or one of a level above.
//
//   - In a tree of descriptors these are the entries down to the level of r.
//   - In an ordered list they are those of `per`, or those of `match` with the rule's patterns if there is no `per`.
//   - In a tree of limits they are those whose words lead to r.
func (r *Rule) AppendCounterEntries(dst, entries []Entry) []Entry {
	dst, _ = r.appendCounterEntries(dst, entries, nil)
	return dst
}

// appendCounterEntries is AppendCounterEntries. It appends values that the request does not have to derived.
func (r *Rule) appendCounterEntries(dst, entries []Entry, derived []byte) ([]Entry, []byte) {
	switch {
	case r.ListSettings != nil:
		return r.ListSettings.appendCounterEntries(dst, entries), derived
	case r.Words != nil:
		return r.Words.appendCounterEntries(dst, entries), derived
	}
	entries = entries[:min(len(r.Path), len(entries))]
	if !r.hasDerivedValue {
		return append(dst, entries...), derived
	}
	for i, e := range entries {
		l, from := &r.Path[i], len(derived)
		if network, ok := l.Addresses.countedNetwork(e.Value); ok {
			derived = network.AppendTo(derived)
			e.Value = derived[from:]
		} else if l.ShareThreshold {
			derived = append(derived, l.valuePattern(e.Key)...)
			e.Value = derived[from:]
		}
		dst = append(dst, e)
	}
	return dst, derived
}

func (s *ListSettings) appendCounterEntries(dst, entries []Entry) []Entry {
	for _, key := range s.PerKeys {
		if i := lastIndexOfKey(entries, key); i >= 0 {
			dst = append(dst, entries[i])
		}
	}
	if len(s.PerKeys) > 0 {
		return dst
	}
	for _, p := range s.MatchPairs {
		dst = append(dst, Entry{Key: []byte(p.Key), Value: []byte(p.Pattern)})
	}
	return dst
}

func (w *WordPath) appendCounterEntries(dst, entries []Entry) []Entry {
	left := len(w.Names)
	for _, e := range entries {
		switch {
		case left == 0:
			return dst
		case left == 1: // Only the key of this entry leads to the limit.
			e.Value, left = nil, 0
		case len(e.Value) > 0:
			left -= 2
		default:
			left--
		}
		dst = append(dst, e)
	}
	return dst
}

// appendDomain appends the prefix and the domain, which start every key.
func (k *KeyFormat) appendDomain(dst []byte, d *Domain, escape bool) []byte {
	name := d.Name
	if escape {
		name = d.escapedName
	}
	return append(append(append(dst, k.Prefix...), name...), '_')
}

// SetListKeys gives the limits of the rules of an ordered list the formats of their keys. No two limits get the same
// key: of equal limits, the later ones get a number. peerKey returns the PeerKey of a limit; nil if it has none.
func SetListKeys(matches []*Match, peerKey func(*Rule) *PeerKey) {
	seen := make(map[string]int)
	for _, m := range matches {
		for _, limit := range m.Limits {
			k := newListKeyFormat(limit)
			text := k.constantText()
			if seen[text]++; seen[text] > 1 {
				k.limitPart += "twin:" + strconv.Itoa(seen[text]) + "_"
			}
			limit.listKey = k
			if peerKey != nil {
				limit.PeerKey = peerKey(limit)
			}
		}
	}
}

// listKeyFormat has the constant parts of the keys of a limit in an ordered list. A rule that is moved or renamed keeps
// its counters; a rule whose match, per or limit changes starts new ones.
type listKeyFormat struct {
	matchPart string   // tells the rule's match.
	perKeys   []string // names the entries whose values are in the key.
	perLabels []string // the perKeys, each escaped and with "_" appended
	limitPart string   // tells the limit, with a number if an earlier limit would have the same key.
}

func newListKeyFormat(r *Rule) *listKeyFormat {
	k := &listKeyFormat{matchPart: ":", perKeys: r.ListSettings.PerKeys}
	for _, p := range r.ListSettings.MatchPairs {
		k.matchPart += escapedKeyPart(p.Key) + "_" + escapedKeyPart(p.Pattern) + "_"
	}
	k.matchPart += ":"
	for _, key := range k.perKeys {
		k.perLabels = append(k.perLabels, escapedKeyPart(key)+"_")
	}
	lim := &r.Limit
	if k.limitPart = fmt.Sprintf(":%d/%s_%v_", lim.Max, FormatDuration(lim.Period),
		lim.Kind); lim.Kind == algorithm.Concurrency {
		k.limitPart = fmt.Sprintf(":%d/%v_", lim.Max, lim.Kind)
	} else if lim.Hold > 0 {
		k.limitPart += "held_"
	}
	if lim.Calendar != nil {
		k.limitPart += "calendar:" + escapedKeyPart(lim.Calendar.String()) + "_"
	}
	if lim.Kind == algorithm.GCRA {
		k.limitPart += fmt.Sprintf("burst:%d_", lim.Burst)
	}
	if lim.MinInterval > 0 {
		k.limitPart += "min:" + FormatDuration(lim.MinInterval) + "_"
	}
	if lim.CountBlocked != CountsBlockedByDefault(lim) {
		k.limitPart += fmt.Sprintf("blocked:%t_", lim.CountBlocked)
	}
	return k
}

// constantText joins the constant parts. Two limits with the same text would share their counters.
func (l *listKeyFormat) constantText() string {
	return l.matchPart + strings.Join(l.perLabels, "") + l.limitPart
}

// appendKey appends the key to dst, which has the start of the key from dst[start]. It returns the length of the tag:
// the key without its limitPart.
func (l *listKeyFormat) appendKey(dst []byte, start int, entries []Entry) (key []byte, tag int) {
	dst = append(dst, l.matchPart...)
	for i, key := range l.perKeys {
		dst = append(appendEscaped(append(dst, l.perLabels[i]...), lastValueOfKey(entries, key)), '_')
	}
	tag = len(dst) - start
	return append(dst, l.limitPart...), tag
}

// lastValueOfKey returns the value of the last entry with the key; nil if no entry has it.
func lastValueOfKey(entries []Entry, key string) []byte {
	if i := lastIndexOfKey(entries, key); i >= 0 {
		return entries[i].Value
	}
	return nil
}

// lastIndexOfKey returns the index of the last entry with the key; -1 if no entry has it.
func lastIndexOfKey(entries []Entry, key string) int {
	i := len(entries) - 1
	for i >= 0 && string(entries[i].Key) != key {
		i--
	}
	return i
}

// RequestWords yields the words of a request: for each entry its key, and its value unless that is empty.
func RequestWords(entries []Entry) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for i := range entries {
			if !yield(entries[i].Key) || len(entries[i].Value) > 0 && !yield(entries[i].Value) {
				return
			}
		}
	}
}

// appendKey appends the request's words down to the limit to dst, which has the start of the key from dst[start]. It
// returns the length of the tag, which has the first TagWords words.
func (w *WordPath) appendKey(dst []byte, start int, entries []Entry) (key []byte, tag int) {
	n := 0
	for word := range RequestWords(entries) {
		if n == len(w.Names) {
			break
		}
		dst = append(appendEscaped(dst, word), '_')
		if n++; n == w.TagWords {
			tag = len(dst) - start
		}
	}
	return dst, tag
}

// appendKeyPart appends text, and escapes it if escape is set.
func appendKeyPart(dst, text []byte, escape bool) []byte {
	if escape {
		return appendEscaped(dst, text)
	}
	return append(dst, text...)
}

// isEscapedByte tells for each byte whether keys escape it: separators of the key format, the `{}` of Redis' hash tags,
// and control characters.
var isEscapedByte = func() (set [256]bool) {
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
		if c := text[i]; isEscapedByte[c] {
			dst = append(dst, text[from:i]...)
			dst = append(dst, '%', hex[c>>4], hex[c&15])
			from = i + 1
		}
	}
	return append(dst, text[from:]...)
}

func escapedKeyPart(text string) string { return string(appendEscaped(nil, text)) }
