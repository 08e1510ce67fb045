// Package candidates loads the candidate rules, which are judged beside the live ones, and tells operators how they
// would answer.
//
//	source.go  loads the rules, gives them to the candidate.Judge, and keeps their cost within CANDIDATE_MAX_LOAD
//	report.go  what operators see of the differences
package candidates

import (
	"context"
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
	"ratelimit/src/metrics"
	"ratelimit/src/operator"
	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/reload"
	"ratelimit/src/service/heap"
	"ratelimit/src/service/logging"
	"ratelimit/src/settings"
)

// Config is the configuration of a Source.
type Config struct {
	*settings.Settings
	Log         *logging.Loggers
	Figures     *metrics.Registry
	Heap        *heap.Tuner      // learns of each load. Nil: none does.
	Files       filerules.Config // how files are read. New sets Path, AllowMissing and OnLoad.
	Judge       *candidate.Judge
	Differences *candidate.Tracker // the Recorder of Judge, see NewTracker.
	// WithChanges returns a Set with the limits that operators changed at run time, which apply to candidate rules, too.
	WithChanges func(*rules.Set) *rules.Set
}

// Source loads the candidate rules, and counts the differences. If there is no directory for them, it does nothing. It
// is safe for concurrent use.
type Source struct {
	cfg Config
	// Runners must run as long as the Source is used.
	Runners []func(context.Context) error

	isOff     bool                      // There is no directory for candidate rules.
	reload    func()                    // see Reload.
	liveFiles atomic.Pointer[rules.Set] // the live rules that come from files; nil before the first.

	mu     sync.Mutex         // held while rules are put in force, and guards the fields below.
	live   *rules.Set         // nil before the first rules.
	judged *rules.Set         // nil if there are no candidate rules.
	loaded operator.Candidate // what the last loads left, without requests and examples.
}

// NewTracker makes what counts the differences. Without a directory for candidate rules it keeps no subjects and
// examples, since there are none.
func NewTracker(s *settings.Settings) *candidate.Tracker {
	if s.CandidatePath() == "" {
		return candidate.NewTracker(candidate.TrackerConfig{})
	}
	return candidate.NewTracker(candidate.TrackerConfig{
		SubjectRules: s.TopSubjectsRules, Examples: s.RecentDenials,
	})
}

// New makes the source of the rules that cfg.Judge judges. Run its Runners next.
func New(cfg Config) *Source {
	path := cfg.CandidatePath()
	s := &Source{cfg: cfg, isOff: path == "", reload: func() {}}
	if s.isOff {
		return s
	}
	s.loaded.Directory = filepath.Clean(path)
	if _, err := os.Stat(path); err != nil {
		s.cfg.Log.Warnf("RUNTIME_CANDIDATE_SUBDIRECTORY: there are no candidate rules until %s exists: %v",
			s.loaded.Directory, err)
	}
	cfg.Files.Path, cfg.Files.AllowMissing, cfg.Files.OnLoad = path, true, s.onLoad
	watcher := filerules.New(cfg.Files)
	s.reload = watcher.Reload
	s.Runners = []func(context.Context) error{watcher.Run, s.cfg.Differences.Run, s.adjustSample}
	s.cfg.Figures.ShowFigures("candidate", "", s.figures)
	s.cfg.Figures.AddFigures(s.cfg.Differences.Figures, true)
	return s
}

// sampleInterval is how often the sample of the counters of candidate rules is compared with what they cost.
const sampleInterval = time.Second

// adjustSample keeps the cost of the candidate rules within CANDIDATE_MAX_LOAD until ctx ends.
func (s *Source) adjustSample(ctx context.Context) error {
	tick := time.NewTicker(sampleInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if s.cfg.Judge.AdjustSample(ctx) {
				s.cfg.Log.Important.Infof("%s %% of the counters of candidate rules are judged, which CANDIDATE_MAX_LOAD=%v allows",
					rules.FormatPercent(s.sampledPercent()), s.cfg.CandidateMaxLoad)
			}
		}
	}
}

