package service

import (
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/candidate"
	"ratelimit/src/limiter"
	"ratelimit/src/operator/denials"
	"ratelimit/src/operator/unmatched"
)

// newLimiter makes the limiter, which also judges candidate rules. It tells its decisions to the figures, the log and
// recorders.
func newLimiter(s *foundation, store *store, candidates *candidateSource,
	recorders ...limiter.Recorder,
) *candidate.Judge {
	if n := s.Settings.LogDenials; n > 0 {
		recorders = append(recorders, denials.New(denials.Config{
			MaxSamples: n, Interval: time.Second,
			OnSample: logDenial(s.log.deniedRequests),
		}))
	}
	if s.log.IsLevelEnabled(logrus.DebugLevel) {
		recorders = append(recorders, unmatched.New(unmatchedLinesPerSecond, logUnmatched(s.log.Logger)))
	}
	cfg := candidate.Config{
		Limiter: limiter.Config{
			Backend:            store.Backend,
			Recorders:          recorders,
			KeyPrefix:          s.Settings.CacheKeyPrefix,
			EscapeKeys:         s.Settings.CacheKeyFormat == "v2",
			UseDivvyKeys:       s.Settings.Divvy.KeyFormat == "upstream",
			ShadowMode:         s.Settings.ShadowMode,
			QuotaMode:          s.Settings.QuotaMode,
			ChargeAllOrNothing: s.Settings.StopIncrementWhenOver,

			MaxDescriptors: s.Settings.MaxDescriptors,
		},
		MaxLoad:           float64(s.Settings.CandidateMaxLoad),
		HitTime:           hitTime(s.Settings.BackendType),
		SkipsFullCounters: s.Settings.LocalCacheBytes > 0 && s.Settings.BackendType != "memory",
	}
	if candidates != nil {
		cfg.Recorder = candidates.differences
	}
	return candidate.New(cfg)
}
