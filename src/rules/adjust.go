package rules

import (
	"maps"
	"strings"
)

// Adjuster replaces limits of what the search of a domain found.
type Adjuster interface {
	// Adjust returns m, to which entries led, or a Match of the same Descriptor with other limits. It must be safe for
	// concurrent use, and should allocate nothing once it has seen a Match.
	Adjust(m *Match, entries []Entry, s *SearchScratch) *Match
	// IsActive reports whether Adjust may return another Match now.
	IsActive() bool
	// Note says for people what replaced the limit of r, a limit of a match that Adjust returned.
	Note(r *Rule, entries []Entry) string
}

// AdjustedMatcher searches as Matcher does, and then replaces limits of what it found.
type AdjustedMatcher struct {
	Matcher
	Adjuster Adjuster
}

// FindRule implements Matcher.
func (a *AdjustedMatcher) FindRule(entries []Entry, s *SearchScratch) *Match {
	first := len(s.Canaries)
	m := a.Matcher.FindRule(entries, s)
	return a.AdjustAll(m, s.Canaries[first:], entries, s)
}

// AdjustAll adjusts each of canaries in place, and returns found adjusted, unless it is nil.
func (a *AdjustedMatcher) AdjustAll(found *Match, canaries []*Match, entries []Entry, s *SearchScratch) *Match {
	if found != nil {
		found = a.Adjuster.Adjust(found, entries, s)
	}
	for i, m := range canaries {
		canaries[i] = a.Adjuster.Adjust(m, entries, s)
	}
	return found
}

// BaseMatcher returns the Matcher of d without adjustments.
func (d *Domain) BaseMatcher() Matcher {
	if a, isAdjusted := d.Matcher.(*AdjustedMatcher); isAdjusted {
		return a.Matcher
	}
	return d.Matcher
}

// IsOverridden reports whether limits of d may be replaced now.
func (d *Domain) IsOverridden() bool {
	a, isAdjusted := d.Matcher.(*AdjustedMatcher)
	return isAdjusted && a.Adjuster.IsActive()
}

// OverrideNote says for people what replaced the limit of r, to which entries led. It is empty if nothing did.
func (d *Domain) OverrideNote(r *Rule, entries []Entry) string {
	a, isAdjusted := d.Matcher.(*AdjustedMatcher)
	if !isAdjusted || !r.Overridden {
		return ""
	}
	return a.Adjuster.Note(r, entries)
}

// Adjusted returns a copy of s whose domains have the adjusters that adjuster returns for them. It shares all rules and
// indexes with s, and Changes takes both for the same Set.
func (s *Set) Adjusted(adjuster func(d *Domain) Adjuster) *Set {
	adjusted := *s
	adjusted.units = s.compiledAlone()
	adjusted.domains = make([]*Domain, len(s.domains))
	adjusted.domainsByName = maps.Clone(s.domainsByName)
	for i, d := range s.domains {
		copied := *d
		copied.Matcher = &AdjustedMatcher{d.BaseMatcher(), adjuster(d)}
		adjusted.domains[i], adjusted.domainsByName[d.Name] = &copied, &copied
	}
	return &adjusted
}

// CounterEntries returns the entries that AppendCounterEntries appends. They are valid until the next call.
func (s *SearchScratch) CounterEntries(r *Rule, entries []Entry) []Entry {
	if !r.hasDerivedValue && r.ListSettings == nil && r.Words == nil {
		return entries[:min(len(r.Path), len(entries))]
	}
	s.counterEntries, s.derivedValues = r.appendCounterEntries(s.counterEntries[:0], entries, s.derivedValues[:0])
	return s.counterEntries
}

// CounterKey is one key of the subjects of a rule.
type CounterKey struct {
	Key        string
	FixedValue string // the value that all subjects have; empty if they differ
}

// CounterKeys returns the keys of the entries that AppendCounterEntries appends. It is nil if they are not known, as in
// trees of limits and below a key with a `*`.
func (r *Rule) CounterKeys() (keys []CounterKey) {
	switch {
	case r.Words != nil:
		return nil
	case r.ListSettings != nil && len(r.ListSettings.PerKeys) > 0:
		for _, key := range r.ListSettings.PerKeys {
			keys = append(keys, CounterKey{Key: key})
		}
	case r.ListSettings != nil:
		for _, p := range r.ListSettings.MatchPairs {
			keys = append(keys, CounterKey{p.Key, p.Pattern})
		}
	default:
		for i := range r.Path {
			l := &r.Path[i]
			if l.HasWildcard && int(l.keyLen) < len(l.name) && strings.Contains(l.Key(), "*") {
				return nil
			}
			k := CounterKey{Key: l.Key()}
			if l.HasOneValue() {
				k.FixedValue = l.Value()
			}
			keys = append(keys, k)
		}
	}
	return keys
}
