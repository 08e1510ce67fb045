// Package operator has what operators see and change: rates, subjects, denials, quotas, counters. The operator's page,
// the JSON under /api and the tools speak its types, which are stable in JSON: later versions only add fields.
package operator

import (
	"context"
	"sync/atomic"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/operator/denials"
	"ratelimit/src/operator/history"
	"ratelimit/src/operator/subjects"
	"ratelimit/src/operator/unmatched"
	"ratelimit/src/quota"
	"ratelimit/src/rules"
)

// At most denialsPerInterval denials of each denialInterval are kept: 100 per second, spread over the second.
const (
	denialsPerInterval = 5
	denialInterval     = 50 * time.Millisecond
)

// Config is the configuration of an Observer.
type Config struct {
	Registry *metrics.Registry
	// ShadowMode says that the limiter allows every request, so that no decision is a denial.
	ShadowMode bool
	// SubjectRules is how many rules have subjects. 0 means none.
	SubjectRules int
	// Denials is how many denials are kept. 0 means none.
	Denials int
	// Unmatched finds traffic without a rule; required. The limiter tells it its decisions.
	Unmatched *unmatched.Tracker
	// Leases returns the leases of the rules with a rules.Rule.Owner. Nil: nothing is leased.
	Leases func(owner uint32) Leases
}

// Observer watches the decisions of a limiter.
type Observer struct {
	registry  *metrics.Registry
	startedAt time.Time
	history   *history.History
	subjects  *subjects.Tracker // nil without subjects
	denials   *denials.Ring     // nil without denials
	sampler   *denials.Sampler  // fills denials
	unmatched *unmatched.Tracker
	leases    func(owner uint32) Leases
	rules     atomic.Pointer[rules.Set] // nil before the first rules
}

// NewObserver returns an Observer without rules.
func NewObserver(cfg Config) *Observer {
	o := &Observer{
		registry: cfg.Registry, startedAt: time.Now(), unmatched: cfg.Unmatched, leases: cfg.Leases,
	}
	o.history = history.New(history.Config{Registry: cfg.Registry, ShadowMode: cfg.ShadowMode})
	if n := cfg.SubjectRules; n > 0 {
		o.subjects = subjects.New(n)
	}
	if n := cfg.Denials; n > 0 {
		o.denials = denials.NewRing(n, o.startedAt)
		o.sampler = denials.New(denials.Config{
			MaxSamples: denialsPerInterval, Interval: denialInterval,
			OnSample: o.denials.Add,
		})
	}
	return o
}

// Recorders returns what a limiter must tell its decisions.
func (o *Observer) Recorders() []limiter.Recorder {
	list := []limiter.Recorder{o.history}
	if o.subjects != nil {
		list = append(list, o.subjects)
	}
	if o.sampler != nil {
		list = append(list, o.sampler)
	}
	return list
}

// Runners returns what must run meanwhile.
func (o *Observer) Runners() []func(context.Context) error {
	list := []func(context.Context) error{o.history.Run}
	if o.subjects != nil {
		list = append(list, o.subjects.Run)
	}
	return list
}

// UseRules learns the rules before the limiter decides by them.
func (o *Observer) UseRules(set *rules.Set) {
	if o.subjects != nil {
		o.subjects.UseRules(set)
	}
	o.unmatched.UseRules(set)
	o.rules.Store(set)
}

// LimitText returns the limit of the rule with the name, for people. It is empty if set is nil or has no such rule.
func LimitText(set *rules.Set, name metrics.RuleName) string {
	if set == nil {
		return ""
	}
	if r := set.Rule(name.Domain, name.Rule); r != nil {
		return limitText(r)
	}
	return ""
}

// limitText returns the limit of r for people, and whether it never refuses: "20 per minute, shadow mode".
func limitText(r *rules.Rule) string {
	if r.ShadowMode {
		return r.LimitText() + ", shadow mode"
	}
	return r.LimitText()
}

// Figures are what operators see of a service. Its functions are safe for concurrent use and do not block.
type Figures struct {
	State func() State
	Rates func(q RatesQuery) Rates
	// RatesAmong returns what Rates does, with the rates of several replicas.
	RatesAmong func(sum Rates, q RatesQuery) Rates
	History    func(domain, rule string) (h History, ok bool)
	Top        func(TopQuery) []Subject
	Denials    func(after uint64, limit int) []Denial
	// NextDenial returns a channel that is closed when a denial with an ID above after can be read.
	NextDenial func(after uint64) <-chan struct{}
	Quotas     func(QuotaQuery) Quotas
	// Candidate returns how the candidate rules would answer, with at most limit rules, subjects and examples. ok is false
	// if no directory is set for candidate rules.
	Candidate func(limit int) (c Candidate, ok bool)
}

// Figures returns what o has seen, beside the quotas of divider, the state of the process, and the candidate rules.
func (o *Observer) Figures(
	divider *quota.Divider, state func() State, candidate func(limit int) (Candidate, bool),
) *Figures {
	return &Figures{
		State: func() State {
			s := state()
			s.StartedAt, s.Unmatched = o.startedAt, o.unmatched.List()
			if t := divider.Stats().Totals(); !t.IsZero() {
				s.Quotas = &t
			}
			return s
		},
		Rates: o.Rates, RatesAmong: o.RatesAmong, History: o.history.Hour,
		Top: o.Top, Denials: o.Denials, NextDenial: o.NextDenial,
		Quotas:    func(q QuotaQuery) Quotas { return QuotasOf(divider, q) },
		Candidate: candidate,
	}
}

// Top returns the subjects that q asks for, those with most hits first.
func (o *Observer) Top(q TopQuery) []Subject {
	if o.subjects == nil {
		return nil
	}
	query := subjects.Query{Domain: q.Domain, Rule: q.Rule, Limit: q.Limit}
	if q.Kind == TopDenied {
		query.Kind = subjects.DeniedHits
	}
	switch q.Window {
	case WindowHour:
		query.Window = subjects.Hour
	case WindowDay:
		query.Window = subjects.Day
	}
	return o.subjects.Top(time.Now(), query)
}

// Denials returns the newest sampled denials with an ID above after, at most limit, oldest first.
func (o *Observer) Denials(after uint64, limit int) (list []Denial) {
	if o.denials == nil {
		return nil
	}
	for _, d := range o.denials.After(after, limit) {
		list = append(list, Denial{
			ID: d.ID, At: d.At, Protocol: d.Protocol, Domain: d.Domain, Rule: d.Rule, Subject: d.Descriptor,
			Counter: d.Counter, RetryAfterSeconds: RetrySeconds(d.RetryAfter), Reason: d.Reason(), Skipped: d.SkippedDenials,
		})
	}
	return list
}

// RetrySeconds returns a time to wait as operators see it: in seconds, or NeverRetry.
func RetrySeconds(wait time.Duration) float64 {
	if wait == algorithm.Never {
		return NeverRetry
	}
	return wait.Seconds()
}

// NextDenial returns a channel that is closed when a denial with an ID above after can be read. It is nil if no denials
// are kept.
func (o *Observer) NextDenial(after uint64) <-chan struct{} {
	if o.denials == nil {
		return nil
	}
	return o.denials.Next(after)
}
