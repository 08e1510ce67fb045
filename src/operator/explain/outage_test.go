package explain_test

import (
	"context"
	"strings"
	"testing"

	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/operator/explain"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
)

// unanswered is a store in front of one that does not answer: it decides as
// on_store_failure says.
type unanswered struct{ instead backend.Fallback }

func (u unanswered) Take(_ context.Context, b *backend.Batch) error {
	for i := range b.Verdicts {
		v := backend.Verdict{Fallback: u.instead}
		switch u.instead {
		case backend.FallbackDeny:
			v.Over, v.RetryAfter, v.ResetAfter, v.Before, v.After = true, 1e9, 1e9, 20, 20
		case backend.FallbackLocal:
			v.Over, v.RetryAfter, v.ResetAfter, v.Before, v.After, v.Share = true, 1e9, 1e9, 14, 14, 10
		}
		b.Verdicts[i] = v
	}
	return nil
}

// What was decided without the store names no counts.
func TestOutage(t *testing.T) {
	for instead, want := range map[backend.Fallback]string{
		backend.FallbackDeny: "now the count is unknown, since the store does not answer: is refused, by " +
			"on_store_failure: deny",
		backend.FallbackAllow: "now the count is unknown, since the store does not answer: passes, by on_store_failure: allow",
	} {
		report := inOutage(t, instead)
		if now := report.Descriptors[0].Charges[0].State; now.Before != nil || now.Remaining != nil || len(now.Reasons) > 0 ||
			now.Degraded != instead.String() {
			t.Errorf("%v: %+v", instead, now)
		}
		if text := report.Text(); !strings.Contains(text, want) || strings.Contains(text, " used") ||
			strings.Contains(text, " left") || strings.Contains(text, "passes in") {
			t.Errorf("%v:\n%s", instead, text)
		}
	}
}

// A local count is compared with the replica's share, and cannot be reset.
func TestShareInOutage(t *testing.T) {
	report := inOutage(t, backend.FallbackLocal)
	text := report.Text()
	for _, want := range []string{
		"now 14 used, 0 left of this replica's share of 10: is over, passes in 1s, says local, " +
			"because the store did not answer\n",
		"\nwhat was counted cannot be forgotten now: the store does not answer\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if d := report.Descriptors[0]; d.Reset != "" || *d.Charges[0].State.Remaining != 0 || d.Charges[0].State.Share != 10 {
		t.Errorf("%+v", d)
	}
}

// inOutage explains ip=1 with a limit of 20 per minute, of which the store does not answer.
func inOutage(t *testing.T, instead backend.Fallback) *explain.Report {
	t.Helper()
	set := limitertest.Load(t, []filerules.File{{
		Name: "d.yaml",
		Data: []byte("domain: d\ndescriptors:\n- {key: ip, rate_limit: {unit: minute, requests_per_unit: 20}}\n"),
	}})
	l := limiter.New(limiter.Config{Backend: unanswered{instead}})
	l.UseRules(set)
	req := parse(t, "d: ip=1")
	var a limiter.Answer
	if err := l.DryRun(t.Context(), req, &a); err != nil {
		t.Fatal(err)
	}
	report := newReport(t, req, &a, true)
	report.AddResets(req, "")
	return report
}
