package subjects

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// maxSamplesPerSecond is about how many decisions of each kind are counted per second, of all rules together. If there
	// are more, a decision of a busy rule stands for several.
	maxSamplesPerSecond = 8_000
	// samplingInterval is how often the shares that are sampled follow the traffic.
	samplingInterval = 250 * time.Millisecond
	// maxSamples is how many samples of a kind are taken in an interval of even traffic.
	maxSamples = maxSamplesPerSecond * int64(samplingInterval) / int64(time.Second)
	// samplesPerWeight is how many samples a rule takes with one weight, before it doubles the weight in a burst.
	samplesPerWeight = maxSamples / 16
	// sampleAll is the threshold with which each decision is sampled.
	sampleAll = 1 << 32
	// maxWeight is the most decisions that a sample stands for.
	maxWeight = 1 << 20
)

// sampler chooses the decisions of one kind on one rule that are counted.
type sampler struct {
	// threshold is the share of sampleAll that is sampled: a decision is sampled if 32 random bits are below it.
	threshold atomic.Uint64

	// These fields are guarded by ruleSubjects.mu.
	weight     uint64 // how many decisions a sample stands for.
	samples    int64  // the number of samples with this weight in this interval.
	maxSamples int64  // how many samples may have this weight in this interval.
	decisions  uint64 // the estimated number of decisions in this interval.
}

func (s *sampler) setWeight(n uint64) {
	s.weight = min(n, maxWeight)
	s.threshold.Store(sampleAll / s.weight)
}

// count counts a sample and returns its weight. isBusy says that all rules together have more samples than they
// should have in this interval.
func (s *sampler) count(isBusy bool) (weight uint64) {
	weight = s.weight
	s.samples++
	s.decisions += weight
	if s.samples > s.maxSamples || isBusy && s.samples > samplesPerWeight {
		s.setWeight(2 * weight)
		s.samples, s.maxSamples = 0, samplesPerWeight
	}
	return weight
}

// activity is what a sampler saw in an interval.
type activity struct {
	rule      *ruleSubjects
	decisions float64 // the estimated number of decisions per interval.
}

// shareOut divides the samples of an interval among the rules in list: a rule with few decisions keeps all, and the
// others get the same number of samples. It returns that number, which is maxSamples or more if all decisions can be
// sampled. It sorts list.
func shareOut(list []activity) (perRule float64) {
	slices.SortFunc(list, func(a, b activity) int { return cmp.Compare(a.decisions, b.decisions) })
	left := float64(maxSamples)
	for i, a := range list {
		perRule = left / float64(len(list)-i)
		if a.decisions > perRule {
			return perRule
		}
		left -= a.decisions
	}
	return float64(maxSamples)
}
