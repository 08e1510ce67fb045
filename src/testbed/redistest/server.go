package redistest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ratelimit/src/testbed/harness"
)

// admin is the user that the tests' own commands use. It may do everything without a password; AUTH and masterauth demand one all
// the same.
const (
	admin         = "redistest"
	adminPassword = "any"
)

// Options configure a server. The zero value is plain TCP without a password.
type Options struct {
	// Password is the clients' password; "" is none.
	Password string
	// User is the only user, with Password. "" is the default user, for whom AUTH takes the password alone.
	User string

	// UnixSocket makes the server listen at Server.Socket too.
	UnixSocket bool

	// TLS makes Addr speak TLS only, with the certificate TLS.Server. Clients may show a certificate; with Args
	// "--tls-auth-clients", "yes" they must.
	TLS *harness.Certificates
	// Certificate, if not zero, is shown instead of TLS.Server.
	Certificate harness.Pair

	// Proxy puts a proxy before each server, which announces the proxy's address to replicas, sentinels, other nodes and clients.
	// Not with UnixSocket. The proxy does not end TLS.
	Proxy bool

	// Args are appended to the command line, such as "--maxmemory", "2mb".
	Args []string
}

// Server is one redis-server or redis-sentinel.
type Server struct {
	harness.Server
	Proxy *harness.Proxy // nil without Options.Proxy

	o     Options
	lines []string // of the configuration file
	id    string   // in a cluster
}

// Start runs a redis-server and returns once it answers.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	return startAll(t, 1, "redis-server", o, o.settings(t), nil)[0]
}

// startAll starts n servers at once, with these lines of configuration, and calls then for each that answers.
func startAll(t testing.TB, n int, program string, o Options, lines []string, then func(i int, s *Server) error) []*Server {
	t.Helper()
	servers, errs := make([]*Server, n), make([]error, n)
	for i := range servers {
		servers[i] = newServer(t, program, o)
	}
	var all sync.WaitGroup
	for i, s := range servers {
		all.Go(func() {
			if errs[i] = s.launch(lines); errs[i] == nil && then != nil {
				errs[i] = then(i, s)
			}
		})
	}
	all.Wait()
	check(t, errors.Join(errs...))
	return servers
}

// check ends the test if there is an error.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
}

// find polls look until it returns no error. If that takes too long it ends the test with the last error.
func find[T any](t testing.TB, missing string, look func() (T, error)) (found T) {
	t.Helper()
	harness.Await(t, harness.Deadline, missing, func() (err error) {
		found, err = look()
		return err
	})
	return found
}

// settings returns the lines of the configuration file that follow from o.
func (o Options) settings(t testing.TB) []string {
	t.Helper()
	if o.User != "" && o.Password == "" {
		t.Fatal("redistest: Options.User without Options.Password")
	}
	return append([]string{
		`save ""`, "appendonly no",
		"enable-debug-command yes",
		"shutdown-timeout 0", // otherwise SIGTERM waits for replicas that are gone
		"repl-diskless-sync yes", "repl-diskless-sync-delay 0",
		"masteruser " + admin, "masterauth " + adminPassword,
	}, access(o.User, o.Password)...)
}

// access returns the lines that let clients in with a user and a password.
func access(user, password string) []string {
	switch {
	case user != "":
		return []string{"user default off", fmt.Sprintf("user %s on %s ~* &* +@all", user, quote(">"+password))}
	case password != "":
		return []string{"requirepass " + quote(password)}
	}
	return nil
}

// quote returns text, which is not empty, as an argument in a configuration file.
func quote(text string) string {
	return `"\x` + strings.ReplaceAll(fmt.Sprintf("% x", text), " ", `\x`) + `"`
}

// newServer prepares a server, and starts its proxy if it has one. Unlike launch it may end the test, so only the goroutine of
// the test calls it.
func newServer(t testing.TB, name string, o Options) *Server {
	t.Helper()
	s := &Server{Server: harness.NewServer(t, name, "redis-server redis-sentinel"), o: o}
	s.Configure = s.configure
	s.AskPID = func(timeout time.Duration) (string, error) {
		info, err := s.info("server", timeout)
		return info["process_id"], err
	}
	if name == "redis-sentinel" {
		s.Ready = func() error {
			_, err := s.Try(sentinelPace...)
			return err
		}
	}
	if o.Proxy {
		s.Proxy = harness.StartProxy(t, "")
	}
	return s
}

// PublicAddr is the address that the server announces to others: Addr, or that of its Proxy.
func (s *Server) PublicAddr() string {
	if s.Proxy != nil {
		return s.Proxy.Addr
	}
	return s.Addr
}

func (s *Server) dir() string { return filepath.Dir(s.Log) }

