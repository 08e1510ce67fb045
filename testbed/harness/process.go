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
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const (
	// Deadline bounds each wait of the harness. It is long because machines that run tests can be slow. A wait ends as
	// soon as its condition holds.
	Deadline = 20 * time.Second

	// StopTimeout is the time between SIGTERM and SIGKILL. Redis checks for signals ten times a second.
	StopTimeout = 3 * time.Second

	// pollEvery is the time between two checks of a condition.
	pollEvery = 10 * time.Millisecond

	// shownLogBytes is how much of the end of a program's log a failed test shows.
	shownLogBytes = 16 << 10
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
			return errors.New("not yet")
		}
		return nil
	})
}

// AwaitQuiet polls until count has returned the same number for as long as quiet. If that takes longer than Deadline,
// it fails t with the last number.
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

// Permanent is an error that ends Retry at once.
type Permanent struct{ Err error }

func (p Permanent) Error() string { return p.Err.Error() }

func (p Permanent) Unwrap() error { return p.Err }

// Retry calls condition until it returns nil or a Permanent. If that takes longer than within, it returns the last
// error.
func Retry(within time.Duration, condition func() error) error {
	end := time.Now().Add(within)
	for {
		err := condition()
		if _, ok := errors.AsType[Permanent](err); err == nil || ok || time.Now().After(end) {
			return err
		}
		time.Sleep(pollEvery)
	}
}

// Program finds an executable, or ends the test: with CI=true as failed, otherwise as skipped. packages are those of
// Debian and Ubuntu that have it.
func Program(t testing.TB, name, packages string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	missing := fmt.Sprintf("this test needs %s, which is not on the PATH (Debian and Ubuntu: apt-get install %s)", name,
		packages)
	if os.Getenv("CI") == "true" {
		t.Fatal(missing)
	}
	t.Skip(missing)
	return ""
}

// FreePort finds a port without a listener. It is below the range from which the kernel takes ports for outgoing
// connections. A client that dials a stopped server again and again could get the server's own port from that range,
// and would then be connected to itself. FreePort returns each port once: a test that asks for six gets six.
func FreePort() (int, error) {
	const lowest = 10000
	end := firstEphemeralPort()
	var err error
	for range 100 {
		port := 0
		if end > lowest+1000 {
			port = lowest + rand.IntN(end-lowest)
		}
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err != nil {
			continue
		}
		port = l.Addr().(*net.TCPAddr).Port
		err = l.Close()
		if _, again := returnedPorts.LoadOrStore(port, true); !again {
			return port, err
		}
		err = fmt.Errorf("port %d was returned before", port)
	}
	return 0, fmt.Errorf("no free port: %w", err)
}

// returnedPorts has the ports that FreePort has returned.
var returnedPorts sync.Map

// Listen returns a listener on a free port of this host.
func Listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// firstEphemeralPort returns the lowest port that the kernel gives to outgoing connections.
func firstEphemeralPort() int {
	var port int
	text, _ := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range") // this file exists on Linux only
	if _, err := fmt.Sscan(string(text), &port); err != nil {
		return 32768
	}
	return port
}

// ErrPortTaken is the error of a process that exited because another process listens at its port.
var ErrPortTaken = errors.New("the port is taken")

// Process is a program that can be started, stopped and started again.
type Process struct {
	Path string
	Args []string
	Env  []string // the environment; nil means that of the test
	Dir  string   // the working directory; "" means that of the test
	Log  string   // the path of the log file; each start appends to it
	// Stderr gets the error output instead of the log, unless it is nil.
	Stderr *os.File

	last atomic.Pointer[start]
}

type start struct {
	*exec.Cmd
	stop      context.CancelFunc // sends SIGTERM and, after StopTimeout, SIGKILL
	logOffset int64              // the size of the log before the start
	exited    chan struct{}      // closed after the program has exited
	err       error              // how it exited; nil for exit code 0. Set before exited is closed
}

