package limiter

import (
	"bytes"
	"context"
	"slices"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/rules"
)

// CandidateRecorder learns how the candidate rules would decide requests that the live rules have decided. It must be safe for concurrent
// use.
type CandidateRecorder interface {
	// RecordCandidate is called after the Recorders, for each request while there are candidate rules. With IndependentDescriptors it is
	// called once for all descriptors whose answer is the same, and once for each other one. The arguments are valid only during the call.
	// After SameAnswer, NotJudged and NotSampled, candidate may be incomplete.
	RecordCandidate(req *Request, live, candidate *Answer, j Judgement)
}

// Judgement says how the candidate rules would answer a request.
type Judgement struct {
	Result CandidateResult
	// Count is how many requests or independent descriptors have the Result. It is 1 for a difference.
	Count int
	// Descriptor is the index of the descriptor that makes the difference: the one that refuses, or that is invalid. It is -1 if there is
	// no difference.
	Descriptor int
}

// CandidateResult is the answer of the candidate rules, compared with that of the live rules.
type CandidateResult uint8

const (
	SameAnswer   CandidateResult = iota
	WouldDeny                    // WouldDeny is a request that passed, and that the candidate rules would refuse.
	WouldAdmit                   // WouldAdmit is a request that was refused, and that the candidate rules would let pass.
	WouldBeError                 // WouldBeError is a request that the candidate rules would find invalid, because a hold has no name.
	NotJudged                    // NotJudged is a request for which the store did not answer, under the live or the candidate rules.
	NotSampled                   // NotSampled is a request that needs a counter which is not in the sample, see AdjustSample.
	NumCandidateResults
)

var candidateResultNames = [NumCandidateResults]string{"same", "would_deny", "would_admit", "would_be_error", "not_judged", "not_sampled"}

// String returns the result as metrics name it, such as "would_deny".
func (r CandidateResult) String() string { return candidateResultNames[r] }

// candidateState says what is known of the decision of the candidate rules before the store has answered.
type candidateState uint8

const (
	candidateUnused  candidateState = iota // There are no candidate rules.
	candidateSame                          // The candidate rules decide as the live ones.
	candidatePending                       // The store decides, or the sample leaves the request out.
	candidateInvalid                       // The candidate rules find the request invalid.
)

// statusBasis says what the Status of a candidate's answer is decided by. The Status of a live answer has basisHits.
type statusBasis uint8

const (
	basisHits        statusBasis = iota // The descriptor has hits, on counters of the candidate.
	basisLiveVerdict                    // The live Status is that of the candidate, see HasSameVerdicts of rules.Relation.
	basisLiveCounts                     // The counts of the live limits are those of the candidate's, see HasSameCounts.
	basisNone                           // The descriptor is not decided, because its counters are not in the sample.
)

// candidateMarker ends the key of a counter of a candidate limit whose key without it is that of a live limit. No key of a live limit ends
// so: keys end with "_", or with digits in divvy's form.
const candidateMarker = "|candidate"

// Candidate are candidate rules.
type Candidate struct {
	// Set are the rules. The indexes of its rules and domains are those of this set alone. Nil: there are none.
	Set *rules.Set
	// Hash is the same for the same rules. Replicas whose candidate rules have the same Hash have the same sample.
	Hash string
	// Removes reports whether a live domain that Set does not have is removed by it. Nil: each one is.
	Removes func(domain string) bool
}

// candidateRules are the candidate rules, compared with the live ones.
type candidateRules struct {
	Candidate
	relation *rules.Relation
	domains  []candidateDomain // domains has an element for each live Domain.Index.
	sampled  uint64            // sampled is the largest rules.SampleHash of a counter in the sample.
}

// candidateDomain is the candidate's version of a live domain.
type candidateDomain struct {
	domain *rules.Domain // domain is nil if the candidate does not have the domain.
	isSame bool          // isSame says that all requests to the domain get the same answer.
}

// UseCandidate judges c beside the live rules from now on. The zero value ends that.
func (l *Limiter) UseCandidate(c Candidate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.Hash != l.candidate.Hash || c.Set == nil {
		l.sampleStep = 0
	}
	l.candidate = c
	live := l.inForce.Load().live
	l.inForce.Store(&ruleSets{live, l.relateCandidate(live)})
}

// Candidate returns the candidate rules; nil if there are none.
func (l *Limiter) Candidate() *rules.Set {
	if c := l.inForce.Load().candidate; c != nil {
		return c.Set
	}
	return nil
}

// relateCandidate compares the candidate rules with the live rules in set. It returns nil if one of them is missing. The caller holds l.mu.
func (l *Limiter) relateCandidate(set *rules.Set) *candidateRules {
	if l.candidate.Set == nil || set == nil {
		return nil
	}
	c := &candidateRules{
		Candidate: l.candidate, relation: rules.NewRelation(set, l.candidate.Set, &l.keyFormat), domains: make([]candidateDomain, set.DomainSlots()),
		sampled: largestSampled(l.sampleStep),
	}
	for _, d := range set.Domains() {
		next := c.Set.Domain([]byte(d.Name))
		isSame := next == nil && c.Removes != nil && !c.Removes(d.Name) || next != nil && c.relation.IsSameDomain(next)
		c.domains[d.Index] = candidateDomain{next, isSame}
	}
	return c
}

