// Package subjects finds the subjects of each rule with the most hits and with the most denied hits. A subject is what
// a limit counts: it has a counter of its own.
//
// A Tracker counts a sample of the decisions, so that the cost does not grow with the traffic, in memory that does not
// grow with the number of subjects.
package subjects

import (
	"cmp"
	"context"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/operator/callertext"
	"ratelimit/src/rules"
)

// Kind says which hits are counted.
type Kind uint8

// Hits are what a limit charges or refuses, and what the store did not answer. A settlement counts, and its reservation
// does not. Refunds and looks are not counted. A denied hit is one that the limit refused, unless shadow mode let it
// pass.
const (
	Hits Kind = iota
	DeniedHits
	kindCount
)

// Window says which time is counted.
type Window uint8

// Windows slide: the hits of the last minute are those since the clock's minute began, and a part of those of the
// minute before.
const (
	Minute Window = iota
	Hour
	Day
	windowCount
)

var windowLengths = [windowCount]time.Duration{time.Minute, time.Hour, 24 * time.Hour}

// minCountedTime is the least time that a rate is over, so that the first hits after a start are no high rate.
const minCountedTime = 10 * time.Second

// RequestLimits is the name of the rule that stands for the limits that come with the requests to a domain.
const RequestLimits = "(request)"

// maxSubjectBytes bounds the text of a subject.
const maxSubjectBytes = 256

// Tracker is a limiter.Recorder that finds subjects. Run must run meanwhile.
type Tracker struct {
	maxRules int
	random   func() uint64
	hash     func(key []byte) uint64

	tables  metrics.RuleTables[ruleSubjects] // The subjects of a domain are those of RequestLimits. mu guards changes.
	ranked  atomic.Int64                     // the number of rules with rankings.
	samples [kindCount]atomic.Int64          // counts the samples of all rules in this interval.

	advancedAt atomic.Int64 // the time of the last advance, in nanoseconds since 1970. It is 0 before the first one.

	mu    sync.Mutex                         // guards rules and changes of tables.
	rules map[metrics.RuleName]*ruleSubjects // the rules in force that have decided something.

	activatedMu sync.Mutex      // guards activated.
	activated   []*ruleSubjects // the rules that became active since the last advance.

	// Only advance uses these fields.
	startedAt    time.Time             // the time of the first advance.
	active       []*ruleSubjects       // those of the last intervals. Removed ones stay until they are idle.
	activeByKind [kindCount][]activity // memory that is used again.
}

// ruleSubjects are the subjects of one rule.
type ruleSubjects struct {
	metrics.RuleName
	samplers [kindCount]sampler
	rate     float64 // the moving average of decisions per interval, over about a minute. Only advance uses it.

	mu        sync.Mutex // guards the fields below, and those of samplers that say so.
	isActive  bool       // true if the rule is in Tracker.active or Tracker.activated.
	isRemoved bool       // true if a reload removed the rule, so that it gets no rankings.
	isRanked  bool       // true if the rule may have rankings.
	// missedHits is true if the rule had decisions without rankings. If not, its rankings count since Tracker.startedAt.
	missedHits bool
	since      time.Time // when the rule got its rankings. It is zero until the first advance after that.
	rankings   [kindCount]*ranking
	entries    []rules.Entry // memory that is used again.
	text       []byte
}

// ranking has the windows of one kind.
type ranking [windowCount]window

// New returns a Tracker for at most maxRules rules at a time, the busiest ones. A rule needs up to 330 KiB: 6 summaries
// of 16 KiB and their texts, for each kind of hits. Rules without traffic need nothing.
func New(maxRules int) *Tracker {
	seed := maphash.MakeSeed()
	return &Tracker{
		maxRules: maxRules,
		random:   rand.Uint64,
		hash:     func(key []byte) uint64 { return maphash.Bytes(seed, key) },
		rules:    make(map[metrics.RuleName]*ruleSubjects),
	}
}

// UseRules puts the rules of set in force. Rules that keep their name keep their subjects.
func (t *Tracker) UseRules(set *rules.Set) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, old := t.tables.InForce()
	table, added, removed := t.tables.Next(set)
	gone := make(map[metrics.RuleName]*ruleSubjects)
	for _, o := range removed {
		if s := old.Of(o).Load(); s != nil {
			gone[nameOf(o)] = s
		}
	}
	for _, o := range added {
		if name := nameOf(o); t.rules[name] != nil {
			table.Of(o).Store(t.rules[name])
			delete(gone, name)
		}
	}
	for name, r := range gone {
		delete(t.rules, name)
		t.remove(r)
	}
	t.tables.UseSet(set, table)
}

