package service

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"ratelimit/src/operator"
	"ratelimit/testbed/testfiles"
)

// writeCandidate replaces a file of the candidate rules, which are in the directory next beside that of the live rules.
func (s *service) writeCandidate(name, text string) {
	s.t.Helper()
	live := s.dir
	defer func() { s.dir = live }()
	s.dir = filepath.Join(filepath.Dir(live), "next", filepath.Base(live))
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		s.t.Fatal(err)
	}
	s.write(name, text)
}

// removeCandidates removes all candidate rules.
func (s *service) removeCandidates() {
	s.t.Helper()
	if err := os.RemoveAll(filepath.Join(filepath.Dir(s.dir), "next")); err != nil {
		s.t.Fatal(err)
	}
}

func (s *service) candidate() operator.Candidate {
	s.t.Helper()
	return api[operator.Candidate](s, "/candidate?format=json")
}

// The candidate rules come, are refused, change and go. The live rules answer alone, and the process is ready all the
// time.
func TestCandidateRules(t *testing.T) {
	t.Parallel()
	s := launch(t, oneRule, "RUNTIME_CANDIDATE_SUBDIRECTORY=next", "LOG_LEVEL=info", "DISABLE_STATS=false",
		"USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0")
	s.until("ready", s.healthy)
	if c := s.candidate(); c.Rules != 0 || !c.LoadedAt.IsZero() || len(c.Problems) > 0 ||
		!strings.HasSuffix(c.Directory, "/next/config") {
		t.Errorf("at first: %+v", c)
	}
	s.writeCandidate("rules.yaml", "domain: d\ndescriptors: [{keyy: ip}]")
	s.until("a refusal", func() bool { return len(s.candidate().Problems) > 0 })
	if !s.healthy() || !s.logged("candidate rules refused, the live rules are judged alone")() ||
		s.ask("0") != http.StatusOK {
		t.Error("a bad candidate has an effect")
	}
	s.writeCandidate("rules.yaml", strings.Replace(oneRule, "requests_per_unit: 2", "requests_per_unit: 1", 1)+"---\n")
	s.writeCandidate("more.yaml", "domain: new\ndescriptors: []")
	s.until("candidate rules", func() bool {
		c := s.candidate()
		return c.Rules == 1 && c.Domains == 2 &&
			len(c.Problems) == 0
	})
	codes := []int{s.ask("1"), s.ask("1"), s.ask("1")}
	if codes[0] != http.StatusOK || codes[1] != http.StatusOK || codes[2] != http.StatusTooManyRequests {
		t.Errorf("the live rules answer %v", codes)
	}
	c := s.candidate()
	if want := (operator.CandidateRequests{
		Same:                 2,
		CandidateDifferences: operator.CandidateDifferences{WouldDeny: 1},
	}); c.Requests != want ||
		len(c.DifferingRules) != 1 {
		t.Fatalf("got %+v, want %+v", c, want)
	}
	if d, want := c.DifferingRules[0], (operator.CandidateRule{
		Domain: "d", Rule: "d.ip", LiveLimit: "2 per year", CandidateLimit: "1 per year",
		CandidateDifferences: operator.CandidateDifferences{WouldDeny: 1},
	}); d != want {
		t.Errorf("got %+v, want %+v", d, want)
	}
	if len(c.Subjects) != 1 || c.Subjects[0].Subject != "ip=1" || c.Subjects[0].Requests != 1 || len(c.Examples) != 1 ||
		c.Examples[0].Subject != "ip=1" ||
		c.Examples[0].Result != "would_deny" || len(c.NewDomains) != 1 || c.NewDomains[0] != "new" {
		t.Errorf("got %+v", c)
	}
	_, page := s.get("prometheus", "/metrics")
	for _, line := range []string{
		`ratelimit_candidate_requests_total{result="same"} 2`, `ratelimit_candidate_requests_total{result="would_deny"} 1`,
		`ratelimit_candidate_rules 1`,
		`ratelimit_candidate_refused 0`, `ratelimit_candidate_differences_total{domain="d",result="would_deny",rule="ip"} 1`,
	} {
		if !strings.Contains(page, line+"\n") {
			t.Errorf("%s is not in\n%s", line, page)
		}
	}
	if code, text := s.get("debug", "/candidate"); code != http.StatusOK ||
		!strings.Contains(text, "d.ip  2 per year  1 per year  1 ") {
		t.Errorf("%d %s", code, text)
	}
	if _, text := s.get("debug", "/candidate?format=rlconfig"); !strings.HasPrefix(text,
		"d.ip: unit=YEAR requests_per_unit=1,") {
		t.Errorf("got %s", text)
	}
	s.keepsCountsOfSameCandidate()
	s.removeCandidates()
	// In between, only the domain without rules may be there.
	s.until("no candidate", func() bool { return s.candidate().LoadedAt.IsZero() })
	before := s.candidate().Requests
	s.ask("1")
	if got := s.candidate().Requests; got != before {
		t.Errorf("without a candidate %+v", got)
	}
}

