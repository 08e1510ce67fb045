package limiter

import "time"

// Summarize is Status.summarizeCharges for tests.
func Summarize(st *Status) { st.summarizeCharges() }

// Combine is Answer.combineStatuses for tests.
func Combine(a *Answer) { a.combineStatuses(false, false) }

// SetSampleStep makes a sample of the counters of candidate rules smaller.
func (l *Limiter) SetSampleStep(step uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sampleStep = step
	live := l.inForce.Load().live
	l.inForce.Store(&ruleSets{live, l.relateCandidate(live)})
}

// StepsFor is Config.stepsFor for tests.
func (cfg *Config) StepsFor(live, judging, hits, elapsed time.Duration) uint64 {
	return cfg.stepsFor(ruleTimes{live, judging, hits}, elapsed)
}
