//go:build !race

package denials

import (
	"testing"
	"time"

	"ratelimit/src/limiter"
)

// Only what is sampled allocates. The race detector allocates by itself.
func TestRecordDoesNotAllocate(t *testing.T) {
	s := New(Config{MaxSamples: 1, Interval: time.Second, OnSample: func(Denial) {}})
	req, refused, passed := parse("banned=1"), denied(t), new(limiter.Answer)
	if err := start(t, limiter.Config{}, nil).Check(t.Context(), parse("ip=1"), passed); err != nil {
		t.Fatal(err)
	}
	at := time.Unix(100, 0)
	s.recordDenied(at, req, refused)
	if n := testing.AllocsPerRun(100, func() {
		s.recordDenied(at, req, refused)
		s.Record(req, passed)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
