package operator

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/overrides"
	"ratelimit/src/rules"
)

// Bounds on the search for the subjects of a pattern.
const (
	subjectSearchTime = 2 * time.Second
	maxSubjects       = 100_000
	// maxSubjectSearches bounds the searches at a time. Each reads the names of all counters in the store.
	maxSubjectSearches = 2
)

// countSubjects sets how many subjects of targets the pattern of a change names now. isNamed says that the change names
// the rule. Without an answer of the store it adds a warning.
func (e *LimitEditor) countSubjects(ctx context.Context, report *LimitReport, set *rules.Set, targets []target,
	isNamed bool,
) {
	pattern, err := overrides.ParsePattern(report.Override.Subject)
	if err != nil || pattern.End == overrides.ExactEnd {
		return
	}
	unknown := func(why any) {
		report.Warnings = append(report.Warnings, fmt.Sprintf("it is not known how many subjects have a counter: %v", why))
	}
	if e.searches.Add(1); e.searches.Load() > maxSubjectSearches {
		e.searches.Add(-1)
		unknown("others are being counted; try again in a few seconds")
		return
	}
	defer e.searches.Add(-1)
	s := subjectSearch{found: make(map[uint64]bool), seed: maphash.MakeSeed()}
	s.keys = e.subjectKeys(set, targets, &pattern)
	if isNamed {
		s.others = e.subjectKeys(set, deeperRules(set, targets, &pattern), &pattern)
	}
	n := 0
	if len(s.keys) > 0 {
		n, report.SubjectsAtLeast, err = s.count(ctx, e.Counters.Backend)
	}
	if err != nil {
		unknown(err)
		return
	}
	report.Subjects = &n
}

// subjectKeys returns the forms of the keys that the subjects of a pattern have.
func (e *LimitEditor) subjectKeys(set *rules.Set, targets []target, p *overrides.Pattern) (list []rules.SubjectKeys) {
	known := make(map[string]bool)
	for _, t := range targets {
		k, ok := e.Counters.Limiter.KeyFormat().SubjectKeys(set.Domain([]byte(t.rule.Domain)), t.rule, p.Entries,
			p.End == overrides.PrefixEnd)
		if ok && !t.rule.Unlimited && !known[k.Form] {
			known[k.Form] = true
			list = append(list, k)
		}
	}
	return list
}

// deeperRules returns the rules below those of targets that also count subjects of a pattern. Keys of their counters
// may have the forms of the targets.
func deeperRules(set *rules.Set, targets []target, p *overrides.Pattern) (list []target) {
	first := targets[0].rule
	for _, r := range set.Domain([]byte(first.Domain)).Rules() {
		if len(r.Path) > len(first.Path) && countsSubject(r, p) {
			list = append(list, target{rule: r})
		}
	}
	return list
}

// subjectSearch finds the subjects that have a counter.
type subjectSearch struct {
	keys, others []rules.SubjectKeys // those that the counters have, and those that they do not have
	found        map[uint64]bool     // by the hashes of the subjects
	seed         maphash.Seed
	key          []byte // is used again
}

// count returns the number of subjects. If it takes too long, or if they are too many, it is the least number.
func (s *subjectSearch) count(ctx context.Context, store backend.Backend) (n int, isLeast bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, subjectSearchTime)
	defer cancel()
	prefixes := make([]backend.KeyPrefix, len(s.keys))
	for i := range s.keys {
		prefixes[i] = s.keys[i].Prefix
	}
	err = backend.EditorOf(store).ResetPrefixes(ctx, prefixes, true, func(names [][]byte) {
		for _, name := range names {
			s.add(name)
		}
		if len(s.found) >= maxSubjects {
			cancel()
		}
	})
	if isLeast = ctx.Err() != nil; isLeast {
		err = nil
	}
	return len(s.found), isLeast, err
}

// add adds the subject of the counter with a name.
func (s *subjectSearch) add(name []byte) {
	s.key = backend.AppendKeyOfName(s.key[:0], name)
	for i := range s.keys {
		subject, ok := s.keys[i].Subject(s.key)
		if !ok {
			continue
		}
		if !slices.ContainsFunc(s.others, func(o rules.SubjectKeys) bool {
			_, isOther := o.Subject(s.key)
			return isOther
		}) {
			s.found[maphash.Bytes(s.seed, subject)] = true
		}
		return
	}
}
