package service

import (
	"context"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/backend"
	"ratelimit/src/backend/redis"
	"ratelimit/src/backend/remote"
	"ratelimit/src/candidate"
	"ratelimit/src/metrics"
	"ratelimit/src/operator"
	"ratelimit/src/operator/denials"
	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/reload"
	"ratelimit/src/settings"
)

// candidateSource loads the candidate rules, which are judged beside the live ones, and counts the differences.
type candidateSource struct {
	*foundation
	judge       *candidate.Judge // set by useJudge
	path        string
	differences *candidate.Tracker
	watcher     *filerules.Watcher
	liveFiles   atomic.Pointer[rules.Set] // the live rules that come from files; nil before the first.

	mu            sync.Mutex // held while rules are put in force, and guards the fields below.
	live          *rules.Set // nil before the first rules.
	judged        *rules.Set // nil if there are no candidate rules.
	hash          string     // of judged.
	loadedAt      time.Time  // zero if there are no candidate rules.
	files         int
	lastLoadErr   error // why the last load was refused, or nil.
	lastRefusedAt time.Time
}

// newCandidate makes the source of the candidate rules. It is nil if there is no directory for them.
func newCandidate(s *foundation) *candidateSource {
	path := s.Settings.CandidatePath()
	if path == "" {
		return nil
	}
	c := &candidateSource{foundation: s, path: path}
	c.differences = candidate.NewTracker(candidate.TrackerConfig{
		SubjectRules: s.Settings.TopSubjectsRules,
		Examples:     s.Settings.RecentDenials,
	})
	cfg := s.filesConfig(path, "set RUNTIME_CANDIDATE_SUBDIRECTORY to another directory")
	cfg.AllowMissing = true
	cfg.Config = s.reloadConfig(c.onLoad)
	c.watcher = filerules.New(cfg)
	s.run(c.watcher.Run, c.differences.Run, c.adjustSample)
	s.counters.ShowFigures("candidate", "", c.figures)
	s.counters.AddFigures(c.differences.Figures, true)
	return c
}

// hitTime returns the candidate.Config.HitTime of a store.
func hitTime(backendType string) func(*backend.Hit) time.Duration {
	switch backendType {
	case "memory":
		return nil
	case "redis":
		return redis.HitTime
	default:
		return func(*backend.Hit) time.Duration { return 2 * remote.CommandCost }
	}
}

// sampleInterval is how often the sample of the counters of candidate rules is compared with what they cost.
const sampleInterval = time.Second

// adjustSample keeps the cost of the candidate rules within CANDIDATE_MAX_LOAD until ctx ends.
func (c *candidateSource) adjustSample(ctx context.Context) error {
	tick := time.NewTicker(sampleInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if c.judge.AdjustSample(ctx) {
				c.log.important.Infof("%s %% of the counters of candidate rules are judged, which CANDIDATE_MAX_LOAD=%v allows",
					rules.FormatPercent(c.sampledPercent()), c.Settings.CandidateMaxLoad)
			}
		}
	}
}

// sampledPercent returns the percentage of the counters of candidate limits that are judged, rounded.
func (c *candidateSource) sampledPercent() float64 {
	percent := 100 * c.judge.SampledShare()
	if percent < 1 {
		return math.Round(percent*1e4) / 1e4
	}
	return math.Round(percent*10) / 10
}

// reload makes the source load the candidate rules again, even if nothing changed. It never blocks.
func (c *candidateSource) reload() {
	if c != nil {
		c.watcher.Reload()
	}
}

// useJudge has j judge requests by the candidate rules.
func (c *candidateSource) useJudge(j *candidate.Judge) {
	if c != nil {
		c.judge = j
	}
}

// useLive learns the live rules before the limiter decides by them.
func (c *candidateSource) useLive(set *rules.Set) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.live = set
	c.differences.UseRules(c.live, c.judged)
}

// removes reports whether the candidate rules, which do not have a live domain, remove it. Domains of management
// servers stay.
func (c *candidateSource) removes(domain string) bool {
	sources := c.Settings.RuleSources()
	if len(sources) == 1 || !slices.Contains(sources, settings.ConfigFile) {
		return true
	}
	files := c.liveFiles.Load()
	return files != nil && files.Domain([]byte(domain)) != nil
}

// onLoad judges the rules of a load from now on, or records why it was refused.
func (c *candidateSource) onLoad(l reload.Result) {
	defer c.Heap.RulesLoaded()
	log := c.log
	logProblemList(log.Warn, l.Warnings, "warnings")
	facts := fileLogFields(l)
	if l.Err != nil {
		state := "the live rules are judged alone"
		if c.isJudged() {
			state = "the old ones are still judged"
		}
		log.important.WithFields(facts).Errorf("candidate rules refused, %s", state)
		logProblemList(log.important.Error, rules.ProblemsOf(l.Err), "problems")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lastLoadErr = l.Err; l.Err != nil {
		c.lastRefusedAt = l.ReadTime
	}
	if l.Set == nil {
		return
	}
	wasJudged := c.judged != nil
	if len(l.Set.Domains()) == 0 {
		c.judged, c.hash, c.loadedAt, c.files = nil, "", time.Time{}, 0
	} else {
		if l.Hash != c.hash {
			c.differences.Reset()
		}
		c.judged, c.hash, c.loadedAt, c.files = l.Set, l.Hash, l.ReadTime, l.PartCount
	}
	c.differences.UseRules(c.live, c.judged)
	c.judge.UseCandidate(candidate.Rules{Set: c.judged, Hash: c.hash, Removes: c.removes})
	switch {
	case c.judged != nil:
		log.important.WithFields(facts).WithFields(logrus.Fields{
			"domains": len(l.Set.Domains()), "rules": len(l.Set.Rules()),
			"hash": l.Hash,
		}).
			Info("candidate rules loaded; they are judged and not enforced")
	case wasJudged:
		log.important.Infof("there are no candidate rules any more: %s has none", filepath.Clean(c.path))
	}
}

func (c *candidateSource) isJudged() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.judged != nil
}

