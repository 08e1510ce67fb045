package candidate

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/operator/callertext"
	"ratelimit/src/operator/denials"
	"ratelimit/src/operator/subjects"
	"ratelimit/src/rules"
)

// Bounds on what a Tracker keeps.
const (
	// MaxRules is how many rules have counters of their own. Differences of further rules count for OtherRules.
	MaxRules = 1000
	// MaxSubjectRules is how many rules, those with most differences, have subjects: 110 KB each for requests that would
	// be denied, and for those that would be admitted.
	MaxSubjectRules = 20
	// MaxExamples is how many examples of each result are kept, up to 2 KB each.
	MaxExamples = 100

	// Of each result at most examplesPerInterval are examples in each exampleInterval.
	examplesPerInterval = 2
	exampleInterval     = time.Second
)

// OtherRules is the name of the rule that stands for rules beyond MaxRules.
const OtherRules = "(other)"

// Results are the differences, in the order of reports.
var Results = []Result{WouldDeny, WouldAdmit, WouldBeError}

// TrackerConfig is the configuration of a Tracker.
type TrackerConfig struct {
	SubjectRules int // how many rules have subjects, at most MaxSubjectRules; 0 for none
	Examples     int // how many examples of each result are kept, at most MaxExamples; 0 for none
}

// Tracker is a Recorder. Run must run meanwhile.
type Tracker struct {
	results [NumResults]metrics.Counter
	// tables has those of Results. A rule has its cell at Rule.Index, limits of requests at Set.RuleSlots+Domain.Index.
	tables     [NumResults]metrics.TablePerSet[[]*ruleCell]
	bySubjects [NumResults]*subjects.Tracker // nil for results without subjects.
	samplers   [NumResults]*denials.Sampler  // nil for results without examples.
	examples   [NumResults]*denials.Ring

	mu    sync.Mutex // guards the fields below.
	cells map[metrics.RuleName]*ruleCell
	used  int // how many cells have counters.
	other ruleCounts
	since time.Time
}

// ruleCell is a rule that may have differences. Most rules have none.
type ruleCell struct {
	metrics.RuleName
	counts atomic.Pointer[ruleCounts] // nil before the first difference.
}

// ruleCounts counts the differences of a rule by result.
type ruleCounts [NumResults]metrics.Counter

// NewTracker returns a Tracker without rules.
func NewTracker(cfg TrackerConfig) *Tracker {
	t := &Tracker{cells: make(map[metrics.RuleName]*ruleCell), since: time.Now()}
	for _, r := range Results {
		if n := min(cfg.SubjectRules, MaxSubjectRules); n > 0 && r != WouldBeError {
			t.bySubjects[r] = subjects.New(n)
		}
		if n := min(cfg.Examples, MaxExamples); n > 0 {
			t.examples[r] = denials.NewRing(n, time.Now())
			t.samplers[r] = denials.New(denials.Config{
				MaxSamples: examplesPerInterval, Interval: exampleInterval, OnSample: t.examples[r].Add,
			})
		}
	}
	return t
}

// UseRules tells which rules are compared from now on. candidate is nil if there are no candidate rules. The caller
// then puts them in force. Rules that keep their name keep their counts.
func (t *Tracker) UseRules(live, candidate *rules.Set) {
	if candidate == nil {
		candidate = new(rules.Set)
	}
	if live == nil {
		live = new(rules.Set)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.cells
	t.cells = make(map[metrics.RuleName]*ruleCell)
	liveTable, candidateTable := t.table(live, old), t.table(candidate, old)
	for _, r := range Results {
		set, table := candidate, candidateTable
		if r == WouldAdmit { // The live rules refuse the request.
			set, table = live, liveTable
		}
		t.tables[r].UseSet(set, table)
		if s := t.bySubjects[r]; s != nil {
			s.UseRules(set)
		}
	}
	t.used = 0
	for _, c := range t.cells {
		if n := c.counts.Load(); n != nil && n != &t.other {
			t.used++
		}
	}
}

// table returns the cells of set, and adds them to t.cells: those in old, or new ones. The caller holds t.mu.
func (t *Tracker) table(set *rules.Set, old map[metrics.RuleName]*ruleCell) []*ruleCell {
	table := make([]*ruleCell, set.RuleSlots()+set.DomainSlots())
	open := func(index int, domain, rule string) {
		name := metrics.RuleName{Domain: domain, Rule: rule}
		if t.cells[name] == nil {
			name = metrics.RuleName{Domain: strings.Clone(domain), Rule: strings.Clone(rule)}
			if t.cells[name] = old[name]; t.cells[name] == nil {
				shown := metrics.RuleName{Domain: callertext.Name(domain), Rule: callertext.Name(rule)}
				t.cells[name] = &ruleCell{RuleName: shown}
			}
		}
		table[index] = t.cells[name]
	}
	for _, r := range set.Rules() {
		open(r.Index, r.Domain, r.FullName)
	}
	for _, d := range set.Domains() {
		open(set.RuleSlots()+d.Index, d.Name, subjects.RequestLimits)
	}
	return table
}

// Reset forgets all counts, for other candidate rules. Examples and subjects stay until newer ones replace them.
func (t *Tracker) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.results {
		t.results[i].Store(0)
		t.other[i].Store(0)
	}
	for _, c := range t.cells {
		c.counts.Store(nil)
	}
	t.used, t.since = 0, time.Now()
}

