package memcached

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/harness"
)

// liar is a server that answers each line with what reply says, and checks truly.
func liar(t testing.TB, reply func(line string, to net.Conn)) (addr string) {
	t.Helper()
	l := harness.Listen(t)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer func() { _ = conn.Close() }()
				for in := bufio.NewScanner(conn); in.Scan(); {
					if in.Text() == "version" {
						_, _ = io.WriteString(conn, "VERSION 1\r\n")
					} else {
						reply(in.Text(), conn)
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	return l.Addr().String()
}

// No server, whatever it says, makes the store panic, hang, grow or believe it.
func TestHostileReplies(t *testing.T) {
	t.Parallel()
	for name, reply := range map[string]string{
		"nothing in a line":     "\n",
		"nothing at all":        "\r\n",
		"an end alone":          "x\n",
		"an error of nothing":   "CLIENT_ERROR \r\n",
		"an error without word": "CLIENT_ERROR\r\n",
		"an error":              "ERROR\r\n",
		"no memory":             "SERVER_ERROR out of memory\r\n",
		"a number and more":     "12 apples\r\n",
		"a negative number":     "-1\r\n",
		"a large number":        "18446744073709551616\r\n",
		"two replies":           "1\r\n2\r\n",
		"no end":                strings.Repeat("9", 10_000),
		"another protocol":      "HTTP/1.1 400 Bad Request\r\n\r\n",
		"what add says":         "STORED\r\n",
		"not stored":            "NOT_STORED\r\n",
		"never there":           "NOT_FOUND\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			addr := liar(t, func(_ string, to net.Conn) { _, _ = io.WriteString(to, reply) })
			s := open(t, Config{Servers: []string{addr}, Config: remote.Config{Timeout: time.Second, Connections: 1}})
			for _, op := range []algorithm.Op{algorithm.Charge, algorithm.Look, algorithm.Refund} {
				h := hot(0)
				h.Op = op
				v := send(t, s, h)
				if v.Err == nil && (name != "never there" || op == algorithm.Charge) {
					t.Errorf("%v: got %+v", op, v)
				}
			}
		})
	}
}

// A line that is no reply may stand for several, and all that come after it would
// be others'. So the connection ends there, and the next one is believed.
func TestNonsenseEndsAConnection(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	first := net.Conn(nil)
	addr := liar(t, func(_ string, to net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		if first == nil {
			first = to
		}
		if to == first {
			_, _ = io.WriteString(to, "apples\r\n")
		} else {
			_, _ = io.WriteString(to, "7\r\n")
		}
	})
	s := open(t, Config{Servers: []string{addr}, Config: remote.Config{Timeout: 5 * time.Second, Connections: 1}})
	if v := send(t, s, hot(0)); v.Err == nil {
		t.Errorf("apples are %+v", v)
	}
	harness.Await(t, harness.Deadline, "the same connection is asked again", func() error {
		v := send(t, s, hot(0)) // one is not dialled again at once
		if v.Err == nil && v.After != 7 {
			t.Errorf("7 is %+v", v)
		}
		return v.Err
	})
}

// A counter that others add and delete all the time is given up in the end.
func TestContest(t *testing.T) {
	t.Parallel()
	addr := liar(t, func(line string, to net.Conn) {
		switch {
		case strings.HasPrefix(line, "incr"):
			_, _ = io.WriteString(to, "NOT_FOUND\r\n")
		case strings.HasPrefix(line, "add"):
		default: // the value
			_, _ = io.WriteString(to, "NOT_STORED\r\n")
		}
	})
	s := open(t, Config{Servers: []string{addr}})
	if v := send(t, s, hot(0)); v.Err == nil || s.Counts.Increments.Missed.Load() != maxAttempts {
		t.Errorf("got %+v, %+v", v, s.Stats())
	}
}

// An answer that comes too late counts for no call: the connection is not used again.
func TestLateAnswer(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	n := 0
	failed := make(chan struct{}) // closed once the second call has failed
	addr := liar(t, func(_ string, to net.Conn) {
		mu.Lock()
		n++
		me := n
		mu.Unlock()
		if me == 2 {
			<-failed
		}
		_, _ = fmt.Fprintf(to, "%d\r\n", me*100)
	})
	s := open(t, Config{Servers: []string{addr}, Config: remote.Config{Timeout: 4 * faultTimeout, Connections: 1}})
	for _, before := range []uint64{99, 0, 299} {
		switch v := send(t, s, hot(0)); {
		case before == 0 && v.Err == nil:
			t.Errorf("a late answer counts: %+v", v)
		case before > 0 && (v.Err != nil || v.Before != before):
			t.Errorf("got %+v, want %d before", v, before)
		}
		if before == 0 {
			close(failed)
		}
	}
}
