package service

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"ratelimit/testbed/testfiles"
)

func TestReload(t *testing.T) {
	t.Parallel()
	s := launch(t, oneRule)
	s.until("ready", s.healthy)
	s.ask("1")
	s.write("rules.yaml", strings.Replace(oneRule, "2}", "1}", 1))
	s.until("the smaller limit", func() bool {
		_, body := s.get("debug", "/rlconfig")
		return strings.Contains(body, "requests_per_unit=1")
	})
	if got := s.ask("1"); got != 429 { // earlier hits count
		t.Errorf("got %d", got)
	}

	s.write("rules.yaml", "domain: d\ndescriptors:\n  - kez: ip\n  - key: ip\n    rate_limit: {unit: fortnight}\n")
	s.until("both problems logged", func() bool {
		return s.logged("rules.yaml:3:5: unknown key")() && s.logged("rules.yaml:5:24: unit")()
	})
	if got := s.ask("2"); got != 200 || !s.healthy() {
		t.Errorf("the old rules are not in force: %d", got)
	}
	for _, format := range []string{"", "?format=yaml"} {
		_, body := s.get("debug", "/rlconfig"+format)
		note, rest, _ := strings.Cut(body, "\n")
		if !strings.HasPrefix(note, "# newer rules were refused at 20") ||
			!strings.Contains(note, "rules.yaml:3:5: unknown key") || !strings.Contains(note, "those below stay in force") {
			t.Errorf("/rlconfig%s does not say that newer rules were refused: %s", format, body)
		}
		if !strings.Contains(rest, "d.ip") {
			t.Errorf("/rlconfig%s lacks the rules in force: %s", format, body)
		}
	}
	if _, stats := s.get("debug", "/stats"); !strings.Contains(stats, "ratelimit.service.config_load_error: 1\n") {
		t.Error("the refused load is not counted")
	}

	loads := func() int { return strings.Count(s.log.String(), "rules refused") }
	before := loads()
	s.signals <- syscall.SIGHUP
	s.until("a forced load", func() bool { return loads() > before })
}

// A reload to no rules takes effect, with a warning. Where files are left out instead, it is refused.
func TestReloadToNothing(t *testing.T) {
	t.Parallel()
	s := launch(t, oneRule)
	s.until("ready", s.healthy)
	if err := os.Remove(filepath.Join(s.dir, "rules.yaml")); err != nil {
		t.Fatal(err)
	}
	s.until("a warning", s.logged("there are none, so everything passes: "+s.dir+" holds no rule files"))
	s.write("rules.conf", oneRule)
	s.until("what was left out", s.logged("which leaves out rules.conf"))
	s.until("a refusal", s.logged("rules refused, the old ones stay in force"))
	if code, page := s.get("http", "/readyz"); code != 200 ||
		!strings.Contains(page, "0 domains, so everything passes, the last load was refused") {
		t.Errorf("/readyz: %d %s", code, page)
	}
	s.write("rules.yaml", "domain: [\n")
	s.until("refused", s.logged("rules.yaml:1:9: not YAML"))
	s.write("rules.yaml", oneRule)
	s.until("fixed", s.logged("the problems are fixed"))
}

// A service without rules is ready, and warns.
func TestStartWithNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := launch(t, oneRule, "RUNTIME_ROOT="+dir, "RUNTIME_APPDIRECTORY=.", "RUNTIME_SUBDIRECTORY=.")
	s.until("ready", s.healthy)
	s.until("a warning", s.logged("there are no rules, so everything passes: "+dir+" holds no rule files"))
	testfiles.Write(t, filepath.Join(dir, "without-suffix"), oneRule)
	s.until("rules", func() bool {
		_, page := s.get("http", "/readyz")
		return strings.Contains(page, "1 domain") && !strings.Contains(page, "passes")
	})
}

