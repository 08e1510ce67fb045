package limiter

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"ratelimit/src/rules"
)

// Find starts the decision on req, whose hits b gets: it sets the rule of each descriptor, as set has them. It stops
// when ctx ends. req, a, set and b must not change until Answer. a must not be in use by another decision of b.
func (l *Limiter) Find(ctx context.Context, set *rules.Set, req *Request, a *Answer, b *Batch) error {
	if err := l.validateRequest(req, set); err != nil {
		a.begin(set, b)
		return err
	}
	var domain *rules.Domain
	if req.CallerLimit == nil {
		domain = set.Domain(req.Domain)
	}
	return FindIn(ctx, set, domain, req, a, b)
}

// FindIn is Find for a valid request and its domain in set, which is nil if there is none of that name.
func FindIn(ctx context.Context, set *rules.Set, domain *rules.Domain, req *Request, a *Answer, b *Batch) error {
	a.begin(set, b)
	a.Statuses = append(a.Statuses, make([]Status, len(req.Descriptors))...)
	if a.Domain = domain; domain == nil {
		if req.CallerLimit != nil {
			a.reserve(req)
		}
		return nil
	}
	b.search.Begin(ctx)
	a.findRules(req.Descriptors)
	if a.Domain.HasReplacingRules {
		a.dropReplacedRules()
	}
	a.reserve(req)
	return b.searchError()
}

// begin starts a decision by set, whose hits b gets.
func (a *Answer) begin(set *rules.Set, b *Batch) {
	a.clearForReuse()
	a.RuleSet, a.batch, a.firstHit = set, b, len(b.Hits)
}

// validateRequest returns an error if req is invalid, or if there are no rules.
func (l *Limiter) validateRequest(req *Request, set *rules.Set) error {
	switch n := len(req.Descriptors); {
	case len(req.Domain) == 0:
		return errNoDomain
	case n == 0:
		return errNoDescriptors
	case n > l.cfg.MaxDescriptors:
		return fmt.Errorf("%w: %d descriptors, at most %d are allowed", ErrRequestTooLarge, n, l.cfg.MaxDescriptors)
	case set == nil && req.CallerLimit == nil:
		return ErrNoRules
	}
	return nil
}

// findRules sets what a.Statuses match.
func (a *Answer) findRules(descriptors []Descriptor) {
	b := a.batch
	for i := range a.Statuses {
		d, st := &descriptors[i], &a.Statuses[i]
		if !d.HasLimit {
			first := len(b.search.Canaries)
			st.Match = a.Domain.FindRule(d.Entries, &b.search)
			st.canaryRules = b.search.Canaries[first:]
		}
	}
}

// dropReplacedRules removes each match of a.Statuses whose limits are all replaced by other rules of the request.
func (a *Answer) dropReplacedRules() {
	replaced := &a.batch.replaced
	replaced.Reset()
	addReplacedBy := func(m *rules.Match) {
		for _, r := range m.Limits {
			replaced.AddReplacedBy(r)
		}
	}
	for i := range a.Statuses {
		for _, canary := range a.Statuses[i].canaryRules {
			addReplacedBy(canary)
		}
		if m := a.Statuses[i].Match; m != nil {
			addReplacedBy(m)
		}
	}
	applies := func(r *rules.Rule) bool { return !replaced.IsReplaced(r) }
	for i := range a.Statuses {
		if m := a.Statuses[i].Match; m != nil && !slices.ContainsFunc(m.Limits, applies) {
			a.Statuses[i].Match = nil
		}
	}
}

// reserve makes room for all charges of req, whose rules are found: adding them must not grow a.Charges, since statuses
// refer to it.
func (a *Answer) reserve(req *Request) {
	const (
		keyOverhead = 24      // about what a key has beside the domain and the entries, such as the window
		maxKeyRoom  = 2 << 20 // Not each rule is charged, so room for long keys is made when they come.
	)
	charges, keyBytes := 0, 0
	for i := range a.Statuses {
		st := &a.Statuses[i]
		n := 1
		if st.Match != nil {
			n = len(st.Match.Limits)
		}
		for _, canary := range st.canaryRules {
			n += len(canary.Limits)
		}
		charges += n
		if n > 1 {
			keyLength := keyOverhead + len(req.Domain)
			for _, e := range req.Descriptors[i].Entries {
				keyLength += len(e.Key) + len(e.Value) + len("__")
			}
			keyBytes += n * keyLength
		}
	}
	b := a.batch
	a.Charges, b.counterKeys = slices.Grow(a.Charges, charges), slices.Grow(b.counterKeys, min(keyBytes, maxKeyRoom))
	b.Hits = slices.Grow(b.Hits, charges)
}

// searchError returns the error of a request whose search for rules has stopped early; nil if it has not.
func (b *Batch) searchError() error {
	err := b.search.Err()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, rules.ErrTooMuchRegexWork):
		return fmt.Errorf("%w: %w", ErrRequestTooLarge, err)
	}
	return fmt.Errorf("limiter: %w", err)
}
