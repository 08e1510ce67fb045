package integration

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"ratelimit/testbed/harness"
)

// `ratelimit denials --follow` prints what the service denies, and survives a restart of it. SIGTERM and Ctrl-C end it
// with status 0.
func TestDenialsAreFollowed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const rules = "domain: d\ndescriptors:\n  - key: ip\n    rate_limit: {unit: year, requests_per_unit: 0}\n"
	if err := os.WriteFile(filepath.Join(dir, "d.yaml"), []byte(rules), 0o644); err != nil {
		t.Fatal(err)
	}
	s := startServiceFrom(t, dir)
	program := func(args ...string) *exec.Cmd {
		path, err := harness.BuiltService()
		if err != nil {
			t.Fatal(err)
		}
		return exec.Command(path, args...)
	}
	follow := start(t, "denials", program("denials", "--follow", s.debug))
	prints := func(text string) {
		t.Helper()
		follow.until(t, "it prints "+text, func() error {
			if !strings.Contains(follow.log(t), text) {
				return errors.New(follow.log(t))
			}
			return nil
		})
	}
	s.ask(t, "d", "ip=1")
	prints("ip=1\n")
	address := s.debug
	s.stop(t)
	prints("; trying again in 1s\n")
	_, port, _ := strings.Cut(address, ":")
	s = startServiceFrom(t, dir, "DEBUG_PORT="+port)
	s.ask(t, "d", "ip=2")
	prints(address + " answers again\n")
	prints("ip=2\n")
	if err := follow.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	follow.awaitEnd(t)
	out, err := program("top", address).Output()
	if err != nil || !strings.Contains(string(out), "MOST DENIED, LAST MINUTE") {
		t.Errorf("top: %v\n%s", err, out)
	}
}
