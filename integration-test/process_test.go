package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	patience  = 20 * time.Second      // for anything that should take well under one
	pollEvery = 10 * time.Millisecond // between two looks at a condition
)

// process is a program started by a test.
type process struct {
	name    string
	cmd     *exec.Cmd
	logFile string        // what it wrote to stdout and stderr
	ended   chan struct{} // closed once err is set
	err     error         // how it ended; nil is exit code 0
	stopped bool          // stop was called; the test's goroutine only
}

// start runs cmd. When the test ends the program is stopped, and its output
// shown if the test failed.
func start(t *testing.T, name string, cmd *exec.Cmd) *process {
	t.Helper()
	logFile := filepath.Join(t.TempDir(), "log")
	log, err := os.Create(logFile)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }() // the program has its own copy
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatalf("starting %s: %v", name, err)
	}
	p := &process{name: name, cmd: cmd, logFile: logFile, ended: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.stop(t)
		if t.Failed() {
			t.Logf("%s wrote at last:\n%s", name, tail(p.log(t)))
		}
	})
	return p
}

// stop asks the program to end and waits until it has, which it must do in
// time and with exit code 0. A second call does nothing.
func (p *process) stop(t *testing.T) {
	t.Helper()
	if p.stopped {
		return
	}
	p.stopped = true
	if err := p.running(); err != nil {
		t.Error(err)
		return
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("asking %s to stop: %v", p.name, err)
	}
	select {
	case <-p.ended:
	case <-time.After(patience):
		t.Errorf("%s did not stop within %v of SIGTERM", p.name, patience)
		if err := p.cmd.Process.Kill(); err != nil {
			t.Errorf("killing %s: %v", p.name, err)
		}
		<-p.ended
	}
	if p.err != nil {
		t.Errorf("%s ended with %v, want exit code 0", p.name, p.err)
	}
}

// kill ends the program without a warning.
func (p *process) kill(t *testing.T) {
	t.Helper()
	p.stopped = true
	if err := p.running(); err != nil {
		t.Error(err)
	}
	if err := p.cmd.Process.Kill(); err != nil {
		t.Errorf("killing %s: %v", p.name, err)
	}
	<-p.ended
}

// running is an error once the program has ended.
func (p *process) running() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s ended by itself: %v", p.name, p.cmd.ProcessState)
	default:
		return nil
	}
}

// log is what the program has written so far.
func (p *process) log(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(p.logFile)
	if err != nil {
		t.Error(err)
	}
	return string(text)
}

// tail is the end of a text, for people to read.
func tail(text string) string {
	const keep = 60 // lines
	lines := strings.SplitAfter(text, "\n")
	return strings.Join(lines[max(0, len(lines)-keep):], "")
}

// until looks at a condition again and again until it holds, which is when it
// returns nil. It fails the test if that takes too long, or if the program
// that is to bring it about has ended.
func (p *process) until(t *testing.T, what string, holds func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := holds()
		if err == nil {
			return
		}
		if ended := p.running(); ended != nil {
			t.Fatalf("waiting until %s: %v", what, ended)
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %v until %s: %v", patience, what, err)
		}
		time.Sleep(pollEvery)
	}
}
