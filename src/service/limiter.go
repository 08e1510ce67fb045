package service

import (
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/algorithm"
	"ratelimit/src/candidate"
	"ratelimit/src/estimates"
	"ratelimit/src/limiter"
	"ratelimit/src/operator/denials"
	"ratelimit/src/operator/unmatched"
	"ratelimit/src/service/candidates"
	"ratelimit/src/service/logging"
	"ratelimit/src/service/store"
)

// newLimiter makes the limiter, which also judges candidate rules and tells their differences to differences. It tells
// its decisions to the log and to recorders.
func newLimiter(s *foundation, store *store.Store, learned *estimates.Learner, differences *candidate.Tracker,
	recorders ...limiter.Recorder,
) *candidate.Judge {
	if n := s.Settings.LogDenials; n > 0 {
		recorders = append(recorders, denials.New(denials.Config{
			MaxSamples: n, Interval: time.Second,
			OnSample: logDenial(s.log.DeniedRequests),
		}))
	}
	return candidate.New(candidate.Config{
		Recorder: differences,
		Limiter: limiter.Config{
			Backend:            store.Backend,
			Recorders:          append(recorders, learned),
			Estimates:          learned,
			KeyPrefix:          s.Settings.CacheKeyPrefix,
			EscapeKeys:         s.Settings.CacheKeyFormat == "v2",
			ShadowMode:         s.Settings.ShadowMode,
			QuotaMode:          s.Settings.QuotaMode,
			ChargeAllOrNothing: s.Settings.StopIncrementWhenOver,

			MaxDescriptors: s.Settings.MaxDescriptors,
		},
		MaxLoad:           float64(s.Settings.CandidateMaxLoad),
		HitTime:           store.HitTime(),
		SkipsFullCounters: store.HasCache,
	})
}

// newCandidates makes the source of the candidate rules that j judges.
func newCandidates(f *foundation, differences *candidate.Tracker, j *candidate.Judge, changed *changedLimits,
) *candidates.Source {
	files := f.fileConfig("", "set RUNTIME_CANDIDATE_SUBDIRECTORY to another directory")
	files.Config = f.reloadConfig(nil)
	source := candidates.New(candidates.Config{
		Settings: f.Settings, Log: f.log, Figures: f.counters, Heap: f.Heap, Files: files, Judge: j,
		Differences: differences, WithChanges: changed.over,
	})
	f.run(source.Runners...)
	return source
}

func logDenial(to *logrus.Logger) func(denials.Denial) {
	return func(d denials.Denial) {
		fields := logrus.Fields{
			"domain": d.Domain, "rule": d.Rule, "subject": d.Descriptor,
			"wait": d.RetryAfter.Round(time.Millisecond).String(),
		}
		if d.Rule == "" {
			fields["rule"] = "limit of the request"
		}
		if d.RetryAfter == algorithm.Never {
			fields["wait"] = "never"
		}
		if why := d.Reason(); why != "" {
			fields["reason"] = why
		}
		if d.SkippedDenials > 0 {
			fields["skipped"] = d.SkippedDenials
		}
		to.WithFields(fields).Info("denied")
	}
}

// logUnmatched warns of the first sample of each domain, and logs the others at debug level.
func logUnmatched(log *logging.Loggers) func(unmatched.Sample) {
	return func(s unmatched.Sample) {
		fields, message := logrus.Fields{"domain": s.Domain, "keys": s.Keys, "reason": s.Why}, "no rule applies"
		if s.IsUnknownDomain {
			fields, message = logrus.Fields{"domain": s.Domain}, "unknown domain"
		}
		if s.DidYouMean != "" {
			fields["did_you_mean"] = s.DidYouMean
		}
		if s.Skipped > 0 {
			fields["skipped"] = s.Skipped
		}
		level := logrus.DebugLevel
		if s.IsFirst {
			level = logrus.WarnLevel
		}
		log.WithFields(fields).Log(level, message)
	}
}