// keepsCountsOfSameCandidate reloads the same candidate, which keeps its counts, and loads another one, which does not.
func (s *service) keepsCountsOfSameCandidate() {
	s.t.Helper()
	first := s.candidate()
	s.signals <- syscall.SIGHUP
	s.until("a reload", func() bool { return s.candidate().LoadedAt.After(first.LoadedAt) })
	if c := s.candidate(); c.Requests != first.Requests {
		s.t.Errorf("after a reload: %+v", c.Requests)
	}
	s.writeCandidate("rules.yaml", strings.Replace(oneRule, "requests_per_unit: 2", "requests_per_unit: 3", 1))
	s.until("another candidate", func() bool { return s.candidate().Hash != first.Hash })
	if c := s.candidate(); c.Requests != (operator.CandidateRequests{}) || len(c.DifferingRules) > 0 ||
		!c.Since.After(first.Since) {
		s.t.Errorf("another candidate: %+v", c)
	}
	s.ask("1")
	if c := s.candidate(); c.Requests.WouldAdmit != 0 || c.Requests.Same != 1 {
		s.t.Errorf("the fourth of 3 requests: %+v", c.Requests)
	}
}

// Without a directory there is no candidate, and a directory that overlaps with that of the rules is refused.
func TestCandidateDirectory(t *testing.T) {
	t.Parallel()
	s := launch(t, oneRule)
	s.until("ready", s.healthy)
	if code, text := s.get("debug", "/candidate"); code != http.StatusNotFound ||
		!strings.Contains(text, "set RUNTIME_CANDIDATE_SUBDIRECTORY") {
		t.Errorf("%d %s", code, text)
	}
	for _, vars := range [][]string{
		{"RUNTIME_CANDIDATE_SUBDIRECTORY=."},
		{"RUNTIME_CANDIDATE_SUBDIRECTORY=next", "RUNTIME_APPDIRECTORY="},
		{"RUNTIME_CANDIDATE_SUBDIRECTORY=next", "RUNTIME_SUBDIRECTORY=next/config/more"},
		{"RUNTIME_CANDIDATE_SUBDIRECTORY=config.next", "RUNTIME_SUBDIRECTORY="},
	} {
		s := launch(t, oneRule, vars...)
		if err := s.wait(); err == nil || !strings.Contains(err.Error(), "RUNTIME_CANDIDATE_SUBDIRECTORY") ||
			!strings.Contains(err.Error(), "overlap") {
			t.Errorf("%v: %v", vars, err)
		}
	}
	dir := t.TempDir()
	s = launch(t, oneRule, "--config="+dir, "RUNTIME_CANDIDATE_SUBDIRECTORY=next")
	s.until("ready", s.healthy)
	if strings.Contains(s.log.String(), "no effect") {
		t.Errorf("got %s", s.log.String())
	}
	s = launch(t, oneRule, "RUNTIME_ROOT="+dir, "--config="+filepath.Join(dir, "next"),
		"RUNTIME_CANDIDATE_SUBDIRECTORY=next")
	if err := s.wait(); err == nil || !strings.Contains(err.Error(), "overlaps with --config") {
		t.Error(err)
	}
}

// Candidate files replace the files only: domains of management servers stay as they are.
func TestCandidateBesideManagementServers(t *testing.T) {
	t.Parallel()
	s := launchThreeSources(t, "RUNTIME_CANDIDATE_SUBDIRECTORY=next")
	s.until("ready", s.healthy)
	s.writeCandidate("other.yaml", "domain: other\ndescriptors: []")
	s.until("a candidate", func() bool { return s.candidate().Domains == 1 })
	s.until("the domains", func() bool {
		c := s.candidate()
		return strings.Join(c.RemovedDomains, " ") == "web" && strings.Join(c.NewDomains, " ") == "other"
	})
}

// With --config the candidate rules are beside it, unless RUNTIME_ROOT says where. A missing directory is named.
func TestCandidateBesideConfig(t *testing.T) {
	dir := t.TempDir()
	live := filepath.Join(dir, "live")
	if err := os.Mkdir(live, 0o755); err != nil {
		t.Fatal(err)
	}
	testfiles.Write(t, filepath.Join(live, "rules.yaml"), oneRule)
	for _, tt := range []struct{ config, candidate, root, want string }{
		{live, "next", "", filepath.Join(dir, "next")},
		{live + "/", "next", "", filepath.Join(dir, "next")},
		{filepath.Join(live, "rules.yaml"), "../next", "", filepath.Join(dir, "next")},
		{live, filepath.Join(dir, "other"), "", filepath.Join(dir, "other")},
		{live, "next", "/elsewhere", "/elsewhere/next/config"},
	} {
		environ := []string{"RUNTIME_CANDIDATE_SUBDIRECTORY=" + tt.candidate}
		if tt.root != "" {
			environ = append(environ, "RUNTIME_ROOT="+tt.root)
		}
		cfg, err := serveConfig(environ, tt.config, "")
		if err != nil || cfg.Settings.CandidatePath() != tt.want {
			t.Errorf("%+v: %v, %s", tt, err, cfg.Settings.CandidatePath())
		}
	}
	s := launch(t, oneRule, "--config="+live, "RUNTIME_ROOT=", "RUNTIME_CANDIDATE_SUBDIRECTORY=next")
	s.until("the directory is named",
		s.logged("there are no candidate rules until "+filepath.Join(dir, "next")+" exists"))
}
