package limiter_test

import (
	"testing"
	"time"

	"ratelimit/src/limiter"
)

// TestCalendarBesidePlainWindow charges one descriptor to a month of 30 days and to one of the calendar, which have one
// period. Their counters are apart, also in a dry run, and the answer has the border.
func TestCalendarBesidePlainWindow(t *testing.T) {
	t.Parallel()
	l := start(t, limiter.Config{})
	l.UseRules(load(t, `
domain: d
descriptors:
- key: ip
  rate_limits:
  - {unit: month, requests_per_unit: 1}
  - {unit: month, calendar: true, time_zone: Europe/Berlin, requests_per_unit: 1}
`))
	req := parse("ip=1")
	req.Domain, req.Now = []byte("d"), time.Date(2026, 3, 30, 22, 0, 0, 0, time.UTC) // 31 March in Berlin
	var a limiter.Answer
	for _, check := range []func() error{
		func() error { return l.DryRun(t.Context(), req, &a) },
		func() error { return l.Check(t.Context(), req, &a) },
	} {
		if err := check(); err != nil || a.Over {
			t.Fatalf("over %t, %v", a.Over, err)
		}
		if got := a.Statuses[0].Charges[1].Verdict.ResetAfter; got != 24*time.Hour {
			t.Errorf("the month resets in %v, want 24h", got)
		}
	}
	if err := l.Check(t.Context(), req, &a); err != nil || !a.Over ||
		a.Statuses[0].Charges[1].Verdict.RetryAfter != 24*time.Hour {
		t.Errorf("over %t, %+v, %v", a.Over, a.Statuses[0].Charges, err)
	}
}
