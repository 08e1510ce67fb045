// Package limiter decides requests: a Request in, an Answer out. A decision takes four steps:
//
//	Find    finds the rule of each descriptor
//	Charge  makes a charge of each limit of a rule, and a hit for it
//	Take    sends all hits to the store in one batch
//	Answer  applies shadow and quota modes to the verdicts, and tells the Recorders
//
// Check takes them for one request, CheckMany for several requests that share one batch, and DryRun for a request that
// charges nothing. Rooms beside the path of a request, such as candidate rules and quotas, take single steps.
package limiter

import (
	"context"
	"fmt"
	"sync/atomic"

	"ratelimit/src/backend"
	"ratelimit/src/rules"
)

// Recorder counts decisions. Check and CheckMany call Record once for each request, even if the store did not answer;
// then some Verdict has an Err. Both arguments are valid only during the call. Record must be safe for concurrent use.
type Recorder interface {
	Record(*Request, *Answer)
}

// Estimates returns how many units a check of c reserves, whose rule has no estimate. 0 stands for a hundredth of the
// limit. It must be safe for concurrent use.
type Estimates interface {
	Estimate(c *Charge) uint64
}

// Config configures a Limiter.
type Config struct {
	Backend   backend.Backend // keeps the counters; required.
	Recorders []Recorder      // count each decision, in order.
	Estimates Estimates       // for rules without an estimate; nil: a hundredth of the limit

	// These fields say how keys are written; see rules.KeyFormat. By default keys are those of envoyproxy/ratelimit.
	KeyPrefix  string // the first part of every key in the store.
	EscapeKeys bool   // true if different descriptors never share a counter.

	ShadowMode bool // true if every request is allowed. The statuses still say which limits are exceeded.
	QuotaMode  bool // true if every descriptor is treated as if its rule were in quota mode.
	// ChargeAllOrNothing charges a request only if none of its descriptors is over. It always refunds.
	ChargeAllOrNothing bool
	// MaxDescriptors is how many descriptors a request may have. Defaults to the constant MaxDescriptors, which is also
	// the largest value.
	MaxDescriptors int
}

// Limiter decides requests. It is safe for concurrent use.
type Limiter struct {
	cfg       Config
	keyFormat rules.KeyFormat
	set       atomic.Pointer[rules.Set] // nil before the first UseRules
}

// New returns a limiter without rules. Check fails with ErrNoRules until UseRules is called.
func New(cfg Config) *Limiter {
	if cfg.MaxDescriptors <= 0 || cfg.MaxDescriptors > MaxDescriptors {
		cfg.MaxDescriptors = MaxDescriptors
	}
	return &Limiter{cfg: cfg, keyFormat: rules.KeyFormat{Prefix: cfg.KeyPrefix, EscapeKeys: cfg.EscapeKeys}}
}

// KeyFormat returns how the keys of counters are written.
func (l *Limiter) KeyFormat() *rules.KeyFormat { return &l.keyFormat }

// UseRules applies the rules in set to all requests that arrive from now on.
func (l *Limiter) UseRules(set *rules.Set) { l.set.Store(set) }

// ShadowMode returns Config.ShadowMode: whether every request is allowed.
func (l *Limiter) ShadowMode() bool { return l.cfg.ShadowMode }

// Rules returns the rule set in force; nil before the first UseRules.
func (l *Limiter) Rules() *rules.Set { return l.set.Load() }

// Check decides req and fills a, whose memory it reuses. Its errors wrap ErrInvalidRequest, ErrNoRules, ErrStoreFailed
// or ErrCallerLeft, or are the context's. After an error a is not valid, with one exception: after ErrStoreFailed each
// Status that is decided is valid.
func (l *Limiter) Check(ctx context.Context, req *Request, a *Answer) error {
	b := a.OwnBatch(req)
	if err := l.Prepare(ctx, l.Rules(), req, a, b); err != nil {
		return err
	}
	if err := l.Take(ctx, b); err != nil && len(a.Charges) > 0 {
		return err
	}
	return l.Answer(req, a)
}

// Prepare finds the rules of req in set and adds the hits of all its charges to b: Find, and Charge of each descriptor.
// After an error it has added no hits.
func (l *Limiter) Prepare(ctx context.Context, set *rules.Set, req *Request, a *Answer, b *Batch) error {
	if err := l.Find(ctx, set, req, a, b); err != nil {
		return err
	}
	for i := range a.Statuses {
		if err := l.Charge(req, a, i); err != nil {
			a.DropHits()
			return err
		}
	}
	return nil
}

// PrepareMany does Prepare for each item of m without an Err, and sets Err.
func (l *Limiter) PrepareMany(ctx context.Context, set *rules.Set, m *Many) {
	m.batch.clearForReuse(m.Now)
	for _, it := range m.Items() {
		if it.Err == nil {
			it.Request.Now = m.Now
			it.Err = l.Prepare(ctx, set, &it.Request, &it.Answer, &m.batch)
		}
	}
}

// Take sends b to the store, unless it is empty.
func (l *Limiter) Take(ctx context.Context, b *Batch) error {
	if len(b.Hits) == 0 {
		return nil
	}
	b.Verdicts = append(b.Verdicts[:0], make([]backend.Verdict, len(b.Hits))...)
	if err := l.cfg.Backend.Take(ctx, &b.Batch); err != nil {
		return fmt.Errorf("limiter: %w", err)
	}
	return nil
}

// Answer sets the decision in a, which follows from the verdicts of the store, and calls the Recorders. It returns the
// first failure that leaves a descriptor undecided: ErrStoreFailed or ErrCallerLeft.
func (l *Limiter) Answer(req *Request, a *Answer) error {
	err := a.decide(&l.cfg)
	for _, r := range l.cfg.Recorders {
		r.Record(req, a)
	}
	return err
}

// AnswerMany does Answer for each item of m without an Err, and sets Err. err is the error of Take.
func (l *Limiter) AnswerMany(m *Many, err error) {
	for _, it := range m.Items() {
		switch {
		case it.Err != nil:
		case err != nil && len(it.Answer.Charges) > 0:
			it.Err = err
		default:
			it.Err = l.Answer(&it.Request, &it.Answer)
		}
	}
}
