package rules

import (
	"iter"
	"maps"
	"net/netip"
	"regexp/syntax"
	"strings"

	"ratelimit/src/rules/datafile"
)

// Entry is one key and value of a request's descriptor. The caller owns the bytes.
type Entry struct {
	Key, Value []byte
}

// EntryText is an Entry as text.
type EntryText struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// Text returns e as text.
func (e Entry) Text() EntryText { return EntryText{string(e.Key), string(e.Value)} }

// MaxTreeDepth is the most levels of descriptors, or of words, below each other. Each rule holds the names of all
// levels above it.
const MaxTreeDepth = 100

// LevelKind is the way in which a level matches values.
type LevelKind uint8

const (
	LevelValue      LevelKind = iota // a level with a value, which may have wildcards, or without one.
	LevelCIDR                        // LevelCIDR matches the addresses of networks.
	LevelRegex                       // LevelRegex matches the values that match a regular expression.
	LevelValuesFrom                  // LevelValuesFrom matches the values in a file.
	LevelLimitsFrom                  // LevelLimitsFrom matches the values in a file, each with its limit.
	// LevelExact matches one value, which may be empty. A `*` in it is an ordinary character.
	LevelExact
)

// String returns the key of descriptors that makes such levels.
func (k LevelKind) String() string {
	return [...]string{"value", "cidr", "regex", "values_from", "limits_from", "exact"}[k]
}

// Level is one key and value, or a key alone, of a rule's path.
type Level struct {
	name           string // "key_value", or "key" if any value matches
	keyLen         int32  // the length of the key in name
	HasWildcard    bool   // name is a pattern with a `*`; NewLevel sets it
	ValueToMetric  bool   // adds the request's value to the name of the metric.
	ShareThreshold bool   // lets all values that the level matches share a counter.
	Kind           LevelKind
	Addresses      *Addresses     // nil for a level without cidr and count_by_prefix
	DataFile       *datafile.File // nil for a level without values_from and limits_from
}

// NewLevel returns l with the key and the name, which is "key_value", or the key if any value matches.
func NewLevel(key, name string, l Level) Level {
	l.name, l.keyLen = name, int32(len(key))
	l.HasWildcard = l.Kind == LevelValue && strings.Contains(name, "*")
	return l
}

// Name returns "key_value", or the key if any value matches.
func (l *Level) Name() string { return l.name }

// LevelName returns the name of a level: "key_value", or "key" if value is empty.
func LevelName(key, value string) string {
	if value == "" {
		return key
	}
	return key + "_" + value
}

// Key returns the key of the level.
func (l *Level) Key() string { return l.name[:l.keyLen] }

// Value returns the value of the level: the first network of LevelCIDR, the expression of LevelRegex, the file of
// LevelValuesFrom and LevelLimitsFrom as written. It is empty if the level matches any value, or if LevelExact matches
// the empty one.
func (l *Level) Value() string {
	if int(l.keyLen) == len(l.name) {
		return ""
	}
	return l.name[l.keyLen+1:]
}

// Networks returns the networks of LevelCIDR. Callers must not change it.
func (l *Level) Networks() []netip.Prefix {
	if l.Addresses == nil {
		return nil
	}
	return l.Addresses.Networks
}

// Data returns the values of LevelValuesFrom and LevelLimitsFrom; nil for others.
func (l *Level) Data() *datafile.Table {
	if l.DataFile == nil {
		return nil
	}
	return l.DataFile.Table
}

// CountedPrefixes returns the lengths of the networks by which addresses are counted; 0 if each address is counted by
// itself.
func (l *Level) CountedPrefixes() (v4, v6 int) {
	if l.Addresses == nil {
		return 0, 0
	}
	return int(l.Addresses.V4Bits), int(l.Addresses.V6Bits)
}

// CountsNetworks reports whether the level counts addresses by network.
func (l *Level) CountsNetworks() bool { return l.Addresses.CountsNetworks() }

// Settings yields the keys and values of the level as rule files have them, without settings that have their default.
// Values are string, bool, []netip.Prefix or map[string]int.
func (l *Level) Settings() iter.Seq2[string, any] {
	var matched any = l.Value()
	if l.Kind == LevelCIDR {
		matched = l.Networks()
	}
	v4, v6 := l.CountedPrefixes()
	counted := map[string]int{"v4": v4, "v6": v6}
	maps.DeleteFunc(counted, func(_ string, length int) bool { return length == 0 })
	return func(yield func(string, any) bool) {
		_ = yield("key", l.Key()) &&
			(l.Kind == LevelValue && matched == "" || yield(l.Kind.String(), matched)) &&
			(len(counted) == 0 || yield("count_by_prefix", counted)) &&
			(!l.ValueToMetric || yield("value_to_metric", true)) &&
			(!l.ShareThreshold || yield("share_threshold", true))
	}
}

// SampleValue returns a value that the level matches. It returns Value if it finds none, and for LevelValue, unless the
// level counts networks.
func (l *Level) SampleValue() string {
	switch l.Kind {
	case LevelCIDR:
		if networks := l.Networks(); len(networks) > 0 {
			return networks[0].Addr().String()
		}
	case LevelValuesFrom, LevelLimitsFrom:
		if t := l.Data(); t.Len() > 0 {
			return string(t.Sample())
		}
	case LevelValue:
		if v4, v6 := l.CountedPrefixes(); v4 > 0 {
			return "192.0.2.1"
		} else if v6 > 0 {
			return "2001:db8::1"
		}
	case LevelRegex:
		if parsed, err := syntax.Parse(l.Value(), syntax.Perl); err == nil {
			var b strings.Builder
			if writeSample(&b, parsed); b.Len() > 0 {
				return b.String()
			}
		}
	}
	return l.Value()
}

// writeSample writes a short text that most expressions of this form match.
func writeSample(b *strings.Builder, re *syntax.Regexp) {
	switch re.Op {
	case syntax.OpLiteral:
		b.WriteString(string(re.Rune))
	case syntax.OpCharClass:
		b.WriteRune(sampleRune(re.Rune))
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		b.WriteByte('x')
	case syntax.OpRepeat:
		for range re.Min {
			writeSample(b, re.Sub[0])
		}
	case syntax.OpAlternate:
		writeSample(b, re.Sub[0])
	case syntax.OpStar, syntax.OpQuest:
	default:
		for _, sub := range re.Sub {
			writeSample(b, sub)
		}
	}
}

// sampleRune returns a printable character of the class with these ranges if it has one, else its first character.
func sampleRune(ranges []rune) rune {
	for i := 0; i+1 < len(ranges); i += 2 {
		if low := max(ranges[i], '0'); low <= min(ranges[i+1], 'z') {
			return low
		}
	}
	if len(ranges) == 0 {
		return 0
	}
	return ranges[0]
}

// metricShowsValue reports whether the name of the metric has the request's value, because of value_to_metric. It has
// not if all requests have the same value or share a counter.
func (l *Level) metricShowsValue() bool {
	return l.ValueToMetric && !l.ShareThreshold && !l.HasOneValue()
}

// HasOneValue reports whether all requests that the level matches have the same value.
func (l *Level) HasOneValue() bool {
	return l.Kind == LevelExact || l.Kind == LevelValue && !l.HasWildcard && l.Value() != ""
}

// valuePattern returns the pattern "key_value" without "key_", the key of the request, in front. If the pattern does
// not start so, because its key has a `*`, it returns the whole pattern.
func (l *Level) valuePattern(key []byte) string {
	if n := len(key); len(l.name) > n && l.name[:n] == string(key) && l.name[n] == '_' {
		return l.name[n+1:]
	}
	return l.name
}
