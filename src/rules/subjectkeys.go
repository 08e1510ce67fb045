package rules

import (
	"strings"

	"ratelimit/src/backend"
	"ratelimit/src/rules/wildcard"
)

// SubjectKeys has the form of the keys of some counters of a rule.
type SubjectKeys struct {
	// Form is the same for the same keys.
	Form string
	// Prefix starts all of the keys.
	Prefix backend.KeyPrefix

	matches func(key []byte) bool
	tail    int // the length of the end of a key that tells nothing of the subject
}

// Subject returns the part of a key that tells the subject; not ok if the key has another form.
func (s *SubjectKeys) Subject(key []byte) (subject []byte, ok bool) {
	if !s.matches(key) {
		return nil, false
	}
	return key[:len(key)-s.tail], true
}

// SubjectKeys returns the form of the keys of r in d whose subjects begin with entries, see Rule.AppendCounterEntries.
// With isPrefix the last entry has only the start of the value. It is not ok if r has no such subjects. r may not be of
// a tree of limits.
//
// Without EscapeKeys, other keys may have the same form: that of [a=x_b_y] is also one of [a=x][b=y].
func (k *KeyFormat) SubjectKeys(d *Domain, r *Rule, entries []Entry, isPrefix bool) (s SubjectKeys, ok bool) {
	w := subjectKeyWriter{entries: entries, isPrefix: isPrefix}
	switch {
	case r.PeerKey != nil:
		w.add([]byte(r.PeerKey.Start))
		if len(r.PeerKey.PerKeys) > 0 {
			w.addValue(0, func(value []byte) []byte { return value })
		}
		w.addTail(r.PeerKey.End)
	case r.listKey != nil:
		w.add(k.appendDomain(nil, d, true))
		w.add([]byte(r.listKey.matchPart))
		for i := range r.listKey.perKeys {
			w.add([]byte(r.listKey.perLabels[i]))
			w.addValue(i, func(value []byte) []byte { return appendEscaped(nil, value) })
			w.add([]byte("_"))
		}
		w.addTail(r.listKey.limitPart)
	case !k.addLevels(&w, d, r):
		return s, false
	}
	return SubjectKeys{w.pattern.String(), w.prefix, w.matcher(), w.tail}, true
}

// addLevels adds the key of a tree of descriptors. It is not ok if a value that shares a counter is another one.
func (k *KeyFormat) addLevels(w *subjectKeyWriter, d *Domain, r *Rule) (ok bool) {
	w.add(k.appendDomain(nil, d, k.EscapeKeys))
	for i := range r.Path {
		l := &r.Path[i]
		w.add(append(appendKeyPart(nil, []byte(l.Key()), k.EscapeKeys), '_'))
		switch {
		case i >= len(w.entries) && l.HasOneValue():
			w.add(appendKeyPart(nil, []byte(l.Value()), k.EscapeKeys))
		case l.ShareThreshold && !l.CountsNetworks():
			e := Entry{Key: []byte(l.Key())}
			if i < len(w.entries) && !w.isLike(i, l.valuePattern(e.Key)) {
				return false
			}
			w.add(l.appendCounterValue(nil, &e, k.EscapeKeys))
		default:
			w.addValue(i, func(value []byte) []byte {
				if l.CountsNetworks() && k.EscapeKeys {
					return appendEscaped([]byte(":"), value)
				}
				return appendKeyPart(nil, value, k.EscapeKeys)
			})
		}
		w.add([]byte("_"))
		if i == 0 && !w.isOpen {
			w.prefix.TagLength = len(w.prefix.Text)
		}
	}
	return true
}

// subjectKeyWriter writes SubjectKeys.
type subjectKeyWriter struct {
	entries  []Entry
	isPrefix bool // the last entry has only the start of the value

	prefix  backend.KeyPrefix
	isOpen  bool            // the text behind prefix differs
	pattern strings.Builder // has a * for each text that differs
	tail    int
}

// isLike reports whether a value is that of entry i, or begins with it.
func (w *subjectKeyWriter) isLike(i int, value string) bool {
	known := string(w.entries[i].Value)
	return value == known || w.hasPrefix(i) && strings.HasPrefix(value, known)
}

// hasPrefix reports whether entry i, which is known, has only the start of a value.
func (w *subjectKeyWriter) hasPrefix(i int) bool { return w.isPrefix && i == len(w.entries)-1 }

// add adds a text that all keys have.
func (w *subjectKeyWriter) add(text []byte) {
	w.pattern.Write(text)
	if !w.isOpen {
		w.prefix.Text = append(w.prefix.Text, text...)
	}
}

// addValue adds the value of entry i, which keys have in the form that escaped returns, or any value behind the
// entries.
func (w *subjectKeyWriter) addValue(i int, escaped func(value []byte) []byte) {
	if i < len(w.entries) {
		w.add(escaped(w.entries[i].Value))
	}
	if i >= len(w.entries) || w.hasPrefix(i) {
		w.pattern.WriteByte('*')
		w.isOpen = true
	}
}

// addTail adds the end of all keys, which tells the limit.
func (w *subjectKeyWriter) addTail(text string) {
	w.pattern.WriteString(text)
	w.tail = len(text)
}

// matcher returns a function that reports whether a key matches the pattern.
func (w *subjectKeyWriter) matcher() func(key []byte) bool {
	text := w.pattern.String()
	if !w.isOpen {
		return func(key []byte) bool { return string(key) == text }
	}
	p := wildcard.Compile(text)
	return p.Matches
}
