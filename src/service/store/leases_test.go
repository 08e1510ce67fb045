package store

import (
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"

	"ratelimit/src/backend"
	"ratelimit/src/service/logging"
	"ratelimit/src/settings"
	"ratelimit/testbed/limitertest"
)

// The settings give the counting of rules that do not name one.
func TestDefaultCounting(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		env       settings.Environment
		counting  backend.Counting
		contended backend.Contention
	}{
		{nil, backend.Exact, backend.Wait},
		{settings.Environment{"COUNTING_MODE": "leased", "CONTENTION_MODE": "refuse"}, backend.Leased, backend.Refuse},
	} {
		cfg, _, err := settings.Read(tt.env)
		if err != nil {
			t.Fatal(err)
		}
		if c, o := DefaultCounting(cfg), DefaultContention(cfg); c != tt.counting || o != tt.contended {
			t.Errorf("%v: %v, %v", tt.env, c, o)
		}
	}
}

// With counters in memory the log says once that leases change nothing, and exact rules say nothing.
func TestLeasesInMemory(t *testing.T) {
	t.Parallel()
	log, hook := test.NewNullLogger()
	s := Store{cfg: Config{Log: &logging.Loggers{Logger: log}}}
	for _, step := range []struct {
		counting string
		lines    int
	}{{"exact", 0}, {"leased", 1}, {"leased", 1}} {
		text := "domain: d\ncounting: " + step.counting + "\n" +
			"descriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 9}}]\n"
		set := limitertest.Rules(t, text)
		s.UseRules(set)
		if e := hook.LastEntry(); len(hook.AllEntries()) != step.lines || e != nil && e.Level != logrus.InfoLevel {
			t.Errorf("%s: logged %d lines, %+v", step.counting, len(hook.AllEntries()), e)
		}
	}
}
