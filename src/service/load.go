package service

import (
	"errors"
	"fmt"
	"maps"

	"ratelimit/src/metrics"
	"ratelimit/src/rules"
	"ratelimit/src/rules/reload"

	"github.com/sirupsen/logrus"
)

// onLoad puts the rules of a load in force, or records why it was refused.
func (s *Service) onLoad(l reload.Result) {
	s.refuseUnlessList(&l)
	logEach(s.log.Warn, l.Warnings, "warnings")
	before := s.limiter.Rules()
	if l.Err != nil {
		s.counters.ConfigRefused()
		s.logProblems(l)
		s.health.update(func(h *health) { h.rules.refused, h.rules.refusedAt = l.Err, l.At })
		if s.OneList && before == nil {
			select {
			case s.rules.failed <- errors.New(firstProblem(l.Err)):
			default: // it is ending already
			}
		}
		if l.Set == nil {
			return
		}
	}
	s.logRules(l.Set)
	s.counters.ConfigLoaded(metrics.ConfigInfo{Hash: l.Hash, Version: l.Version, Loaded: l.At, Partial: l.Err != nil})
	s.counters.Use(l.Set) // before the limiter, so that no decision finds it behind
	if s.stats.divvy != nil {
		s.stats.divvy.Use(l.Set)
	}
	s.store.use(l.Set)
	s.limiter.Use(l.Set)
	s.openDivvyIfNeeded(l.Set)
	domains := len(l.Set.Domains())
	facts := logrus.Fields{"domains": domains, "rules": len(l.Set.Rules()), "hash": l.Hash}
	maps.Copy(facts, s.rules.facts(l))
	log := s.log.audit.WithFields(facts)
	if before == nil && domains == 0 {
		log.Warnf("there are no rules, so everything passes: %s", s.rules.noRules)
	}
	worksWithoutStore, recovered := s.worksWithoutStore(l.Set), false
	s.health.update(func(h *health) {
		recovered = h.rules.loaded && h.rules.refused != nil && l.Err == nil
		h.worksWithoutStore, h.rules.loaded, h.rules.domains, h.rules.version, h.rules.refused = worksWithoutStore, true, domains, l.Version, l.Err
		if h.rules.first == nil {
			h.rules.first = facts
		}
	})
	switch {
	case before == nil: // the ready line says so
	case domains == 0:
		log.Warnf("rules reloaded: there are none, so everything passes: %s", s.rules.noRules)
	case l.Err != nil:
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

// logProblems logs what is wrong with the rules, one line for each problem.
func (s *Service) logProblems(l reload.Result) {
	state := "none are in force yet"
	if l.Set != nil {
		state = "domains that they do not touch take effect"
	} else if s.limiter != nil && s.limiter.Rules() != nil {
		state = "the old ones stay in force"
	}
	s.log.audit.WithFields(s.rules.facts(l)).Errorf("rules refused, %s", state)
	var problems rules.Problems
	if !errors.As(l.Err, &problems) {
		s.log.audit.Error(l.Err)
		return
	}
	logEach(s.log.audit.Error, problems, "problems")
}

// maxProblemsLogged bounds how many problems of one load are logged.
const maxProblemsLogged = 100

// logEach logs the first maxProblemsLogged problems of list, and how many more there are.
func logEach(log func(...any), list rules.Problems, what string) {
	for i, p := range list {
		if i == maxProblemsLogged {
			log(fmt.Sprintf("and %d more %s; `ratelimit check` shows all", len(list)-i, what))
			return
		}
		log(p)
	}
}