// RecordCandidate implements Recorder. It allocates memory only for differences.
func (t *Tracker) RecordCandidate(req *limiter.Request, live, candidate *limiter.Answer, j Judgement) {
	t.results[j.Result].Add(1)
	if j.Descriptor < 0 {
		return
	}
	a := candidate
	if j.Result == WouldAdmit {
		a = live
	}
	table, ok := t.tables[j.Result].TableOf(a.RuleSet)
	if !ok || a.Domain == nil {
		return // Two reloads happened during the request.
	}
	st := &a.Statuses[j.Descriptor]
	index := a.RuleSet.RuleSlots() + a.Domain.Index
	switch c := st.BindingCharge; {
	case c != nil && c.Rule != nil:
		index = c.Rule.Index
	case c == nil && st.Match != nil:
		index = st.Match.Limits[0].Index
	}
	t.countsOf(table[index])[j.Result].Add(1)
	if s := t.bySubjects[j.Result]; s != nil && st.BindingCharge != nil {
		s.Add(subjects.DeniedHits, a, st.BindingCharge, 1, req.Descriptors[j.Descriptor].Entries)
	}
	if s := t.samplers[j.Result]; s != nil {
		s.Sample(req, a, j.Descriptor)
	}
}

// countsOf returns the counters of c, or those that rules beyond MaxRules share.
func (t *Tracker) countsOf(c *ruleCell) *ruleCounts {
	if n := c.counts.Load(); n != nil {
		return n
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n := c.counts.Load()
	if n == nil {
		if n = &t.other; t.used < MaxRules {
			n = new(ruleCounts)
			t.used++
		}
		c.counts.Store(n)
	}
	return n
}

// Run keeps the windows of subjects up to date until ctx ends.
func (t *Tracker) Run(ctx context.Context) error {
	var wait sync.WaitGroup
	for _, s := range t.bySubjects {
		if s != nil {
			wait.Go(func() { _ = s.Run(ctx) }) // It returns nil.
		}
	}
	wait.Wait()
	return nil
}

// RuleCounts are the differences of one rule, by result.
type RuleCounts struct {
	metrics.RuleName
	Counts [NumResults]uint64
}

// total returns the number of all differences.
func (r *RuleCounts) total() (n uint64) {
	for _, result := range Results {
		n += r.Counts[result]
	}
	return n
}

// Rules returns the rules with differences, those with most first.
func (t *Tracker) Rules() (list []RuleCounts) {
	add := func(name metrics.RuleName, counts *ruleCounts) {
		r := RuleCounts{RuleName: name}
		for i := range counts {
			r.Counts[i] = counts[i].Load()
		}
		if r.total() > 0 {
			list = append(list, r)
		}
	}
	t.mu.Lock()
	for _, c := range t.cells {
		if n := c.counts.Load(); n != nil && n != &t.other {
			add(c.RuleName, n)
		}
	}
	add(metrics.RuleName{Rule: OtherRules}, &t.other)
	t.mu.Unlock()
	slices.SortFunc(list, func(a, b RuleCounts) int {
		return cmp.Or(cmp.Compare(b.total(), a.total()), strings.Compare(a.Domain, b.Domain), strings.Compare(a.Rule, b.Rule))
	})
	return list
}

// Results returns how many requests had each result since the start or the last Reset.
func (t *Tracker) Results() map[string]uint64 {
	counts := make(map[string]uint64)
	for r := range NumResults {
		counts[r.String()] = t.results[r].Load()
	}
	return counts
}

// Since returns when counting began: the start, or the last Reset.
func (t *Tracker) Since() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.since
}

// Subjects returns the subjects of all rules with the most differences of a result in the last hour, sorted.
func (t *Tracker) Subjects(now time.Time, r Result, limit int) []subjects.Subject {
	if t.bySubjects[r] == nil {
		return nil
	}
	return t.bySubjects[r].Top(now, subjects.Query{Kind: subjects.DeniedHits, Window: subjects.Hour, Limit: limit})
}

// Examples returns the newest examples of a result, newest first: the denial that one version of the rules makes.
func (t *Tracker) Examples(r Result, limit int) []denials.Denial {
	if t.examples[r] == nil {
		return nil
	}
	list := t.examples[r].After(0, limit)
	slices.Reverse(list)
	return list
}

// Figures returns the differences by rule and result, for metrics.Registry.AddFigures.
func (t *Tracker) Figures() (list []metrics.Figure) {
	for _, r := range t.Rules() {
		for _, result := range Results {
			if n := r.Counts[result]; n > 0 {
				list = append(list, metrics.Figure{
					MetricName: "ratelimit_candidate_differences_total",
					Help:       "Requests that the candidate rules would answer differently, by the rule that refuses.",
					Unit:       "{request}",
					Value:      int64(n),
					Labels: []string{
						"domain", r.Domain, "rule", strings.TrimPrefix(r.Rule, r.Domain+"."), "result", result.String(),
					},
				})
			}
		}
	}
	return list
}
