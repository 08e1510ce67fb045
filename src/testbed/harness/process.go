package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// Deadline bounds each wait of the harness. It is long because machines that run tests can be slow; a wait ends as soon as
	// its condition holds.
	Deadline = 20 * time.Second

	// Grace is the time between SIGTERM and SIGKILL. Redis checks for signals ten times a second.
	Grace = 3 * time.Second

	// pollEvery is the time between two checks of a condition.
	pollEvery = 10 * time.Millisecond

	// logTail is how much of a program's log a failed test shows, in bytes.
	logTail = 16 << 10
)

// Await polls until condition returns nil. If that takes longer than within, it fails t with the last error.
func Await(t testing.TB, within time.Duration, what string, condition func() error) {
	t.Helper()
	if err := Retry(within, condition); err != nil {
		t.Fatalf("harness: after %v, %s: %v", within, what, err)
	}
}

// Until polls until done returns true. If that takes longer than Deadline, it fails t with what was awaited.
func Until(t testing.TB, what string, done func() bool) {
	t.Helper()
	Await(t, Deadline, what, func() error {
		if !done() {
			return errNotYet
		}
		return nil
	})
}

// AwaitQuiet polls until count has returned the same number for as long as quiet. If that takes longer than Deadline, it fails t
// with the last number.
func AwaitQuiet(t testing.TB, quiet time.Duration, what string, count func() int64) {
	t.Helper()
	last, since := count(), time.Now()
	Await(t, Deadline, what, func() error {
		if n := count(); n != last {
			last, since = n, time.Now()
		}
		if time.Since(since) < quiet {
			return fmt.Errorf("it is %d and has changed within %v", last, quiet)
		}
		return nil
	})
}

var errNotYet = errors.New("not yet")

// Final is an error that a retry does not fix.
type Final struct{ Err error }

func (f Final) Error() string { return f.Err.Error() }

func (f Final) Unwrap() error { return f.Err }

// Retry calls condition until it returns nil or a Final. If that takes longer than within, it returns the last error.
func Retry(within time.Duration, condition func() error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	end := time.Now().Add(within)
	for {
		err := condition()
		if _, ok := errors.AsType[Final](err); err == nil || ok || time.Now().After(end) {
			return err
		}
		<-tick.C
	}
}

// Program finds an executable, or ends the test: with CI=true as failed, otherwise as skipped. packages are those of Debian and
// Ubuntu that have it.
func Program(t testing.TB, name, packages string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	missing := fmt.Sprintf("this test needs %s, which is not on the PATH (Debian and Ubuntu: apt-get install %s)", name, packages)
	if os.Getenv("CI") == "true" {
		t.Fatal(missing)
	}
	t.Skip(missing)
	return ""
}

// FreePort finds a port without a listener. It is below the range from which the kernel takes ports for outgoing connections: a
// client that dials a stopped server again and again could get the server's port from that range, and would be connected to
// itself.
func FreePort() (int, error) {
	const lowest = 10000
	below := ephemeral()
	var err error
	for range 100 {
		port := 0
		if below > lowest+1000 {
			port = lowest + rand.IntN(below-lowest)
		}
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			port = l.Addr().(*net.TCPAddr).Port
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("no free port: %w", err)
}

// ephemeral returns the lowest port of outgoing connections.
func ephemeral() int {
	var low int
	text, _ := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range") // Linux only
	if _, err := fmt.Sscan(string(text), &low); err != nil {
		return 32768
	}
	return low
}

// ErrTaken is the error of a process that ended because another process has its port.
var ErrTaken = errors.New("the port is taken")

// Process is one program that can be started, stopped and started again.
type Process struct {
	Path string
	Args []string
	Env  []string // nil is that of the test
	Log  string   // a file, to which every start appends

	mu   sync.Mutex // guards what follows
	cmd  *exec.Cmd
	stop context.CancelFunc // ends cmd
	from int64              // where the log of this start begins
	done chan struct{}      // closed once the program has ended and was waited for
}

// Start runs the program; it must not be running.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the program has its own descriptor
	info, err := log.Stat()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, p.Path, p.Args...)
	cmd.Cancel = func() error {
		return errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Process.Signal(syscall.SIGCONT)) // a paused program receives nothing
	}
	cmd.WaitDelay = Grace
	cmd.Env = p.Env
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = endWithUs()
	if err := cmd.Start(); err != nil {
		stop()
		return err
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the log says more than the exit code
		close(done)
	}()
	p.cmd, p.stop, p.done, p.from = cmd, stop, done, info.Size()
	return nil
}

// PID is the id of the program that was started last.
func (p *Process) PID() int {
	proc, _ := p.current()
	return proc.Pid
}

func (p *Process) current() (*os.Process, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process, p.done
}

// Alive reports whether the program runs.
func (p *Process) Alive() bool {
	_, done := p.current()
	select {
	case <-done:
		return false
	default:
		return true
	}
}

// Exited returns nil while the program runs, and otherwise why it ended.
func (p *Process) Exited() error {
	if p.Alive() {
		return nil
	}
	p.mu.Lock()
	from := p.from
	p.mu.Unlock()
	text, err := os.ReadFile(p.Log)
	if err != nil {
		return err
	}
	text = text[min(from, int64(len(text))):]
	if bytes.Contains(text, []byte("Address already in use")) {
		return ErrTaken
	}
	return fmt.Errorf("%s ended by itself; its log:\n%s", p.Path, tail(text))
}

// ShowLog adds the end of the program's log to the output of the test.
func (p *Process) ShowLog(t testing.TB, name string) {
	t.Helper()
	text, err := os.ReadFile(p.Log)
	if err != nil {
		t.Logf("harness: the log of %s: %v", name, err)
		return
	}
	t.Logf("the log of %s:\n%s", name, tail(text))
}

func tail(text []byte) []byte {
	if len(text) > logTail {
		return append([]byte("…"), text[len(text)-logTail:]...)
	}
	return text
}

// Signal sends a signal. A program that is gone is no error.
func (p *Process) Signal(sig syscall.Signal) error {
	proc, _ := p.current()
	err := proc.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Stop sends SIGTERM and, after Grace, SIGKILL. It returns once the program is gone.
func (p *Process) Stop() {
	p.mu.Lock()
	stop, done := p.stop, p.done
	p.mu.Unlock()
	stop()
	<-done
}

// Kill ends the program at once, and returns once it is gone.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	_, done := p.current()
	<-done
	return nil
}

// stat returns the fields of /proc/PID/stat that follow the program's name: the first is the state, the 12th and 13th are user
// and system time in 1/100 s.
func (p *Process) stat() ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		return nil, err
	}
	end := strings.LastIndexByte(string(text), ')') // a name may hold anything, even ")"
	fields := strings.Fields(string(text[end+1:]))
	if len(fields) < 13 {
		return nil, fmt.Errorf("/proc/%d/stat: %q", p.PID(), text)
	}
	return fields, nil
}

// CPU is the user and system time the program has taken since its start, in steps of 10 ms. Linux only.
func (p *Process) CPU() (time.Duration, error) {
	fields, err := p.stat()
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, field := range fields[11:13] {
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(ticks) * 10 * time.Millisecond
	}
	return sum, nil
}

// Pause returns once the kernel has stopped the program.
func (p *Process) Pause() error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return Retry(Deadline, func() error {
		fields, err := p.stat()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it is gone, or this system has no /proc
		}
		if err == nil && fields[0] != "T" {
			err = fmt.Errorf("its state is %s", fields[0])
		}
		return err
	})
}
