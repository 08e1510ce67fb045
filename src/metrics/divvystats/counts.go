// Package divvystats counts decisions as Button's divvy does, under divvy's names.
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

// status is the result of a HIT for one rule.
type status uint8

const (
	accepted status = iota
	rejected
	canaryAccepted
	canaryRejected
	statuses
)

var statusNames = [statuses]string{"accepted", "rejected", "canary-accepted", "canary-rejected"}

// Counts is a limiter.Recorder. A HIT counts under each canary rule that matches it, and under
// the rule that decides.
type Counts struct {
	table metrics.PerSet[[]*counts] // by Rule.Index

	mu     sync.Mutex         // guards labels
	labels map[string]*counts // by Rule.Name; "" for all rules without a label
}

// counts are the counters of all rules with the same label.
type counts struct {
	hits [statuses]metrics.Counter
	has  [statuses]atomic.Bool // set for the statuses that rules with this label can have, now or earlier
}

// New returns Counts at 0.
func New() *Counts { return &Counts{labels: make(map[string]*counts)} }

// Use puts the rules of set in force. The counters of a label stay when its rules are removed.
func (c *Counts) Use(set *rules.Set) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var table []*counts
	for _, r := range set.Rules() {
		l := c.labels[r.Name]
		if l == nil {
			l = new(counts)
			c.labels[r.Name] = l
		}
		ok, over := outcomes(r)
		l.has[ok].Store(true)
		l.has[over].Store(true)
		table = append(table, l)
	}
	c.table.Use(set, table)
}

// outcomes returns the status of allowed hits on r, and that of refused hits.
func outcomes(r *rules.Rule) (ok, over status) {
	if r.Listed != nil && r.Listed.Canary {
		return canaryAccepted, canaryRejected
	}
	return accepted, rejected
}

// Record implements limiter.Recorder. It does not count hits that the store did not answer,
// except those of a rule that rejects all hits.
func (c *Counts) Record(_ *limiter.Request, a *limiter.Answer) {
	table, ok := c.table.Find(a.Set)
	if !ok {
		return
	}
	for i := range a.Statuses {
		st := &a.Statuses[i]
		if st.Op == algorithm.Refund {
			continue
		}
		if r := st.Rule; r != nil && r.Charges == nil && r.Unlimited {
			ok, _ := outcomes(r)
			table[r.Index].hits[ok].Add(1)
		}
		for j := range st.Charges {
			if r := st.Charges[j].Rule; r != nil {
				table[r.Index].charge(&st.Charges[j])
			}
		}
	}
}

// charge counts c under its rule.
func (l *counts) charge(c *limiter.Charge) {
	ok, over := outcomes(c.Rule)
	switch {
	case c.Rule.Limit.Max == 0 || c.Verdict.Err == nil && c.Verdict.Over:
		l.hits[over].Add(1)
	case c.Verdict.Err == nil:
		l.hits[ok].Add(1)
	}
}

// Port has the figures of the port that speaks divvy's protocol.
type Port struct {
	Connections int               // open ones
	Errors      map[string]uint64 // ERR replies, by code
}

// Timer is the statsd name of the time that an answered HIT took, without the prefix.
const Timer = "hit"

// Figures returns all figures. prefix stands before their statsd names. took has the durations
// of answered HITs; nil leaves them out.
func (c *Counts) Figures(prefix string, port Port, took *metrics.Histogram) []metrics.Figure {
	list := []metrics.Figure{metrics.Gauge(prefix+"connections", port.Connections).Native("divvy_tcp_connections_total", "Connections that are open.")}
	if took != nil {
		list = append(list, metrics.Spread(buckets{took}).Native("divvy_hit_duration_seconds", "How long it took to decide HITs that were answered OK."))
	}
	for code, n := range port.Errors {
		list = append(list, metrics.Count(prefix+"error."+code, n).Native("divvy_errors_total", "ERR replies.", "code", code))
	}
	var all [statuses]uint64
	c.mu.Lock()
	labels := maps.Clone(c.labels)
	c.mu.Unlock()
	for _, label := range slices.Sorted(maps.Keys(labels)) {
		l := labels[label]
		for s := range statuses {
			n := l.hits[s].Value()
			all[s] += n
			if !l.has[s].Load() {
				continue
			}
			stat := ""
			if label != "" {
				stat = prefix + "hit." + statusNames[s] + "." + label
			}
			list = append(list, metrics.Count(stat, n).Native("divvy_hits_total", "HITs by rule, each that a HIT met: canaries, and the one that decided.",
				"status", statusNames[s], "rule_label", label))
		}
	}
	for s, n := range all {
		list = append(list, metrics.Count(prefix+"hit."+statusNames[s], n))
	}
	return list
}

// buckets is a Histogram with the buckets of divvy only.
type buckets struct{ *metrics.Histogram }

// Snapshot implements metrics.Distribution.
func (b buckets) Snapshot() (count uint64, sum float64, few map[float64]uint64) {
	count, sum, all := b.Histogram.Snapshot()
	few = make(map[float64]uint64)
	for _, bound := range []float64{0.001, 0.002, 0.005, 0.01, 0.1, 0.5} {
		few[bound] = all[bound]
	}
	return count, sum, few
}
