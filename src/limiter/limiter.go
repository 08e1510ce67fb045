// Package limiter makes the decision: a Request in, an Answer out. It asks the
// rules what applies, sends all charges of the request to the Backend in one
// batch, and applies shadow and quota modes to the verdicts.
package limiter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/rules"
)

// Recorder is told of each decision once, failed ones included: then some
// Verdict has an Err. Both arguments are valid only during the call. Record is
// called concurrently.
type Recorder interface {
	Record(*Request, *Answer)
}

// Config is what a Limiter is made of.
type Config struct {
	// Backend keeps the counters; required.
	Backend backend.Backend
	// Recorder counts the decisions; nil: nobody does.
	Recorder Recorder
	// KeyPrefix stands in front of every key.
	KeyPrefix string
	// EscapeKeys writes keys so that different descriptors never share one; see
	// rules.Keys. Without it keys are envoyproxy/ratelimit's.
	EscapeKeys bool
	// DivvyKeys counts ordered lists where Button's divvy does; see rules.Keys.
	DivvyKeys bool
	// Shadow lets every request pass; the statuses say what would have been.
	Shadow bool
	// Quota treats every descriptor as if its rule were in quota mode.
	Quota bool
	// AllOrNothing charges a request only if no descriptor of it is over.
	// Refunds are given all the same.
	AllOrNothing bool
	// MaxDescriptors is how many descriptors a request may have; more are ErrTooLarge.
	// Questions that are Independent count as requests of their own. Defaults to the constant
	// MaxDescriptors, which is also the largest value.
	MaxDescriptors int
}

// Limiter decides. It is safe for concurrent use.
type Limiter struct {
	cfg  Config
	keys rules.Keys
	set  atomic.Pointer[rules.Set]
	pool sync.Pool // of *scratch
	// largePool is of those for many descriptors.
	largePool sync.Pool
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
		pool: sync.Pool{New: func() any { return new(scratch) }},

		largePool: sync.Pool{New: func() any { return &scratch{large: true} }},
	}
}

// Use puts set in force for all requests that arrive from now on.
func (l *Limiter) Use(set *rules.Set) { l.set.Store(set) }

// Shadow reports whether every request passes; see Config.
func (l *Limiter) Shadow() bool { return l.cfg.Shadow }

// Rules is the set in force; nil before the first Use.
func (l *Limiter) Rules() *rules.Set { return l.set.Load() }

// Keys is how the keys are written that hits are counted under.
func (l *Limiter) Keys() *rules.Keys { return &l.keys }

var (
	errNoDomain      = fmt.Errorf("%w: the domain is empty", ErrRequest)
	errNoDescriptors = fmt.Errorf("%w: there are no descriptors", ErrRequest)
)

// Check decides on req and fills a, whose memory it reuses. Its errors are of
// the classes ErrRequest, ErrNotReady and ErrStore; then a says nothing, except
// that after ErrStore those descriptors Independent were decided that have not Failed.
func (l *Limiter) Check(ctx context.Context, req *Request, a *Answer) error {
	return l.decide(ctx, req, a, false)
}

// decide is Check or, with look, Look.
func (l *Limiter) decide(ctx context.Context, req *Request, a *Answer, look bool) error {
	set := l.set.Load()
	*a = Answer{Statuses: a.Statuses[:0], Charges: a.Charges[:0], Set: set}
	switch {
	case len(req.Domain) == 0:
		return errNoDomain
	case len(req.Descriptors) == 0:
		return errNoDescriptors
	case len(req.Descriptors) > l.maxDescriptors(req):
		return fmt.Errorf("%w: %d descriptors, at most %d are allowed", ErrTooLarge, len(req.Descriptors), l.maxDescriptors(req))
	case set == nil:
		return ErrNotReady
	}
	s := l.scratchFor(len(req.Descriptors))
	defer l.release(s)
	if err := l.match(req, a, s); err != nil {
		return err
	}
	var odd []oddLook
	if look {
		odd = s.onlyLook()
	}
	if len(s.batch.Hits) > 0 {
		s.batch.Now = req.Now
		if err := l.cfg.Backend.Take(ctx, &s.batch); err != nil {
			return fmt.Errorf("limiter: %w", err)
		}
	}
	s.judge(odd)
	err := l.settle(req, a, s)
	if l.cfg.Recorder != nil && !look {
		l.cfg.Recorder.Record(req, a)
	}
	return err
}

