package redistest

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ratelimit/src/testbed/harness"
)

// admin is the user of the harness; it may do everything without a password.
// Redis still wants one in AUTH, and in masterauth.
const (
	admin         = "redistest"
	adminPassword = "any"
)

// Options say what a server is like. The zero value is plain TCP for anyone.
type Options struct {
	// Password is what clients need; "" is none.
	Password string
	// User is whom Password belongs to; nobody else may in. "" is the default
	// user, for whom AUTH takes the password alone.
	User string

	// UnixSocket makes the server listen at Server.Socket too.
	UnixSocket bool

	// TLS makes Addr speak TLS only, with the certificate TLS.Server. Clients
	// may show a certificate; with Args "--tls-auth-clients", "yes" they must.
	TLS *harness.Certificates
	// Certificate is shown instead of TLS.Server if it is not zero.
	Certificate harness.Pair

	// Proxy puts a proxy before each server, and has it tell everyone the proxy's
	// address instead of its own: replicas, sentinels, other nodes, clients that
	// ask for the layout. Not with UnixSocket, and TLS ends behind it.
	Proxy bool

	// Args are appended to the command line, such as "--maxmemory", "2mb".
	Args []string
}

// Server is one redis-server or redis-sentinel. Its methods may be called from
// any goroutine, at most one of Stop, Kill and Restart at a time.
type Server struct {
	Addr   string         // "127.0.0.1:port"; stays the same over Restart
	Socket string         // a path; "" without Options.UnixSocket
	Proxy  *harness.Proxy // nil without Options.Proxy

	t     testing.TB
	name  string // of the program
	tls   *tls.Config
	proc  harness.Process
	ready func(*Server) error // after every start, once it answers; may be nil
	id    string              // in a cluster
}

// Start runs a redis-server and returns once it answers.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	s, err := launch(place(t, "redis-server").behind(t, o), o.settings(t), o, harness.FreePort)
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	return s
}

// settings are the lines of the configuration file that follow from o.
func (o Options) settings(t testing.TB) []string {
	t.Helper()
	if o.User != "" && o.Password == "" {
		t.Fatal("redistest: Options.User without Options.Password")
	}
	lines := []string{
		`save ""`,
		`appendonly no`,
		`enable-debug-command yes`,
		`shutdown-timeout 0`, // else SIGTERM waits for replicas that are gone
		`repl-diskless-sync yes`,
		`repl-diskless-sync-delay 0`,
		`masteruser ` + admin,
		`masterauth ` + adminPassword,
	}
	if o.User != "" {
		lines = append(lines, "user default off", fmt.Sprintf("user %s on %s ~* &* +@all", o.User, quote(">"+o.Password)))
	} else if o.Password != "" {
		lines = append(lines, "requirepass "+quote(o.Password))
	}
	return lines
}

// quote writes an argument as Redis reads it in a configuration file.
func quote(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range []byte(text) {
		fmt.Fprintf(&b, `\x%02x`, c)
	}
	b.WriteByte('"')
	return b.String()
}

// place makes the directory of a server that is about to be launched, and sees
// to its end. It is apart from launch because only the test's own goroutine
// may end the test.
func place(t testing.TB, name string) *Server {
	t.Helper()
	s := &Server{t: t, name: name}
	s.proc.Path = harness.Program(t, name, "redis-server redis-sentinel")
	s.proc.Log = filepath.Join(t.TempDir(), "log")
	return s
}

// behind starts the proxy, if there is to be one.
func (s *Server) behind(t testing.TB, o Options) *Server {
	t.Helper()
	if o.Proxy {
		s.Proxy = harness.StartProxy(t, "")
	}
	return s
}

// Told is the address that the server tells others: Addr, or that of its Proxy.
func (s *Server) Told() string {
	if s.Proxy != nil {
		return s.Proxy.Addr
	}
	return s.Addr
}

