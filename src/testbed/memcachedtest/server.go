package memcachedtest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"ratelimit/src/testbed/harness"
)

// Options say what a server is like. The zero value is plain TCP.
type Options struct {
	// UnixSocket makes the server listen at Server.Socket, and nowhere else.
	UnixSocket bool
	// TLS makes Addr speak TLS only. Clients have to show a certificate by
	// TLS.CA.
	TLS *harness.Certificates
	// Certificate is shown instead of TLS.Server if it is not zero.
	Certificate harness.Pair
	// Args are appended to the command line, such as "-m", "1".
	Args []string
}

// Server is one memcached. Its methods may be called from any goroutine, at most
// one of Stop, Kill and Restart at a time.
type Server struct {
	Addr   string // "127.0.0.1:port", or Socket; stays the same over Restart
	Socket string // a path; "" without Options.UnixSocket

	t    testing.TB
	o    Options
	proc harness.Process
}

// Start runs a memcached and returns once it answers.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	s := &Server{t: t, o: o}
	s.proc.Path = harness.Program(t, "memcached", "memcached")
	s.proc.Log = filepath.Join(t.TempDir(), "log")
	if o.UnixSocket {
		// The name of a test may be longer than the address of a socket.
		short, err := os.MkdirTemp("", "memcached")
		if err != nil {
			t.Fatalf("memcachedtest: %v", err)
		}
		t.Cleanup(func() {
			if err := os.RemoveAll(short); err != nil {
				t.Errorf("memcachedtest: %v", err)
			}
		})
		s.Socket = filepath.Join(short, "s")
	}
	started := false
	err := harness.Retry(harness.Deadline, func() error {
		if err := s.place(); err != nil {
			return err
		}
		if err := s.proc.Start(); err != nil {
			return harness.Final{Err: err}
		}
		if !started {
			started = true
			t.Cleanup(s.end)
		}
		err := s.awaitReady()
		if err != nil && !errors.Is(err, harness.ErrTaken) {
			return harness.Final{Err: err}
		}
		return err // somebody was faster: again, with another port
	})
	if err != nil {
		t.Fatalf("memcachedtest: %v", err)
	}
	return s
}

// place chooses where the server listens, and with it its command line.
func (s *Server) place() error {
	args := []string{"-t", "2", "-c", "4096"}
	if os.Geteuid() == 0 {
		args = append(args, "-u", "root")
	}
	if s.Socket != "" {
		s.Addr = s.Socket
		args = append(args, "-s", s.Socket)
	} else {
		port, err := harness.FreePort()
		if err != nil {
			return err
		}
		s.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		args = append(args, "-l", "127.0.0.1", "-U", "0", "-p", strconv.Itoa(port))
	}
	if s.o.TLS != nil {
		pair := s.o.Certificate
		if pair == (harness.Pair{}) {
			pair = s.o.TLS.Server
		}
		args = append(args, "-Z", "-o",
			"ssl_chain_cert="+pair.Cert+",ssl_key="+pair.Key+",ssl_ca_cert="+s.o.TLS.CA+",ssl_verify_mode=2")
	}
	s.proc.Args = slices.Concat(args, s.o.Args)
	return nil
}

// awaitReady returns once this very process answers at Addr: with bad luck with
// ports, it might be another test's.
func (s *Server) awaitReady() error {
	err := harness.Retry(harness.Deadline, func() error {
		if err := s.proc.Exited(); err != nil {
			return harness.Final{Err: err}
		}
		stats, err := s.stats(time.Second)
		if err != nil {
			return err
		}
		if stats["pid"] != strconv.Itoa(s.proc.PID()) {
			return fmt.Errorf("process %s answers, not ours", stats["pid"])
		}
		return nil
	})
	if f, ok := errors.AsType[harness.Final](err); ok {
		err = f.Err // with another port it might do
	}
	if err != nil {
		return fmt.Errorf("starting memcached at %s: %w", s.Addr, err)
	}
	return nil
}

// end is the cleanup.
func (s *Server) end() {
	s.Kill() // an end in order waits for a tick of its clock, a second
	if s.t.Failed() {
		s.proc.ShowLog(s.t, "memcached at "+s.Addr)
	}
}

// Stop ends the process in an orderly way; it returns once the process is gone.
// Stopping twice does no harm.
func (s *Server) Stop() { s.check("stop", s.proc.Stop()) }

// Kill ends the process at once, and returns once it is gone.
func (s *Server) Kill() { s.check("kill", s.proc.Kill()) }

// Pause stops the process where it is: connections stay, the kernel accepts new
// ones, and nothing is answered. It returns once the process stands.
func (s *Server) Pause() { s.check("pause", s.proc.Pause()) }

// Resume lets a paused process go on.
func (s *Server) Resume() { s.check("resume", s.proc.Signal(syscall.SIGCONT)) }

func (s *Server) check(what string, err error) {
	if err != nil {
		s.t.Errorf("memcachedtest: %s memcached at %s: %v", what, s.Addr, err)
	}
}

// Restart stops the process if it runs, starts it at the same Addr, and returns
// once it answers. It has no data then.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Stop()
	err := harness.Retry(harness.Deadline, func() error {
		if err := s.proc.Start(); err != nil {
			return err
		}
		err := s.awaitReady()
		if err != nil && !errors.Is(err, harness.ErrTaken) {
			return harness.Final{Err: err}
		}
		return err
	})
	if err != nil {
		t.Fatalf("memcachedtest: %v", err)
	}
}

// CPU is the user and system time the process has taken since its start, in
// steps of 10 ms. Linux only.
func (s *Server) CPU(t testing.TB) time.Duration {
	t.Helper()
	sum, err := s.proc.CPU()
	if err != nil {
		t.Fatalf("memcachedtest: %v", err)
	}
	return sum
}
