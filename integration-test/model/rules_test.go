package model

import (
	"testing"

	"ratelimit/testbed/limitertest"
)

// checkYAML holds the YAML of rules to what the service makes of it.
func checkYAML(t *testing.T, rs Rules) {
	t.Helper()
	text := rs.YAML()
	set := limitertest.Rules(t, text)
	limits := -1 // the probe's
	for range set.Rules() {
		limits++
	}
	want := 0
	for i := range rs {
		want += len(rs[i].Limits)
	}
	if limits != want {
		t.Errorf("%d limits, want %d:\n%s", limits, want, text)
	}
}

func TestYAML(t *testing.T) {
	s, err := Parse("x", wellWritten)
	if err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(50) {
		s.Steps = append(s.Steps, Random(seed, cans[seed%uint64(len(cans))].Can).Steps...)
	}
	for i := range s.Steps {
		if rs := s.Steps[i].Rules; rs != nil {
			checkYAML(t, rs)
		}
	}
}