// launch runs what place prepared, at ports that port chooses.
func launch(s *Server, lines []string, o Options, port func() (int, error)) (*Server, error) {
	dir := filepath.Dir(s.proc.Log)
	lines = slices.Clone(lines) // others launch with the same
	if o.UnixSocket {
		// The name of a test may be longer than the address of a socket.
		short, err := os.MkdirTemp("", "redis")
		if err != nil {
			return nil, err
		}
		s.t.Cleanup(func() {
			if err := os.RemoveAll(short); err != nil {
				s.t.Errorf("redistest: %v", err)
			}
		})
		s.Socket = filepath.Join(short, "s")
		lines = append(lines, "unixsocket "+quote(s.Socket))
	}
	if o.TLS != nil {
		certificate := o.Certificate
		if certificate == (harness.Pair{}) {
			certificate = o.TLS.Server
		}
		s.tls = o.TLS.Any
		lines = append(lines,
			"tls-cert-file "+quote(certificate.Cert),
			"tls-key-file "+quote(certificate.Key),
			"tls-ca-cert-file "+quote(o.TLS.CA),
			"tls-auth-clients optional",
			"tls-replication yes")
	}
	lines = append(lines,
		"bind 127.0.0.1",
		"protected-mode no",
		"dir "+quote(dir),
		"user "+admin+" on nopass ~* &* +@all")

	file := filepath.Join(dir, "conf")
	s.proc.Args = append([]string{file}, o.Args...)
	started := false
	err := harness.Retry(harness.Deadline, func() error {
		ports, err := s.ports(lines, port)
		if err != nil {
			return err
		}
		text := strings.Join(append(ports, lines...), "\n") + "\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
		if err := s.proc.Start(); err != nil {
			return err
		}
		if !started {
			started = true
			s.t.Cleanup(s.end)
		}
		err = s.awaitReady()
		if errors.Is(err, harness.ErrTaken) {
			return err // somebody was faster: again, with another port
		}
		if err != nil {
			return harness.Final{Err: err}
		}
		return nil
	})
	return s, err
}

// ports chooses the ports, sets Addr, and returns the lines that say so.
func (s *Server) ports(lines []string, port func() (int, error)) ([]string, error) {
	n, err := port()
	if err != nil {
		return nil, err
	}
	s.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(n))
	conf := []string{fmt.Sprintf("port %d", n)}
	if s.tls != nil {
		conf = []string{"port 0", fmt.Sprintf("tls-port %d", n)}
	}
	told := ""
	if s.Proxy != nil {
		s.Proxy.Aim(s.Addr)
		if _, told, err = net.SplitHostPort(s.Proxy.Addr); err != nil {
			return nil, err
		}
		conf = append(conf, "replica-announce-ip 127.0.0.1", "replica-announce-port "+told)
	}
	for _, line := range lines {
		if line == clusterEnabled {
			if told != "" {
				conf = append(conf, "cluster-announce-ip 127.0.0.1", "cluster-announce-port "+told)
			}
			bus, err := port()
			if err != nil {
				return nil, err
			}
			conf = append(conf, fmt.Sprintf("cluster-port %d", bus))
		}
	}
	return conf, nil
}

// awaitReady returns once this very process answers at Addr: with bad luck
// with ports, it might be another test's.
func (s *Server) awaitReady() error {
	err := harness.Retry(harness.Deadline, func() error {
		if err := s.proc.Exited(); err != nil {
			return harness.Final{Err: err}
		}
		// Not for long: whoever has the port instead may say nothing at all.
		info, err := s.info("server", 500*time.Millisecond)
		if err != nil {
			return err
		}
		if info["process_id"] != strconv.Itoa(s.proc.PID()) {
			return fmt.Errorf("process %s answers at %s, not ours", info["process_id"], s.Addr)
		}
		return nil
	})
	if f, ok := errors.AsType[harness.Final](err); ok {
		err = f.Err // with another port it might do
	}
	if err == nil && s.ready != nil {
		err = s.ready(s)
	}
	if err != nil {
		return fmt.Errorf("starting %s at %s: %w", s.name, s.Addr, err)
	}
	return nil
}

// end is the cleanup.
func (s *Server) end() {
	s.Stop()
	if !s.t.Failed() {
		return
	}
	s.proc.ShowLog(s.t, s.name+" at "+s.Addr)
}

// Do sends a command on a connection of its own, as a user who may do
// everything, and returns the reply as Client.Do does. An error ends the test.
func (s *Server) Do(t testing.TB, args ...any) any {
	t.Helper()
	reply, err := s.Try(args...)
	if err != nil {
		t.Fatalf("redistest: %.200q at %s: %v", fmt.Sprint(args...), s.Addr, err)
	}
	return reply
}

// Try is Do for commands that may fail, and for other goroutines.
func (s *Server) Try(args ...any) (any, error) { return s.try(0, args...) }

func (s *Server) try(timeout time.Duration, args ...any) (any, error) {
	c, err := s.dial(timeout)
	if err != nil {
		return nil, err
	}
	reply, err := c.Do(args...)
	return reply, errors.Join(err, c.Close())
}

