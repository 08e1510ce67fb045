package integration

import (
	"fmt"
	"strings"
	"testing"
)

// With LOG_LEVEL=debug the log says why no limit is applied, in bounded lines without values. At other levels it says
// nothing about requests.
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
	u.logs(t, 0, `level=debug msg="unknown domain" domain=edge`)
	u.logs(t, 0, `level=debug msg="no rule applies" domain=d keys="path,user" reason="no rule has the key of entry 1 of 2 in this place"`)
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
	quiet := startWith(t, rules, "LOG_LEVEL=info")
	asks(quiet)
	if log := quiet.log(t); strings.Contains(log, "edge") || strings.Contains(log, "no rule applies") {
		t.Errorf("at level info:\n%s", log)
	}
}