// nameOf returns the name of a rule, or of the limits that come with the requests to a domain.
func nameOf(o metrics.Owner) metrics.RuleName {
	name := o.Name()
	if o.Rule == nil {
		name.Rule = RequestLimits
	}
	return name
}

// remove keeps a rule that is not in force from having rankings.
func (t *Tracker) remove(r *ruleSubjects) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isRemoved = true
	t.dropRankings(r)
}

// subjectsOf returns the subjects of the rule that c charges, or of the domain if c charges a limit of the request.
// table is that of a.RuleSet. The first call for a rule makes them.
func (t *Tracker) subjectsOf(table *metrics.RuleTable[ruleSubjects], a *limiter.Answer,
	c *limiter.Charge,
) *ruleSubjects {
	owner := metrics.Owner{Rule: c.Rule}
	if c.Rule == nil {
		owner.Domain = a.Domain
	}
	if r := table.Of(owner).Load(); r != nil {
		return r
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	name := nameOf(owner)
	r := t.rules[name]
	if r == nil {
		r = newRuleSubjects(name)
	}
	if t.tables.Store(a.RuleSet, owner, r) {
		// The copies let the texts of the Set be freed.
		t.rules[metrics.RuleName{Domain: strings.Clone(name.Domain), Rule: strings.Clone(name.Rule)}] = r
	} else {
		t.remove(r)
	}
	return r
}

// newRuleSubjects returns the subjects of a rule that all decisions are sampled of.
func newRuleSubjects(name metrics.RuleName) *ruleSubjects {
	r := &ruleSubjects{RuleName: metrics.RuleName{Domain: callertext.Name(name.Domain), Rule: callertext.Name(name.Rule)}}
	for i := range r.samplers {
		r.samplers[i].setWeight(1)
		r.samplers[i].maxSamples = maxSamples
	}
	return r
}

// dropRankings takes the rankings from r. The caller holds r.mu.
func (t *Tracker) dropRankings(r *ruleSubjects) {
	if r.isRanked {
		r.isRanked, r.missedHits, r.rankings, r.since = false, true, [kindCount]*ranking{}, time.Time{}
		t.ranked.Add(-1)
	}
}

// Record implements limiter.Recorder. It allocates memory only for the first decision of a rule, for a rule that gets
// rankings, and for its first texts.
func (t *Tracker) Record(req *limiter.Request, a *limiter.Answer) {
	table, ok := t.tables.TableOf(a.RuleSet)
	if !ok || a.Domain == nil {
		return
	}
	for i := range a.Statuses {
		st := &a.Statuses[i]
		for j := range st.Charges {
			c := &st.Charges[j]
			hits := c.ChargedUnits()
			if c.Op == algorithm.Charge && (c.Verdict.Over || c.Verdict.Err != nil) {
				hits += c.RequestedAmount
			}
			if hits == 0 {
				continue
			}
			r, bits := t.subjectsOf(&table, a, c), t.random()
			if bits&(sampleAll-1) < r.samplers[Hits].threshold.Load() {
				t.count(r, Hits, c, hits, req.Descriptors[i].Entries)
			}
			if a.Over && c.Over && bits>>32 < r.samplers[DeniedHits].threshold.Load() {
				t.count(r, DeniedHits, c, max(c.RequestedAmount, 1), req.Descriptors[i].Entries)
			}
		}
	}
}

// Add counts hits of the kind for c, a charge of a for a descriptor with these entries. Record does not need it.
func (t *Tracker) Add(kind Kind, a *limiter.Answer, c *limiter.Charge, hits uint64, entries []rules.Entry) {
	table, ok := t.tables.TableOf(a.RuleSet)
	if !ok {
		return
	}
	if r := t.subjectsOf(&table, a, c); t.random()&(sampleAll-1) < r.samplers[kind].threshold.Load() {
		t.count(r, kind, c, hits, entries)
	}
}

// count counts a sampled decision: the charge c of hits for a descriptor with these entries.
func (t *Tracker) count(r *ruleSubjects, kind Kind, c *limiter.Charge, hits uint64, entries []rules.Entry) {
	hash := max(t.hash(c.CounterKey), 1)
	isBusy := t.samples[kind].Add(1) > 2*maxSamples
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.isActive {
		r.isActive = true
		t.activatedMu.Lock()
		t.activated = append(t.activated, r)
		t.activatedMu.Unlock()
	}
	weighted := float64(r.samplers[kind].count(isBusy)) * float64(hits)
	if r.rankings[kind] == nil {
		r.rankings[kind] = t.newRanking(r)
	}
	rank := r.rankings[kind]
	if rank == nil {
		return
	}
	r.text = r.text[:0]
	subject := func() []byte {
		if len(r.text) == 0 {
			r.writeText(c.Rule, entries)
		}
		return r.text
	}
	for i := range rank {
		s := rank[i].current
		fraction := float64(t.random()>>11) / (1 << 53)
		if count := s.add(hash, weighted, fraction); count > 0 {
			s.rank(hash, count, subject)
		}
	}
}

// reserve gives r the right to rankings if it is in force, and if less than maxRules rules have it. The caller holds
// r.mu.
func (t *Tracker) reserve(r *ruleSubjects) {
	if r.isRanked || r.isRemoved {
		return
	}
	if r.isRanked = t.ranked.Add(1) <= int64(t.maxRules); !r.isRanked {
		t.ranked.Add(-1)
		r.missedHits = true
	}
}

// newRanking returns a new ranking for r, nil if r must not have one now. The caller holds r.mu.
func (t *Tracker) newRanking(r *ruleSubjects) *ranking {
	if t.reserve(r); !r.isRanked {
		return nil
	}
	rank := new(ranking)
	for i := range rank {
		rank[i] = window{new(summary), new(summary), t.advancedAt.Load() / int64(windowLengths[i])}
	}
	return rank
}

// writeText sets r.text to the entries of a descriptor that form the counter of rule; "(all)" if the rule has only one
// counter. The caller holds r.mu.
func (r *ruleSubjects) writeText(rule *rules.Rule, entries []rules.Entry) {
	if rule != nil {
		r.entries = rule.AppendCounterEntries(r.entries[:0], entries)
		entries = r.entries
	}
	r.text = callertext.AppendDescriptor(r.text[:0], entries)
	clear(r.entries) // They belong to the request.
	if len(r.text) > maxSubjectBytes {
		r.text = callertext.Cut(r.text, maxSubjectBytes)
	} else if len(r.text) == 0 {
		r.text = append(r.text, "(all)"...)
	}
}

// Run keeps the windows and the sampling up to date until ctx ends.
func (t *Tracker) Run(ctx context.Context) error {
	ticker := time.NewTicker(samplingInterval)
	defer ticker.Stop()
	for {
		t.advance(time.Now())
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// advance ends a sampling interval: it moves the windows, chooses the rules with rankings, and shares out the samples
// of the next interval. Only one goroutine at a time may call it.
func (t *Tracker) advance(now time.Time) {
	elapsed := samplingInterval
	if last := t.advancedAt.Load(); last != 0 {
		elapsed = max(now.Sub(time.Unix(0, last)), time.Millisecond)
	} else {
		t.startedAt = now
	}
	t.advancedAt.Store(now.UnixNano())
	for kind := range kindCount {
		t.samples[kind].Store(0)
		t.activeByKind[kind] = t.activeByKind[kind][:0]
	}
	t.activatedMu.Lock()
	t.active, t.activated = append(t.active, t.activated...), nil
	t.activatedMu.Unlock()
	var busiest, idlest *ruleSubjects // the busiest rule without rankings, and the least busy one with rankings.
	stillActive := t.active[:0]
	for _, r := range t.active {
		isRanked, isActive := t.endInterval(r, now, float64(samplingInterval)/float64(elapsed))
		if isActive {
			stillActive = append(stillActive, r)
		}
		switch {
		case isRanked && (idlest == nil || r.rate < idlest.rate):
			idlest = r
		case !isRanked && (busiest == nil || r.rate > busiest.rate):
			busiest = r
		}
	}
	clear(t.active[len(stillActive):])
	t.active = stillActive
	// The factor keeps rules that are about as busy from replacing each other.
	if busiest != nil && idlest != nil && t.ranked.Load() >= int64(t.maxRules) && busiest.rate > 2*idlest.rate {
		t.replace(idlest, busiest)
	}
	for kind, list := range t.activeByKind {
		perRule := shareOut(list)
		for _, a := range list {
			a.rule.mu.Lock()
			s := &a.rule.samplers[kind]
			s.setWeight(max(1, uint64(a.decisions/perRule+0.999)))
			s.samples, s.maxSamples = 0, int64(2*perRule)+1
			a.rule.mu.Unlock()
		}
		clear(list)
	}
}

// replace gives next the right to rankings that old had.
func (t *Tracker) replace(old, next *ruleSubjects) {
	old.mu.Lock()
	t.dropRankings(old)
	old.mu.Unlock()
	next.mu.Lock()
	defer next.mu.Unlock()
	t.reserve(next) // If another rule was faster, next gets rankings another time.
}

// endInterval ends the interval of r, and adds what r did to t.activeByKind. perInterval converts numbers to those of
// an interval of the usual length. It reports whether r has rankings, and whether the next advance must look at it.
func (t *Tracker) endInterval(r *ruleSubjects, now time.Time, perInterval float64) (isRanked, isActive bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isRanked && r.since.IsZero() {
		if r.since = now; !r.missedHits {
			r.since = t.startedAt
		}
	}
	isIdle := true
	for kind := range r.samplers {
		s := &r.samplers[kind]
		decisions := float64(s.decisions) * perInterval
		if Kind(kind) == Hits {
			const intervalsPerMinute = float64(time.Minute / samplingInterval)
			r.rate += (decisions - r.rate) / intervalsPerMinute
		}
		if s.decisions > 0 {
			t.activeByKind[kind] = append(t.activeByKind[kind], activity{r, decisions})
		} else if s.weight > 1 {
			s.setWeight(s.weight / 2)
		}
		isIdle = isIdle && s.decisions == 0 && s.weight == 1
		s.decisions = 0
		if rank := r.rankings[kind]; rank != nil {
			for i := range rank {
				rank[i].advance(now.UnixNano() / int64(windowLengths[i]))
			}
		}
	}
	if isIdle && !r.isRanked && r.rate < 0.01 {
		r.isActive, r.rate = false, 0
	}
	return r.isRanked, r.isActive
}

// Query asks for subjects. Empty names mean all domains, or all rules of a domain.
type Query struct {
	Kind         Kind
	Window       Window
	Domain, Rule string
	Limit        int
}

// Subject is what a limit counts: a user, an address, a key. Its hits are estimates.
type Subject struct {
	Domain string `json:"domain"`
	Rule   string `json:"rule"`
	// Subject has the entries of the descriptor that form the counter, as callertext.Descriptor writes them. Callers chose
	// its text.
	Subject   string  `json:"subject"`
	PerSecond float64 `json:"per_second"`
	Hits      uint64  `json:"hits"` // the estimate for the whole window.
	// Shares are the replicas' shares in the hits, 0 to 1, if the hits are the sums of several replicas.
	Shares []float64 `json:"shares,omitempty"`
}

// Top returns the subjects that q asks for at a time, those with the most hits first. A rule has at most listSize
// subjects for each of two periods.
func (t *Tracker) Top(now time.Time, q Query) []Subject {
	t.mu.Lock()
	var asked []*ruleSubjects
	for name, r := range t.rules {
		if (q.Domain == "" || name.Domain == q.Domain) && (q.Rule == "" || name.Rule == q.Rule) {
			asked = append(asked, r)
		}
	}
	t.mu.Unlock()
	var list []Subject
	for _, r := range asked {
		list = r.appendSubjects(list, now, q)
	}
	slices.SortFunc(list, func(a, b Subject) int {
		return cmp.Or(cmp.Compare(b.Hits, a.Hits), cmp.Compare(b.PerSecond, a.PerSecond), cmp.Compare(a.Domain, b.Domain),
			cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Subject, b.Subject))
	})
	return list[:min(len(list), max(q.Limit, 0))]
}

// appendSubjects appends the subjects of r that have hits in the window.
func (r *ruleSubjects) appendSubjects(list []Subject, now time.Time, q Query) []Subject {
	r.mu.Lock()
	defer r.mu.Unlock()
	rank := r.rankings[q.Kind]
	if rank == nil {
		return list
	}
	w, length := &rank[q.Window], windowLengths[q.Window]
	inPeriod := min(max(now.Sub(time.Unix(0, w.period*int64(length))), 0), length)
	share := 1 - float64(inPeriod)/float64(length)
	counted := length
	if !r.since.IsZero() {
		counted = min(max(now.Sub(r.since), minCountedTime), length)
	}
	w.forEach(share, func(subject []byte, hits float64) {
		if hits >= 0.5 {
			list = append(list, Subject{
				Domain: r.Domain, Rule: r.Rule, Subject: string(subject), PerSecond: hits / counted.Seconds(),
				Hits: uint64(hits + 0.5),
			})
		}
	})
	return list
}