// sampledPercent returns the percentage of the counters of candidate limits that are judged, rounded.
func (s *Source) sampledPercent() float64 {
	percent := 100 * s.cfg.Judge.SampledShare()
	if percent < 1 {
		return math.Round(percent*1e4) / 1e4
	}
	return math.Round(percent*10) / 10
}

// Reload loads the candidate rules again, even if nothing changed. It never blocks.
func (s *Source) Reload() { s.reload() }

// UseLive learns the live rules before the limiter decides by them.
func (s *Source) UseLive(set *rules.Set) {
	if s.isOff {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live = set
	s.cfg.Differences.UseRules(s.live, s.judged)
}

// UseLiveFiles learns which of the live rules come from files.
func (s *Source) UseLiveFiles(set *rules.Set) { s.liveFiles.Store(set) }

// removes reports whether the candidate rules, which do not have a live domain, remove it. Domains of management
// servers stay.
func (s *Source) removes(domain string) bool {
	sources := s.cfg.RuleSources()
	if len(sources) == 1 || !slices.Contains(sources, settings.ConfigFile) {
		return true
	}
	files := s.liveFiles.Load()
	return files != nil && files.Domain([]byte(domain)) != nil
}

// onLoad judges the rules of a load from now on, or records why it was refused.
func (s *Source) onLoad(l reload.Result) {
	defer s.cfg.Heap.RulesLoaded()
	s.mu.Lock()
	defer s.mu.Unlock()
	wasJudged := s.judged != nil
	logging.Problems(s.cfg.Log.Warn, l.Warnings, "warnings")
	log := s.cfg.Log.Important.WithFields(logrus.Fields{"files": l.PartCount})
	s.loaded.RefusedAt, s.loaded.Problems = time.Time{}, nil
	if l.Err != nil {
		state := "the live rules are judged alone"
		if wasJudged {
			state = "the old ones are still judged"
		}
		log.Errorf("candidate rules refused, %s", state)
		logging.Problems(s.cfg.Log.Important.Error, rules.ProblemsOf(l.Err), "problems")
		s.loaded.RefusedAt, s.loaded.Problems = l.ReadTime, strings.Split(l.Err.Error(), "\n")
	}
	if l.Set == nil {
		return
	}
	now := operator.Candidate{
		Directory: s.loaded.Directory, RefusedAt: s.loaded.RefusedAt, Problems: s.loaded.Problems,
	}
	if s.judged = nil; len(l.Set.Domains()) > 0 {
		if l.Hash != s.loaded.Hash {
			s.cfg.Differences.Reset()
		}
		s.judged, now.Hash, now.LoadedAt, now.Files = s.cfg.WithChanges(l.Set), l.Hash, l.ReadTime, l.PartCount
		now.Domains, now.Rules = len(l.Set.Domains()), len(l.Set.Rules())
	}
	s.loaded = now
	s.cfg.Differences.UseRules(s.live, s.judged)
	s.cfg.Judge.UseCandidate(candidate.Rules{Set: s.judged, Hash: now.Hash, Removes: s.removes})
	switch {
	case s.judged != nil:
		log.WithFields(logrus.Fields{"domains": now.Domains, "rules": now.Rules, "hash": l.Hash}).
			Info("candidate rules loaded; they are judged and not enforced")
	case wasJudged:
		s.cfg.Log.Important.Infof("there are no candidate rules any more: %s has none", now.Directory)
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

func (s *Source) figures() candidateFigures {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := candidateFigures{
		Results: s.cfg.Differences.Results(), Sampled: s.cfg.Judge.SampledShare(),
		Loaded: s.loaded.LoadedAt, Rules: s.loaded.Rules, Refused: s.loaded.Problems != nil,
	}
	if f.Loaded.IsZero() {
		f.Loaded = time.Unix(0, 0)
	}
	return f
}
