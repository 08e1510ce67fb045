package denials

import (
	"testing"
	"time"

	"ratelimit/src/limiter"
	"ratelimit/testbed/limitertest"
)

// TestDenialsOfHolds checks that the name of a hold is not in the sample of a denial.
func TestDenialsOfHolds(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"domain: d\ndescriptors: [{key: user, rate_limit: {algorithm: concurrency, requests_per_unit: 0, hold: 30s, " +
			"hold_id: id}}]",
		"domain: d\nrules: [{match: {user: '*'}, rate_limit: {algorithm: concurrency, requests_per_unit: 0, hold: 30s, " +
			"hold_id: id}}]",
	} {
		set := limitertest.Rules(t, text)
		var got []Denial
		l := start(t, limiter.Config{},
			New(Config{MaxSamples: 9, Interval: time.Second, OnSample: func(d Denial) { got = append(got, d) }}))
		l.UseRules(set)
		if err := l.Check(t.Context(), parse("user=al,id=7"), new(limiter.Answer)); err != nil {
			t.Fatal(err)
		}
		if len(got) != 1 || got[0].Descriptor != "user=al" {
			t.Errorf("got %+v, want the descriptor user=al", got)
		}
	}
}
