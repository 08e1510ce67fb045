package memcachedtest

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"ratelimit/src/testbed/harness"
)

// ask sends one command on a new connection and returns the lines of the reply, up to the first that begins with one of ends.
func (s *Server) ask(timeout time.Duration, command string, ends ...string) (lines []string, err error) {
	network := "tcp"
	if s.Socket != "" {
		network = "unix"
	}
	conn, err := net.DialTimeout(network, s.Addr, timeout)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	if s.o.TLS != nil {
		conn = tls.Client(conn, s.o.TLS.Any)
	}
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	if _, err := io.WriteString(conn, command+"\r\n"); err != nil {
		return nil, err
	}
	for in := bufio.NewScanner(conn); in.Scan(); {
		line := strings.TrimRight(in.Text(), "\r")
		lines = append(lines, line)
		for _, end := range append(ends, "ERROR", "CLIENT_ERROR", "SERVER_ERROR") {
			if strings.HasPrefix(line, end) {
				return lines, nil
			}
		}
	}
	return nil, fmt.Errorf("%q has no end of a reply: %q", command, lines)
}

// do is ask that fails the test.
func (s *Server) do(t testing.TB, command string, ends ...string) []string {
	t.Helper()
	lines, err := s.ask(harness.Deadline, command, ends...)
	if err != nil {
		t.Fatalf("memcachedtest: at %s: %v", s.Addr, err)
	}
	return lines
}

// Get returns the value of a key; "" if there is none. It trims the blanks that Memcached leaves behind a number that became
// shorter.
func (s *Server) Get(t testing.TB, key string) string {
	t.Helper()
	lines := s.do(t, "get "+key, "END")
	if len(lines) < 3 {
		return ""
	}
	return strings.TrimRight(lines[1], " ")
}

// Set stores value under key without expiry.
func (s *Server) Set(t testing.TB, key, value string) {
	t.Helper()
	if got := s.do(t, fmt.Sprintf("set %s 0 0 %d\r\n%s", key, len(value), value), "STORED"); got[0] != "STORED" {
		t.Fatalf("memcachedtest: set %s at %s: %q", key, s.Addr, got)
	}
}

// Delete deletes a key, if there is one.
func (s *Server) Delete(t testing.TB, key string) {
	t.Helper()
	s.do(t, "delete "+key, "DELETED", "NOT_FOUND")
}

// Flush deletes all keys.
func (s *Server) Flush(t testing.TB) {
	t.Helper()
	s.do(t, "flush_all", "OK")
}

// Life returns the time until key expires, in whole seconds; -1 if it does not expire.
func (s *Server) Life(t testing.TB, key string) time.Duration {
	t.Helper()
	reply := s.do(t, "mg "+key+" t", "HD", "EN")[0]
	var seconds int
	if _, err := fmt.Sscanf(reply, "HD t%d", &seconds); err != nil {
		t.Fatalf("memcachedtest: mg %s at %s: %q", key, s.Addr, reply)
	}
	if seconds < 0 {
		return -1
	}
	return time.Duration(seconds) * time.Second
}

// Stats returns the answer to the command stats, by name.
func (s *Server) Stats(t testing.TB) map[string]string {
	t.Helper()
	stats, err := s.stats(harness.Deadline)
	if err != nil {
		t.Fatalf("memcachedtest: at %s: %v", s.Addr, err)
	}
	return stats
}

func (s *Server) stats(timeout time.Duration) (map[string]string, error) {
	lines, err := s.ask(timeout, "stats", "END")
	if err != nil {
		return nil, err
	}
	stats := make(map[string]string)
	for _, line := range lines {
		if f := strings.SplitN(line, " ", 3); len(f) == 3 && f[0] == "STAT" {
			stats[f[1]] = f[2]
		}
	}
	return stats, nil
}
