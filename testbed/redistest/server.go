// Package redistest starts real Redis programs for tests: single servers, sentinels and clusters, with passwords and
// TLS. It needs redis-server 7.0 or later on the PATH, or the path of such a server in REDIS_SERVER; without it a test
// is skipped, or fails with CI=true.
//
// Everything listens on the loopback interface and ends with its test. The output of a failed test includes the logs of
// its programs.
//
// The package has its own user on every server ("redistest", without a password), so Do and the topologies work
// although a test changes or revokes the passwords of clients. Redis counts each Do as a connection and two commands
// (AUTH and the command).
package redistest

import (
	"cmp"
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

	"golang.org/x/sync/errgroup"

	"ratelimit/testbed/harness"
)

// admin is the user of this package's own commands. It may run every command, with any password; AUTH and masterauth
// demand one.
const (
	admin         = "redistest"
	adminPassword = "any"
)

// Options configure a server. The zero value is plain TCP without a password.
type Options struct {
	// Password is the clients' password; "" means that they need none.
	Password string
	// User is the only user, with Password. "" means the default user, for whom AUTH takes the password alone.
	User string

	// UnixSocket makes the server listen at Server.Socket too.
	UnixSocket bool

	// TLS makes Addr speak TLS only, with the certificate TLS.Server. Clients may show a certificate; with Args
	// "--tls-auth-clients", "yes" they must.
	TLS *harness.Certificates
	// Certificate, if not zero, is shown instead of TLS.Server.
	Certificate harness.Pair

	// Proxy puts a proxy before each server, which announces the proxy's address to replicas, sentinels, other nodes
	// and clients. Not with UnixSocket. The proxy does not end TLS.
	Proxy bool

	// Args are appended to the command line, such as "--maxmemory", "2mb".
	Args []string
}

// Server is one redis-server, which may be a sentinel.
type Server struct {
	harness.Server
	Proxy *harness.Proxy // nil without Options.Proxy

	options     Options
	configLines []string // the lines of the configuration file that depend on the role of the server
	nodeID      string   // the id of a node of a cluster
}

// Start runs a redis-server and returns after it has answered.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	return startAll(t, 1, o, o.configLines(t), nil)[0]
}

// startAll starts n servers at once, with these lines of configuration. It calls prepare, if not nil, for each server
// that answers.
func startAll(t testing.TB, n int, o Options, configLines []string, prepare func(i int, s *Server) error) []*Server {
	t.Helper()
	servers := make([]*Server, n)
	var all errgroup.Group
	for i := range servers {
		s := newServer(t, o)
		servers[i] = s
		all.Go(func() error {
			if err := s.launch(configLines); err != nil || prepare == nil {
				return err
			}
			return prepare(i, s)
		})
	}
	must(t, all.Wait())
	return servers
}

// must ends the test if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
}

// awaitValue calls look until it returns no error. If that takes longer than harness.Deadline, it ends the test with
// the last error.
func awaitValue[T any](t testing.TB, problem string, look func() (T, error)) (found T) {
	t.Helper()
	harness.Await(t, harness.Deadline, problem, func() (err error) {
		found, err = look()
		return err
	})
	return found
}

// configLines returns the lines of the configuration file for a redis-server with the passwords of o.
func (o Options) configLines(t testing.TB) []string {
	t.Helper()
	if o.User != "" && o.Password == "" {
		t.Fatal("redistest: Options.User without Options.Password")
	}
	return append([]string{
		`save ""`, "appendonly no",
		"enable-debug-command yes",
		"shutdown-timeout 0", // else a server that gets SIGTERM waits for replicas that are gone
		"repl-diskless-sync yes", "repl-diskless-sync-delay 0",
		"masteruser " + admin, "masterauth " + adminPassword,
	}, accessLines(o.User, o.Password)...)
}

