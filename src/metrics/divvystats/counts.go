// Package divvystats counts decisions as Button's divvy does, under divvy's names.
package divvystats

import (
	"maps"
	"sync"
	"sync/atomic"

	"ratelimit/src/algorithm"
	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/rules"
)

// hitStatus is the result of a HIT for one rule.
type hitStatus uint8

const (
	statusAccepted hitStatus = iota
	statusRejected
	statusCanaryAccepted
	statusCanaryRejected
	statusCount
)

var statusNames = [statusCount]string{"accepted", "rejected", "canary-accepted", "canary-rejected"}

// Counts is a limiter.Recorder. A HIT counts under each canary rule that matches it, and under the rule that decides.
type Counts struct {
	labelCountsByRule metrics.TablePerSet[[]*labelCounts] // indexed by Rule.Index.

	mu            sync.Mutex              // guards countsByLabel.
	countsByLabel map[string]*labelCounts // Rule.Name as key: "" for all rules without a label.
}

// labelCounts are the counters of all rules with the same label.
type labelCounts struct {
	hitsByStatus     [statusCount]metrics.Counter
	possibleStatuses [statusCount]atomic.Bool // set for each status that a rule with this label can have or could have.
}

// New returns Counts at 0.
func New() *Counts { return &Counts{countsByLabel: make(map[string]*labelCounts)} }

// UseRules puts the rules of set in force. The counters of a label stay when its rules are removed.
func (c *Counts) UseRules(set *rules.Set) {
	c.mu.Lock()
	defer c.mu.Unlock()
	table := make([]*labelCounts, set.RuleSlots())
	for _, r := range set.Rules() {
		l := c.countsByLabel[r.Name]
		if l == nil {
			l = new(labelCounts)
			c.countsByLabel[r.Name] = l
		}
		ok, over := ruleStatuses(r)
		l.possibleStatuses[ok].Store(true)
		l.possibleStatuses[over].Store(true)
		table[r.Index] = l
	}
	c.labelCountsByRule.UseSet(set, table)
}

// ruleStatuses returns the status of allowed hits on r, and that of refused hits.
func ruleStatuses(r *rules.Rule) (ok, over hitStatus) {
	if r.ListSettings != nil && r.ListSettings.IsCanary {
		return statusCanaryAccepted, statusCanaryRejected
	}
	return statusAccepted, statusRejected
}

// Record implements limiter.Recorder. It does not count hits that the store did not answer,
// except those of a rule that rejects all hits.
func (c *Counts) Record(_ *limiter.Request, a *limiter.Answer) {
	table, ok := c.labelCountsByRule.TableOf(a.RuleSet)
	if !ok {
		return
	}
	for i := range a.Statuses {
		st := &a.Statuses[i]
		if m := st.Match; m != nil && st.Op == algorithm.Charge && m.IsUnlimited() {
			ok, _ := ruleStatuses(m.Limits[0])
			table[m.Limits[0].Index].hitsByStatus[ok].Add(1)
		}
		for j := range st.Charges {
			if c := &st.Charges[j]; c.Rule != nil && c.Op == algorithm.Charge {
				table[c.Rule.Index].countCharge(c)
			}
		}
	}
}

func (l *labelCounts) countCharge(c *limiter.Charge) {
	ok, over := ruleStatuses(c.Rule)
	if c.NotEnforced {
		ok, over = statusCanaryAccepted, statusCanaryRejected
	}
	switch {
	case c.Rule.Limit.Max == 0 || c.Verdict.Err == nil && c.Verdict.Over:
		l.hitsByStatus[over].Add(1)
	case c.Verdict.Err == nil:
		l.hitsByStatus[ok].Add(1)
	}
}

// PortFigures has the figures of the port that speaks divvy's protocol.
type PortFigures struct {
	Connections int                // the number of open connections.
	Errors      map[string]uint64  // counts ERR replies by code.
	Took        *metrics.Histogram // the decision times of HITs that were answered OK.
}

// HitTimer is the statsd name of the time that an answered HIT took, without the prefix.
const HitTimer = "hit"

// Figures returns all figures. prefix stands before their statsd names.
func (c *Counts) Figures(prefix string, port PortFigures) (list []metrics.Figure) {
	totals := make(map[string]uint64)
	c.mu.Lock()
	labels := maps.Clone(c.countsByLabel)
	c.mu.Unlock()
	for label, l := range labels {
		for s, status := range statusNames {
			n := l.hitsByStatus[s].Load()
			totals[status] += n
			if !l.possibleStatuses[s].Load() {
				continue
			}
			f := metrics.Figure{
				MetricName: "divvy_hits_total", Help: "HITs by rule, each that a HIT met: canaries, and the one that decided.",
				Labels: []string{"status", status, "rule_label", label}, Value: int64(n),
			}
			if label != "" {
				f.StatName = prefix + "hit." + status + "." + label
			}
			list = append(list, f)
		}
	}
	return append(list, metrics.Figures("divvy statistics", prefix, struct {
		PortFigures
		Took   divvyBuckets
		Totals map[string]uint64
	}{port, divvyBuckets{port.Took}, totals})...)
}

// divvyBuckets is a Histogram with the buckets of divvy only.
type divvyBuckets struct{ *metrics.Histogram }

// Snapshot implements metrics.Distribution.
func (b divvyBuckets) Snapshot() (count uint64, sum float64, few map[float64]uint64) {
	count, sum, all := b.Histogram.Snapshot()
	few = make(map[float64]uint64)
	for _, bound := range []float64{0.001, 0.002, 0.005, 0.01, 0.1, 0.5} {
		few[bound] = all[bound]
	}
	return count, sum, few
}