// maxDescriptors is how many descriptors req may have.
func (l *Limiter) maxDescriptors(req *Request) int {
	if req.Independent {
		return MaxDescriptors
	}
	return l.cfg.MaxDescriptors
}

// match fills a.Statuses with what applies to each descriptor, and s.batch
// with what there is to charge.
func (l *Limiter) match(req *Request, a *Answer, s *scratch) error {
	a.Domain = a.Set.Domain(req.Domain)
	for range req.Descriptors {
		a.Statuses = append(a.Statuses, Status{})
	}
	if a.Domain == nil {
		return nil
	}
	for begin, end := 0, 0; begin < len(req.Descriptors); begin = end {
		end = len(req.Descriptors)
		if req.Independent {
			end = begin + 1
		}
		s.find(a, req.Descriptors, begin, end)
		if err := l.matchRange(req, a, s, begin, end); err != nil {
			return err
		}
	}
	return nil
}

// matchRange does so for the descriptors from begin to end, whose rules have been
// found.
func (l *Limiter) matchRange(req *Request, a *Answer, s *scratch, begin, end int) error {
	for i := begin; i < end; i++ {
		d, st := &req.Descriptors[i], &a.Statuses[i]
		st.Amount, st.Op = amount(req, d)
		switch {
		case d.HasLimit:
			limit, err := s.requestLimit(d, len(req.Descriptors)-i)
			if err != nil {
				return fmt.Errorf("%w: descriptor %d: limit: %w", ErrRequest, i, err)
			}
			l.charge(req, a, s, i, Charge{Limit: d.Limit}, limit, uint16(len(s.batch.Hits)), false)
		default:
			for _, canary := range s.canariesOf(i) {
				l.chargeRules(req, a, s, i, canary, true)
			}
			if st.Rule != nil {
				l.chargeRules(req, a, s, i, st.Rule, false)
			}
		}
	}
	return nil
}

// chargeRules adds a charge for each limit of a rule that descriptor i met, if
// no other rule replaces it. Canary is as in Charge.
func (l *Limiter) chargeRules(req *Request, a *Answer, s *scratch, i int, rule *rules.Rule, canary bool) {
	group := uint16(len(s.batch.Hits)) // wraps; neighbours still differ
	if rule.Charges == nil {
		if !rule.Unlimited && !(canary && a.Domain.Replacing() && s.replaced.Has(rule)) {
			l.charge(req, a, s, i, Charge{Rule: rule, Limit: rule.Quantity, Canary: canary}, &rule.Limit, group, rule.AllOrNone)
		}
		return
	}
	replacing := a.Domain.Replacing()
	for _, r := range rule.Charges {
		if r.Unlimited || replacing && s.replaced.Has(r) {
			continue
		}
		if !rule.AllOrNone {
			group = uint16(len(s.batch.Hits))
		}
		l.charge(req, a, s, i, Charge{Rule: r, Limit: r.Quantity, Canary: canary}, &r.Limit, group, rule.AllOrNone)
	}
}