// Backups alone do not let everything pass: the service is not ready.
func TestStartWithBackups(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	testfiles.Write(t, filepath.Join(dir, "shop.yaml.bak"), oneRule)
	s := launch(t, oneRule, "RUNTIME_ROOT="+dir, "RUNTIME_APPDIRECTORY=.", "RUNTIME_SUBDIRECTORY=.")
	s.until("what was left out", s.logged("which leaves out shop.yaml.bak"))
	if s.healthy() {
		t.Error("the service is ready")
	}
	if err := os.Rename(filepath.Join(dir, "shop.yaml.bak"), filepath.Join(dir, "shop.yaml")); err != nil {
		t.Fatal(err)
	}
	s.until("ready", s.healthy)
}

// A service whose rules limit nothing is ready, and says so.
func TestRulesWithoutLimit(t *testing.T) {
	t.Parallel()
	const noLimit = "domain: d\ndescriptors: [{key: ip}]\n"
	s := launch(t, noLimit, "DISABLE_STATS=false", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0")
	s.until("ready", s.healthy)
	s.until("a warning", s.logged("there are no rules, so everything passes: no descriptor has a rate_limit"))
	if _, page := s.get("http", "/readyz"); !strings.Contains(page, "1 domain, 0 rules, so everything passes") {
		t.Errorf("/readyz: %s", page)
	}
	s.write("rules.yaml", oneRule)
	s.until("limits", s.logged("rules reloaded: "))
	s.write("rules.yaml", noLimit)
	s.until("a warning", s.logged("rules reloaded: there are none, so everything passes: no descriptor has a rate_limit"))
	if _, page := s.get("prometheus", "/metrics"); !strings.Contains(page, "ratelimit_config_rules 0\n") {
		t.Errorf("/metrics: %s", page)
	}
}

// A mistake in one file does not affect the others, unless CONFIG_ALL_OR_NOTHING is set.
func TestReloadInPart(t *testing.T) {
	t.Parallel()
	domain := func(name, requests string) string {
		return "domain: " + name + "\ndescriptors: [{key: ip, rate_limit: {unit: year, requests_per_unit: " + requests + "}}]\n"
	}
	for _, whole := range []bool{false, true} {
		s := launch(t, domain("d", "2"), fmt.Sprintf("CONFIG_ALL_OR_NOTHING=%t", whole))
		s.until("ready", s.healthy)
		s.write("other.yaml", domain("other", "3"))
		inForce := func(want string) func() bool {
			return func() bool {
				_, body := s.get("debug", "/rlconfig")
				return strings.Contains(body, want)
			}
		}
		s.until("both", inForce("other.ip: unit=YEAR requests_per_unit=3"))
		s.write("rules.yaml", "domain: d\ndescriptors: [{key: ip, rate_limit: {unit: yaer}}]\n")
		s.until("refused", s.logged("rules refused"))
		s.write("other.yaml", domain("other", "4"))
		if whole {
			s.until("refused again", func() bool {
				return strings.Count(s.log.String(),
					"rules refused, the old ones stay in force") == 2
			})
			if !inForce("other.ip: unit=YEAR requests_per_unit=3")() {
				t.Error("a change took effect beside a mistake")
			}
		} else {
			s.until("the good file", inForce("other.ip: unit=YEAR requests_per_unit=4"))
			s.until("what happened", s.logged("rules reloaded in part"))
			if !inForce("d.ip: unit=YEAR requests_per_unit=2")() {
				t.Error("the bad file did not stay as it was")
			}
			if _, page := s.get("debug", "/readyz"); !strings.Contains(page, "2 domains, the last load was refused at") ||
				!strings.Contains(page, "yaer") {
				t.Errorf("/readyz: %s", page)
			}
			if _, stats := s.get("debug", "/stats"); !strings.Contains(stats, "config_load_success: 2\n") ||
				!strings.Contains(stats, "runtime.num_values: 2\n") || !strings.Contains(stats, "config_load_error: 2\n") {
				t.Errorf("/stats: %s", stats)
			}
		}
		s.write("rules.yaml", domain("d", "5"))
		s.until("fixed", inForce("d.ip: unit=YEAR requests_per_unit=5"))
	}
}
