package metrics

import (
	"testing"

	"ratelimit/src/algorithm"
	"ratelimit/src/limiter"
)

// Requests with a limit of the caller count as limits that came with requests, and as no unknown domain.
func TestCallerLimits(t *testing.T) {
	t.Parallel()
	r := New(Config{NearRatio: 0.8})
	req := &limiter.Request{Domain: []byte("cl.throttle"), CallerLimit: new(algorithm.Limit)}
	for _, st := range []limiter.Status{
		{}, {}, {Over: true}, {Op: algorithm.Refund}, {StoreFailed: true}, {CallerLeft: true},
	} {
		r.Record(req, &limiter.Answer{Statuses: []limiter.Status{st}})
	}
	got := &r.requestLimitStats.counts
	if got[outcomeWithin].Load() != 2 || got[outcomeOver].Load() != 1 || got[outcomeRefunded].Load() != 1 ||
		got[unanswered].Load() != 1 {
		t.Errorf("got %d within, %d over, %d refunded, %d unanswered", got[outcomeWithin].Load(), got[outcomeOver].Load(),
			got[outcomeRefunded].Load(), got[unanswered].Load())
	}
	if n := r.unknownDomains.totalStats.counts[outcomeUnmatched].Load(); n != 0 {
		t.Errorf("%d of unknown domains", n)
	}
}
