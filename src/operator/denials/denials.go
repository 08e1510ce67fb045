// Package denials samples denied requests, with their descriptor, the rule and the time to wait. A Ring keeps the
// newest samples.
package denials

import (
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/operator/callertext"
	"ratelimit/src/operator/throttle"
)

// Denial is a denied request. Its texts refer to no memory of the request or its rules.
type Denial struct {
	ID       uint64 // set by a Ring: it grows by one with each denial.
	At       time.Time
	Protocol string
	Domain   string
	// Rule is the name of the rule that refused. It is empty for a limit that came with the request.
	Rule string
	// Descriptor is the descriptor without the name of a hold, as key=value,key=value. Each key and value is cut at 64
	// bytes. One with blanks, commas, control characters and the like is quoted as in Go.
	Descriptor string
	// Counter is the key of the limit's counter in the store, cut at 256 bytes. One with unprintable characters is quoted
	// as in Go.
	Counter string
	// RetryAfter is the time after which the same request would be allowed. algorithm.Never: it will never be.
	RetryAfter time.Duration
	// Fallback is how the limit was decided because the store did not answer. It is FallbackError if the store did.
	Fallback backend.Fallback
	// SkippedDenials is the number of denials since the last sample, which were not sampled.
	SkippedDenials uint64
}

// Reason says why the request was denied if that is not its limit alone. It is empty for most denials.
func (d *Denial) Reason() string {
	switch d.Fallback {
	case backend.FallbackDeny:
		return "the store does not answer"
	case backend.FallbackLocal:
		return "over this replica's share"
	}
	return ""
}

// Config is the configuration of a Sampler. All fields are required.
type Config struct {
	// MaxSamples is how many denials of each Interval are sampled: the first ones. Intervals follow the clock: those of
	// one second start with the seconds.
	MaxSamples int
	Interval   time.Duration
	// OnSample gets the samples. It runs on the goroutine of the request, so it must not block, and on several at a time.
	OnSample func(Denial)
}

// Sampler is a limiter.Recorder that samples denials.
type Sampler struct {
	throttle *throttle.Throttle
	onSample func(Denial)
}

// New returns a Sampler.
func New(cfg Config) *Sampler {
	return &Sampler{throttle.New(cfg.MaxSamples, cfg.Interval), cfg.OnSample}
}

// Record implements limiter.Recorder. It allocates memory only for samples.
func (s *Sampler) Record(req *limiter.Request, a *limiter.Answer) {
	if a.Over {
		s.recordDenied(time.Now(), req, a)
	}
}

// Sample samples descriptor i of a, denied or not: for programs that choose the descriptors themselves.
func (s *Sampler) Sample(req *limiter.Request, a *limiter.Answer, i int) {
	s.sampleDenial(time.Now(), req, a, i)
}

// AddMany samples n denials as one, which sample returns: it counts the others as skipped. sample need not set At and
// SkippedDenials.
func (s *Sampler) AddMany(now time.Time, n uint64, sample func() Denial) {
	s.throttle.Skip(n - 1)
	if skipped, ok := s.throttle.Pass(now); ok {
		d := sample()
		d.At, d.SkippedDenials = now, skipped
		s.onSample(d)
	}
}

// recordDenied samples the descriptor with the longest wait.
func (s *Sampler) recordDenied(now time.Time, req *limiter.Request, a *limiter.Answer) {
	for i := range a.Statuses {
		if a.Statuses[i].IsUndecided() {
			return // A failed request gets an error instead of a denial.
		}
	}
	if i := a.LongestRefusal(); i >= 0 {
		s.sampleDenial(now, req, a, i)
	}
}

// sampleDenial samples the denial of descriptor i, unless this interval already has enough samples.
func (s *Sampler) sampleDenial(now time.Time, req *limiter.Request, a *limiter.Answer, i int) {
	skipped, ok := s.throttle.Pass(now)
	if !ok {
		return
	}
	st, entries := &a.Statuses[i], req.Descriptors[i].Entries
	if st.Match != nil {
		entries = st.Match.WithoutHold(entries)
	}
	d := Denial{
		At: now, Protocol: req.Protocol, Descriptor: callertext.Descriptor(entries), RetryAfter: st.RetryAfter,
		SkippedDenials: skipped,
	}
	if a.Domain != nil {
		d.Domain = callertext.Name(a.Domain.Name)
	}
	if req.CallerLimit != nil {
		d.Domain = callertext.Name(string(req.Domain))
	}
	if c := st.BindingCharge; c != nil {
		d.Counter, d.Fallback = callertext.CounterKey(c.CounterKey), c.Verdict.Fallback
		if c.Rule != nil {
			d.Rule = callertext.Name(c.Rule.FullName)
		}
	} else if st.Match != nil {
		d.Rule = callertext.Name(st.Match.FullName)
	}
	s.onSample(d)
}
