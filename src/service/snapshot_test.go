package service

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"ratelimit/src/backend/memory"
	"ratelimit/src/backend/snapshot"
	"ratelimit/testbed/limitertest"
	"ratelimit/testbed/testfiles"
)

// stopped stops s, as a supervisor does.
func (s *service) stopped() {
	s.t.Helper()
	s.signals <- syscall.SIGTERM
	if err := s.wait(); err != nil {
		s.t.Fatal(err)
	}
}

// A service that is restarted still refuses a caller that has used up its limit.
func TestCountersSurviveARestart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "counters")
	var s *service
	for i, want := range [][]int{{200}, {200}, {429}, {429}} {
		s = launch(t, oneRule, "MEMORY_SNAPSHOT="+path)
		s.until("ready", s.healthy)
		for _, code := range want {
			if got := s.ask("1"); got != code {
				t.Errorf("start %d: got %d, want %d", i, got, code)
			}
		}
		if first := "does not exist yet"; strings.Contains(s.log.String(), first) != (i == 0) ||
			s.logged("1 counter from "+path)() != (i > 0) {
			t.Errorf("start %d: the log is\n%s", i, s.log.String())
		}
		s.stopped()
		if !s.logged("1 counter written to " + path)() {
			t.Errorf("start %d: the log is\n%s", i, s.log.String())
		}
	}
}

// A file that is damaged is set aside with a warning.
func TestDamagedSnapshot(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "counters")
	testfiles.Write(t, path, "something else")
	s := launch(t, oneRule, "MEMORY_SNAPSHOT="+path)
	s.until("ready", s.healthy)
	if !s.logged("level=warning")() ||
		!s.logged("is not used, and all counters start at 0: it is no snapshot of counters. The file is now "+path+".refused-")() {
		t.Errorf("the log is\n%s", s.log.String())
	}
	if got := s.ask("1"); got != 200 {
		t.Errorf("got %d", got)
	}
}

// A file that cannot be written, or that another process uses, stops the start.
func TestSnapshotsThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store := limitertest.Store(t, memory.Config{})
	used, _, err := snapshot.Open(snapshot.Config{Path: filepath.Join(dir, "used"), Store: store})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = used.Close() })
	for path, want := range map[string]string{
		"missing/counters": "no such file or directory: create the directory, and let this process write to it",
		"used": fmt.Sprintf("process %d uses the file and holds the lock %s: stop it, or give each process a "+
			"file of its own", os.Getpid(), filepath.Join(dir, "used.lock")),
	} {
		path = filepath.Join(dir, path)
		err := launch(t, oneRule, "MEMORY_SNAPSHOT="+path).wait()
		if err == nil || !strings.HasPrefix(err.Error(), "MEMORY_SNAPSHOT="+path+": ") ||
			!strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A snapshot that cannot be written is reported, and delays no stop for long.
func TestLastSnapshotThatFails(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "counters")
	s := launch(t, oneRule, "MEMORY_SNAPSHOT="+path, "MEMORY_SNAPSHOT_INTERVAL=1s")
	s.until("ready", s.healthy)
	if err := os.MkdirAll(filepath.Join(path+".tmp", "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.until("a failure", s.logged("MEMORY_SNAPSHOT="+path+": the counters cannot be written: remove "))
	if n := s.figure("ratelimit.memory.snapshot.failures"); n == 0 {
		t.Error("the failure is not counted")
	}
	started := time.Now()
	s.stopped()
	if !s.logged("the last counters were not written: remove ")() || time.Since(started) > 10*time.Second {
		t.Errorf("stopped after %v; the log is\n%s", time.Since(started), s.log.String())
	}
}
