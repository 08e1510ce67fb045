package service

import (
	"strings"
	"sync/atomic"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/frontend/admin"
	"ratelimit/src/limiter"
	"ratelimit/src/operator/denials"
	"ratelimit/src/operator/history"
	"ratelimit/src/operator/subjects"
	"ratelimit/src/rules"
)

// operator is the admin.Figures of a service: what the operator's page and /api show.
type operator struct {
	service   *Service
	startedAt time.Time
	recorders []limiter.Recorder
	history   *history.History
	subjects  *subjects.Tracker // subjects is nil if TOP_SUBJECTS_RULES is 0.
	denials   *denials.Ring     // denials is nil if RECENT_DENIALS is 0.
	sampler   *denials.Sampler  // sampler adds to denials.
	limits    ruleLimits        // limits are those of the rules in force.
}

// ruleOfDomain names a rule.
type ruleOfDomain struct{ domain, rule string }

// At most denialsPerInterval denials of each denialInterval go to the page: 100 per second, spread over the second.
const (
	denialsPerInterval = 5
	denialInterval     = 50 * time.Millisecond
)

// buildOperator builds the figures for the debug port, if it is open.
func (s *Service) buildOperator() error {
	if s.ports.debug.Listener == nil {
		return nil
	}
	o := &operator{service: s, startedAt: time.Now()}
	o.history = history.New(history.Config{Registry: s.counters, ShadowMode: s.Settings.ShadowMode})
	s.runners = append(s.runners, o.history.Run)
	if n := s.Settings.TopSubjectsRules; n > 0 {
		o.subjects = subjects.New(n)
		o.recorders = append(o.recorders, o.subjects)
		s.runners = append(s.runners, o.subjects.Run)
	}
	if n := s.Settings.RecentDenials; n > 0 {
		o.denials = denials.NewRing(n, o.startedAt)
		o.sampler = denials.New(denials.Config{MaxSamples: denialsPerInterval, Interval: denialInterval, OnSample: o.denials.Add})
		o.recorders = append(o.recorders, o.sampler)
	}
	s.operator = o
	return nil
}

// useRules learns the rules before the limiter decides by them.
func (o *operator) useRules(set *rules.Set) {
	if o.subjects != nil {
		o.subjects.UseRules(set)
	}
	o.limits.use(set)
}

// ruleLimits tells the limits of the rules of a Set, for people.
type ruleLimits struct{ set atomic.Pointer[rules.Set] } // set is nil before the first use.

// use makes set the Set whose limits l tells.
func (l *ruleLimits) use(set *rules.Set) { l.set.Store(set) }

// find returns the rule with the name; nil if the Set has none.
func (l *ruleLimits) find(name ruleOfDomain) *rules.Rule {
	if set := l.set.Load(); set != nil {
		return set.Rule(name.domain, name.rule)
	}
	return nil
}

// text returns the limit of the rule with the name; empty if the Set has none.
func (l *ruleLimits) text(name ruleOfDomain) string {
	if r := l.find(name); r != nil {
		return r.LimitText()
	}
	return ""
}

// State implements admin.Figures.
func (o *operator) State() admin.State {
	s := o.service
	st := admin.State{
		Version: s.Version, Commit: s.Commit, Now: time.Now(), StartedAt: o.startedAt,
		Ready: s.health.unhealthyReason(operators) == "", Components: s.health.components(operators),
		Store: s.Settings.BackendType, Replicas: 1,
	}
	if st.Store == "memcache" {
		st.Store = "memcached"
	}
	if f := s.store.fallback; f != nil {
		if st.Replicas = 0; f.Stats().ReplicasKnown {
			st.Replicas = f.Stats().Replicas
		}
	}
	st.StoreSince, st.Rules.LoadedAt, st.Rules.Hash, st.Rules.Problems = s.health.stateForOperator()
	if at := s.store.lastBreakerChange.Load(); at > 0 && time.Unix(0, at).After(st.StoreSince) {
		st.StoreSince = time.Unix(0, at)
	}
	st.Rules.Files = int(s.rules.FilesInForce.Load())
	if set := s.limiter.Rules(); set != nil {
		st.Rules.Domains, st.Rules.Rules = len(set.Domains()), len(set.Rules())
	}
	if s.divider != nil {
		if t := quotaTotals(s.divider.Stats()); !t.IsZero() {
			st.Quotas = &t
		}
	}
	return st
}

// stateForOperator returns when a store last began or ceased to answer, when the rules in force were loaded, their hash, and the
// problems of the last load.
func (h *health) stateForOperator() (storeSince, loaded time.Time, hash string, problems []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, st := range h.stores {
		if st.changedAt.After(storeSince) {
			storeSince = st.changedAt
		}
	}
	if r := h.rules.inForce(); r != nil {
		loaded, hash = r.Loaded, r.Hash
	}
	for _, src := range h.rules.refusals() {
		problems = append(problems, strings.Split(src.lastLoadErr.Error(), "\n")...)
	}
	return storeSince, loaded, hash, problems
}

// History implements admin.Figures.
func (o *operator) History(domain, rule string) (admin.History, bool) {
	hour, ok := o.history.Hour(domain, rule)
	if !ok {
		return admin.History{}, false
	}
	list := admin.History{Start: hour.Start, StepSeconds: int(history.Step / time.Second)}
	for _, v := range hour.Values {
		list.Admitted, list.Denied = append(list.Admitted, v.Admitted), append(list.Denied, v.Denied)
		list.Near, list.Shadow = append(list.Near, v.Near), append(list.Shadow, v.Shadow)
		list.Fallback, list.Failed = append(list.Fallback, v.Fallback), append(list.Failed, v.Failed)
	}
	return list, true
}

// Top implements admin.Figures.
func (o *operator) Top(q admin.TopQuery) (list []admin.Subject) {
	if o.subjects == nil {
		return nil
	}
	query := subjects.Query{Domain: q.Domain, Rule: q.Rule, Limit: q.Limit}
	if q.Kind == admin.TopDenied {
		query.Kind = subjects.DeniedHits
	}
	if q.Window == admin.WindowHour {
		query.Window = subjects.Hour
	}
	for _, s := range o.subjects.Top(time.Now(), query) {
		list = append(list, admin.Subject{Domain: s.Domain, Rule: s.Rule, Subject: s.Text, PerSecond: s.PerSecond, Hits: uint64(s.Hits + 0.5)})
	}
	return list
}

// Denials implements admin.Figures.
func (o *operator) Denials(after uint64, limit int) (list []admin.Denial) {
	if o.denials == nil {
		return nil
	}
	for _, d := range o.denials.After(after, limit) {
		seconds := d.RetryAfter.Seconds()
		if d.RetryAfter == algorithm.Never {
			seconds = admin.NeverRetry
		}
		list = append(list, admin.Denial{
			ID: d.ID, At: d.At, Protocol: d.Protocol.String(), Domain: d.Domain, Rule: d.Rule, Subject: d.Descriptor,
			Counter: d.Counter, RetryAfterSeconds: seconds, Skipped: d.SkippedDenials,
		})
	}
	return list
}

// NextDenial implements admin.Figures. The channel is nil if there is no ring.
func (o *operator) NextDenial(after uint64) <-chan struct{} {
	if o.denials == nil {
		return nil
	}
	return o.denials.Next(after)
}
