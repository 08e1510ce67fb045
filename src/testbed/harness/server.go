package harness

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// Server is a program that listens at an address. A test starts it, breaks it, and starts it again at the same address. Its
// methods may be called from any goroutine, at most one of Stop, Kill and Restart at a time.
type Server struct {
	Process
	Addr   string // "127.0.0.1:port", or Socket; stays the same over Restart
	Socket string // the path of a Unix socket; "" without UseSocket

	// Configure chooses free ports, and sets Addr and Args. Launch calls it again if another process takes a port first.
	Configure func() error
	// AskPID asks the server at Addr for its process id.
	AskPID func(timeout time.Duration) (string, error)
	// Ready, if not nil, is called after each start, once the server answers.
	Ready func() error
	// Port chooses a port; tests replace FreePort.
	Port func() (int, error)

	t    testing.TB
	name string
}

// NewServer prepares the program called name; packages are what has it on Debian and Ubuntu. The caller sets Configure and AskPID
// before Launch.
func NewServer(t testing.TB, name, packages string) Server {
	t.Helper()
	return Server{
		Process: Process{Path: Program(t, name, packages), Log: filepath.Join(t.TempDir(), "log")},
		Port:    FreePort,
		t:       t,
		name:    name,
	}
}

// UseSocket sets Socket to a path short enough for a socket, whatever the name of the test.
func (s *Server) UseSocket() error {
	dir, err := os.MkdirTemp("", s.name)
	if err != nil {
		return err
	}
	s.t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			s.t.Errorf("harness: %v", err)
		}
	})
	s.Socket = filepath.Join(dir, "s")
	return nil
}

// UseFreePort sets Addr to a free port of 127.0.0.1, and returns the port.
func (s *Server) UseFreePort() (int, error) {
	port, err := s.Port()
	s.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	return port, err
}

// Launch starts the program for the first time, and returns once it answers. The end of the test kills it and, if the test
// failed, shows its log.
func (s *Server) Launch() error {
	s.t.Cleanup(func() {
		if s.cmd == nil {
			return
		}
		s.Kill()
		if s.t.Failed() {
			s.ShowLog(s.t, s.name+" at "+s.Addr)
		}
	})
	return Retry(Deadline, func() error {
		if err := s.Configure(); err != nil {
			return err
		}
		return s.start()
	})
}

// start runs the program at Addr. The error is not Final if another process has the port.
func (s *Server) start() error {
	if err := s.Start(); err != nil {
		return err
	}
	switch err := s.awaitReady(); {
	case err == nil:
		return nil
	case errors.Is(err, ErrTaken):
		return ErrTaken
	default:
		return Final{fmt.Errorf("starting %s at %s: %w", s.name, s.Addr, err)}
	}
}

// awaitReady returns once this very process answers at Addr. Another test's may answer if it took the port first; that one may
// also stay silent, so the timeout is short.
func (s *Server) awaitReady() error {
	err := Retry(Deadline, func() error {
		if err := s.Exited(); err != nil {
			return Final{err}
		}
		pid, err := s.AskPID(500 * time.Millisecond)
		if err == nil && pid != strconv.Itoa(s.PID()) {
			err = fmt.Errorf("process %s answers, not ours", pid)
		}
		return err
	})
	if err == nil && s.Ready != nil {
		err = s.Ready()
	}
	return err
}

// Restart stops the process if it runs, starts it at the same Addr, and returns once it answers. It has no data then.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Stop()
	if err := Retry(Deadline, s.start); err != nil {
		t.Fatalf("harness: %v", err)
	}
}

// Kill ends the process at once, and returns once it is gone.
func (s *Server) Kill() { s.check("kill", s.Process.Kill()) }

// Pause stops the process where it is: connections stay, the kernel accepts new ones, and nothing is answered.
func (s *Server) Pause() { s.check("pause", s.Process.Pause()) }

// Resume continues a paused process.
func (s *Server) Resume() { s.check("resume", s.Signal(syscall.SIGCONT)) }

func (s *Server) check(what string, err error) {
	if err != nil {
		s.t.Errorf("harness: %s %s at %s: %v", what, s.name, s.Addr, err)
	}
}

// CPU returns the user and system time of the process since its start, in steps of 10 ms. Linux only.
func (s *Server) CPU(t testing.TB) time.Duration {
	t.Helper()
	sum, err := s.Process.CPU()
	if err != nil {
		t.Fatalf("harness: %v", err)
	}
	return sum
}