// launch starts the server with these lines of configuration, and those that follow from its Options.
func (s *Server) launch(lines []string) error {
	lines = append(slices.Clone(lines),
		"bind 127.0.0.1",
		"protected-mode no",
		"dir "+quote(s.dir()),
		"user "+admin+" on nopass ~* &* +@all")
	if s.o.UnixSocket {
		if err := s.UseSocket(); err != nil {
			return err
		}
		lines = append(lines, "unixsocket "+quote(s.Socket))
	}
	if s.o.TLS != nil {
		certificate := s.o.Certificate
		if certificate == (harness.Pair{}) {
			certificate = s.o.TLS.Server
		}
		lines = append(lines,
			"tls-cert-file "+quote(certificate.Cert),
			"tls-key-file "+quote(certificate.Key),
			"tls-ca-cert-file "+quote(s.o.TLS.CA),
			"tls-auth-clients optional",
			"tls-replication yes")
	}
	s.lines = lines
	return s.Launch()
}

// configure chooses ports and writes the configuration file.
func (s *Server) configure() error {
	port, err := s.UseFreePort()
	if err != nil {
		return err
	}
	lines := []string{fmt.Sprintf("port %d", port)}
	if s.o.TLS != nil {
		lines = []string{"port 0", fmt.Sprintf("tls-port %d", port)}
	}
	if slices.Contains(s.lines, clusterEnabled) {
		bus, err := s.Port()
		if err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf("cluster-port %d", bus))
	}
	if s.Proxy != nil {
		s.Proxy.Aim(s.Addr)
		_, public, err := net.SplitHostPort(s.Proxy.Addr)
		if err != nil {
			return err
		}
		lines = append(lines,
			"replica-announce-ip 127.0.0.1", "replica-announce-port "+public,
			"cluster-announce-ip 127.0.0.1", "cluster-announce-port "+public)
	}
	file := filepath.Join(s.dir(), "conf")
	s.Args = append([]string{file}, s.o.Args...)
	text := strings.Join(append(lines, s.lines...), "\n") + "\n"
	return os.WriteFile(file, []byte(text), 0o600)
}

// Restart stops the process if it runs, starts it at the same Addr, and returns once it answers. Data, scripts and changes by
// CONFIG SET are gone.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Stop()
	// A replica keeps a file of its primary's data.
	check(t, os.RemoveAll(filepath.Join(s.dir(), "dump.rdb")))
	s.Server.Restart(t)
}

// Do sends a command on a new connection, as a user that may do everything, and returns the reply as Client.Do does. An error
// ends the test.
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

// Client returns a connection like that of Do, which stays open until the test ends.
func (s *Server) Client(t testing.TB) *Client {
	t.Helper()
	c, err := s.dial(0)
	check(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (s *Server) dial(timeout time.Duration) (*Client, error) {
	o := DialOptions{User: admin, Password: adminPassword, Timeout: timeout}
	if s.o.TLS != nil {
		o.TLS = s.o.TLS.Any
	}
	return Dial(s.Addr, o)
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
	return fields(fmt.Sprint(reply)), nil
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

// Loading makes the server reload its data slowly: it answers LOADING until done is called, for 20 s at most. The data stay. Not
// for clusters.
func (s *Server) Loading(t testing.TB) (done func()) {
	t.Helper()
	// 1 ms per key; commands are answered every 1 KiB, some ten keys.
	const keys, database = 20000, 15
	s.Do(t, "CONFIG", "SET", "key-load-delay", 1000, "loading-process-events-interval-bytes", 1024, "rdbcompression", "no")
	c, err := s.dial(2 * harness.Deadline)
	check(t, err)
	_, err = c.Do("SELECT", database)
	check(t, err)
	_, err = c.Do("DEBUG", "POPULATE", keys, "redistest", 100)
	check(t, err)
	check(t, c.Send("DEBUG", "RELOAD"))
	harness.Await(t, harness.Deadline, "the server is not loading", func() error {
		_, err := s.Try("GET", "redistest")
		if e, ok := errors.AsType[Error](err); ok && e.Code() == "LOADING" {
			return nil
		}
		return fmt.Errorf("GET: %v", err)
	})
	end := sync.OnceFunc(func() {
		defer func() { _ = c.Close() }()
		if !s.Alive() {
			return
		}
		_, err1 := s.Try("CONFIG", "SET", "key-load-delay", 0)
		_, err2 := c.Receive()
		_, err3 := c.Do("FLUSHDB")
		if err := errors.Join(err1, err2, err3); err != nil {
			t.Errorf("redistest: ending DEBUG RELOAD: %v", err)
		}
	})
	t.Cleanup(end)
	return end
}