// charge adds one charge of descriptor i. Hits of one group stand side by side;
// with AllOrNothing all of the request are one.
func (l *Limiter) charge(req *Request, a *Answer, s *scratch, i int, charge Charge, limit *algorithm.Limit, group uint16, atomic bool) {
	d, st, rule := &req.Descriptors[i], &a.Statuses[i], charge.Rule
	if l.cfg.AllOrNothing {
		group = 0
		if req.Independent {
			group = uint16(i)
		}
	}
	key, tag := s.key(&l.keys, a.Domain, rule, d.Entries)
	onFailure := a.Domain.Fallback
	if rule != nil {
		onFailure = rule.Fallback
	}
	s.grow()
	s.batch.Hits = append(s.batch.Hits, backend.Hit{
		Key:       key,
		Tag:       tag,
		Together:  rule != nil && rule.Joint,
		CountDown: l.keys.AsDivvy(rule),
		Limit:     limit,
		Amount:    st.Amount,
		Op:        st.Op,
		Group:     group,
		Atomic:    (l.cfg.AllOrNothing || atomic) && !d.Refund,
		NoVeto:    rule != nil && rule.Shadow,

		Fallback: onFailure,
	})
	s.batch.Verdicts = append(s.batch.Verdicts, backend.Verdict{})
	s.owner = append(s.owner, i)
	a.Charges = append(a.Charges, charge)
}

func amount(req *Request, d *Descriptor) (uint64, algorithm.Op) {
	n := max(req.Hits, 1)
	if d.HasHits {
		n = d.Hits
	}
	op := algorithm.Charge
	if d.Refund {
		op = algorithm.Refund
	}
	return min(n, algorithm.MaxAmount), op
}

// settle turns the verdicts into statuses and the overall answer.
func (l *Limiter) settle(req *Request, a *Answer, s *scratch) error {
	var err error
	for i, v := range s.batch.Verdicts {
		c := &a.Charges[i]
		c.Verdict = v
		c.Over = v.Over && (c.Rule == nil || !c.Rule.Shadow)
		if err == nil && v.Err != nil && !c.Canary {
			err = errors.Join(ErrStore, v.Err)
		}
		if st := &a.Statuses[s.owner[i]]; st.Charges == nil {
			st.Charges = a.Charges[i : i+1 : len(a.Charges)]
		} else {
			st.Charges = st.Charges[:len(st.Charges)+1]
		}
	}
	quota, quotaOver, over := 0, 0, false
	for i := range a.Statuses {
		st := &a.Statuses[i]
		st.bind()
		st.Refused = st.Over && !l.cfg.Shadow
		st.Quota = !st.Unlimited() && (l.cfg.Quota || st.Rule != nil && st.Rule.Quota)
		switch {
		case !st.Quota || req.Independent:
			over = over || st.Over
		case st.Over:
			quotaOver++
			fallthrough
		default:
			quota++
		}
	}
	over = over || quota > 0 && quota == quotaOver
	a.Over = over && !l.cfg.Shadow
	a.Shadowed = over && l.cfg.Shadow
	return err
}

// bind sets what st says of its Charges together.
func (st *Status) bind() {
	var wait, until, reset time.Duration // wait: of the binding one
	st.Binding = -1
	for i := range st.Charges {
		c := &st.Charges[i]
		if c.Canary {
			continue
		}
		v := &c.Verdict
		switch {
		case c.Over && (!st.Over || longer(v.RetryAfter, wait)):
			st.Binding, wait = i, v.RetryAfter
		case st.Binding < 0 || !st.Over && !c.Over && v.Remaining < st.Charges[st.Binding].Verdict.Remaining:
			st.Binding = i
		}
		if c.Over {
			st.Over = true
			after := v.RetryAfter
			if after == algorithm.Never {
				after = v.ResetAfter
			}
			until = max(until, c.told(after))
		}
		reset = max(reset, c.told(v.ResetAfter))
	}
	st.Until = reset
	if st.Over {
		st.Wait, st.Until = wait, until
	}
}

// longer compares waits; never is the longest.
func longer(a, b time.Duration) bool {
	return b != algorithm.Never && (a == algorithm.Never || a > b)
}

// told is d as callers are told: in the unit of time that the limit's kind has,
// rounded up. Who is told 1 s when 1.4 are left comes back too early.
func (c *Charge) told(d time.Duration) time.Duration {
	unit := time.Second
	if c.Rule != nil && c.Rule.Limit.Kind != algorithm.FixedWindow {
		unit = time.Microsecond
	}
	return (d + unit - 1) / unit * unit
}
