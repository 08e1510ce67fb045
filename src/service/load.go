package service

import (
	"cmp"
	"errors"
	"maps"

	"github.com/sirupsen/logrus"

	"ratelimit/src/operator/rulechange"
	"ratelimit/src/rules"
	"ratelimit/src/rules/reload"
	"ratelimit/src/service/logging"
)

// onLoad puts the rules of a load of source in force, or records why it was refused. Only one source at a time may call
// it.
func (s *ruleSources) onLoad(source *ruleSource, l reload.Result) {
	defer s.Heap.RulesLoaded()
	s.refuseUnlessOrderedList(&l)
	logging.Problems(s.log.Warn, l.Warnings, "warnings")
	before := s.inForce()
	if l.Err != nil {
		s.RefusedLoads.Add(1)
		s.logProblems(l, source.health.IsLoaded(), source.logFields(l))
		source.health.Refused(l.Err, l.ReadTime)
		if s.RequireOrderedList && before == nil {
			s.failStart(errors.New(rules.FirstProblem(l.Err)))
		}
		if l.Set == nil {
			s.servers.releaseEarly()
			return
		}
	}
	set := l.Set
	s.logRules(set)
	if l.Err == nil {
		s.AcceptedLoads.Add(1)
	}
	if source.name == "files" {
		s.candidates.UseLiveFiles(l.OwnSet)
	}
	s.use(set)
	domains, ruleCount := len(set.Domains()), len(set.Rules())
	facts := logrus.Fields{"domains": domains, "rules": ruleCount, "hash": l.Hash}
	maps.Copy(facts, source.logFields(l))
	log := s.log.Important.WithFields(facts)
	why := source.whyNothingIsLimited(set)
	if before == nil && why != "" {
		log.Warnf("there are no rules, so everything passes: %s", why)
	}
	if source.health.AllOthersLoaded() {
		if err := s.servers.admitCallers(); err != nil {
			s.failStart(err)
			return
		}
	}
	repaired := source.health.Loaded(l, facts)
	if before == nil { // The log line "ready" reports the first rules.
		return
	}
	changes := rulechange.Summary(before, set)
	always := s.log.AlwaysShown.WithFields(facts)
	switch text := cmp.Or(changes, "no limit differs"); {
	case why != "":
		log.Warnf("rules reloaded: there are none, so everything passes: %s", why)
	case l.Err != nil:
		always.Warnf("rules reloaded in part, files and resources with problems stay as they were: %s", text)
	case repaired:
		always.Warnf("rules reloaded, the problems are fixed: %s", text)
	case changes == "" && source.name != "files": // A management server may send the same rules again and again.
		log.Infof("rules reloaded: %s", text)
	default:
		always.Infof("rules reloaded: %s", text)
	}
}

// whyNothingIsLimited returns why no request can be over a limit of set; "" if one can.
func (src *ruleSource) whyNothingIsLimited(set *rules.Set) string {
	switch {
	case len(set.Domains()) == 0:
		return src.whyNoRules
	case len(set.Rules()) == 0:
		return "no descriptor has a rate_limit"
	}
	return ""
}

// failStart ends the process because of err.
func (s *ruleSources) failStart(err error) {
	select {
	case s.firstLoadFailed <- err:
	default: // The channel is full: an earlier error already ends the process.
	}
}

const maxDescriptorsLogged = 10_000

func (s *ruleSources) logRules(set *rules.Set) {
	if !s.log.IsLevelEnabled(logrus.DebugLevel) {
		return
	}
	limits := make(map[string]*rules.Rule)
	for _, r := range set.Rules() {
		if text, ok := r.AnswerMetadata["comment"].(string); ok && s.RequireOrderedList {
			s.log.Debugf("rule %s (%v): %s", r.FullName, r.Pos, text)
		}
		limits[r.FullName] = r
	}
	left := maxDescriptorsLogged
	for _, d := range set.Domains() {
		s.log.Debugf("loading domain: %s", d.Name)
		for _, key := range d.DescriptorNames {
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

// logProblems logs why a load was refused. wasLoaded says that the source has rules in force; fields name the source.
func (f *foundation) logProblems(l reload.Result, wasLoaded bool, fields logrus.Fields) {
	state := "none are in force yet" + f.closedPortsNote()
	if l.Set != nil {
		state = "domains that they do not touch take effect"
	} else if wasLoaded {
		state = "the old ones stay in force"
	}
	f.log.Important.WithFields(fields).Errorf("rules refused, %s", state)
	if problems := rules.ProblemsOf(l.Err); problems != nil {
		logging.Problems(f.log.Important.Error, problems, "problems")
	} else {
		f.log.Important.Error(l.Err)
	}
}
