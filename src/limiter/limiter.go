// Package limiter decides requests: a Request in, an Answer out. It finds the rules that
// apply, sends all hits of the request to the store in one batch, and applies shadow and quota modes to the verdicts.
// Check decides one request, and CheckMany several requests in one batch.
//
// Candidate rules are judged beside the live ones, which are in force: their hits are in the same batch, on counters of their own, and a
// CandidateRecorder learns whether they would answer differently. They change no answer.
package limiter

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/rules"
)

// Recorder counts decisions. Check and CheckMany call Record once for each request, even if the store did not answer; then some
// Verdict has an Err. Both arguments are valid only during the call. Record must be safe for concurrent use.
type Recorder interface {
	Record(*Request, *Answer)
}

// Config configures a Limiter.
type Config struct {
	// Backend keeps the counters; required.
	Backend backend.Backend
	// Recorders count each decision, in order.
	Recorders []Recorder
	// Candidates learns how the candidate rules would decide. Required before UseCandidate.
	Candidates CandidateRecorder
	// CandidateLoad is the CPU time that candidate rules may take, as a share of that of the live rules. Beyond it only a sample of their
	// counters is judged, see AdjustSample.
	CandidateLoad float64
	// HitTime returns an estimate of the CPU time of a hit, that of the store included. Nil: Backend is in memory.
	HitTime func(*backend.Hit) time.Duration
	// SkipsFullCounters says that Backend may refuse hits on full counters without counting them, so that the counts of a live limit are
	// not those of a candidate limit with another number.
	SkipsFullCounters bool
	// KeyPrefix is the first part of every key in the store.
	KeyPrefix string
	// EscapeKeys escapes keys, so that different descriptors never share a counter. By
	// default keys are those of envoyproxy/ratelimit. See rules.KeyFormat.
	EscapeKeys bool
	// UseDivvyKeys makes ordered lists use the keys of Button's divvy; see rules.KeyFormat.
	UseDivvyKeys bool
	// ShadowMode allows every request. The statuses still say which limits are exceeded.
	ShadowMode bool
	// QuotaMode treats every descriptor as if its rule were in quota mode.
	QuotaMode bool
	// ChargeAllOrNothing charges a request only if none of its descriptors is over. It always refunds.
	ChargeAllOrNothing bool
	// MaxDescriptors is how many descriptors a request may have, unless they are independent. Defaults
	// to the constant MaxDescriptors, which is also the largest value.
	MaxDescriptors int
}

// Limiter decides requests. It is safe for concurrent use.
type Limiter struct {
	cfg       Config
	keyFormat rules.KeyFormat
	inForce   atomic.Pointer[ruleSets] // inForce is never nil.

	ruleTimes totalTimes // ruleTimes is what live and candidate rules cost while there are candidate rules.

	mu          sync.Mutex // mu is held while inForce is replaced, and guards the fields below.
	candidate   Candidate
	sampleStep  uint64
	timesBefore ruleTimes // timesBefore is what ruleTimes was at adjustedAt, the last AdjustSample.
	adjustedAt  time.Time
}

// ruleSets are the rules that decide a request.
type ruleSets struct {
	live      *rules.Set      // live is nil before the first UseRules.
	candidate *candidateRules // candidate is nil without candidate rules.
}

// New returns a limiter without rules. Check fails with ErrNoRules until UseRules is called.
func New(cfg Config) *Limiter {
	if cfg.MaxDescriptors <= 0 || cfg.MaxDescriptors > MaxDescriptors {
		cfg.MaxDescriptors = MaxDescriptors
	}
	l := &Limiter{
		cfg:       cfg,
		keyFormat: rules.KeyFormat{Prefix: cfg.KeyPrefix, EscapeKeys: cfg.EscapeKeys, UseDivvyKeys: cfg.UseDivvyKeys},
	}
	l.inForce.Store(new(ruleSets))
	return l
}

// UseRules applies the rules in set to all requests that arrive from now on.
func (l *Limiter) UseRules(set *rules.Set) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inForce.Store(&ruleSets{set, l.relateCandidate(set)})
}

// ShadowMode returns Config.ShadowMode: whether every request is allowed.
func (l *Limiter) ShadowMode() bool { return l.cfg.ShadowMode }

// Rules returns the rule set in force; nil before the first UseRules.
func (l *Limiter) Rules() *rules.Set { return l.inForce.Load().live }

// Check decides req and fills a, whose memory it reuses. Its errors wrap ErrInvalidRequest,
// ErrNoRules or ErrStoreFailed, or are the context's. After an error a is not valid, with one
// exception: after ErrStoreFailed on IndependentDescriptors, each Status without StoreFailed is valid.
func (l *Limiter) Check(ctx context.Context, req *Request, a *Answer) error {
	return l.decideRequest(ctx, req, a, false)
}

// DryRun is a dry run of Check: it fills a with the decision on req, but charges nothing and
// calls no Recorder. Its errors are those of Check.
//
// In the verdicts, Before is the count without the request, and Remaining the units that are left without it. DryRun decides each
// hit as if earlier hits of the request had been charged to the counter that they share; it ignores refunds, settlements and releases.
// If an earlier hit is refused, and its limit does not count refused hits, Check may allow a later hit that DryRun refuses.
func (l *Limiter) DryRun(ctx context.Context, req *Request, a *Answer) error {
	return l.decideRequest(ctx, req, a, true)
}

