package service

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"ratelimit/src/operator"
	"ratelimit/testbed/redistest"
)

const patternRules = `
domain: d
descriptors:
  - key: user
    rate_limits:
      - {unit: year, requests_per_unit: 9}
      - {name: fast, unit: second, requests_per_unit: 9000, algorithm: gcra}
`

// dryRunOfBan returns what a dry run says of a ban in the domain d.
func (s *service) dryRunOfBan(subject string) (report operator.LimitReport) {
	s.t.Helper()
	code, text := s.postJSON("/api/limits",
		fmt.Sprintf(`{"action":"set","domain":"d","subject":%q,"limit":"ban","dry_run":true}`, subject))
	if err := json.Unmarshal([]byte(text), &report); code != 200 || err != nil {
		s.t.Fatalf("%s: %d %s", subject, code, text)
	}
	return report
}

// A dry run with a pattern says how many subjects have a counter in any store, also if the store has many other keys.
func TestDryRunOfPattern(t *testing.T) {
	t.Parallel()
	populate := func(t *testing.T, list ...*redistest.Server) {
		for _, s := range list {
			s.Do(t, "DEBUG", "POPULATE", "20000", "d_other")
		}
	}
	for name, open := range map[string]func(*testing.T) []string{
		"memory": func(*testing.T) []string { return []string{"BACKEND_TYPE=memory"} },
		"redis": func(t *testing.T) []string {
			s := redistest.Start(t, redistest.Options{})
			populate(t, s)
			return []string{"REDIS_URL=" + s.Addr}
		},
		"sentinel": func(t *testing.T) []string {
			s := redistest.StartSentinel(t, redistest.SentinelOptions{})
			populate(t, s.Primary(t))
			return []string{"REDIS_TYPE=sentinel", "REDIS_URL=" + s.PrimaryName + "," + strings.Join(s.SentinelAddrs, ",")}
		},
		"cluster and escaped keys": func(t *testing.T) []string {
			c := redistest.StartCluster(t, redistest.ClusterOptions{})
			populate(t, c.Primaries(t)...)
			return []string{"REDIS_TYPE=cluster", "REDIS_URL=" + strings.Join(c.Addrs, ","), "CACHE_KEY_FORMAT=v2"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := launch(t, patternRules, append(open(t), "REDIS_TIMEOUT=5s", "LOG_LEVEL=error")...)
			s.until("ready", s.healthy)
			for i := range 40 {
				if code, err := s.post("user", fmt.Sprintf("al_%d", i)); code != 200 || err != nil {
					t.Fatalf("%d, %v", code, err)
				}
			}
			if code, err := s.post("user", "bob"); code != 200 || err != nil {
				t.Fatalf("%d, %v", code, err)
			}
			for subject, want := range map[string]int{
				"user=al*": 40, "user=al_1*": 11, "user=bob,*": 1, "user=eve*": 0, "*": 41,
			} {
				report := s.dryRunOfBan(subject)
				if report.Subjects == nil || *report.Subjects != want || report.SubjectsAtLeast {
					t.Errorf("%s: %+v, want %d", subject, report, want)
				}
			}
			if report := s.dryRunOfBan("user=bob"); report.Subjects != nil {
				t.Errorf("one subject: %+v", report)
			}
		})
	}
}

// A store whose counters have no names, and one that does not answer, leave the number open.
func TestDryRunOfPatternWithoutAnswer(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, redistest.Options{})
	for want, vars := range map[string][]string{
		"MEMORY_COUNTER_NAMES=true keeps them": {"MEMORY_COUNTER_NAMES=false"},
		"the search for counters at":           {"REDIS_URL=" + redis.Addr, "REDIS_TIMEOUT=100ms"},
	} {
		s := launch(t, patternRules, append(vars, "LOG_LEVEL=error")...)
		s.until("ready", s.healthy)
		if len(vars) > 1 {
			redis.Kill()
		}
		if r := s.dryRunOfBan("user=al*"); r.Subjects != nil || !strings.Contains(fmt.Sprint(r.Warnings), want) {
			t.Errorf("%+v; want %s", r, want)
		}
	}
}
