package candidate

import "time"

// SetSampleStep makes a sample of the counters of candidate rules smaller.
func (j *Judge) SetSampleStep(step uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sampleStep = step
	j.compare()
}

// StepsFor is Config.stepsFor for tests.
func (cfg *Config) StepsFor(live, judging, hits, elapsed time.Duration) uint64 {
	return cfg.stepsFor(ruleTimes{live, judging, hits}, elapsed)
}
