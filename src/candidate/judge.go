package candidate

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// Recorder learns how the candidate rules would decide. It must be safe for concurrent use.
type Recorder interface {
	// RecordCandidate is called after the Recorders of the limiter, for each request while there are candidate rules. The
	// arguments are valid only during the call. After SameAnswer, NotJudged and NotSampled, candidate may be incomplete.
	RecordCandidate(req *limiter.Request, live, candidate *limiter.Answer, j Judgement)
}

// Judgement says how the candidate rules would answer a request.
type Judgement struct {
	Result Result
	// Descriptor is the index of the one that refuses, or that is invalid; -1 if there is no difference.
	Descriptor int
}

// Result is the answer of the candidate rules, compared with that of the live rules.
type Result uint8

const (
	SameAnswer   Result = iota
	WouldDeny           // The request passed, and the candidate rules would refuse it.
	WouldAdmit          // The request was refused, and the candidate rules would let it pass.
	WouldBeError        // The candidate rules find the request invalid, because a hold has no name.
	NotJudged           // The store did not answer, under the live or the candidate rules.
	NotSampled          // The request needs a counter that is not in the sample, see AdjustSample.
	NumResults
)

var resultNames = [NumResults]string{"same", "would_deny", "would_admit", "would_be_error", "not_judged", "not_sampled"}

// String returns the result as metrics name it, such as "would_deny".
func (r Result) String() string { return resultNames[r] }

// Config configures a Judge.
type Config struct {
	Limiter  limiter.Config // of the limiter that decides by the live rules
	Recorder Recorder       // learns how the candidate rules would decide; required
	// MaxLoad is the CPU time that candidate rules may take, as a share of that of the live rules: see AdjustSample.
	MaxLoad float64
	// HitTime returns an estimate of the CPU time of a hit, that of the store included. Nil: the store is in memory.
	HitTime func(*backend.Hit) time.Duration
	// SkipsFullCounters says that the store may refuse hits on full counters without counting them, so that the counts of
	// a live limit are not those of a candidate limit with another number.
	SkipsFullCounters bool
}

// Judge is the limiter of the live rules, which are in force, and decides the same requests by candidate rules beside
// it. The hits of both are in one batch, those of the candidate rules on counters of their own. They change no answer.
//
// It is safe for concurrent use.
type Judge struct {
	*limiter.Limiter // decides by the live rules

	cfg     Config
	beside  *limiter.Limiter           // finds and charges by the candidate rules, and records nothing
	inForce atomic.Pointer[comparison] // nil without candidate or live rules
	times   totalTimes                 // what live and candidate rules cost while there are candidate rules

	mu          sync.Mutex // held while inForce is replaced; guards the fields below
	rules       Rules
	sampleStep  uint64
	timesBefore ruleTimes // times at adjustedAt
	adjustedAt  time.Time // when the current sampleWindow began. Zero before the first AdjustSample.
}

// New returns a Judge without rules.
func New(cfg Config) *Judge {
	j := &Judge{Limiter: limiter.New(cfg.Limiter), cfg: cfg}
	cfg.Limiter.Recorders = nil
	j.beside = limiter.New(cfg.Limiter)
	return j
}

// Rules are candidate rules.
type Rules struct {
	// Set are the rules. The indexes of its rules and domains are those of this set alone. Nil: there are none.
	Set *rules.Set
	// Hash is the same for the same rules. Replicas whose candidate rules have the same Hash have the same sample.
	Hash string
	// Removes reports whether a live domain that Set does not have is removed by it. Nil: each one is.
	Removes func(domain string) bool
}

// UseRules applies the live rules in set to all requests that arrive from now on.
func (j *Judge) UseRules(set *rules.Set) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.Limiter.UseRules(set)
	j.compare()
}

// UseCandidate judges r beside the live rules from now on. The zero value ends that.
func (j *Judge) UseCandidate(r Rules) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if r.Hash != j.rules.Hash || r.Set == nil {
		j.sampleStep = 0
	}
	j.rules = r
	j.compare()
}

// compare compares the candidate rules with the live ones, and puts them in force. The caller holds j.mu.
func (j *Judge) compare() {
	live := j.Limiter.Rules()
	if j.rules.Set == nil || live == nil {
		j.inForce.Store(nil)
		return
	}
	j.inForce.Store(newComparison(live, j.rules, largestSampled(j.sampleStep)))
}

// Check decides req as Limiter.Check does, and judges the candidate rules.
func (j *Judge) Check(ctx context.Context, req *limiter.Request, a *limiter.Answer) error {
	c := j.inForce.Load()
	if c == nil || req.CallerLimit != nil {
		return j.Limiter.Check(ctx, req, a)
	}
	b := a.OwnBatch(req)
	if err := j.Prepare(ctx, c.live, req, a, b); err != nil {
		return err
	}
	d := decisionIn(a)
	j.prepare(ctx, c, req, a, d)
	if err := j.Take(ctx, b); err != nil && len(a.Charges) > 0 {
		d.reset()
		return err
	}
	err := j.Answer(req, a)
	var times ruleTimes
	j.judge(d, err, &times)
	j.times.add(times)
	d.reset()
	return err
}

// CheckMany decides the requests of m as Limiter.CheckMany does, and judges the candidate rules.
func (j *Judge) CheckMany(ctx context.Context, m *limiter.Many) {
	c := j.inForce.Load()
	if c == nil {
		j.Limiter.CheckMany(ctx, m)
		return
	}
	j.PrepareMany(ctx, c.live, m)
	for _, it := range m.Items() {
		if it.Err == nil && it.Request.CallerLimit == nil {
			j.prepare(ctx, c, &it.Request, &it.Answer, decisionIn(&it.Answer))
		}
	}
	err := j.Take(ctx, m.Batch())
	j.AnswerMany(m, err)
	var times ruleTimes
	for _, it := range m.Items() {
		if d, ok := it.Answer.Beside.(*decision); ok {
			if err == nil {
				j.judge(d, it.Err, &times)
			}
			d.reset()
		}
	}
	j.times.add(times)
}
