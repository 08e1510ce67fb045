package overrides

import (
	"errors"
	"fmt"
	"strings"

	"ratelimit/src/operator/callertext"
	"ratelimit/src/rules"
)

// Pattern names subjects: the entries that tell a counter of a rule from its other counters, see
// rules.Rule.AppendCounterEntries.
type Pattern struct {
	Entries []rules.Entry
	End     PatternEnd
}

// PatternEnd says what may follow the entries of a Pattern.
type PatternEnd uint8

const (
	// ExactEnd allows nothing more: the pattern names one subject.
	ExactEnd PatternEnd = iota
	// PrefixEnd makes the value of the last entry the start of values. Further entries may follow.
	PrefixEnd
	// MoreEnd allows further entries.
	MoreEnd
)

// Bounds on a pattern.
const (
	maxPatternEntries = 32
	maxPatternBytes   = 1 << 10
)

// ParsePattern parses what String returns, which is a subject as pages, logs and commands print it:
// user=eve,action=pay. user=al* stands for all subjects that begin with it, and user=eve,* for all that have more
// entries or none. A value in quotes that ends with * is not a pattern.
func ParsePattern(text string) (p Pattern, err error) {
	if len(text) > 4*maxPatternBytes {
		return p, fmt.Errorf("the subject has %d bytes; at most %d are allowed", len(text), maxPatternBytes)
	}
	if text == "*" {
		return Pattern{End: MoreEnd}, nil
	}
	if before, hasMore := strings.CutSuffix(text, ",*"); hasMore {
		text, p.End = before, MoreEnd
	}
	if before, isPrefix := strings.CutSuffix(text, `"*`); isPrefix && p.End == ExactEnd { // user="bot,"*
		text, p.End = before+`"`, PrefixEnd
	}
	parsed, err := callertext.ParseEntries(text)
	if err != nil {
		return p, err
	}
	for i, e := range parsed {
		if prefix, isPrefix := strings.CutSuffix(e.Value, "*"); isPrefix && !e.IsQuoted {
			if i < len(parsed)-1 || p.End != ExactEnd {
				return p, fmt.Errorf(`%s=%s: only the last value may end with *; %s="%s" in quotes takes it as it is`, e.Key, e.Value,
					e.Key, e.Value)
			}
			e.Value, p.End = prefix, PrefixEnd
		}
		p.Entries = append(p.Entries, rules.Entry{Key: []byte(e.Key), Value: []byte(e.Value)})
	}
	return p, p.check()
}

// IsPrefix reports whether entry i has only the start of a value.
func (p *Pattern) IsPrefix(i int) bool { return p.End == PrefixEnd && i == len(p.Entries)-1 }

// MayName reports whether p may name a subject whose entries have the keys.
func (p *Pattern) MayName(keys []rules.CounterKey) bool {
	if n := len(p.Entries); n > len(keys) || p.End == ExactEnd && n < len(keys) {
		return false
	}
	for i, e := range p.Entries {
		fixed, value := keys[i].FixedValue, string(e.Value)
		canHave := fixed == "" || fixed == value || p.IsPrefix(i) && strings.HasPrefix(fixed, value)
		if string(e.Key) != keys[i].Key || !canHave {
			return false
		}
	}
	return true
}

// check returns an error if p is too large.
func (p *Pattern) check() error {
	if n := len(p.Entries); n > maxPatternEntries {
		return fmt.Errorf("the subject has %d entries; at most %d are allowed", n, maxPatternEntries)
	}
	bytes := 0
	for _, e := range p.Entries {
		if len(e.Key) == 0 {
			return errors.New("an entry of the subject has no key: write key=value,key=value")
		}
		bytes += len(e.Key) + len(e.Value)
	}
	if bytes > maxPatternBytes {
		return fmt.Errorf("the keys and values of the subject have %d bytes; at most %d are allowed", bytes, maxPatternBytes)
	}
	return nil
}

// String returns the pattern in the form that ParsePattern parses. Equal patterns have equal texts.
func (p Pattern) String() string { return string(p.appendText(nil)) }

func (p *Pattern) appendText(dst []byte) []byte {
	if len(p.Entries) == 0 {
		return append(dst, '*')
	}
	last := len(p.Entries) - 1
	if p.End == PrefixEnd && len(p.Entries[last].Value) == 0 {
		// Without a value callertext writes no =.
		dst = callertext.AppendWholeDescriptor(dst, p.Entries)
		if dst[len(dst)-1] != '=' {
			dst = append(dst, '=')
		}
		return append(dst, '*')
	}
	start := len(dst)
	dst = callertext.AppendWholeDescriptor(dst, p.Entries)
	switch p.End {
	case ExactEnd:
		if string(dst[start:]) == "*" { // Without quotes that is the pattern of all subjects.
			return append(dst[:start], `"*"`...)
		}
	case PrefixEnd:
		return append(dst, '*')
	case MoreEnd:
		return append(dst, ",*"...)
	}
	return dst
}