// Client is a connection like those of Do that stays open until the test ends.
func (s *Server) Client(t testing.TB) *Client {
	t.Helper()
	c, err := s.dial(0)
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (s *Server) dial(timeout time.Duration) (*Client, error) {
	return Dial(s.Addr, DialOptions{User: admin, Password: adminPassword, TLS: s.tls, Timeout: timeout})
}

// Info returns the fields of one section of INFO, such as "clients".
func (s *Server) Info(t testing.TB, section string) map[string]string {
	t.Helper()
	info, err := s.info(section, 0)
	if err != nil {
		t.Fatalf("redistest: INFO %s at %s: %v", section, s.Addr, err)
	}
	return info
}

func (s *Server) info(section string, timeout time.Duration) (map[string]string, error) {
	reply, err := s.try(timeout, "INFO", section)
	if err != nil {
		return nil, err
	}
	text, ok := reply.(string)
	if !ok {
		return nil, fmt.Errorf("INFO is answered by %v", reply)
	}
	return fields(text), nil
}

// fields reads lines of name:value.
func fields(text string) map[string]string {
	found := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			found[name] = value
		}
	}
	return found
}

// PID is the process's id; it changes with Restart.
func (s *Server) PID() int { return s.proc.PID() }

// Stop ends the process in an orderly way, and within three seconds in any
// other; it returns once the process is gone. Stopping twice does no harm.
func (s *Server) Stop() { s.check("stop", s.proc.Stop()) }

// Kill ends the process at once, and returns once it is gone.
func (s *Server) Kill() { s.check("kill", s.proc.Kill()) }

// Pause stops the process where it is: connections stay, the kernel accepts
// new ones, and nothing is answered. It returns once the process stands.
func (s *Server) Pause() { s.check("pause", s.proc.Pause()) }

// Resume lets a paused process go on.
func (s *Server) Resume() { s.check("resume", s.proc.Signal(syscall.SIGCONT)) }

func (s *Server) check(what string, err error) {
	if err != nil {
		s.t.Errorf("redistest: %s %s at %s: %v", what, s.name, s.Addr, err)
	}
}

// Restart stops the process if it runs, starts it at the same Addr, and
// returns once it answers. The data, scripts and whatever CONFIG SET did are gone.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Stop()
	// A replica keeps a file of its primary's data.
	if err := os.RemoveAll(filepath.Join(filepath.Dir(s.proc.Log), "dump.rdb")); err != nil {
		t.Fatalf("redistest: %v", err)
	}
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
		t.Fatalf("redistest: %v", err)
	}
}

// CPU is the user and system time the process has taken since its start, in
// steps of 10 ms. Linux only.
func (s *Server) CPU(t testing.TB) time.Duration {
	t.Helper()
	sum, err := s.proc.CPU()
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	return sum
}

// Loading makes the server reload its data slowly: it answers LOADING from
// here until done is called, for 20 s at most. The data are the same after as
// before. Not for clusters.
func (s *Server) Loading(t testing.TB) (done func()) {
	t.Helper()
	// 1 ms per key, and an ear for commands every 1 KiB, some ten keys.
	const keys, database = 20000, 15
	s.Do(t, "CONFIG", "SET", "key-load-delay", 1000, "loading-process-events-interval-bytes", 1024, "rdbcompression", "no")
	c, err := s.dial(2 * harness.Deadline)
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	for _, args := range [][]any{
		{"SELECT", database},
		{"DEBUG", "POPULATE", keys, "redistest", 100},
	} {
		if _, err := c.Do(args...); err != nil {
			t.Fatalf("redistest: %v: %v", args, err)
		}
	}
	if err := c.Send("DEBUG", "RELOAD"); err != nil {
		t.Fatalf("redistest: DEBUG RELOAD: %v", err)
	}
	harness.Await(t, harness.Deadline, "the server is not loading", func() error {
		_, err := s.Try("GET", "redistest")
		if e, ok := errors.AsType[Error](err); ok && e.Code() == "LOADING" {
			return nil
		}
		return fmt.Errorf("GET: %v", err)
	})
	end := sync.OnceFunc(func() {
		defer func() { _ = c.Close() }()
		if !s.proc.Alive() {
			return
		}
		if _, err := s.Try("CONFIG", "SET", "key-load-delay", 0); err != nil {
			s.t.Errorf("redistest: ending the load: %v", err)
		}
		if _, err := c.Receive(); err != nil {
			s.t.Errorf("redistest: DEBUG RELOAD: %v", err)
		}
		if _, err := c.Do("FLUSHDB"); err != nil {
			s.t.Errorf("redistest: FLUSHDB: %v", err)
		}
	})
	t.Cleanup(end)
	return end
}

// together runs f for every server at once, and returns the first error.
func together(servers []*Server, f func(int, *Server) error) error {
	errs := make([]error, len(servers))
	var all sync.WaitGroup
	for i, s := range servers {
		all.Go(func() { errs[i] = f(i, s) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// endTogether makes the cleanup of many servers take as long as that of one.
func endTogether(t testing.TB, servers []*Server) {
	t.Helper()
	t.Cleanup(func() {
		_ = together(servers, func(_ int, s *Server) error { s.Stop(); return nil })
	})
}
