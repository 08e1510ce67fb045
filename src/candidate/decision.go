package candidate

import (
	"bytes"
	"context"
	"slices"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// comparison is the candidate rules, compared with the live ones.
type comparison struct {
	Rules
	live     *rules.Set
	relation *rules.Relation
	domains  []nextDomain // by live Domain.Index
	sampled  uint64       // the largest rules.SampleHash of a counter in the sample
}

// nextDomain is the candidate's version of a live domain.
type nextDomain struct {
	domain *rules.Domain // nil if the candidate does not have the domain
	isSame bool          // All requests to the domain get the same answer.
}

func newComparison(live *rules.Set, r Rules, sampled uint64) *comparison {
	c := &comparison{Rules: r, live: live, relation: rules.NewRelation(live, r.Set), sampled: sampled}
	c.domains = make([]nextDomain, live.DomainSlots())
	for _, d := range live.Domains() {
		if next := r.Set.Domain([]byte(d.Name)); next != nil {
			c.domains[d.Index] = nextDomain{next, c.relation.IsSameDomain(next)}
		} else {
			c.domains[d.Index].isSame = c.Removes != nil && !c.Removes(d.Name)
		}
	}
	return c
}

// decision is the decision of the candidate rules on one request. Its zero value is that of a request without one.
type decision struct {
	comparison *comparison
	req        *limiter.Request
	live       *limiter.Answer // the decision of the live rules
	search     *rules.SearchScratch
	state      state
	answer     limiter.Answer
	bases      []basis           // what each descriptor is decided by
	derived    []limiter.Charge  // the charges of descriptors by byLiveCount
	verdicts   []backend.Verdict // of derived
	numDerived int               // the most derived charges that there will be
	keys       []byte            // of counters that have a marker
}

// state says what is known before the store has answered.
type state uint8

const (
	stateUnused  state = iota // There are no candidate rules for the request, or its caller has gone.
	stateSame                 // The candidate rules decide as the live ones.
	statePending              // The store decides, or the sample leaves the request out.
	stateInvalid              // The candidate rules find the request invalid.
)

// basis says what a descriptor is decided by.
type basis uint8

const (
	byOwnHits    basis = iota // hits on counters of the candidate
	byLiveCharge              // The live charges are those of the candidate, see HasSameVerdicts of rules.Relation.
	byLiveCount               // The counts of the live limits are those of the candidate's, see HasSameCounts.
	byNothing                 // The counters are not in the sample.
)

// marker ends the key of a counter of a candidate limit whose key without it is that of a live limit. No key of a live
// limit ends so: keys end with "_", or with what a rules.PeerKey has behind the value.
const marker = "|candidate"

// decisionIn returns the decision that goes with a, in stateUnused.
func decisionIn(a *limiter.Answer) *decision {
	d, ok := a.Beside.(*decision)
	if !ok {
		d = new(decision)
		a.Beside = d
	}
	return d
}

// maxKeptCharges is how many charges and descriptors the memory of a decision may have room for.
const maxKeptCharges = 64

// reset removes the decision, and keeps its memory if it is small.
func (d *decision) reset() {
	clear(d.derived)
	clear(d.verdicts)
	if !d.answer.Reset(maxKeptCharges) || max(cap(d.bases), cap(d.derived)) > maxKeptCharges {
		*d = decision{}
		return
	}
	d.comparison, d.req, d.live, d.search, d.state, d.numDerived = nil, nil, nil, nil, stateUnused, 0
	d.bases, d.derived, d.verdicts, d.keys = d.bases[:0], d.derived[:0], d.verdicts[:0], d.keys[:0]
}

// prepare finds the candidate's rules of req and adds their hits to the batch of live, after those of the live rules.
func (j *Judge) prepare(ctx context.Context, c *comparison, req *limiter.Request, live *limiter.Answer, d *decision) {
	d.state, d.comparison, d.req, d.live, d.search = stateSame, c, req, live, live.Batch().Search()
	domain := (*rules.Domain)(nil)
	if live.Domain != nil {
		next := &c.domains[live.Domain.Index]
		if domain = next.domain; next.isSame {
			return
		}
	} else if domain = c.Set.Domain(req.Domain); domain == nil {
		return
	}
	if err := j.charge(ctx, domain, d); err != nil {
		d.answer.DropHits()
		if d.state = stateInvalid; ctx.Err() != nil {
			d.state = stateUnused
		}
		return
	}
	for _, b := range d.bases {
		if b != byLiveCharge {
			d.state = statePending
		}
	}
}

// charge sets the basis of each descriptor, and charges those that need hits.
func (j *Judge) charge(ctx context.Context, domain *rules.Domain, d *decision) error {
	a := &d.answer
	if err := limiter.FindIn(ctx, d.comparison.Set, domain, d.req, a, d.live.Batch()); err != nil {
		return err
	}
	d.bases = slices.Grow(d.bases, len(a.Statuses))[:len(a.Statuses)]
	for i := range a.Statuses {
		d.bases[i] = byOwnHits
		if a.Domain != nil {
			d.bases[i] = j.basisOf(d, i)
		}
		switch m := a.Statuses[i].Match; {
		case d.bases[i] == byLiveCount:
			d.numDerived += len(m.Limits)
		case d.bases[i] == byOwnHits:
			first := len(a.Charges)
			if err := j.beside.Charge(d.req, a, i); err != nil {
				return err
			}
			j.separate(d, i, first)
		case d.bases[i] == byNothing && m != nil && !d.req.IgnoresHolds:
			if _, _, err := m.HoldOf(d.req.Descriptors[i].Entries); err != nil {
				return err
			}
		}
	}
	return d.search.Err()
}

// basisOf returns what descriptor i is decided by.
func (j *Judge) basisOf(d *decision, i int) basis {
	descriptor, live, relation := &d.req.Descriptors[i], d.live, d.comparison.relation
	m, liveMatch := d.answer.Statuses[i].Match, live.Statuses[i].Match
	switch {
	case j.cfg.Limiter.ChargeAllOrNothing: // Another descriptor may refuse the request.
	case descriptor.HasLimit && live.Domain == nil:
	case descriptor.HasLimit:
		return byLiveCharge
	case live.Domain == nil || liveMatch == nil:
		if m == nil {
			return byLiveCharge
		}
	case m == nil:
	case relation.HasSameVerdicts(liveMatch, m):
		return byLiveCharge
	case !j.cfg.SkipsFullCounters && relation.HasSameCounts(liveMatch, m):
		return byLiveCount
	}
	if !d.isSampled(descriptor, m) {
		return byNothing
	}
	return byOwnHits
}

// separate makes the charges of descriptor i, from index first on, charges of the candidate: on counters that no live
// limit has, and without an answer if the store gives none.
func (j *Judge) separate(d *decision, i, first int) {
	hits := d.answer.Hits()
	for k := first; k < len(hits); k++ {
		h, c := &hits[k], &d.answer.Charges[k]
		h.Fallback = backend.FallbackError // An answer that the store did not decide is not compared.
		h.Counting = backend.Exact         // So differences are those of the rules, and no hit waits for other replicas.
		if j.isLiveCounter(d, i, c, h.StoresRemaining) {
			start := len(d.keys)
			d.keys = append(append(d.keys, h.Key...), marker...)
			h.Key = d.keys[start:len(d.keys):len(d.keys)]
		}
	}
}

// isLiveCounter reports whether a live limit has the counter of c, a charge of descriptor i. lacksDomain says that its
// key does not have the domain.
func (j *Judge) isLiveCounter(d *decision, i int, c *limiter.Charge, lacksDomain bool) bool {
	switch live := d.live; {
	case live.Domain == nil && !lacksDomain:
		return false
	case c.Rule == nil || d.comparison.relation.SharesCounters(c.Rule):
		return true
	case c.Rule.ListSettings != nil:
		return false
	}
	window, liveCharges := c.Algorithm.Window(), d.live.Statuses[i].Charges
	for k := range liveCharges {
		if other := &liveCharges[k]; other.Algorithm.Window() == window && bytes.Equal(other.CounterKey, c.CounterKey) {
			return true
		}
	}
	// The live rules may have the counter although they do not charge this descriptor to it.
	entries := d.req.Descriptors[i].Entries
	if n := len(c.Rule.Path); n > 0 && (n < len(entries) || d.live.Domain.HasReplacingRules) {
		return j.hasLiveLimit(d, c, entries[:n])
	}
	return false
}

// hasLiveLimit reports whether a limit of the live domain has the counter of c, if entries lead to one.
func (j *Judge) hasLiveLimit(d *decision, c *limiter.Charge, entries []rules.Entry) bool {
	live, window := d.live.Domain, c.Algorithm.Window()
	m := live.FindRule(entries, d.search)
	if m == nil {
		return false
	}
	end := len(d.keys)
	defer func() { d.keys = d.keys[:end] }()
	for _, r := range m.Limits {
		if r.Unlimited || r.Limit.Window() != window {
			continue
		}
		d.keys, _ = j.KeyFormat().AppendKey(d.keys[:end], live, r, entries)
		if bytes.Equal(d.keys[end:], c.CounterKey) {
			return true
		}
	}
	return false
}

// judge completes the decision of the candidate rules, compares it with live, whose error is liveErr, and records it.
func (j *Judge) judge(d *decision, liveErr error, times *ruleTimes) {
	if d.state == stateUnused {
		return
	}
	live, a := d.live, &d.answer
	failed := liveErr != nil || live.Fallback != backend.FallbackError
	if d.state == statePending && !failed {
		d.useLiveCharges()
		failed = j.beside.Answer(d.req, a) != nil
	}
	j.addTimes(times, d)
	judgement := Judgement{Descriptor: -1}
	switch {
	case failed:
		judgement.Result = NotJudged
	case d.state == stateSame:
		judgement.Result = SameAnswer
	case d.state == stateInvalid:
		judgement = Judgement{WouldBeError, d.invalidDescriptor()}
	case slices.Contains(d.bases, byNothing):
		judgement.Result = NotSampled
	case live.Over == a.Over:
		judgement.Result = SameAnswer
	case live.Over:
		judgement = Judgement{WouldAdmit, live.LongestRefusal()}
	default:
		judgement = Judgement{WouldDeny, a.LongestRefusal()}
		d.ownBinding(judgement.Descriptor)
	}
	j.cfg.Recorder.RecordCandidate(d.req, live, a, judgement)
}

// useLiveCharges sets the charges of the descriptors that live charges or their counts decide.
func (d *decision) useLiveCharges() {
	// Statuses point into derived, and its charges into verdicts, so they must not grow later.
	d.derived, d.verdicts = slices.Grow(d.derived, d.numDerived), slices.Grow(d.verdicts, d.numDerived)
	for i, b := range d.bases {
		switch st, live := &d.answer.Statuses[i], &d.live.Statuses[i]; b {
		case byLiveCharge:
			st.Amount, st.Op, st.Charges = live.Amount, live.Op, live.Charges
		case byLiveCount:
			st.Amount, st.Op = live.Amount, live.Op
			first := len(d.derived)
			for _, r := range st.Match.Limits {
				d.derive(r, live.Charges, d.req.Descriptors[i].Entries)
			}
			st.Charges = d.derived[first:len(d.derived):len(d.derived)]
		}
	}
}

// derive adds the charge of r, whose count is that of the one of liveCharges with the same window.
func (d *decision) derive(r *rules.Rule, liveCharges []limiter.Charge, entries []rules.Entry) {
	window := r.Limit.Window()
	for k := range liveCharges {
		live := &liveCharges[k]
		if live.Algorithm.Window() != window {
			continue
		}
		d.derived = append(d.derived, limiter.Charge{
			Rule: r, Limit: r.Rate, Op: live.Op, Algorithm: &r.Limit,
			CounterKey: live.CounterKey, RequestedAmount: live.RequestedAmount,
		})
		c := &d.derived[len(d.derived)-1]
		c.NotEnforced = r.Enforcement != nil && !r.IsEnforced(d.answer.Domain, entries, d.search)
		d.verdicts = append(d.verdicts, backend.Verdict{
			Outcome: algorithm.FixedOutcomeInstead(&r.Limit, &live.Verdict.Outcome, c.Op, c.RequestedAmount),
		})
		c.Verdict = &d.verdicts[len(d.verdicts)-1]
		c.Over = c.Verdict.Over && !c.InShadowMode()
		return
	}
}

// ownBinding makes the binding charge of descriptor i a charge of the candidate's rule, if it is one of the live rule.
func (d *decision) ownBinding(i int) {
	st := &d.answer.Statuses[i]
	if d.bases[i] != byLiveCharge || st.Match == nil {
		return
	}
	own := *st.BindingCharge
	own.Rule = st.Match.Limits[slices.Index(d.live.Statuses[i].Match.Limits, own.Rule)]
	st.BindingCharge = &own
}

// invalidDescriptor returns the index of the first descriptor that the candidate rules find invalid.
func (d *decision) invalidDescriptor() int {
	for i := range d.answer.Statuses {
		if m := d.answer.Statuses[i].Match; m != nil {
			if _, _, err := m.HoldOf(d.req.Descriptors[i].Entries); err != nil {
				return i
			}
		}
	}
	return 0
}
