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

	"ratelimit/src/algorithm"
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
	Backend Backend
	// Recorder counts the decisions; nil: nobody does.
	Recorder Recorder
	// KeyPrefix stands in front of every key.
	KeyPrefix string
	// EscapeKeys writes keys so that different descriptors never share one; see
	// rules.Keys. Without it keys are envoyproxy/ratelimit's.
	EscapeKeys bool
	// Shadow lets every request pass; the statuses say what would have been.
	Shadow bool
	// Quota treats every descriptor as if its rule were in quota mode.
	Quota bool
	// AllOrNothing charges a request only if no descriptor of it is over.
	// Refunds are given all the same.
	AllOrNothing bool
}

// Limiter decides. It is safe for concurrent use.
type Limiter struct {
	cfg  Config
	keys rules.Keys
	set  atomic.Pointer[rules.Set]
	pool sync.Pool // of *scratch
}

// New returns a limiter without rules: every Check fails with ErrNotReady
// until Use is called.
func New(cfg Config) *Limiter {
	return &Limiter{
		cfg:  cfg,
		keys: rules.Keys{Prefix: cfg.KeyPrefix, Escape: cfg.EscapeKeys},
		pool: sync.Pool{New: func() any { return new(scratch) }},
	}
}

// Use puts set in force for all requests that arrive from now on.
func (l *Limiter) Use(set *rules.Set) { l.set.Store(set) }

// Rules is the set in force; nil before the first Use.
func (l *Limiter) Rules() *rules.Set { return l.set.Load() }

var (
	errNoDomain      = fmt.Errorf("%w: the domain is empty", ErrRequest)
	errNoDescriptors = fmt.Errorf("%w: there are no descriptors", ErrRequest)
	errDescriptors   = fmt.Errorf("%w: more than %d descriptors", ErrRequest, MaxDescriptors)
)

// Check decides on req and fills a, whose memory it reuses. Its errors are of
// the classes ErrRequest, ErrNotReady and ErrStore; then a says nothing.
func (l *Limiter) Check(ctx context.Context, req *Request, a *Answer) error {
	set := l.set.Load()
	*a = Answer{Statuses: a.Statuses[:0], Set: set}
	switch {
	case len(req.Domain) == 0:
		return errNoDomain
	case len(req.Descriptors) == 0:
		return errNoDescriptors
	case len(req.Descriptors) > MaxDescriptors:
		return errDescriptors
	case set == nil:
		return ErrNotReady
	}
	s := l.pool.Get().(*scratch)
	defer l.release(s)
	if err := l.match(req, a, s); err != nil {
		return err
	}
	if len(s.batch.Hits) > 0 {
		s.batch.Now = req.Now
		if err := l.cfg.Backend.Take(ctx, &s.batch); err != nil {
			return fmt.Errorf("limiter: %w", err)
		}
	}
	err := l.settle(a, s)
	if l.cfg.Recorder != nil {
		l.cfg.Recorder.Record(req, a)
	}
	return err
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
	s.find(a, req.Descriptors)
	for i := range req.Descriptors {
		d, st := &req.Descriptors[i], &a.Statuses[i]
		limit, err := s.limit(d, st, len(req.Descriptors)-i)
		if err != nil {
			return fmt.Errorf("%w: descriptor %d: limit: %w", ErrRequest, i, err)
		}
		if limit == nil {
			continue
		}
		st.Limited = true
		st.Amount, st.Op = amount(req, d)
		key, tag := s.key(&l.keys, a.Domain, st.Rule, d.Entries)
		s.charge(algorithm.Hit{
			Key:    key,
			Tag:    tag,
			Limit:  limit,
			Amount: st.Amount,
			Op:     st.Op,
			Group:  l.group(s),
			Atomic: l.cfg.AllOrNothing && !d.Refund,
			NoVeto: st.Rule != nil && st.Rule.Shadow,
		}, i)
	}
	return nil
}

// group numbers the group of the next hit: all of a request stand together
// with AllOrNothing, else each stands alone.
func (l *Limiter) group(s *scratch) uint16 {
	if l.cfg.AllOrNothing {
		return 0
	}
	return uint16(len(s.batch.Hits)) // wraps; neighbours still differ
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
func (l *Limiter) settle(a *Answer, s *scratch) error {
	var err error
	for i, v := range s.batch.Verdicts {
		st := &a.Statuses[s.owner[i]]
		st.Verdict = v
		if v.Err != nil {
			err = errors.Join(ErrStore, v.Err)
		}
		st.Over = v.Over && (st.Rule == nil || !st.Rule.Shadow)
	}
	quota, quotaOver, over := 0, 0, false
	for i := range a.Statuses {
		st := &a.Statuses[i]
		st.Quota = !st.Unlimited() && (l.cfg.Quota || st.Rule != nil && st.Rule.Quota)
		switch {
		case !st.Quota:
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
