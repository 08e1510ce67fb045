// Package divvystats counts what the limiter reports as Button's divvy does, and
// gives the figures the names that they have there.
package divvystats

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"ratelimit/src/algorithm"
	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/rules"
)

// status is what became of a hit on one rule.
type status uint8

const (
	accepted status = iota
	rejected
	canaryAccepted
	canaryRejected
	statuses
)

var statusNames = [statuses]string{"accepted", "rejected", "canary-accepted", "canary-rejected"}

// Counts is a limiter.Recorder. Every rule that a request meets counts, so a
// request may count several times: for each canary, and for what decides.
type Counts struct {
	table atomic.Pointer[table]

	mu     sync.Mutex // guards what follows
	labels map[string]*counts
}

// counts are those of the rules of one label, and of all without one.
type counts struct {
	hits [statuses]metrics.Counter
	// has says which of them the rules of that label may have, now or before.
	has [statuses]bool
}

// table has the counts of each rule of a Set, by their Index, and keeps the table
// before it for requests that began before the swap.
type table struct {
	set    *rules.Set
	counts []*counts
	before *table // whose own before is nil
}

// New returns counts of nothing yet.
func New() *Counts { return &Counts{labels: make(map[string]*counts)} }

// Use makes the counts of set's rules ready. What a label has counted stays, also
// when its rule is gone.
func (c *Counts) Use(set *rules.Set) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &table{set: set}
	if old := c.table.Load(); old != nil {
		t.before = &table{set: old.set, counts: old.counts}
	}
	for _, r := range set.Rules() {
		l := c.labels[r.Name]
		if l == nil {
			l = new(counts)
			c.labels[r.Name] = l
		}
		ok, over := outcomes(r)
		l.has[ok], l.has[over] = true, true
		t.counts = append(t.counts, l)
	}
	c.table.Store(t)
}

// outcomes are the statuses of hits on r that pass, and of those that do not.
func outcomes(r *rules.Rule) (ok, over status) {
	if r.Listed != nil && r.Listed.Canary {
		return canaryAccepted, canaryRejected
	}
	return accepted, rejected
}

// Record counts one decision; see limiter.Recorder. Hits that the store did not
// answer for are neither accepted nor rejected, unless their rule rejects all.
func (c *Counts) Record(_ *limiter.Request, a *limiter.Answer) {
	t := c.table.Load()
	for t != nil && t.set != a.Set {
		t = t.before
	}
	if t == nil {
		return
	}
	for i := range a.Statuses {
		st := &a.Statuses[i]
		if st.Op == algorithm.Refund {
			continue
		}
		if r := st.Rule; r != nil && r.Charges == nil && r.Unlimited {
			ok, _ := outcomes(r)
			t.counts[r.Index].hits[ok].Add(1)
		}
		for j := range st.Charges {
			if r := st.Charges[j].Rule; r != nil {
				t.counts[r.Index].charge(&st.Charges[j])
			}
		}
	}
}

func (l *counts) charge(c *limiter.Charge) {
	ok, over := outcomes(c.Rule)
	switch {
	case c.Rule.Limit.Max == 0 || c.Verdict.Err == nil && c.Verdict.Over:
		l.hits[over].Add(1)
	case c.Verdict.Err == nil:
		l.hits[ok].Add(1)
	}
}

// each calls do for all labels that rules have or had, in order.
func (c *Counts) each(do func(label string, l *counts)) {
	c.mu.Lock()
	labels := maps.Clone(c.labels)
	c.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		do(name, labels[name])
	}
}
