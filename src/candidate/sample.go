package candidate

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// The sample bounds what candidate rules cost. AdjustSample compares estimates of the CPU time of live and of candidate
// rules. If the candidate rules take too much of it, fewer of their counters are in the sample: those with the smallest
// hashes of their names. A request that needs another counter is not judged. Requests that need no counter of their own
// are always judged.
//
// A counter in the sample gets all its hits, so its verdicts are right. The step, which says how large the sample is,
// is a counter in the store, so that replicas have the same sample.

// sampleStepsToHalf is how many steps halve the sample. maxSampleStep leaves a millionth.
const (
	sampleStepsToHalf = 8
	maxSampleStep     = 20 * sampleStepsToHalf
)

// Estimates of CPU times, measured with hundreds of calls at a time, of which each costs least. BenchmarkCandidateCost
// checks what follows.
const (
	callTime       = 350 * time.Nanosecond // of a call without its descriptors.
	descriptorTime = 200 * time.Nanosecond // of a descriptor without its hits.
	judgeTime      = 200 * time.Nanosecond // in which a descriptor is judged, without its hits.
	memoryHitTime  = 200 * time.Nanosecond // of a hit in memory.
)

// freeCandidateTime is the part of a core that hits of candidate rules may take whatever the live rules do: 200 hits a
// second on a sliding_window in Redis, which has the most expensive ones without holds.
const freeCandidateTime = 0.02

// sampleWindow is how long costs are added up before they make the sample smaller: a burst, such as the requests that
// waited for a start, costs no counter.
const sampleWindow = 10 * time.Second

// sampleTarget is the part of the allowed time that a smaller sample may take, so that it seldom shrinks again.
const sampleTarget = 0.7

// sampleLimit is the limit of the counter of steps. A day after its first step the sample has all counters again.
var sampleLimit = algorithm.Limit{Kind: algorithm.FirstHitWindow, Period: 24 * time.Hour}

// sampleKeySuffix ends the key of the counter of steps. No key of a rule ends so.
const sampleKeySuffix = "|sample"

// ruleTimes are estimated CPU times while there are candidate rules. They leave out hits that a cache decided.
type ruleTimes struct {
	live, judging time.Duration // the time of candidate rules without their hits.
	hits          time.Duration // the time of hits of candidate rules.
}

// addTimes adds the times of the request of d.
func (j *Judge) addTimes(t *ruleTimes, d *decision) {
	t.live += callTime + time.Duration(len(d.live.Statuses))*descriptorTime + j.hitTime(d.live)
	t.judging += time.Duration(len(d.answer.Statuses)) * judgeTime
	if d.state == statePending {
		t.hits += j.hitTime(&d.answer)
	}
}

// hitTime returns the estimated time of the hits of a that the store has decided.
func (j *Judge) hitTime(a *limiter.Answer) (sum time.Duration) {
	hits, verdicts := a.Hits(), a.Verdicts()
	for i := range hits {
		switch {
		case verdicts[i].Cached:
		case j.cfg.HitTime == nil:
			sum += memoryHitTime
		default:
			sum += j.cfg.HitTime(&hits[i])
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
	allowed := cfg.MaxLoad * float64(t.live)
	free := freeCandidateTime * float64(elapsed)
	if hits := float64(t.hits); hits > max(allowed-float64(t.judging), free) {
		next := max(sampleTarget*allowed-float64(t.judging), sampleTarget*free, 1)
		return uint64(math.Ceil(sampleStepsToHalf * math.Log2(hits/next)))
	}
	return 0
}

// SampledShare returns which share of the counters of candidate limits is in the sample: 1 for all.
func (j *Judge) SampledShare() float64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return sampledShare(j.sampleStep)
}

// AdjustSample makes the sample smaller if the candidate rules cost too much in a sampleWindow, and learns what other
// replicas have made of it. Call it about once a second, from one goroutine. It reports whether the sample has changed.
//
// If the store does not answer, the sample gets smaller only for this replica, and grows again when the store answers.
func (j *Judge) AdjustSample(ctx context.Context) (changed bool) {
	now := time.Now()
	j.mu.Lock()
	hash, step, judged := j.rules.Hash, j.sampleStep, j.rules.Set != nil
	times, total := j.times.since(j.timesBefore)
	elapsed := now.Sub(j.adjustedAt)
	isWhole := elapsed >= sampleWindow
	if isWhole || !judged {
		j.timesBefore, j.adjustedAt = total, now
	}
	j.mu.Unlock()
	if !judged {
		return false
	}
	next := step
	if isWhole {
		next = min(step+j.cfg.stepsFor(times, elapsed), maxSampleStep)
	}
	if stored, ok := j.storeSampleStep(ctx, hash, step, next); ok {
		next = min(stored, maxSampleStep)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if next == step || j.rules.Hash != hash || j.sampleStep != step {
		return false
	}
	j.sampleStep = next
	if old := j.inForce.Load(); old != nil {
		c := *old
		c.sampled = largestSampled(next)
		j.inForce.Store(&c)
	}
	return true
}

// storeSampleStep increases the counter of steps of the candidate rules with that hash from step to next, unless
// another replica has increased it since. It returns the counter's value; not ok if the store does not answer.
func (j *Judge) storeSampleStep(ctx context.Context, hash string, step, next uint64) (stored uint64, ok bool) {
	limit := sampleLimit
	limit.Max = next
	key := []byte(j.cfg.Limiter.KeyPrefix + "candidate_" + hash + sampleKeySuffix)
	hit := backend.Hit{Key: key, Limit: &limit, Amount: next - step, Op: algorithm.Charge}
	if next == step {
		hit.Op = algorithm.Look
	}
	v, err := backend.TakeHit(ctx, j.cfg.Limiter.Backend, hit)
	if err != nil || v.Fallback != backend.FallbackError || v.Cached {
		return 0, false
	}
	return v.After, true
}

// isSampled reports whether the counters that m charges for descriptor are in the sample. m is nil if no rule
// matches, and for a limit that came with the request.
func (d *decision) isSampled(descriptor *limiter.Descriptor, m *rules.Match) bool {
	var first *rules.Rule
	switch {
	case d.comparison.sampled == math.MaxUint64:
		return true
	case m != nil:
		first = m.Limits[0]
	case !descriptor.HasLimit:
		return true
	}
	return rules.SampleHash(d.answer.Domain, first, descriptor.Entries, d.search) <= d.comparison.sampled
}
