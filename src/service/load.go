package service

import (
	"errors"
	"maps"

	"ratelimit/src/metrics"
	"ratelimit/src/rules"

	"github.com/sirupsen/logrus"
)

// loaded uses the rules of a load, or notes why it was refused.
func (s *Service) loaded(l load) {
	s.refuseOthers(&l)
	s.logWarnings(l.warnings)
	before := s.limiter.Rules()
	if l.err != nil {
		s.counters.ConfigRefused()
		s.logProblems(l)
		s.health.update(func(h *health) { h.refused, h.refusedAt = l.err, l.at })
		if s.OneList && before == nil {
			select {
			case s.rules.failed <- errors.New(firstProblem(l.err)):
			default: // it is ending already
			}
		}
		if l.set == nil {
			return
		}
	}
	s.logRules(l.set)
	s.counters.ConfigLoaded(metrics.ConfigInfo{Hash: l.hash, Version: l.version, Loaded: l.at, Partial: l.err != nil})
	s.counters.Use(l.set) // before the limiter, so that no decision finds it behind
	if s.stats.divvy != nil {
		s.stats.divvy.Use(l.set)
	}
	if f := s.store.fallback; f != nil {
		f.UseLocal(countsLocally(l.set))
	}
	s.limiter.Use(l.set)
	s.needDivvy(l.set)
	domains, storeless := len(l.set.Domains()), s.storeless(l.set)
	facts := logrus.Fields{"domains": domains, "rules": len(l.set.Rules()), "hash": l.hash}
	maps.Copy(facts, l.facts)
	if before == nil && domains == 0 {
		s.log.audit.WithFields(facts).Warnf("there are no rules, so everything passes: %s", s.rules.noRules)
	}
	var recovered bool
	s.health.update(func(h *health) {
		h.storeless = storeless
		recovered = h.loaded && h.refused != nil && l.err == nil
		h.loaded, h.domains, h.version, h.refused = true, domains, l.version, l.err
		if h.firstRules == nil {
			h.firstRules = facts
		}
	})
	log := s.log.audit.WithFields(facts)
	switch {
	case before == nil: // the ready line says so
	case domains == 0:
		log.Warnf("rules reloaded: there are none, so everything passes: %s", s.rules.noRules)
	case l.err != nil:
		log.Warn("rules reloaded in part: files and resources with problems stay as they were")
	case recovered:
		log.Warn("rules reloaded, the problems are fixed")
	default:
		log.Info("rules reloaded")
	}
}

// maxDescriptorsLogged bounds how many descriptors of one load are logged.
const maxDescriptorsLogged = 10_000

// logRules logs each domain and each descriptor, at debug level.
func (s *Service) logRules(set *rules.Set) {
	if !s.log.IsLevelEnabled(logrus.DebugLevel) {
		return
	}
	limits := make(map[string]*rules.Rule)
	for _, r := range set.Rules() {
		if text, ok := r.Metadata["comment"].(string); ok && s.OneList {
			s.log.Debugf("rule %s (%v): %s", r.Key, r.Pos, text)
		}
		limits[r.Key] = r
	}
	left := maxDescriptorsLogged
	for _, d := range set.Domains() {
		s.log.Debugf("loading domain: %s", d.Name)
		for _, key := range d.Descriptors() {
			if left--; left < 0 {
				s.log.Debugf("loading more than %d descriptors; /rlconfig on the debug port shows all", maxDescriptorsLogged)
				return
			}
			if r := limits[key]; r != nil {
				s.log.Debugf("loading descriptor: %v", r)
			} else {
				s.log.Debugf("loading descriptor: %s: no limit", key)
			}
		}
	}
}

func (s *Service) logWarnings(warnings rules.Problems) {
	for i, w := range warnings {
		if i == maxLogged {
			s.log.Warnf("and %d more warnings; `ratelimit check` shows all", len(warnings)-i)
			return
		}
		s.log.Warn(w)
	}
}

// logProblems logs what is wrong with the rules, a line for each problem.
func (s *Service) logProblems(l load) {
	state := "none are in force yet"
	if l.set != nil {
		state = "domains that they do not touch take effect"
	} else if s.limiter != nil && s.limiter.Rules() != nil {
		state = "the old ones stay in force"
	}
	s.log.audit.WithFields(l.facts).Errorf("rules refused, %s", state)
	var problems rules.Problems
	if !errors.As(l.err, &problems) {
		s.log.audit.Error(l.err)
		return
	}
	for i, p := range problems {
		if i == maxLogged {
			s.log.audit.Errorf("and %d more problems; `ratelimit check` shows all", len(problems)-i)
			return
		}
		s.log.audit.Error(p)
	}
}

// maxLogged bounds how many problems of one load are logged.
const maxLogged = 100
