package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	patience  = 20 * time.Second // for a program to be ready, and to end
	pollEvery = 10 * time.Millisecond
)

// process is a program that runs until stop.
type process struct {
	name    string
	cmd     *exec.Cmd
	logFile string        // what it wrote to stdout and stderr
	ended   chan struct{} // closed once it has ended
}

// start runs a program with nothing in its environment but env, so that what
// the caller has set for other programs is not measured.
func start(dir, name string, env []string, path string, args ...string) (*process, error) {
	log, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the program has its own copy
	cmd := exec.Command(path, args...)
	cmd.Dir = dir
	cmd.Env = append([]string{}, env...) // nil would be our own
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = attributes()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &process{name: name, cmd: cmd, logFile: log.Name(), ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // its ProcessState says how it ended
		close(p.ended)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// errEnded is a program that ended by itself.
var errEnded = errors.New("ended by itself")

// await looks at a condition until it holds, which is when it returns nil.
func (p *process) await(ctx context.Context, holds func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := holds()
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("%s: %w, %v:\n%s", p.name, errEnded, p.cmd.ProcessState, strings.TrimSpace(p.log()))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w:\n%s", p.name, err, strings.TrimSpace(p.log()))
		case <-tick.C:
		}
	}
}

// log is what the program has written so far.
func (p *process) log() string {
	text, err := os.ReadFile(p.logFile)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// stop asks the program to end, and ends it if it does not.
func (p *process) stop() error {
	select {
	case <-p.ended:
		return nil
	default:
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails if it has just ended
	select {
	case <-p.ended:
		return nil
	case <-time.After(patience):
	}
	_ = p.cmd.Process.Kill() // as above
	<-p.ended
	return fmt.Errorf("%s (pid %d) did not stop within %v and was killed", p.name, p.pid(), patience)
}
