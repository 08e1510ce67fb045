package redistest

import (
	"bytes"
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
	// deadline is for whatever the harness itself waits for. It is long
	// because machines that run tests are slow at times; waiting ends as soon
	// as the condition holds.
	deadline = 20 * time.Second

	// grace is how long a program has between SIGTERM and SIGKILL. Redis sees
	// a signal in a timer that ticks ten times a second.
	grace = 3 * time.Second

	// pollEvery is short against everything that is waited for.
	pollEvery = 10 * time.Millisecond

	// logTail is how much of a program's log a failed test shows, in bytes.
	logTail = 16 << 10
)

// Await polls until condition returns nil, and fails t with what it returned
// last if that takes longer than within.
func Await(t testing.TB, within time.Duration, what string, condition func() error) {
	t.Helper()
	if err := await(within, condition); err != nil {
		t.Fatalf("redistest: after %v, %s: %v", within, what, err)
	}
}

// final is an error that trying again does not mend.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

func await(within time.Duration, condition func() error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	end := time.Now().Add(within)
	for {
		err := condition()
		if _, ok := errors.AsType[final](err); err == nil || ok || time.Now().After(end) {
			return err
		}
		<-tick.C
	}
}

// program finds an executable, or ends the test.
func program(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	missing := fmt.Sprintf("this test needs %s, which is not on the PATH (Debian and Ubuntu: apt-get install redis-server redis-sentinel)", name)
	if os.Getenv("CI") == "true" {
		t.Fatal(missing)
	}
	t.Skip(missing)
	return ""
}

// freePort finds a port nobody listens on. It is below the range from which
// the kernel takes ports for outgoing connections: from that range, a client
// that dials a stopped server again and again may be given the server's own
// port, and is then connected to itself.
func freePort() (int, error) {
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

// ephemeral is the lowest port the kernel picks by itself.
func ephemeral() int {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 32768
	}
	var low, high int
	if _, err := fmt.Sscan(string(text), &low, &high); err != nil {
		return 32768
	}
	return low
}

// errTaken is a process that ended because somebody else has its port.
var errTaken = errors.New("the port is taken")

// process is one program that can be started, stopped and started again.
type process struct {
	path string
	args []string
	log  string // a file, to which every start appends

	mu   sync.Mutex // guards what follows
	cmd  *exec.Cmd
	from int64         // where the log of this start begins
	done chan struct{} // closed once the program has ended and was waited for
}

// start runs the program; it must not be running.
func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the program has its own descriptor
	info, err := log.Stat()
	if err != nil {
		return err
	}
	cmd := exec.Command(p.path, p.args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = endWithUs()
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the log says more than the exit code
		close(done)
	}()
	p.cmd, p.done, p.from = cmd, done, info.Size()
	return nil
}

func (p *process) current() (*os.Process, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process, p.done
}

func (p *process) pid() int {
	proc, _ := p.current()
	return proc.Pid
}

func (p *process) alive() bool {
	_, done := p.current()
	select {
	case <-done:
		return false
	default:
		return true
	}
}

// exited is nil while the program runs, and otherwise why it does not.
func (p *process) exited() error {
	if p.alive() {
		return nil
	}
	p.mu.Lock()
	from := p.from
	p.mu.Unlock()
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err
	}
	text = text[min(from, int64(len(text))):]
	if bytes.Contains(text, []byte("Address already in use")) {
		return errTaken
	}
	return fmt.Errorf("%s ended by itself; its log:\n%s", p.path, tail(text))
}

func tail(text []byte) []byte {
	if len(text) > logTail {
		return append([]byte("…"), text[len(text)-logTail:]...)
	}
	return text
}

// signal reaches a program that is gone without complaint.
func (p *process) signal(sig syscall.Signal) error {
	proc, _ := p.current()
	err := proc.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// stop asks, waits, and then insists.
func (p *process) stop() error {
	if err := p.signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := p.signal(syscall.SIGCONT); err != nil { // a paused one hears nothing
		return err
	}
	_, done := p.current()
	patience := time.NewTimer(grace)
	defer patience.Stop()
	select {
	case <-done:
		return nil
	case <-patience.C:
		return p.kill()
	}
}

func (p *process) kill() error {
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	_, done := p.current()
	<-done
	return nil
}

// stat returns the fields of /proc/PID/stat that follow the program's name:
// the first is the state, the 12th and 13th are user and system time in 1/100 s.
func (p *process) stat() ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid()))
	if err != nil {
		return nil, err
	}
	end := strings.LastIndexByte(string(text), ')') // a name may hold anything, even ")"
	fields := strings.Fields(string(text[end+1:]))
	if len(fields) < 13 {
		return nil, fmt.Errorf("/proc/%d/stat: %q", p.pid(), text)
	}
	return fields, nil
}

func (p *process) cpu() (time.Duration, error) {
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

// pause returns once the kernel has stopped the program.
func (p *process) pause() error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return await(deadline, func() error {
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
