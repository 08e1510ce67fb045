package service

import (
	"cmp"
	"context"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/candidate"
	"ratelimit/src/operator"
	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/reload"
	"ratelimit/src/settings"
)

// candidateSource loads the candidate rules, which are judged beside the live ones, and counts the differences. Nil if
// there is no directory for them: its methods then do nothing.
type candidateSource struct {
	*foundation
	judge       *candidate.Judge
	differences *candidate.Tracker
	changed     *changedLimits // apply to candidate rules, too
	watcher     *filerules.Watcher
	liveFiles   atomic.Pointer[rules.Set] // the live rules that come from files; nil before the first.

	mu     sync.Mutex         // held while rules are put in force, and guards the fields below.
	live   *rules.Set         // nil before the first rules.
	judged *rules.Set         // nil if there are no candidate rules.
	loaded operator.Candidate // what the last loads left, without requests and examples.
}

// newDifferences makes what counts the differences of candidate rules. It is nil if there is no directory for them.
func newDifferences(f *foundation) *candidate.Tracker {
	if f.Settings.CandidatePath() == "" {
		return nil
	}
	return candidate.NewTracker(candidate.TrackerConfig{
		SubjectRules: f.Settings.TopSubjectsRules,
		Examples:     f.Settings.RecentDenials,
	})
}

// newCandidate makes the source of the rules that j judges. It is nil if differences are.
func newCandidate(f *foundation, differences *candidate.Tracker, j *candidate.Judge, changed *changedLimits,
) *candidateSource {
	if differences == nil {
		return nil
	}
	path := f.Settings.CandidatePath()
	c := &candidateSource{foundation: f, judge: j, differences: differences, changed: changed}
	c.loaded.Directory = filepath.Clean(path)
	cfg := f.fileConfig(path, "set RUNTIME_CANDIDATE_SUBDIRECTORY to another directory")
	cfg.Config = f.reloadConfig(c.onLoad)
	cfg.AllowMissing = true
	if _, err := os.Stat(path); err != nil {
		f.log.Warnf("RUNTIME_CANDIDATE_SUBDIRECTORY: there are no candidate rules until %s exists: %v", c.loaded.Directory, err)
	}
	c.watcher = filerules.New(cfg)
	f.run(c.watcher.Run, differences.Run, c.adjustSample)
	f.counters.ShowFigures("candidate", "", c.figures)
	f.counters.AddFigures(differences.Figures, true)
	return c
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
				c.log.Important.Infof("%s %% of the counters of candidate rules are judged, which CANDIDATE_MAX_LOAD=%v allows",
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
	c.mu.Lock()
	defer c.mu.Unlock()
	wasJudged := c.judged != nil
	logProblemList(c.log.Warn, l.Warnings, "warnings")
	log := c.log.Important.WithFields(fileLogFields(l))
	c.loaded.RefusedAt, c.loaded.Problems = time.Time{}, nil
	if l.Err != nil {
		state := "the live rules are judged alone"
		if wasJudged {
			state = "the old ones are still judged"
		}
		log.Errorf("candidate rules refused, %s", state)
		logProblemList(c.log.Important.Error, rules.ProblemsOf(l.Err), "problems")
		c.loaded.RefusedAt, c.loaded.Problems = l.ReadTime, strings.Split(l.Err.Error(), "\n")
	}
	if l.Set == nil {
		return
	}
	now := operator.Candidate{
		Directory: c.loaded.Directory, RefusedAt: c.loaded.RefusedAt, Problems: c.loaded.Problems,
	}
	if c.judged = nil; len(l.Set.Domains()) > 0 {
		if l.Hash != c.loaded.Hash {
			c.differences.Reset()
		}
		c.judged, now.Hash, now.LoadedAt, now.Files = c.changed.over(l.Set), l.Hash, l.ReadTime, l.PartCount
		now.Domains, now.Rules = len(l.Set.Domains()), len(l.Set.Rules())
	}
	c.loaded = now
	c.differences.UseRules(c.live, c.judged)
	c.judge.UseCandidate(candidate.Rules{Set: c.judged, Hash: now.Hash, Removes: c.removes})
	switch {
	case c.judged != nil:
		log.WithFields(logrus.Fields{"domains": now.Domains, "rules": now.Rules, "hash": l.Hash}).
			Info("candidate rules loaded; they are judged and not enforced")
	case wasJudged:
		c.log.Important.Infof("there are no candidate rules any more: %s has none", now.Directory)
	}
}

// candidateFigures are the figures of the candidate rules.
type candidateFigures struct {
	Results map[string]uint64
	Loaded  time.Time // 1970 if there are none.
	Rules   int
	Sampled float64
	Refused bool
}

func (c *candidateSource) figures() candidateFigures {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := candidateFigures{
		Results: c.differences.Results(), Sampled: c.judge.SampledShare(),
		Loaded: c.loaded.LoadedAt, Rules: c.loaded.Rules, Refused: c.loaded.Problems != nil,
	}
	if f.Loaded.IsZero() {
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
	v, live, judged := c.loaded, c.live, c.judged
	c.mu.Unlock()
	v.WriteRules = func(w io.Writer) error {
		if judged == nil {
			return nil
		}
		return writeRuleLines(w, judged)
	}
	if judged != nil && live != nil {
		v.NewDomains = domainsWithout(judged, live, limit, func(string) bool { return true })
		v.RemovedDomains = domainsWithout(live, judged, limit, c.removes)
	}
	v.Since, v.SampledPercent = d.Since(), c.sampledPercent()
	results := d.Results()
	count := func(r candidate.Result) uint64 { return results[r.String()] }
	v.Requests = operator.CandidateRequests{
		Same: count(candidate.SameAnswer), NotJudged: count(candidate.NotJudged), NotSampled: count(candidate.NotSampled),
		CandidateDifferences: candidateDifferences(count),
	}
	differing := d.Rules()
	v.DifferingRuleCount = len(differing)
	for _, r := range differing[:min(limit, len(differing))] {
		v.DifferingRules = append(v.DifferingRules, operator.CandidateRule{
			Domain: r.Domain, Rule: r.Rule, LiveLimit: operator.LimitText(live, r.RuleName),
			CandidateLimit:       operator.LimitText(judged, r.RuleName),
			CandidateDifferences: candidateDifferences(func(result candidate.Result) uint64 { return r.Counts[result] }),
		})
	}
	now := time.Now()
	for _, r := range candidate.Results {
		for _, s := range d.Subjects(now, r, limit) {
			v.Subjects = append(v.Subjects, operator.CandidateSubject{
				Result: r.String(), Domain: s.Domain, Rule: s.Rule, Subject: s.Subject, Requests: s.Hits,
			})
		}
		for _, e := range d.Examples(r, limit) {
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
	return v, true
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
