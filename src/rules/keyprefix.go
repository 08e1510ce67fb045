package rules

import (
	"fmt"
	"slices"
	"strings"

	"ratelimit/src/backend"
)

// KeyPrefixes returns the starts of the keys of all counters in d whose descriptors begin with entries. Of the last
// entry only the start of the value is given: "al" stands for the values alex and alice, and "" for all values.
//
//   - In a tree of descriptors, further entries may follow. Counters that values share, see share_threshold, are not
//     found.
//   - In an ordered list, the order of entries has no meaning. The result has the counters of each rule that the
//     entries can match and that names all their keys, the last one in `per`. The error says which value is missing if
//     such a rule counts by another key before that one.
//   - In a tree of limits, the result has the counters of the nodes to which the words lead, and of those below them.
//
// Without EscapeKeys, the keys of other descriptors may begin in the same way: those of [a=x_b_y] and [a=x][b=y] do.
func (k *KeyFormat) KeyPrefixes(d *Domain, entries []Entry) ([]backend.KeyPrefix, error) {
	switch d.Form {
	case OrderedList:
		return k.listKeyPrefixes(d, entries)
	case LimitTree:
		return k.wordKeyPrefixes(d, entries), nil
	}
	return k.treeKeyPrefixes(d, entries), nil
}

// addressCounter is the Matcher of a tree of descriptors.
type addressCounter interface {
	// AddressesOf returns the Addresses of the descriptors that entries, without the last, lead to; nil from the first
	// entry on that leads nowhere. countsLast says that the last key can lead to a descriptor that counts addresses by
	// network.
	AddressesOf(entries []Entry) (levels []*Addresses, countsLast bool)
}

// treeKeyPrefixes returns the prefix in a tree of descriptors, and a second one if the values of the last key can be
// counted by network.
func (k *KeyFormat) treeKeyPrefixes(d *Domain, entries []Entry) []backend.KeyPrefix {
	p := backend.KeyPrefix{Text: k.appendDomain(nil, d, k.EscapeKeys)}
	last := len(entries) - 1
	levels, countsLast := d.BaseMatcher().(addressCounter).AddressesOf(entries)
	for i := range entries[:last] {
		e, counted := &entries[i], Level{Addresses: levels[i]}
		p.Text = append(appendKeyPart(p.Text, e.Key, k.EscapeKeys), '_')
		p.Text = append(counted.appendCounterValue(p.Text, e, k.EscapeKeys), '_')
		if i == 0 {
			p.TagLength = len(p.Text)
		}
	}
	p.Text = append(appendKeyPart(p.Text, entries[last].Key, k.EscapeKeys), '_')
	prefixes := []backend.KeyPrefix{p}
	if k.EscapeKeys && countsLast {
		p.Text = append(slices.Clone(p.Text), ':')
		prefixes = append(prefixes, p)
	}
	for i := range prefixes {
		prefixes[i].Text = appendKeyPart(prefixes[i].Text, entries[last].Value, k.EscapeKeys)
	}
	return prefixes
}

// wordKeyPrefixes returns the prefixes in a tree of limits: one for each number of words that the tags of its limits
// have.
func (k *KeyFormat) wordKeyPrefixes(d *Domain, entries []Entry) (prefixes []backend.KeyPrefix) {
	last := entries[len(entries)-1]
	whole := append(slices.Clone(entries[:len(entries)-1]), Entry{Key: last.Key})
	text := k.appendDomain(nil, d, true)
	ends := []int{} // ends[i] is the length of the text with i+1 words.
	for word := range RequestWords(whole) {
		text = append(appendEscaped(text, word), '_')
		ends = append(ends, len(text))
	}
	text = appendEscaped(text, last.Value)
	lengths := []int{}
	for _, r := range d.rules {
		length := 0 // The text ends within the tag.
		if n := r.Words.TagWords; n <= len(ends) {
			length = ends[n-1]
		}
		if !slices.Contains(lengths, length) {
			lengths = append(lengths, length)
			prefixes = append(prefixes, backend.KeyPrefix{Text: text, TagLength: length})
		}
	}
	return prefixes
}

// listKeyPrefixes returns the prefixes in an ordered list: one for each limit that counts by the last entry.
func (k *KeyFormat) listKeyPrefixes(d *Domain, entries []Entry) (prefixes []backend.KeyPrefix, err error) {
	for _, r := range d.rules {
		if r.Unlimited || !r.ListSettings.canCountBy(entries) {
			continue
		}
		var text []byte
		if r.PeerKey != nil { // The rule counts by the last entry alone.
			text = append([]byte(r.PeerKey.Start), entries[len(entries)-1].Value...)
		} else if text, err = r.listKey.appendKeyPrefix(k.appendDomain(nil, d, true), entries); err != nil {
			return nil, fmt.Errorf("rule %s: %w", r.FullName, err)
		}
		prefixes = append(prefixes, backend.KeyPrefix{Text: text})
	}
	return prefixes, nil
}

// canCountBy reports whether a rule names the keys of all entries, matches their values, and counts by the last one.
func (s *ListSettings) canCountBy(entries []Entry) bool {
	last := len(entries) - 1
	for i := range entries {
		e := &entries[i]
		named := slices.Contains(s.PerKeys, string(e.Key))
		if i == last && !named {
			return false
		}
		for _, pair := range s.MatchPairs {
			if pair.Key != string(e.Key) {
				continue
			}
			named = true
			if i == last {
				if !strings.Contains(pair.Pattern, "*") && !strings.HasPrefix(pair.Pattern, string(e.Value)) {
					return false
				}
			} else if e.Value == nil || !PatternMatches(pair.Pattern, e.Value) {
				return false
			}
		}
		if !named {
			return false
		}
	}
	return true
}

// appendKeyPrefix appends the start of the keys to dst: all up to the value of the last entry, of which it appends the
// given start.
func (l *listKeyFormat) appendKeyPrefix(dst []byte, entries []Entry) ([]byte, error) {
	last := entries[len(entries)-1]
	dst = append(dst, l.matchPart...)
	for i, key := range l.perKeys {
		dst = append(dst, l.perLabels[i]...)
		switch value := lastValueOfKey(entries, key); {
		case key == string(last.Key):
			return appendEscaped(dst, last.Value), nil
		case value == nil:
			return nil, fmt.Errorf("it counts by %s before %s: add %s=<value>", Quote(key), Quote(string(last.Key)), key)
		default:
			dst = append(appendEscaped(dst, value), '_')
		}
	}
	return dst, nil
}
