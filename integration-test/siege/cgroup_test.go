//go:build linux

package siege

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/harness"
)

// memoryGroup is a control group that bounds the memory of the service. The kernel
// kills what needs more; page cache is reclaimed first.
type memoryGroup struct{ dir string }

// newMemoryGroup makes a group of so many bytes, or says why this machine allows
// none. It is removed at the end of the test.
func newMemoryGroup(t *testing.T, bytes int64) (*memoryGroup, error) {
	t.Helper()
	root, limit := "/sys/fs/cgroup/memory", "memory.limit_in_bytes" // version 1
	if text, err := os.ReadFile("/sys/fs/cgroup/cgroup.subtree_control"); err == nil {
		if !strings.Contains(string(text), "memory") {
			return nil, errors.New("this control group does not delegate memory")
		}
		root, limit = "/sys/fs/cgroup", "memory.max"
	}
	g := &memoryGroup{}
	var err error
	if g.dir, err = os.MkdirTemp(root, "ratelimit-siege-"); err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		// A process that has just ended leaves its group a moment later.
		if err := harness.Retry(harness.Deadline, func() error { return os.Remove(g.dir) }); err != nil {
			t.Errorf("removing the memory control group: %v", err)
		}
	})
	if err := os.WriteFile(filepath.Join(g.dir, limit), strconv.AppendInt(nil, bytes, 10), 0o644); err != nil {
		return nil, fmt.Errorf("bounding memory: %w", err)
	}
	return g, nil
}

// enter is a line of shell that moves the shell into the group.
func (g *memoryGroup) enter() string {
	if g == nil {
		return ""
	}
	return fmt.Sprintf("echo $$ > %q/cgroup.procs && ", g.dir)
}

// verdict says whether the kernel ended a process of the group for its memory.
func (g *memoryGroup) verdict() string {
	if g == nil {
		return ""
	}
	for _, name := range []string{"memory.oom_control", "memory.events"} {
		text, err := os.ReadFile(filepath.Join(g.dir, name))
		if err == nil && regexp.MustCompile(`(?m)^oom_kill [1-9]`).Match(text) {
			return ", killed for its memory"
		}
	}
	return ""
}

// The kernel ends what takes more than its group may have.
func TestMemoryGroup(t *testing.T) {
	const bytes = 32 << 20
	g, err := newMemoryGroup(t, bytes)
	if err != nil {
		t.Skipf("there is no memory control group: %v", err)
	}
	p := harness.Process{
		Path: "/bin/sh", Log: filepath.Join(t.TempDir(), "log"),
		Args: []string{"-c", g.enter() + "exec sort -S 256M /dev/zero"},
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Kill() })
	harness.Await(t, time.Minute, "it lives on, although it needs more", func() error {
		if p.Alive() {
			return errors.New("it runs")
		}
		return nil
	})
	if got := g.verdict(); got == "" {
		t.Error("the group does not know that it was killed for its memory")
	}
}