// Start starts the program, which must not be running.
func (p *Process) Start() error {
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the program has its own descriptor of the log
	info, err := log.Stat()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, p.Path, p.Args...)
	cmd.Cancel = func() error {
		// a paused program receives nothing
		return errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Process.Signal(resumeSignal))
	}
	cmd.WaitDelay = StopTimeout
	cmd.Env, cmd.Dir = p.Env, p.Dir
	cmd.Stdout, cmd.Stderr = log, log
	if p.Stderr != nil {
		cmd.Stderr = p.Stderr
	}
	cmd.SysProcAttr = KilledWithParent()
	if err := cmd.Start(); err != nil {
		stop()
		return err
	}
	s := &start{Cmd: cmd, stop: stop, logOffset: info.Size(), exited: make(chan struct{})}
	go func() {
		s.err = cmd.Wait()
		close(s.exited)
	}()
	p.last.Store(s)
	return nil
}

// PID is the id of the program that was started last.
func (p *Process) PID() int { return p.last.Load().Process.Pid }

// Done is closed after the program has exited.
func (p *Process) Done() <-chan struct{} { return p.last.Load().exited }

// Err waits until the program has exited, and returns nil for exit code 0.
func (p *Process) Err() error {
	<-p.Done()
	return p.last.Load().err
}

// Alive reports whether the program runs.
func (p *Process) Alive() bool {
	select {
	case <-p.Done():
		return false
	default:
		return true
	}
}

// Exited returns nil while the program runs, and otherwise an error that shows why it exited.
func (p *Process) Exited() error {
	if p.Alive() {
		return nil
	}
	text, err := os.ReadFile(p.Log)
	if err != nil {
		return err
	}
	text = text[min(p.last.Load().logOffset, int64(len(text))):]
	if bytes.Contains(text, []byte("Address already in use")) {
		return ErrPortTaken
	}
	return fmt.Errorf("%s ended by itself; its log:\n%s", p.Path, lastBytes(text))
}

// ShowLog adds the end of the program's log to the output of the test.
func (p *Process) ShowLog(t testing.TB, name string) {
	t.Helper()
	text, err := os.ReadFile(p.Log)
	t.Logf("the log of %s (error %v):\n%s", name, err, lastBytes(text))
}

// lastBytes returns the end of a log, at most shownLogBytes.
func lastBytes(text []byte) []byte {
	if len(text) > shownLogBytes {
		return append([]byte("…"), text[len(text)-shownLogBytes:]...)
	}
	return text
}

// Signal sends a signal. It returns no error if the program has exited.
func (p *Process) Signal(sig syscall.Signal) error {
	err := p.last.Load().Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Stop sends SIGTERM and, after StopTimeout, SIGKILL. It returns after the program has exited.
func (p *Process) Stop() {
	last := p.last.Load()
	last.stop()
	<-last.exited
}

// Kill sends SIGKILL, and returns after the program has exited.
func (p *Process) Kill() error {
	err := p.Signal(syscall.SIGKILL)
	if err == nil {
		<-p.last.Load().exited
	}
	return err
}

// stat returns the fields of /proc/PID/stat behind the program's name: the first is the state, the 12th and 13th are
// user and system time in 1/100 s.
func (p *Process) stat() ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		return nil, err
	}
	end := strings.LastIndexByte(string(text), ')') // a name may hold any byte, even ")"
	fields := strings.Fields(string(text[end+1:]))
	if len(fields) < 13 {
		return nil, fmt.Errorf("/proc/%d/stat: %q", p.PID(), text)
	}
	return fields, nil
}

// CPU returns the user and system time that the program has used since its start, in steps of 10 ms. It works on Linux
// only.
func (p *Process) CPU() (time.Duration, error) {
	fields, err := p.stat()
	if err != nil {
		return 0, err
	}
	var user, system time.Duration
	_, err = fmt.Sscan(fields[11]+" "+fields[12], &user, &system)
	return (user + system) * 10 * time.Millisecond, err
}

// Pause returns after the kernel has stopped the program.
func (p *Process) Pause() error {
	if err := p.Signal(pauseSignal); err != nil {
		return err
	}
	return Retry(Deadline, func() error {
		fields, err := p.stat()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the program has exited, or this system has no /proc
		}
		if err == nil && fields[0] != "T" {
			err = fmt.Errorf("its state is %s", fields[0])
		}
		return err
	})
}
