package candidates

import (
	"cmp"
	"io"
	"slices"
	"time"

	"ratelimit/src/candidate"
	"ratelimit/src/operator"
	"ratelimit/src/rules"
)

// Report returns how the candidate rules would answer, with at most limit rules, subjects and examples. ok is false if
// there is no directory for candidate rules.
func (s *Source) Report(limit int) (v operator.Candidate, ok bool) {
	if s.isOff {
		return v, false
	}
	s.mu.Lock()
	v, live, judged := s.loaded, s.live, s.judged
	s.mu.Unlock()
	v.WriteRules = func(w io.Writer) error {
		if judged == nil {
			return nil
		}
		return rules.WriteLines(w, judged)
	}
	if judged != nil && live != nil {
		v.NewDomains = domainsWithout(judged, live, limit, func(string) bool { return true })
		v.RemovedDomains = domainsWithout(live, judged, limit, s.removes)
	}
	v.Since, v.SampledPercent = s.cfg.Differences.Since(), s.sampledPercent()
	results := s.cfg.Differences.Results()
	count := func(r candidate.Result) uint64 { return results[r.String()] }
	v.Requests = operator.CandidateRequests{
		Same: count(candidate.SameAnswer), NotJudged: count(candidate.NotJudged), NotSampled: count(candidate.NotSampled),
		CandidateDifferences: candidateDifferences(count),
	}
	differing := s.cfg.Differences.Rules()
	v.DifferingRuleCount = len(differing)
	for _, r := range differing[:min(limit, len(differing))] {
		v.DifferingRules = append(v.DifferingRules, operator.CandidateRule{
			Domain: r.Domain, Rule: r.Rule, LiveLimit: operator.LimitText(live, r.RuleName),
			CandidateLimit:       operator.LimitText(judged, r.RuleName),
			CandidateDifferences: candidateDifferences(func(result candidate.Result) uint64 { return r.Counts[result] }),
		})
	}
	s.addSubjects(&v, limit)
	return v, true
}

// addSubjects adds the subjects and examples with differences, at most limit of each.
func (s *Source) addSubjects(v *operator.Candidate, limit int) {
	now := time.Now()
	for _, r := range candidate.Results {
		for _, subject := range s.cfg.Differences.Subjects(now, r, limit) {
			v.Subjects = append(v.Subjects, operator.CandidateSubject{
				Result: r.String(), Domain: subject.Domain, Rule: subject.Rule, Subject: subject.Subject,
				Requests: subject.Hits,
			})
		}
		for _, e := range s.cfg.Differences.Examples(r, limit) {
			v.Examples = append(v.Examples, operator.CandidateExample{
				ID: e.ID, At: e.At, Result: r.String(), Protocol: e.Protocol, Domain: e.Domain, Rule: e.Rule,
				Subject: e.Descriptor, RetryAfterSeconds: operator.RetrySeconds(e.RetryAfter),
			})
		}
	}
	slices.SortStableFunc(v.Subjects,
		func(a, b operator.CandidateSubject) int { return cmp.Compare(b.Requests, a.Requests) })
	slices.SortStableFunc(v.Examples, func(a, b operator.CandidateExample) int { return b.At.Compare(a.At) })
	v.Subjects, v.Examples = v.Subjects[:min(limit, len(v.Subjects))], v.Examples[:min(limit, len(v.Examples))]
}

func candidateDifferences(count func(candidate.Result) uint64) operator.CandidateDifferences {
	return operator.CandidateDifferences{
		WouldDeny: count(candidate.WouldDeny), WouldAdmit: count(candidate.WouldAdmit),
		WouldBeError: count(candidate.WouldBeError),
	}
}

// domainsWithout returns the names of at most limit domains that set has, other has not, and isListed accepts.
func domainsWithout(set, other *rules.Set, limit int, isListed func(domain string) bool) (names []string) {
	for _, d := range set.Domains() {
		if len(names) < limit && other.Domain([]byte(d.Name)) == nil && isListed(d.Name) {
			names = append(names, d.Name)
		}
	}
	return names
}
