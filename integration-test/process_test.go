package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"ratelimit/testbed/harness"
)

const (
	patience  = 20 * time.Second      // for anything that should take well under one
	pollEvery = 10 * time.Millisecond // between two looks at a condition
)

// process is a program started by a test.
type process struct {
	harness.Process
	name    string
	stopped bool // the test has stopped it, or expects that it has ended; the test's goroutine only
}

// start runs cmd. When the test ends the program is stopped, and its output
// shown if the test failed.
func start(t *testing.T, name string, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{name: name, Process: harness.Process{
		Path: cmd.Path, Args: cmd.Args[1:], Env: cmd.Env, Dir: cmd.Dir, Log: filepath.Join(t.TempDir(), "log"),
	}}
	p.launch(t)
	return p
}

// launch starts p, and stops it when the test ends.
func (p *process) launch(t *testing.T) {
	t.Helper()
	if err := p.Start(); err != nil {
		t.Fatalf("starting %s: %v", p.name, err)
	}
	t.Cleanup(func() {
		p.stop(t)
		if t.Failed() {
			p.ShowLog(t, p.name)
		}
	})
}

// stop asks the program to end and waits until it has, which it must do in
// time and with exit code 0. A second call does nothing.
func (p *process) stop(t *testing.T) {
	t.Helper()
	if p.stopped {
		return
	}
	p.stopped = true
	if err := p.Exited(); err != nil {
		t.Error(err)
		return
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("asking %s to stop: %v", p.name, err)
	}
	p.awaitEnd(t)
}

// awaitEnd waits until the program has ended, which it must do in time and with
// exit code 0.
func (p *process) awaitEnd(t *testing.T) {
	t.Helper()
	p.stopped = true
	select {
	case <-p.Done():
	case <-time.After(patience):
		t.Errorf("%s did not stop within %v", p.name, patience)
		p.kill(t)
		return
	}
	if err := p.Err(); err != nil {
		t.Errorf("%s ended with %v, want exit code 0", p.name, err)
	}
}

// kill ends the program without a warning.
func (p *process) kill(t *testing.T) {
	t.Helper()
	p.stopped = true
	if err := p.Exited(); err != nil {
		t.Error(err)
	}
	if err := p.Kill(); err != nil {
		t.Errorf("killing %s: %v", p.name, err)
	}
}

// log is what the program has written so far.
func (p *process) log(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(p.Log)
	if err != nil {
		t.Error(err)
	}
	return string(text)
}

// until looks at a condition again and again until it holds, which is when it
// returns nil. It fails the test if that takes too long, or if the program
// that is to bring it about has ended.
func (p *process) until(t *testing.T, what string, holds func() error) {
	t.Helper()
	harness.Await(t, patience, what, func() error {
		err := holds()
		if ended := p.Exited(); err != nil && ended != nil {
			return harness.Permanent{Err: ended}
		}
		return err
	})
}

// tail is the end of a text, for people to read.
func tail(text string) string {
	const keep = 60 // lines
	lines := strings.SplitAfter(text, "\n")
	return strings.Join(lines[max(0, len(lines)-keep):], "")
}