// addCandidateHits adds the charges of the candidate rules to the decision of a.workspace.candidate, and their hits to the batch of a. The
// live rules have added theirs.
func (l *Limiter) addCandidateHits(ctx context.Context, req *Request, a *Answer, candidate *candidateRules) {
	w := &a.workspace
	if w.candidate == nil {
		w.candidate = new(Answer)
	}
	c, batch := w.candidate, w.batch
	w.candidateState = candidateSame
	c.clearForReuse()
	c.RuleSet = candidate.Set
	if a.Domain != nil {
		next := &candidate.domains[a.Domain.Index]
		if c.Domain = next.domain; next.isSame {
			return
		}
	} else if c.Domain = candidate.Set.Domain(req.Domain); c.Domain == nil {
		return
	}
	first := len(batch.Hits)
	c.workspace.batch, c.workspace.firstHit = batch, first
	c.workspace.live, c.workspace.candidateRules = a, candidate
	if err := l.addCharges(ctx, req, c); err != nil {
		batch.Hits, batch.Verdicts = batch.Hits[:first], batch.Verdicts[:first]
		if w.candidateState = candidateInvalid; ctx.Err() != nil {
			w.candidateState = candidateUnused // The caller has gone.
		}
		return
	}
	for i := range c.Statuses {
		if c.Statuses[i].basis != basisLiveVerdict {
			w.candidateState = candidatePending
			break
		}
	}
}

// candidateBasis returns what descriptor i of a candidate's answer is decided by.
func (l *Limiter) candidateBasis(d *Descriptor, candidate *Answer, i int) statusBasis {
	w := &candidate.workspace
	live, rule := w.live, candidate.Statuses[i].Rule
	switch {
	case live.Statuses[i].Err != nil:
		return basisLiveVerdict
	case l.cfg.ChargeAllOrNothing: // Another descriptor may refuse the request.
	case d.HasLimit && live.Domain == nil:
	case d.HasLimit:
		return basisLiveVerdict
	case live.Domain == nil || live.Statuses[i].Rule == nil:
		if rule == nil {
			return basisLiveVerdict
		}
	case rule == nil:
	case w.candidateRules.relation.HasSameVerdicts(live.Statuses[i].Rule, rule):
		return basisLiveVerdict
	case !l.cfg.SkipsFullCounters && w.candidateRules.relation.HasSameCounts(live.Statuses[i].Rule, rule):
		w.derivedCount += len(rule.LimitsToCharge())
		return basisLiveCounts
	}
	if !isSampled(candidate, rule, d) {
		return basisNone
	}
	return basisHits
}

// deriveCharges sets the charges of statuses with basisLiveCounts.
func (a *Answer) deriveCharges(req *Request) {
	w := &a.workspace
	w.derivedCharges = slices.Grow(w.derivedCharges, w.derivedCount) // BindingCharge points into it, so it must not grow later.
	for i := range a.Statuses {
		st := &a.Statuses[i]
		if st.basis != basisLiveCounts {
			continue
		}
		first, live := len(w.derivedCharges), &w.live.Statuses[i]
		for _, r := range st.Rule.LimitsToCharge() {
			window := r.Limit.Window()
			for j := live.firstChargeIndex; j < live.endChargeIndex; j++ {
				other := &w.live.Charges[j]
				if other.Algorithm.Window() != window {
					continue
				}
				c := Charge{Rule: r, Limit: r.Rate, Op: other.Op, Algorithm: &r.Limit, CounterKey: other.CounterKey, RequestedAmount: other.RequestedAmount}
				c.NotEnforced = r.Enforcement != nil && !r.IsEnforced(a.Domain, req.Descriptors[i].Entries, &w.findRuleScratch)
				c.Verdict.Outcome = algorithm.FixedOutcomeInstead(&r.Limit, &other.Verdict.Outcome, c.Op, st.Amount)
				c.Over = c.Verdict.Over && !c.InShadowMode()
				w.derivedCharges = append(w.derivedCharges, c)
				break
			}
		}
		st.Charges = w.derivedCharges[first:len(w.derivedCharges):len(w.derivedCharges)]
	}
}