// candidateFigures are the figures of the candidate rules.
type candidateFigures struct {
	Results map[string]uint64
	Loaded  time.Time
	Rules   int
	Sampled float64
	Refused bool
}

func (c *candidateSource) figures() candidateFigures {
	f := candidateFigures{Results: c.differences.Results(), Sampled: c.judge.SampledShare()}
	c.mu.Lock()
	defer c.mu.Unlock()
	f.Refused = c.lastLoadErr != nil
	if f.Loaded = c.loadedAt; c.judged != nil {
		f.Rules = len(c.judged.Rules())
	} else {
		f.Loaded = time.Unix(0, 0)
	}
	return f
}

// report returns how the candidate rules would answer, with at most limit rules, subjects and examples. ok is false if
// c is nil.
func (c *candidateSource) report(limit int) (v operator.Candidate, ok bool) {
	if c == nil {
		return v, false
	}
	d := c.differences
	c.mu.Lock()
	v.Directory, v.Hash, v.LoadedAt, v.Files, v.Since = filepath.Clean(c.path), c.hash, c.loadedAt, c.files, d.Since()
	if c.lastLoadErr != nil {
		v.RefusedAt, v.Problems = c.lastRefusedAt, strings.Split(c.lastLoadErr.Error(), "\n")
	}
	live, judged := c.live, c.judged
	c.mu.Unlock()
	if judged != nil {
		v.Domains, v.Rules = len(judged.Domains()), len(judged.Rules())
		v.NewDomains, v.RemovedDomains = c.domainChanges(live, judged, limit)
	}
	v.SampledPercent = c.sampledPercent()
	results := d.Results()
	count := func(r candidate.Result) uint64 { return results[r.String()] }
	v.Requests = operator.CandidateRequests{
		Same: count(candidate.SameAnswer), NotJudged: count(candidate.NotJudged), NotSampled: count(candidate.NotSampled),
		CandidateDifferences: operator.CandidateDifferences{
			WouldDeny: count(candidate.WouldDeny), WouldAdmit: count(candidate.WouldAdmit),
			WouldBeError: count(candidate.WouldBeError),
		},
	}
	differing := d.Rules()
	v.DifferingRuleCount = len(differing)
	for _, r := range differing[:min(limit, len(differing))] {
		name := metrics.RuleName{Domain: r.Domain, Rule: r.Rule}
		v.DifferingRules = append(v.DifferingRules, operator.CandidateRule{
			Domain: r.Domain, Rule: r.Rule, LiveLimit: operator.LimitText(live, name),
			CandidateLimit: operator.LimitText(judged, name),
			CandidateDifferences: operator.CandidateDifferences{
				WouldDeny: r.Counts[candidate.WouldDeny], WouldAdmit: r.Counts[candidate.WouldAdmit],
				WouldBeError: r.Counts[candidate.WouldBeError],
			},
		})
	}
	now := time.Now()
	for _, r := range candidate.Results {
		for _, s := range d.Subjects(now, r, limit) {
			v.Subjects = append(v.Subjects,
				operator.CandidateSubject{
					Result: r.String(), Domain: s.Domain, Rule: s.Rule, Subject: s.Text,
					Requests: uint64(s.Hits + 0.5),
				})
		}
		for _, e := range d.Examples(r, limit) {
			v.Examples = append(v.Examples, candidateExample(r, &e))
		}
	}
	slices.SortStableFunc(v.Subjects,
		func(a, b operator.CandidateSubject) int { return int(b.Requests) - int(a.Requests) })
	slices.SortStableFunc(v.Examples, func(a, b operator.CandidateExample) int { return b.At.Compare(a.At) })
	v.Subjects, v.Examples = v.Subjects[:min(limit, len(v.Subjects))], v.Examples[:min(limit, len(v.Examples))]
	return v, true
}

// domainChanges returns the domains that only the candidate rules have, and those that they remove; at most limit of
// each.
func (c *candidateSource) domainChanges(live, judged *rules.Set, limit int) (added, removed []string) {
	if live == nil {
		return nil, nil
	}
	for _, d := range judged.Domains() {
		if len(added) < limit && live.Domain([]byte(d.Name)) == nil {
			added = append(added, d.Name)
		}
	}
	for _, d := range live.Domains() {
		if len(removed) < limit && judged.Domain([]byte(d.Name)) == nil && c.removes(d.Name) {
			removed = append(removed, d.Name)
		}
	}
	return added, removed
}

func candidateExample(r candidate.Result, d *denials.NumberedDenial) operator.CandidateExample {
	return operator.CandidateExample{
		ID: d.ID, At: d.At, Result: r.String(), Protocol: d.Protocol.String(), Domain: d.Domain, Rule: d.Rule,
		Subject: d.Descriptor, RetryAfterSeconds: operator.RetrySeconds(d.RetryAfter),
	}
}
