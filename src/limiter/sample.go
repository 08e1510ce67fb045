package limiter

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/rules"
)

// The sample bounds what candidate rules cost. AdjustSample compares estimates of the CPU time of live and of candidate rules. If the
// candidate rules take too much of it, fewer of their counters are in the sample: those with the smallest hashes of their names. A request
// that needs another counter is not judged. Requests that need no counter of their own are always judged.
//
// A counter in the sample gets all its hits, so its verdicts are right. The step, which says how large the sample is, is a counter in the
// store, so that replicas have the same sample.

// sampleStepsToHalf is how many steps halve the sample. maxSampleStep leaves a millionth.
const (
	sampleStepsToHalf = 8
	maxSampleStep     = 20 * sampleStepsToHalf
)

// Estimates of CPU times, measured with hundreds of calls at a time, of which each costs least. BenchmarkCandidateCost checks what follows.
const (
	callTime       = 350 * time.Nanosecond // callTime is the time of a call without its descriptors.
	descriptorTime = 200 * time.Nanosecond // descriptorTime is the time of a descriptor without its hits.
	judgeTime      = 200 * time.Nanosecond // judgeTime is the time in which a descriptor is judged, without its hits.
	memoryHitTime  = 200 * time.Nanosecond // memoryHitTime is the time of a hit in memory.
)

// freeCandidateTime is the part of a core that hits of candidate rules may take whatever the live rules do.
const freeCandidateTime = 0.005

// sampleTarget is the part of the allowed time that a smaller sample may take. The rest is for estimates that are too low, and keeps fluctuations from
// making it smaller again.
const sampleTarget = 0.7

// sampleLimit is the limit of the counter of steps. A day after its first step the sample has all counters again.
var sampleLimit = algorithm.Limit{Kind: algorithm.FirstHitWindow, Period: 24 * time.Hour}

// sampleKeySuffix ends the key of the counter of steps. No key of a rule ends so.
const sampleKeySuffix = "|sample"

// ruleTimes are estimated CPU times while there are candidate rules. They leave out hits that a cache decided.
type ruleTimes struct {
	live, judging time.Duration // judging is the time of candidate rules without their hits.
	hits          time.Duration // hits is the time of hits of candidate rules.
}

// addRequest adds the request that a answers.
func (t *ruleTimes) addRequest(cfg *Config, a *Answer) {
	w := &a.workspace
	t.live += callTime + time.Duration(len(a.Statuses))*descriptorTime + a.hitTime(cfg)
	t.judging += time.Duration(len(w.candidate.Statuses)) * judgeTime
	if w.candidateState == candidatePending {
		t.hits += w.candidate.hitTime(cfg)
	}
}

// hitTime returns the estimated time of the hits of a that the store has decided.
func (a *Answer) hitTime(cfg *Config) (sum time.Duration) {
	if len(a.Charges) == 0 { // There may be no batch.
		return 0
	}
	hits, verdicts := a.hits(), a.verdicts()
	for i := range verdicts {
		switch {
		case verdicts[i].Cached:
		case cfg.HitTime == nil:
			sum += memoryHitTime
		default:
			sum += cfg.HitTime(&hits[i])
		}
	}
	return sum
}

// totalTimes is the sum of all ruleTimes. It is safe for concurrent use.
type totalTimes struct{ live, judging, hits atomic.Int64 }

func (t *totalTimes) add(n ruleTimes) {
	if n.live > 0 {
		t.live.Add(int64(n.live))
		t.judging.Add(int64(n.judging))
		t.hits.Add(int64(n.hits))
	}
}

// since returns the times since before.
func (t *totalTimes) since(before ruleTimes) (d, now ruleTimes) {
	now = ruleTimes{time.Duration(t.live.Load()), time.Duration(t.judging.Load()), time.Duration(t.hits.Load())}
	return ruleTimes{now.live - before.live, now.judging - before.judging, now.hits - before.hits}, now
}

// sampledShare returns the share of counters in the sample, up to 1.
func sampledShare(step uint64) float64 {
	return math.Exp2(-float64(step) / sampleStepsToHalf)
}

