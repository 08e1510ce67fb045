package explain_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/operator/explain"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
)

// silent is a store that does not answer, and leaves the request without a decision.
type silent struct{}

func (silent) Take(_ context.Context, b *backend.Batch) error {
	for i := range b.Verdicts {
		b.Verdicts[i] = backend.Verdict{Err: fmt.Errorf("redis: %w", errDial)}
	}
	return nil
}

var errDial = errors.New("10.0.0.7:6379: connection refused")

// With on_store_failure: error the rules are explained all the same, with the reason why no count is known.
func TestUndecidedRequest(t *testing.T) {
	t.Parallel()
	set := limitertest.Load(t, []filerules.File{{
		Name: "d.yaml",
		Data: []byte("domain: d\ndescriptors:\n- {key: ip, rate_limit: {unit: minute, requests_per_unit: 20}}\n"),
	}})
	l := limiter.New(limiter.Config{Backend: silent{}})
	l.UseRules(set)
	report, err := explain.Request(t.Context(), l, parse(t, "d: ip=1"), true)
	if err != nil {
		t.Fatal(err)
	}
	text := report.Text()
	for _, want := range []string{
		"rule d.ip (d.yaml:3:3): 20 per minute",
		"now the count is unknown, since the store does not answer: gets an error, by on_store_failure: error\n",
		"now the request gets an error\n",
		"no count is known: the store did not answer: redis: 10.0.0.7:6379: connection refused\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	d := report.Descriptors[0]
	if report.Decision.Code != explain.CodeError || d.Status.Code != explain.CodeError ||
		d.Charges[0].State.Before != nil {
		t.Errorf("%+v %+v %+v", report.Decision, d.Status, d.Charges[0].State)
	}
}
