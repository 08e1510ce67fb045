package service

import (
	"strings"
	"time"

	"ratelimit/src/operator"
)

// buildObserver makes what watches decisions for the debug port. Without that port it watches nothing.
func (s *Service) buildObserver() error {
	cfg := operator.Config{Registry: s.counters, ShadowMode: s.Settings.ShadowMode}
	if s.ports.debug.Listener != nil {
		cfg.SubjectRules, cfg.Denials = s.Settings.TopSubjectsRules, s.Settings.RecentDenials
	}
	s.observer = operator.NewObserver(cfg)
	if s.ports.debug.Listener != nil {
		s.runners = append(s.runners, s.observer.Runners()...)
	}
	return nil
}

// stateForOperators returns the state of this process, its store and its rules.
func (s *Service) stateForOperators() operator.State {
	st := operator.State{
		Version: s.Version, Commit: s.Commit, Now: time.Now(),
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