// decideRequest does the work of Check or, if isDryRun is set, of DryRun.
func (l *Limiter) decideRequest(ctx context.Context, req *Request, a *Answer, isDryRun bool) error {
	batch, sets := &a.workspace.ownBatch, l.inForce.Load()
	if err := l.addHits(ctx, req, a, sets.live, batch); err != nil {
		return err
	}
	if isDryRun {
		a.makeDryRunHits()
	} else if sets.candidate != nil && len(req.CallerLimits) == 0 {
		l.addCandidateHits(ctx, req, a, sets.candidate)
	}
	batch.Now = req.Now
	if err := l.take(ctx, batch); err != nil && len(a.Charges) > 0 {
		return err
	}
	var times ruleTimes
	err := l.completeAnswer(req, a, isDryRun, &times)
	l.ruleTimes.add(times)
	return err
}

// addHits finds the rules of req in set, and adds its charges to a and their hits to batch. After an error it has added no hits.
func (l *Limiter) addHits(ctx context.Context, req *Request, a *Answer, set *rules.Set, batch *backend.Batch) error {
	a.clearForReuse()
	first := len(batch.Hits)
	a.RuleSet, a.workspace.batch, a.workspace.firstHit = set, batch, first
	if err := l.validateRequest(req, set); err != nil {
		return err
	}
	if len(req.CallerLimits) > 0 {
		l.addCallerCharges(req, a)
		return nil
	}
	a.Domain = set.Domain(req.Domain)
	err := l.addCharges(ctx, req, a)
	if err != nil {
		batch.Hits, batch.Verdicts = batch.Hits[:first], batch.Verdicts[:first]
	}
	return err
}

// take sends batch to the store, unless it is empty.
func (l *Limiter) take(ctx context.Context, batch *backend.Batch) error {
	if len(batch.Hits) == 0 {
		return nil
	}
	if err := l.cfg.Backend.Take(ctx, batch); err != nil {
		return fmt.Errorf("limiter: %w", err)
	}
	return nil
}

// completeAnswer sets the decision in a, which follows from the verdicts of the store. It calls the Recorders unless isDryRun is
// set. It adds to times if there are candidate rules, and returns the first failure of the store that leaves a descriptor undecided.
func (l *Limiter) completeAnswer(req *Request, a *Answer, isDryRun bool, times *ruleTimes) error {
	if isDryRun {
		a.correctDryRunVerdicts()
	}
	if len(a.Charges) > 0 {
		a.DecidedAt = a.workspace.batch.DecidedAt
	}
	err := a.readVerdicts()
	a.summarizeStatuses(&l.cfg, req.IndependentDescriptors)
	if !isDryRun {
		for _, r := range l.cfg.Recorders {
			r.Record(req, a)
		}
	}
	if a.workspace.candidateState != candidateUnused {
		times.addRequest(&l.cfg, a)
		l.judgeCandidate(req, a, err)
	}
	return err
}

// validateRequest returns an error if req is invalid, or if there are no rules.
func (l *Limiter) validateRequest(req *Request, set *rules.Set) error {
	limit := l.cfg.MaxDescriptors
	if req.IndependentDescriptors {
		limit = MaxDescriptors
	}
	switch {
	case len(req.Domain) == 0:
		return errNoDomain
	case len(req.Descriptors) == 0:
		return errNoDescriptors
	case len(req.Descriptors) > limit:
		return fmt.Errorf("%w: %d descriptors, at most %d are allowed", ErrRequestTooLarge, len(req.Descriptors), limit)
	case set == nil && len(req.CallerLimits) == 0:
		return ErrNoRules
	}
	return nil
}

// makeDryRunHits replaces all hits of the batch by looks, which charge nothing.
func (a *Answer) makeDryRunHits() {
	type hold struct {
		counter counterID
		id      algorithm.HoldID
	}
	earlier, opened, hits := make(map[counterID]uint64), make(map[hold]bool), a.hits()
	for i := range a.Charges {
		c, h := &a.Charges[i], &hits[i]
		*h = h.AsLook()
		same := counterOf(h)
		held := hold{same, h.HoldID}
		if !c.Op.CanBeRefused() || opened[held] {
			continue
		}
		opened[held] = h.HoldID != algorithm.HoldID{}
		c.RequestedAmount += earlier[same]
		earlier[same] = c.RequestedAmount
		h.Amount = min(c.RequestedAmount, algorithm.MaxAmount)
	}
}

// correctDryRunVerdicts fixes the verdicts of looks that differ from those of the real hits:
// a refund, a settlement or a release is never over, and a second hit on a counter with a minimum interval always is.
func (a *Answer) correctDryRunVerdicts() {
	verdicts := a.verdicts()
	for i := range a.Statuses {
		st := &a.Statuses[i]
		for j := st.firstChargeIndex; j < st.endChargeIndex; j++ {
			c, v := &a.Charges[j], &verdicts[j]
			switch {
			case !c.Op.CanBeRefused():
				v.Over, v.WithinMinInterval, v.RetryAfter = false, false, 0
			case c.RequestedAmount > st.Amount && c.Algorithm.MinInterval > 0:
				v.Over, v.WithinMinInterval, v.RetryAfter = true, true, algorithm.Never
			}
		}
	}
}
