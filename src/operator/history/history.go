// Package history keeps the rates of decisions of the last hour, of all rules together, of each domain and of the
// busiest rules, and those of the last ten seconds of all rules. It reads the counters of a metrics.Registry. It counts
// requests itself.
package history

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"ratelimit/src/metrics"
)

// Config is the configuration of a History.
type Config struct {
	// Registry has the counters; required.
	Registry *metrics.Registry
	// ShadowMode says that the limiter allows every request, so that no decision is a denial.
	ShadowMode bool
	// MaxDomains and MaxRules are how many domains and rules have a history, each of 10.1 KB. They are the busiest ones.
	// Default to 100 and 500.
	MaxDomains, MaxRules int
}

const (
	// Step is the time between two values of a history.
	Step = 10 * time.Second
	// Steps is the number of values of a history: those of an hour.
	Steps = int(time.Hour / Step)
	// tick is the time between two readings of the counters.
	tick = 2 * time.Second
	// ticksPerStep is also the number of readings that current rates are made of.
	ticksPerStep = int(Step / tick)
)

// PerSecond are rates in decisions per second; see metrics.Decisions. A decision is one descriptor of a request that a
// rule limits. Each decision is admitted or denied, or has failed.
type PerSecond struct {
	Admitted float64 `json:"admitted"`
	Denied   float64 `json:"denied"`
	Near     float64 `json:"near"`     // the part of Admitted that was close to the limit.
	Shadow   float64 `json:"shadow"`   // the part of Admitted that was over a limit that was not enforced.
	Fallback float64 `json:"fallback"` // the part of Admitted and Denied that was decided without the store.
	Failed   float64 `json:"failed"`   // decisions that were answered with an error, because the store did not answer.
	// Unmatched are descriptors that no rule applies to. They are no decisions, and no rule has some.
	Unmatched float64 `json:"unmatched"`
	// LeaseMisses are the decisions on leased limits that needed the store.
	LeaseMisses float64 `json:"lease_misses,omitempty"`
}

// Total is the rate of all decisions.
func (p PerSecond) Total() float64 { return p.Admitted + p.Denied + p.Failed }

// values are the same numbers as an array, which is easier to add up.
type values [numValues]float64

// A history has the first numCharted values.
const (
	numValues  = 8
	numCharted = 7
)

func (v values) perSecond(elapsed time.Duration) PerSecond {
	if elapsed <= 0 {
		return PerSecond{}
	}
	s := elapsed.Seconds()
	return PerSecond{v[0] / s, v[1] / s, v[2] / s, v[3] / s, v[4] / s, v[5] / s, v[6] / s, v[7] / s}
}

// descriptors is the number of all decisions, and of descriptors without a rule.
func (v values) descriptors() float64 { return v[0] + v[1] + v[5] + v[6] }

// Rates are the current rates of a rule, or of a domain if Rule is empty.
type Rates struct {
	Domain string
	Rule   string // the full name of the rule.
	PerSecond
}

// Current are the rates over the last ten seconds. Domains and Rules have all that have decided something and were not
// removed more than an hour ago; Rules has no limits of requests. Both are sorted by decisions per second, then by
// name. Callers must not change them.
type Current struct {
	Total          PerSecond
	Requests       RequestsPerSecond
	Domains, Rules []Rates
}

// Hour is a history of up to an hour. The lists are equally long, with rates as in PerSecond, oldest first. The last
// value is that of the last step that has ended.
type Hour struct {
	Start       time.Time `json:"start"` // the begin of the first step.
	StepSeconds int       `json:"step_seconds"`
	Admitted    []float64 `json:"admitted"`
	Denied      []float64 `json:"denied"`
	Near        []float64 `json:"near"`
	Shadow      []float64 `json:"shadow"`
	Fallback    []float64 `json:"fallback"`
	Failed      []float64 `json:"failed"`
	Unmatched   []float64 `json:"unmatched"`
}

// Lists returns the lists of h, each in the place that its rate has in values.
func (h *Hour) Lists() [numCharted]*[]float64 {
	return [...]*[]float64{&h.Admitted, &h.Denied, &h.Near, &h.Shadow, &h.Fallback, &h.Failed, &h.Unmatched}
}

// History keeps rates. It is a limiter.Recorder that counts requests. Run must run meanwhile.
type History struct {
	cfg           Config
	requestCounts requestCounts

	mu           sync.Mutex // guards the fields below.
	total        series
	requests     series // those of requestCounts, without a ring.
	domains      map[string]*series
	rules        map[metrics.RuleName]*series
	current      *Current                    // nil if there was a reading since it was made.
	readings     int64                       // the number of readings.
	lastReading  time.Time                   // zero before the first reading.
	readingTimes [ticksPerStep]time.Duration // the times between the last readings, as in series.recent.
	steps        int64                       // the number of steps that have ended.
	lastStepEnd  time.Time
}

