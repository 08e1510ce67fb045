// Package memcachedtest starts real Memcached servers for tests. It needs memcached 1.6 or later on the PATH; without
// it a test is skipped, or fails with CI=true.
//
// Everything listens on the loopback interface and ends with its test. The output of a failed test includes the logs of
// its servers.
package memcachedtest

import (
	"bufio"
	"cmp"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/harness"
)

// Options configure a server. The zero value is plain TCP.
type Options struct {
	// UnixSocket makes the server listen at Server.Socket alone.
	UnixSocket bool
	// TLS makes Addr speak TLS only. Clients have to show a certificate by TLS.CA.
	TLS *harness.Certificates
	// Certificate, if not zero, is shown instead of TLS.Server.
	Certificate harness.Pair
	// Args are appended to the command line, such as "-m", "1".
	Args []string
}

// Server is one memcached.
type Server struct {
	harness.Server
	options Options
}

// Start runs a memcached and returns after it has answered.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	s := &Server{Server: harness.NewServer(t, "memcached", "memcached"), options: o}
	s.Configure = s.configure
	s.AskPID = func(timeout time.Duration) (string, error) {
		stats, err := s.stats(timeout)
		return stats["pid"], err
	}
	var err error
	if o.UnixSocket {
		err = s.UseSocket()
	}
	if err == nil {
		err = s.Launch()
	}
	if err != nil {
		t.Fatalf("memcachedtest: %v", err)
	}
	return s
}

// configure chooses the address and the command line.
func (s *Server) configure() error {
	args := []string{"-t", "2", "-c", "4096"}
	if os.Geteuid() == 0 {
		args = append(args, "-u", "root")
	}
	if s.Socket != "" {
		s.Addr = s.Socket
		args = append(args, "-s", s.Socket)
	} else {
		port, err := s.UseFreePort()
		if err != nil {
			return err
		}
		args = append(args, "-l", "127.0.0.1", "-U", "0", "-p", strconv.Itoa(port))
	}
	if certs := s.options.TLS; certs != nil {
		pair := cmp.Or(s.options.Certificate, certs.Server)
		args = append(args, "-Z", "-o",
			"ssl_chain_cert="+pair.Cert+",ssl_key="+pair.Key+",ssl_ca_cert="+certs.CA+",ssl_verify_mode=2")
	}
	s.Args = slices.Concat(args, s.options.Args)
	return nil
}

// lastWords are the first words of the last lines of replies.
var lastWords = []string{
	"END", "STORED", "DELETED", "NOT_FOUND", "OK", "HD", "EN", "ERROR", "CLIENT_ERROR",
	"SERVER_ERROR",
}

// try sends one command on a new connection and returns the lines of the reply.
func (s *Server) try(timeout time.Duration, command string) (lines []string, err error) {
	conn, err := net.DialTimeout(harness.Network(s.Addr), s.Addr, timeout)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	if s.options.TLS != nil {
		conn = tls.Client(conn, s.options.TLS.AnyServer)
	}
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	if _, err := io.WriteString(conn, command+"\r\n"); err != nil {
		return nil, err
	}
	for in := bufio.NewScanner(conn); in.Scan(); {
		lines = append(lines, in.Text())
		if word, _, _ := strings.Cut(in.Text(), " "); slices.Contains(lastWords, word) {
			return lines, nil
		}
	}
	return nil, fmt.Errorf("%q has no end of a reply: %q", command, lines)
}

// do is try for commands that must work.
func (s *Server) do(t testing.TB, command string) []string {
	t.Helper()
	lines, err := s.try(harness.Deadline, command)
	if err != nil {
		t.Fatalf("memcachedtest: at %s: %v", s.Addr, err)
	}
	return lines
}

// Get returns the value of a key, or "" if there is none. It trims the blanks that Memcached leaves behind a number
// that became shorter.
func (s *Server) Get(t testing.TB, key string) string {
	t.Helper()
	lines := s.do(t, "get "+key)
	if len(lines) < 3 {
		return ""
	}
	return strings.TrimRight(lines[1], " ")
}

// Set stores value under key without expiry.
func (s *Server) Set(t testing.TB, key, value string) {
	t.Helper()
	if got := s.do(t, fmt.Sprintf("set %s 0 0 %d\r\n%s", key, len(value), value)); got[0] != "STORED" {
		t.Fatalf("memcachedtest: set %s at %s: %q", key, s.Addr, got)
	}
}

// Delete deletes a key, if there is one.
func (s *Server) Delete(t testing.TB, key string) {
	t.Helper()
	s.do(t, "delete "+key)
}

// Flush deletes all keys.
func (s *Server) Flush(t testing.TB) {
	t.Helper()
	s.do(t, "flush_all")
}

// TTL returns the time until key expires, in whole seconds, or -1 if it does not expire.
func (s *Server) TTL(t testing.TB, key string) time.Duration {
	t.Helper()
	reply := s.do(t, "mg "+key+" t")[0]
	var seconds int
	if _, err := fmt.Sscanf(reply, "HD t%d", &seconds); err != nil {
		t.Fatalf("memcachedtest: mg %s at %s: %q", key, s.Addr, reply)
	}
	return max(time.Duration(seconds)*time.Second, -1)
}

// Stats returns the reply to the command stats, by name.
func (s *Server) Stats(t testing.TB) map[string]string {
	t.Helper()
	stats, err := s.stats(harness.Deadline)
	if err != nil {
		t.Fatalf("memcachedtest: at %s: %v", s.Addr, err)
	}
	return stats
}

// stats is Stats with a timeout, and for other goroutines than that of the test.
func (s *Server) stats(timeout time.Duration) (map[string]string, error) {
	lines, err := s.try(timeout, "stats")
	stats := make(map[string]string)
	for _, line := range lines {
		if rest, ok := strings.CutPrefix(line, "STAT "); ok {
			name, value, _ := strings.Cut(rest, " ")
			stats[name] = value
		}
	}
	return stats, err
}