// largestSampled returns the largest rules.SampleHash of a counter in the sample.
func largestSampled(step uint64) uint64 {
	if step == 0 {
		return math.MaxUint64
	}
	return uint64(math.Ldexp(sampledShare(step), 64))
}

// stepsFor returns by how many steps the sample must shrink so that the times of candidate rules are allowed.
func (cfg *Config) stepsFor(t ruleTimes, elapsed time.Duration) uint64 {
	allowed := cfg.CandidateLoad * float64(t.live)
	free := freeCandidateTime * float64(elapsed)
	if hits := float64(t.hits); hits > max(allowed-float64(t.judging), free) {
		next := max(sampleTarget*allowed-float64(t.judging), sampleTarget*free, 1)
		return uint64(math.Ceil(sampleStepsToHalf * math.Log2(hits/next)))
	}
	return 0
}

// CandidateShare returns which share of the counters of candidate limits is in the sample: 1 for all.
func (l *Limiter) CandidateShare() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return sampledShare(l.sampleStep)
}

// AdjustSample makes the sample smaller if the candidate rules cost too much since the last call, and learns what other replicas
// have made of it. Call it about once a second, from one goroutine. It reports whether the sample has changed.
//
// If the store does not answer, the sample gets smaller only for this replica, and grows again when the store answers.
func (l *Limiter) AdjustSample(ctx context.Context) (changed bool) {
	now := time.Now()
	l.mu.Lock()
	hash, step, judged := l.candidate.Hash, l.sampleStep, l.candidate.Set != nil
	times, total := l.ruleTimes.since(l.timesBefore)
	elapsed := now.Sub(l.adjustedAt)
	l.timesBefore, l.adjustedAt = total, now
	l.mu.Unlock()
	if !judged {
		return false
	}
	next := min(step+l.cfg.stepsFor(times, elapsed), maxSampleStep)
	if stored, ok := l.storeSampleStep(ctx, hash, step, next); ok {
		next = min(stored, maxSampleStep)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if next == step || l.candidate.Hash != hash || l.sampleStep != step {
		return false
	}
	l.sampleStep = next
	if sets := l.inForce.Load(); sets.candidate != nil {
		c := *sets.candidate
		c.sampled = largestSampled(next)
		l.inForce.Store(&ruleSets{sets.live, &c})
	}
	return true
}

// storeSampleStep increases the counter of steps of the candidate rules with that hash from step to next, unless another replica has
// increased it since. It returns the counter's value; not ok if the store does not answer.
func (l *Limiter) storeSampleStep(ctx context.Context, hash string, step, next uint64) (stored uint64, ok bool) {
	limit := sampleLimit
	limit.Max = next
	hit := backend.Hit{Key: []byte(l.cfg.KeyPrefix + "candidate_" + hash + sampleKeySuffix), Limit: &limit, Amount: next - step, Op: algorithm.Charge}
	if next == step {
		hit.Op = algorithm.Look
	}
	batch := backend.Batch{Hits: []backend.Hit{hit}, Verdicts: make([]backend.Verdict, 1)}
	if err := l.cfg.Backend.Take(ctx, &batch); err != nil {
		return 0, false
	}
	switch v := &batch.Verdicts[0]; {
	case v.Err != nil || v.Fallback != backend.FallbackError || v.Cached:
		return 0, false
	default:
		return v.After, true
	}
}

// isSampled reports whether the counters that rule charges for d are in the sample. rule is nil if none matches, and for the limit of d.
func isSampled(candidate *Answer, rule *rules.Rule, d *Descriptor) bool {
	w := &candidate.workspace
	var first *rules.Rule
	switch {
	case w.candidateRules.sampled == math.MaxUint64:
		return true
	case rule != nil:
		first = rule.LimitsToCharge()[0]
	case !d.HasLimit:
		return true
	}
	return rules.SampleHash(candidate.Domain, first, d.Entries, &w.findRuleScratch) <= w.candidateRules.sampled
}
