package harness

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Server is a program that listens at an address. A test starts it, breaks it, and starts it again at the same address.
// Its methods may be called from any goroutine, but Stop, Kill and Restart only one at a time.
type Server struct {
	Process
	Addr   string // the address, "127.0.0.1:port" or Socket; Restart does not change it
	Socket string // the path of a Unix socket; "" without UseSocket

	// Configure chooses free ports, and sets Addr and Args. Launch calls it again if another process takes a port first.
	Configure func() error
	// AskPID asks the server at Addr for its process id. It returns an error until the server is ready.
	AskPID func(timeout time.Duration) (string, error)
	// Port chooses a port; tests replace FreePort.
	Port func() (int, error)

	t    testing.TB
	name string
}

// NewServer prepares the program called name; packages are those of Debian and Ubuntu that have it. A variable of the
// environment may name another program of its kind: REDIS_SERVER for redis-server. The caller sets Configure and AskPID
// before Launch.
func NewServer(t testing.TB, name, packages string) Server {
	t.Helper()
	program := cmp.Or(os.Getenv(strings.ToUpper(strings.ReplaceAll(name, "-", "_"))), name)
	return Server{
		Process: Process{Path: Program(t, program, packages), Log: filepath.Join(t.TempDir(), "log")},
		Port:    FreePort,
		t:       t,
		name:    name,
	}
}

// UseSocket sets Socket to a path that is short enough for a socket, even if the name of the test is long.
func (s *Server) UseSocket() error {
	dir, err := os.MkdirTemp("", s.name)
	if err != nil {
		return err
	}
	s.t.Cleanup(func() { s.check("remove the socket of", os.RemoveAll(dir)) })
	s.Socket = filepath.Join(dir, "s")
	return nil
}

// UseFreePort sets Addr to a free port of 127.0.0.1, and returns the port.
func (s *Server) UseFreePort() (int, error) {
	port, err := s.Port()
	s.Addr = fmt.Sprintf("127.0.0.1:%d", port)
	return port, err
}

// Launch starts the program for the first time, and returns after it has answered. The end of the test kills it and, if
// the test failed, shows its log.
func (s *Server) Launch() error {
	s.t.Cleanup(func() {
		if s.last.Load() == nil {
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

// start starts the program at Addr. All errors are Permanent but ErrPortTaken and those of Process.Start.
func (s *Server) start() error {
	if err := s.Start(); err != nil {
		return err
	}
	switch err := s.awaitReady(); {
	case err == nil:
		return nil
	case errors.Is(err, ErrPortTaken):
		return ErrPortTaken
	default:
		return Permanent{fmt.Errorf("starting %s at %s: %w", s.name, s.Addr, err)}
	}
}

// awaitReady returns after this very process has answered at Addr. If a server of another test took the port first,
// that server may answer, or stay silent; so the timeout is short.
func (s *Server) awaitReady() error {
	return Retry(Deadline, func() error {
		if err := s.Exited(); err != nil {
			return Permanent{err}
		}
		pid, err := s.AskPID(500 * time.Millisecond)
		if err == nil && pid != strconv.Itoa(s.PID()) {
			err = fmt.Errorf("process %s answers, not ours", pid)
		}
		return err
	})
}

// Restart stops the process if it runs, starts it at the same Addr, and returns after it has answered. Its data are
// gone.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Stop()
	if err := Retry(Deadline, s.start); err != nil {
		t.Fatalf("harness: %v", err)
	}
}

// Kill sends SIGKILL, and returns after the process has exited.
func (s *Server) Kill() { s.check("kill", s.Process.Kill()) }

// Pause stops the process where it is: connections stay open, the kernel accepts new ones, and nothing is answered.
func (s *Server) Pause() { s.check("pause", s.Process.Pause()) }

// Resume continues a paused process.
func (s *Server) Resume() { s.check("resume", s.Signal(resumeSignal)) }

// CPU returns the user and system time of the process since its start, in steps of 10 ms. It works on Linux only.
func (s *Server) CPU() time.Duration {
	sum, err := s.Process.CPU()
	s.check("read the CPU time of", err)
	return sum
}

func (s *Server) check(what string, err error) {
	if err != nil {
		s.t.Errorf("harness: %s %s at %s: %v", what, s.name, s.Addr, err)
	}
}