// accessLines returns the lines of a configuration file that let clients in with a user and a password.
func accessLines(user, password string) []string {
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

// newServer prepares a server, and starts its proxy if it has one. It may end the test, so only the goroutine of the
// test may call it.
func newServer(t testing.TB, o Options) *Server {
	t.Helper()
	s := &Server{Server: harness.NewServer(t, "redis-server", "redis-server"), options: o}
	s.Configure = s.configure
	s.AskPID = func(timeout time.Duration) (string, error) {
		reply, err := s.try(timeout, "INFO", "server")
		if err == nil && slices.Contains(o.Args, sentinelFlag) {
			_, err = s.try(timeout, sentinelPeriods...)
		}
		return parseFields(reply)["process_id"], err
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

// dir returns the working directory of the server.
func (s *Server) dir() string { return filepath.Dir(s.Log) }

// launch starts the server with these lines of configuration, and those that follow from its Options.
func (s *Server) launch(configLines []string) error {
	s.configLines = configLines
	if s.options.UnixSocket {
		if err := s.UseSocket(); err != nil {
			return err
		}
	}
	return s.Launch()
}

// configure chooses ports and writes the configuration file.
func (s *Server) configure() error {
	port, err := s.UseFreePort()
	if err != nil {
		return err
	}
	lines := append(slices.Clone(s.configLines),
		"bind 127.0.0.1",
		"protected-mode no",
		"dir "+quote(s.dir()),
		"user "+admin+" on nopass ~* &* +@all")
	if s.Socket != "" {
		lines = append(lines, "unixsocket "+quote(s.Socket))
	}
	if certs := s.options.TLS; certs != nil {
		pair := cmp.Or(s.options.Certificate, certs.Server)
		lines = append(lines,
			"port 0", fmt.Sprintf("tls-port %d", port),
			"tls-cert-file "+quote(pair.Cert),
			"tls-key-file "+quote(pair.Key),
			"tls-ca-cert-file "+quote(certs.CA),
			"tls-auth-clients optional",
			"tls-replication yes")
	} else {
		lines = append(lines, fmt.Sprintf("port %d", port))
	}
	if slices.Contains(lines, clusterEnabled) {
		busPort, err := s.Port()
		if err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf("cluster-port %d", busPort))
	}
	if s.Proxy != nil {
		s.Proxy.SetTarget(s.Addr)
		_, public, err := net.SplitHostPort(s.Proxy.Addr)
		if err != nil {
			return err
		}
		lines = append(lines,
			"replica-announce-ip 127.0.0.1", "replica-announce-port "+public,
			"cluster-announce-ip 127.0.0.1", "cluster-announce-port "+public)
	}
	file := filepath.Join(s.dir(), "conf")
	s.Args = append([]string{file}, s.options.Args...)
	return os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600)
}

// Restart stops the process if it runs, starts it at the same Addr, and returns after it has answered. Data, scripts
// and changes by CONFIG SET are gone.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Stop()
	must(t, os.RemoveAll(filepath.Join(s.dir(), "dump.rdb"))) // a replica wrote its primary's data to this file
	s.Server.Restart(t)
}

// Do sends a command on a new connection, as a user that may do everything, and returns the reply as Client.Do does. An
// error ends the test.
func (s *Server) Do(t testing.TB, args ...any) any {
	t.Helper()
	reply, err := s.Try(args...)
	if err != nil {
		t.Fatalf("redistest: %.200q at %s: %v", fmt.Sprint(args...), s.Addr, err)
	}
	return reply
}

// Try is Do for commands that may fail, and for other goroutines than that of the test.
func (s *Server) Try(args ...any) (any, error) { return s.try(0, args...) }

// try is Try with the timeout of DialOptions.
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
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (s *Server) dial(timeout time.Duration) (*Client, error) {
	o := DialOptions{User: admin, Password: adminPassword, Timeout: timeout}
	if s.options.TLS != nil {
		o.TLS = s.options.TLS.AnyServer
	}
	return Dial(s.Addr, o)
}

// Info returns the fields of one section of INFO, such as "clients".
func (s *Server) Info(t testing.TB, section string) map[string]string {
	t.Helper()
	return parseFields(s.Do(t, "INFO", section))
}

// replication returns the fields of the section replication of INFO.
func (s *Server) replication() (map[string]string, error) {
	reply, err := s.Try("INFO", "replication")
	return parseFields(reply), err
}

// parseFields parses a reply of lines, each of which is name:value.
func parseFields(reply any) map[string]string {
	found := make(map[string]string)
	for line := range strings.Lines(fmt.Sprint(reply)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			found[name] = value
		}
	}
	return found
}

// Loading makes the server reload its data slowly. It answers LOADING until done is called, for 20 s at most. The data
// stay. It does not work with clusters.
func (s *Server) Loading(t testing.TB) (done func()) {
	t.Helper()
	// One key takes 1 ms. The server answers commands every 1 KiB, which is some ten keys.
	const keys, database = 20000, 15
	s.Do(t, "CONFIG", "SET", "key-load-delay", 1000, "loading-process-events-interval-bytes", 1024, "rdbcompression",
		"no")
	c, err := s.dial(2 * harness.Deadline)
	must(t, err)
	for _, command := range [][]any{{"SELECT", database}, {"DEBUG", "POPULATE", keys, "redistest", 100}} {
		_, err = c.Do(command...)
		must(t, err)
	}
	must(t, c.Send("DEBUG", "RELOAD"))
	harness.Await(t, harness.Deadline, "the server is not loading", func() error {
		_, err := s.Try("GET", "redistest")
		if e, ok := errors.AsType[Error](err); ok && e.Code() == "LOADING" {
			return nil
		}
		return fmt.Errorf("GET: %v", err)
	})
	done = sync.OnceFunc(func() {
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
	t.Cleanup(done)
	return done
}