// series are the numbers of a rule, of a domain, or of all rules together.
type series struct {
	counted values // the counters of a rule, or of a domain, at the last reading.
	// recent has what the last readings added. The position of a reading is its number modulo the length.
	recent      [ticksPerStep][numValues]float32
	step        values // what was added since the last step ended.
	lastReading int64  // the number of the last reading that had the series.
	// the moving average of descriptors per second, over about ten minutes. It is 0 until a step has some.
	average float64
	ring    *ring // nil if the series has no history.
}

// ring has the rates of the last steps. The position of a step is its number modulo the length.
type ring struct {
	firstStep int64 // the number of the first step that the ring has.
	rates     [Steps][numCharted]float32
}

// New returns an empty History.
func New(cfg Config) *History {
	cfg.MaxDomains, cfg.MaxRules = cmp.Or(cfg.MaxDomains, 100), cmp.Or(cfg.MaxRules, 500)
	return &History{
		cfg: cfg, total: series{ring: new(ring)}, domains: make(map[string]*series),
		rules: make(map[metrics.RuleName]*series),
	}
}

// Run reads the counters every two seconds until ctx ends.
func (h *History) Run(ctx context.Context) error {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		h.read(time.Now())
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (h *History) forEachSeries(do func(*series)) {
	do(&h.total)
	do(&h.requests)
	for _, s := range h.domains {
		do(s)
	}
	for _, s := range h.rules {
		do(s)
	}
}

// read reads the counters.
func (h *History) read(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	isFirst, elapsed := h.lastReading.IsZero(), now.Sub(h.lastReading)
	if isFirst {
		h.lastStepEnd, elapsed = now, 0
	} else if elapsed <= 0 {
		return
	}
	slot := int(h.readings % int64(ticksPerStep))
	h.readings++
	h.lastReading, h.readingTimes[slot], h.current = now, elapsed, nil
	h.forEachSeries(func(s *series) { s.recent[slot] = [numValues]float32{} })
	if requests := h.requests.addedSince(h.requestCounts.values()); !isFirst {
		h.requests.add(slot, requests)
	}
	h.cfg.Registry.ForEachDecisions(func(domain, name string, d metrics.Decisions) {
		ofDomain := seriesOf(h.domains, domain, h.readings)
		counter := ofDomain
		if name != "" {
			counter = seriesOf(h.rules, metrics.RuleName{Domain: domain, Rule: name}, h.readings)
		}
		added := counter.addedSince(h.valuesOf(d))
		if isFirst {
			return // Nothing says when these decisions were made.
		}
		if counter != ofDomain {
			counter.add(slot, added)
		}
		ofDomain.add(slot, added)
		h.total.add(slot, added)
	})
	maps.DeleteFunc(h.rules, func(_ metrics.RuleName, s *series) bool { return s.lastReading != h.readings })
	maps.DeleteFunc(h.domains, func(_ string, s *series) bool { return s.lastReading != h.readings && !isFirst })
	if inStep := now.Sub(h.lastStepEnd); inStep >= Step-tick/2 { // Ticks may come a little early.
		h.endStep(inStep)
		h.lastStepEnd = now
	}
}

// valuesOf returns the counters of a rule. In shadow mode its denials are decisions over the limit that were admitted.
func (h *History) valuesOf(d metrics.Decisions) values {
	if h.cfg.ShadowMode {
		d.Admitted, d.Shadow, d.Denied = d.Admitted+d.Denied, d.Shadow+d.Denied, 0
	}
	return values{
		float64(d.Admitted), float64(d.Denied), float64(d.Near), float64(d.Shadow), float64(d.Fallback),
		float64(d.Failed), float64(d.Unmatched), float64(d.LeaseMisses),
	}
}

// seriesOf returns the series with a key, which reading has.
func seriesOf[K comparable](list map[K]*series, key K, reading int64) *series {
	s := list[key]
	if s == nil {
		s = new(series)
		list[key] = s
	}
	s.lastReading = reading
	return s
}

// addedSince returns what the counters of a rule added since the last call. Counters that fell were restarted.
func (s *series) addedSince(counted values) (added values) {
	for i := range counted {
		if added[i] = counted[i] - s.counted[i]; added[i] < 0 {
			added[i] = counted[i]
		}
	}
	s.counted = counted
	return added
}

func (s *series) add(slot int, added values) {
	for i, n := range added {
		s.recent[slot][i] += float32(n)
		s.step[i] += n
	}
}

// endStep ends a step. If it was longer than Step, because the process was suspended, it stands for several.
func (h *History) endStep(length time.Duration) {
	count := max(1, int64(length.Round(Step)/Step))
	h.forEachSeries(func(s *series) {
		const smoothing = float64(10 * time.Minute / Step)
		s.average += (s.step.descriptors()/length.Seconds() - s.average) / smoothing * min(float64(count), smoothing)
	})
	giveRings(h.domains, h.cfg.MaxDomains, h.steps)
	giveRings(h.rules, h.cfg.MaxRules, h.steps)
	h.forEachSeries(func(s *series) { s.endStep(h.steps, count, length) })
	h.steps += count
}

// endStep adds the rates of count steps from the number first on, and starts the next step.
func (s *series) endStep(first, count int64, length time.Duration) {
	if s.ring != nil {
		var rates [numCharted]float32
		for i, n := range s.step[:numCharted] {
			rates[i] = float32(n / length.Seconds())
		}
		for step := first; step < first+min(count, int64(Steps)); step++ {
			s.ring.rates[step%int64(Steps)] = rates
		}
	}
	s.step = values{}
}

// giveRings gives rings to series that had decisions, the busiest first, until there are limit rings. Then a series
// gets the ring of another one only if it is more than twice as busy. The rings start with a step.
func giveRings[K comparable](all map[K]*series, limit int, step int64) {
	var holders, waiting []*series
	for _, s := range all {
		if s.ring != nil {
			holders = append(holders, s)
		} else if s.average > 0 {
			waiting = append(waiting, s)
		}
	}
	slices.SortFunc(waiting, func(a, b *series) int { return cmp.Compare(b.average, a.average) })
	free := min(max(limit-len(holders), 0), len(waiting))
	for _, s := range waiting[:free] {
		s.ring = &ring{firstStep: step}
	}
	waiting = waiting[free:]
	if len(waiting) == 0 {
		return
	}
	slices.SortFunc(holders, func(a, b *series) int { return cmp.Compare(a.average, b.average) })
	for i := range min(len(holders), len(waiting)) {
		from, to := holders[i], waiting[i]
		if to.average <= 2*from.average {
			return
		}
		from.ring, to.ring = nil, from.ring
		*to.ring = ring{firstStep: step}
	}
}

// Hour returns the history of a rule, or of a domain if rule is empty, or of all rules if both are empty. ok is false
// if the name is unknown, or if other rules were busier and have a history instead. A rule that has not decided
// anything has rates of 0.
func (h *History) Hour(domain, rule string) (hour Hour, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.rules[metrics.RuleName{Domain: domain, Rule: rule}]
	switch {
	case rule != "":
	case domain != "":
		s = h.domains[domain]
	default:
		s = &h.total
	}
	if s == nil && !h.cfg.Registry.HasRule(domain, rule) || s != nil && s.ring == nil && s.average > 0 {
		return Hour{}, false
	}
	r := &ring{firstStep: h.total.ring.firstStep} // There were no decisions yet.
	if s != nil && s.ring != nil {
		r = s.ring
	}
	first := max(r.firstStep, h.steps-int64(Steps))
	count := h.steps - first
	hour = Hour{Start: h.lastStepEnd.Add(-time.Duration(count) * Step), StepSeconds: int(Step / time.Second)}
	for i, list := range hour.Lists() {
		*list = make([]float64, count)
		for j := range *list {
			(*list)[j] = float64(r.rates[(first+int64(j))%int64(Steps)][i])
		}
	}
	return hour, true
}

// Current returns the current rates. It makes them once for all callers between two readings.
func (h *History) Current() *Current {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.current != nil {
		return h.current
	}
	c := &Current{Total: h.rateOf(&h.total), Requests: h.requestRates()}
	for domain, s := range h.domains {
		if domain != "" { // Limits of requests are counted without their domain.
			c.Domains = append(c.Domains, Rates{domain, "", h.rateOf(s)})
		}
	}
	for name, s := range h.rules {
		if name.Domain != "" {
			c.Rules = append(c.Rules, Rates{name.Domain, name.Rule, h.rateOf(s)})
		}
	}
	for _, list := range [][]Rates{c.Domains, c.Rules} {
		slices.SortFunc(list, func(a, b Rates) int {
			return cmp.Or(cmp.Compare(b.Total(), a.Total()), cmp.Compare(a.Domain, b.Domain),
				cmp.Compare(a.Rule, b.Rule))
		})
	}
	h.current = c
	return c
}

// rateOf returns the rate over the last readings. The caller holds h.mu.
func (h *History) rateOf(s *series) PerSecond {
	var sum values
	var elapsed time.Duration
	for slot, added := range s.recent {
		elapsed += h.readingTimes[slot]
		for i, n := range added {
			sum[i] += float64(n)
		}
	}
	r := sum.perSecond(elapsed)
	r.Fallback = min(r.Fallback, r.Admitted+r.Denied) // A reading in the middle of a decision may have only its fallback.
	return r
}