// isLiveCounter reports whether a live limit has the counter of c, a charge of descriptor i of a candidate's answer for entries.
func (l *Limiter) isLiveCounter(candidate *Answer, i int, c *Charge, entries []rules.Entry) bool {
	w := &candidate.workspace
	live := w.live
	switch {
	case live.Domain == nil && (c.Rule == nil || !l.keyFormat.WritesDivvyKey(c.Rule)):
		return false
	case c.Rule == nil || w.candidateRules.relation.SharesCounters(c.Rule):
		return true
	case c.Rule.ListSettings != nil:
		return false
	}
	window, st := c.Algorithm.Window(), &live.Statuses[i]
	for j := st.firstChargeIndex; j < st.endChargeIndex; j++ {
		if other := &live.Charges[j]; other.Algorithm.Window() == window && bytes.Equal(other.CounterKey, c.CounterKey) {
			return true
		}
	}
	// The live rules may have the counter although they do not charge this descriptor to it.
	if n := len(c.Rule.Path); n > 0 && (n < len(entries) || live.Domain.HasReplacingRules) {
		return l.hasLiveLimit(candidate, c, entries[:n])
	}
	return false
}

// hasLiveLimit reports whether a live limit has the counter of c, if entries lead to one.
func (l *Limiter) hasLiveLimit(candidate *Answer, c *Charge, entries []rules.Entry) bool {
	w := &candidate.workspace
	domain, window := w.live.Domain, c.Algorithm.Window()
	canaries := len(w.canaryRules)
	var rule *rules.Rule
	rule, w.canaryRules = domain.FindRule(entries, &w.findRuleScratch, w.canaryRules)
	w.canaryRules = w.canaryRules[:canaries]
	if rule == nil {
		return false
	}
	end := len(w.counterKeys)
	for _, r := range rule.LimitsToCharge() {
		if r.Unlimited || r.Limit.Window() != window {
			continue
		}
		w.counterKeys, _ = l.keyFormat.AppendKey(w.counterKeys, domain, r, entries)
		isEqual := bytes.Equal(w.counterKeys[end:], c.CounterKey)
		w.counterKeys = w.counterKeys[:end]
		if isEqual {
			return true
		}
	}
	return false
}

// judgeCandidate completes the decision of the candidate rules, compares it with that of a, and records the result. liveErr is the error
// of a.
func (l *Limiter) judgeCandidate(req *Request, a *Answer, liveErr error) {
	c, state := a.workspace.candidate, a.workspace.candidateState
	decisions := 1
	if req.IndependentDescriptors {
		decisions = a.countValid()
	}
	record := func(r CandidateResult, count, descriptor int) {
		if count > 0 {
			l.cfg.Candidates.RecordCandidate(req, a, c, Judgement{r, count, descriptor})
		}
	}
	switch {
	case liveErr != nil || a.Fallback != backend.FallbackError:
		record(NotJudged, decisions, -1)
		return
	case state == candidateSame:
		record(SameAnswer, decisions, -1)
		return
	case state == candidateInvalid:
		record(WouldBeError, 1, c.invalidDescriptor(req))
		return
	case c.readVerdicts() != nil:
		record(NotJudged, decisions, -1)
		return
	}
	if !req.IndependentDescriptors && slices.ContainsFunc(c.Statuses, func(st Status) bool { return st.basis == basisNone }) {
		record(NotSampled, 1, -1)
		return
	}
	c.deriveCharges(req)
	c.summarizeStatuses(&l.cfg, req.IndependentDescriptors)
	switch {
	case req.IndependentDescriptors:
		l.judgeIndependent(a, c, record)
	case a.Over == c.Over:
		record(SameAnswer, 1, -1)
	case a.Over:
		record(WouldAdmit, 1, a.LongestRefusal())
	default:
		record(WouldDeny, 1, c.LongestRefusal())
	}
}

// judgeIndependent compares the decision of the candidate rules on each descriptor with that of a.
func (l *Limiter) judgeIndependent(a, candidate *Answer, record func(r CandidateResult, count, descriptor int)) {
	same, notSampled := 0, 0
	for i := range a.Statuses {
		was, is := a.Statuses[i].Over && !l.cfg.ShadowMode, candidate.Statuses[i].Over && !l.cfg.ShadowMode
		switch {
		case a.Statuses[i].Err != nil:
		case candidate.Statuses[i].Err != nil:
			record(WouldBeError, 1, i)
		case candidate.Statuses[i].basis == basisNone:
			notSampled++
		case was == is:
			same++
		case was:
			record(WouldAdmit, 1, i)
		default:
			record(WouldDeny, 1, i)
		}
	}
	record(SameAnswer, same, -1)
	record(NotSampled, notSampled, -1)
}

// countValid returns how many statuses have no Err.
func (a *Answer) countValid() (n int) {
	for i := range a.Statuses {
		if a.Statuses[i].Err == nil {
			n++
		}
	}
	return n
}

// invalidDescriptor returns the index of the first descriptor that the rules of a find invalid.
func (a *Answer) invalidDescriptor(req *Request) int {
	for i := range a.Statuses {
		if rule := a.Statuses[i].Rule; rule != nil {
			if _, _, err := rule.HoldOf(req.Descriptors[i].Entries); err != nil {
				return i
			}
		}
	}
	return 0
}
