package integration

import (
	"fmt"
	"strings"
	"testing"
)

// The log says why no limit is applied, once for each domain, and at level debug again each second, in bounded lines
// without values.
func TestDebugLinesOfRequests(t *testing.T) {
	rules := newRuleDir(t)
	rules.put(t, "d.yaml", "domain: d\ndescriptors:\n- {key: user, rate_limit: {unit: year, requests_per_unit: 1000}}\n")
	asks := func(u *upstream) {
		u.send(t, "grpc", "edge", step{ask: "user=" + valueMark})
		u.send(t, "json", "d", step{ask: "user=" + valueMark})
		u.send(t, "json", "d", step{ask: "path=/, user=" + valueMark + " + user=a"})
	}
	u := startWith(t, rules, "LOG_LEVEL=debug")
	asks(u)
	const unknown, unmatched = `level=warning msg="unknown domain" domain=edge`,
		`level=warning msg="no rule applies" domain=d keys="path,user" reason="no rule has the key of entry 1 of 2 in this place"`
	u.logs(t, 0, unknown)
	u.logs(t, 0, unmatched)
	for range 200 {
		u.send(t, "grpc", "d", step{ask: "x=" + valueMark})
	}
	soon(t, "lines are skipped, and counted", func() error {
		u.send(t, "grpc", "d", step{ask: "x=" + valueMark})
		if !strings.Contains(u.log(t), "skipped=") {
			return fmt.Errorf("no line says so")
		}
		return nil
	})
	if log := u.log(t); strings.Contains(log, valueMark) || strings.Count(log, "no rule applies") > 150 {
		t.Errorf("%d lines, or lines with values", strings.Count(log, "no rule applies"))
	}
	for _, level := range []string{"warn", "error"} {
		quiet := startWith(t, rules, "LOG_LEVEL="+level)
		for range 3 {
			asks(quiet)
		}
		want := 1
		if level == "error" {
			want = 0
		} else {
			quiet.logs(t, 0, unknown)
			quiet.logs(t, 0, unmatched)
		}
		log := quiet.log(t)
		for _, line := range []string{"edge", "no rule applies"} {
			if n := strings.Count(log, line); n != want {
				t.Errorf("at level %s: %d lines of %q, want %d:\n%s", level, n, line, want, log)
			}
		}
	}
}
