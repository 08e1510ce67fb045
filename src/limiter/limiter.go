// Package limiter makes the decision: a Request in, an Answer out. It finds the rules
// that apply, sends all charges of the request to the Backend in one batch, and applies
// shadow and quota modes to the verdicts.
package limiter

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/rules"
)

// Recorder counts decisions. Record is called once for each decision, also if the store
// did not answer: then some Verdict has an Err. Both arguments are valid only during the
// call. Record must be safe for concurrent use.
type Recorder interface {
	Record(*Request, *Answer)
}

// Config is what a Limiter is made of.
type Config struct {
	// Backend keeps the counters; required.
	Backend backend.Backend
	// Recorders count each decision, in order. Defaults to none.
	Recorders []Recorder
	// KeyPrefix is the beginning of every key.
	KeyPrefix string
	// EscapeKeys writes keys so that different descriptors never share one; see
	// rules.Keys. Without it keys are envoyproxy/ratelimit's.
	EscapeKeys bool
	// DivvyKeys counts ordered lists where Button's divvy does; see rules.Keys.
	DivvyKeys bool
	// Shadow allows every request; the statuses say which limits are exceeded.
	Shadow bool
	// Quota treats every descriptor as if its rule were in quota mode.
	Quota bool
	// AllOrNothing charges a request only if no descriptor of it is over.
	// Refunds are charged in any case.
	AllOrNothing bool
	// MaxDescriptors is how many descriptors a request may have; more are ErrTooLarge.
	// It does not apply to Independent requests. Defaults to the constant
	// MaxDescriptors, which is also the largest value.
	MaxDescriptors int
}

// Limiter decides. It is safe for concurrent use.
type Limiter struct {
	cfg  Config
	keys rules.Keys
	set  atomic.Pointer[rules.Set]
}

// New returns a limiter without rules: every Check fails with ErrNotReady
// until Use is called.
func New(cfg Config) *Limiter {
	if cfg.MaxDescriptors <= 0 || cfg.MaxDescriptors > MaxDescriptors {
		cfg.MaxDescriptors = MaxDescriptors
	}
	return &Limiter{
		cfg:  cfg,
		keys: rules.Keys{Prefix: cfg.KeyPrefix, Escape: cfg.EscapeKeys, Divvy: cfg.DivvyKeys},
	}
}

// Use applies set to all requests that arrive from now on.
func (l *Limiter) Use(set *rules.Set) { l.set.Store(set) }

// Shadow reports whether every request is allowed; see Config.
func (l *Limiter) Shadow() bool { return l.cfg.Shadow }

// Rules returns the set in force; nil before the first Use.
func (l *Limiter) Rules() *rules.Set { return l.set.Load() }

// Check decides on req and fills a, whose memory it reuses. Its errors are of the
// classes ErrRequest, ErrNotReady and ErrStore; then a is not valid. One exception:
// after ErrStore on an Independent request, each Status that has not Failed is valid.
func (l *Limiter) Check(ctx context.Context, req *Request, a *Answer) error {
	return l.decide(ctx, req, a, false)
}

// Look fills a with the decision on req as of now, and changes nothing: no hit is
// charged, and no Recorder is called. Its errors are those of Check.
//
// In the verdicts, Before is the counter as it is, and Remaining is what is left without
// this request. A hit is decided as if earlier hits of the request had been charged to
// the counter that they share. If one of them is refused, and its limit does not count
// refused hits, Check may allow a later hit that Look refuses.
func (l *Limiter) Look(ctx context.Context, req *Request, a *Answer) error {
	return l.decide(ctx, req, a, true)
}

// decide is Check or, with dryRun, Look.
func (l *Limiter) decide(ctx context.Context, req *Request, a *Answer, dryRun bool) error {
	a.empty()
	a.Set = l.set.Load()
	if err := l.validate(req, a.Set); err != nil {
		return err
	}
	a.Domain = a.Set.Domain(req.Domain)
	if err := l.charge(req, a); err != nil {
		return err
	}
	if dryRun {
		a.lookOnly()
	}
	batch := &a.memory.batch
	if len(batch.Hits) > 0 {
		batch.Now = req.Now
		if err := l.cfg.Backend.Take(ctx, batch); err != nil {
			return fmt.Errorf("limiter: %w", err)
		}
	}
	if dryRun {
		a.correctLooks()
	}
	err := a.readVerdicts()
	a.conclude(&l.cfg, req.Independent)
	if !dryRun {
		for _, r := range l.cfg.Recorders {
			r.Record(req, a)
		}
	}
	return err
}

// validate returns what is wrong with req, or that there are no rules.
func (l *Limiter) validate(req *Request, set *rules.Set) error {
	most := l.cfg.MaxDescriptors
	if req.Independent {
		most = MaxDescriptors
	}
	switch {
	case len(req.Domain) == 0:
		return errNoDomain
	case len(req.Descriptors) == 0:
		return errNoDescriptors
	case len(req.Descriptors) > most:
		return fmt.Errorf("%w: %d descriptors, at most %d are allowed", ErrTooLarge, len(req.Descriptors), most)
	case set == nil:
		return ErrNotReady
	}
	return nil
}

// lookOnly turns all hits into looks.
func (a *Answer) lookOnly() {
	type counter struct {
		key    string
		kind   algorithm.Kind
		period time.Duration
	}
	asked := make(map[counter]uint64)
	for i := range a.Charges {
		c, h := &a.Charges[i], &a.memory.batch.Hits[i]
		refund := h.Op == algorithm.Refund
		*h = h.AsLook()
		if refund {
			continue
		}
		same := counter{string(c.Key), h.Limit.Kind, h.Limit.Period}
		c.Asked += asked[same]
		asked[same] = c.Asked
		h.Amount = min(c.Asked, algorithm.MaxAmount)
	}
}

// correctLooks fixes the verdicts of looks that do not say what would become of the hit:
// a refund is never over, and a second hit on a counter with a minimum interval always is.
func (a *Answer) correctLooks() {
	for i := range a.Statuses {
		st := &a.Statuses[i]
		for j := st.found.begin; j < st.found.end; j++ {
			c, v := &a.Charges[j], &a.memory.batch.Verdicts[j]
			switch {
			case st.Op == algorithm.Refund:
				v.Over, v.Interval, v.RetryAfter = false, false, 0
			case c.Asked > st.Amount && c.Algorithm.MinInterval > 0:
				v.Over, v.Interval, v.RetryAfter = true, true, algorithm.Never
			}
		}
	}
}
