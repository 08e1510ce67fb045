package main

import (
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// A port has room for so many connections; who comes then is let go at once, and
// who comes when one has left is served.
func TestConnectionsAreBounded(t *testing.T) {
	s := launch(t, oneRule, "HTTP_MAX_CONNECTIONS=3", "GRPC_MAX_CONNECTIONS=2")
	s.until("ready", s.healthy)
	http.DefaultClient.CloseIdleConnections()
	s.until("all connections of before have ended", func() bool { return s.figure("ratelimit.http.cx_active") == 0 })
	for port, most := range map[string]int{"http": 3, "grpc": 2} {
		var open []net.Conn
		for range most {
			open = append(open, s.dial(port))
		}
		s.until("they are accepted", func() bool { return s.figure("ratelimit."+port+".cx_active") == int64(most) })
		one := s.dial(port)
		if n, err := one.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("%s: one too many reads %d bytes, %v", port, n, err)
		}
		if n := s.figure("ratelimit." + port + ".cx_refused"); n != 1 {
			t.Errorf("%s: %d are counted as refused, want 1", port, n)
		}
		if err := open[0].Close(); err != nil {
			t.Error(err)
		}
		s.until("there is room", func() bool { return s.figure("ratelimit."+port+".cx_active") == int64(most-1) })
		if port != "http" {
			continue
		}
		next := s.dial(port)
		if _, err := io.WriteString(next, "GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			t.Error(err)
		}
		answer := make([]byte, 12)
		if _, err := io.ReadFull(next, answer); err != nil || string(answer) != "HTTP/1.1 200" {
			t.Errorf("who comes then: %q, %v", answer, err)
		}
	}
}

// dial connects to a port until the test ends.
func (s *service) dial(port string) net.Conn {
	s.t.Helper()
	conn, err := net.DialTimeout("tcp", s.address(port), 10*time.Second)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		s.t.Fatal(err)
	}
	return conn
}

// figure is one of /stats.
func (s *service) figure(name string) int64 {
	s.t.Helper()
	_, text := s.get("debug", "/stats")
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + `: (\d+)$`).FindStringSubmatch(text)
	if m == nil {
		s.t.Fatalf("%s is not in\n%s", name, text)
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}
