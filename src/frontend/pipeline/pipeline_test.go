package pipeline

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// echo is a session that answers each line with its length. It never refuses one.
type echo struct{}

// waits has the channels, by *Server, whose closing ends the wait of the line "wait".
var waits sync.Map

func (echo) Answer(_ context.Context, input []byte, _ bool, r *Replies) (consumed, requests int, err error) {
	for line := range bytes.Lines(input) {
		switch {
		case line[len(line)-1] != '\n':
			return consumed, requests, nil
		case string(line) == "end\n":
			return len(input), requests, ErrEnd
		case string(line) == "panic\n":
			panic("a bug")
		case string(line) == "wait\n":
			r.MayWait()
			if released, ok := waits.Load(r.conn.srv); ok {
				<-released.(chan struct{})
			}
			r.WriteString("waited\n")
			consumed, requests = consumed+len(line), requests+1
			continue
		}
		consumed += len(line)
		requests++
		r.WriteString(strings.Repeat(".", min(len(line), 10)) + "\n")
		if err := r.FlushIfLarge(); err != nil {
			return consumed, requests, err
		}
	}
	return consumed, requests, nil
}

const longestLine = 1 << 20

func build(tb testing.TB, cfg Config) *Server {
	tb.Helper()
	cfg.Protocol, cfg.Request, cfg.MaxInputBytes = "echo", "line", longestLine
	cfg.NewSession = func(net.Addr) Session { return echo{} }
	cfg.FaultReply = func(f *Fault) []byte { return []byte(f.Error() + "\n") }
	s, err := New(&cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// pipe serves a connection of which the test has the other end.
func pipe(s *Server) net.Conn {
	client, server := net.Pipe()
	s.StartConn(server)
	return client
}

func closed(c net.Conn) bool {
	_, err := c.Read(make([]byte, 1))
	return errors.Is(err, io.EOF)
}

func TestReplies(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", longestLine)
	for _, tt := range []struct{ name, input, want string }{
		{"two requests", "a\nbc\n", "..\n...\n"},
		{"an incomplete request is not answered", "a\nbc", "..\n"},
		{"the session ends the connection", "a\nend\nb\n", "..\n"},
		{"a panic keeps the replies before it", "a\npanic\nb\n", "..\nInternal error.\n"},
		{
			"a request that the session should have refused", "a\n" + long + "\n",
			"..\nToo many long lines at once, try again later.\n",
		},
		{"many replies", strings.Repeat("0123456789\n", 10_000), strings.Repeat("..........\n", 10_000)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := build(t, Config{})
			c := pipe(s)
			go func() {
				_, _ = io.WriteString(c, tt.input) // The server may close the connection first.
				if strings.HasSuffix(tt.want, "..\n") {
					s.Shutdown(context.Background())
				}
			}()
			got, err := io.ReadAll(c)
			if string(got) != tt.want || err != nil {
				t.Errorf("got %.100q, %v, want %.100q", got, err, tt.want)
			}
			s.Shutdown(t.Context())
		})
	}
}

// The buffers of all connections for large requests are bounded together.
func TestManyLongLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := build(t, Config{})
		begun := strings.Repeat("x", longestLine-10)
		var all []net.Conn
		refused := 0
		for range MaxLargeInputBytes/longestLine + 8 {
			c := pipe(s)
			all = append(all, c)
			go func() { _, _ = io.WriteString(c, begun) }() // all of it, or until it is refused
			go func() {
				if got, _ := io.ReadAll(c); string(got) == "Too many long lines at once, try again later.\n" {
					refused++ // one at a time
				}
			}()
			synctest.Wait()
		}
		if refused < 8 || refused > 16 {
			t.Errorf("%d refused", refused)
		}
		if held := s.largeInputBytes.Load(); held > MaxLargeInputBytes {
			t.Errorf("%d bytes held", held)
		}
		for _, c := range all {
			_ = c.Close()
		}
		synctest.Wait()
		if held := s.largeInputBytes.Load(); held != 0 {
			t.Errorf("%d bytes are never given back", held)
		}
		c := pipe(s)
		go func() { _, _ = io.WriteString(c, begun[:1000]+"\n"+begun[:100_000]+"\nx\n") }()
		in := bufio.NewReader(c)
		for _, want := range []string{"..........\n", "..........\n", "..\n"} {
			if got, err := in.ReadString('\n'); got != want {
				t.Errorf("got %q, %v, want %q", got, err, want)
			}
		}
		synctest.Wait()
		if held := s.largeInputBytes.Load(); held != 0 {
			t.Errorf("%d bytes are kept for short lines", held)
		}
		s.Shutdown(t.Context())
	})
}

// The number of refused connections that wait for their reply is bounded.
func TestRefusalsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := build(t, Config{MaxConnections: 1})
		pipe(s)
		var turned []net.Conn
		refused := func() net.Conn {
			client, server := net.Pipe()
			s.startConn(server)
			return client
		}
		for range maxRefusedConns {
			turned = append(turned, refused())
		}
		synctest.Wait()
		if !closed(refused()) {
			t.Error("one more is kept")
		}
		time.Sleep(drainTime)
		for _, c := range turned {
			if !closed(c) {
				t.Fatal("one is never closed")
			}
		}
		s.Shutdown(t.Context())
	})
}

func TestConfig(t *testing.T) {
	t.Parallel()
	if _, err := New(&Config{MaxInputBytes: 1}); err != nil {
		t.Error(err)
	}
	for _, cfg := range []Config{
		{},
		{MaxInputBytes: MaxLargeInputBytes + 1},
		{MaxInputBytes: 1, MaxPipelined: -1},
		{MaxInputBytes: 1, MaxPipelined: maxPipelined + 1},
		{MaxInputBytes: 1, MaxConnections: -1},
		{MaxInputBytes: 1, WriteTimeout: -1},
	} {
		if _, err := New(&cfg); err == nil {
			t.Errorf("%+v is good", cfg)
		}
	}
}
