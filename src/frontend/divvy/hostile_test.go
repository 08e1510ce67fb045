package divvy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/frontend/pipeline"
	"ratelimit/testbed/harness"
)

// pipe serves a connection of which the test has the other end. The server has
// no listener, so a test in a bubble decides what time it is.
func pipe(s *Server) net.Conn {
	client, server := net.Pipe()
	s.StartConn(server)
	return client
}

// closed reports whether the other side has closed the connection.
func closed(c net.Conn) bool {
	_, err := c.Read(make([]byte, 1))
	return errors.Is(err, io.EOF)
}

// A client that does not finish its line gets an ERR and is closed after Idle, however
// many packets it sends meanwhile. Complete lines keep a connection open.
func TestSlowLoris(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := build(t, Config{Config: pipeline.Config{IdleTimeout: 10 * time.Minute}})
		c := pipe(s)
		for range 3 {
			time.Sleep(9 * time.Minute)
			send(t, c, "HIT ip=1\n")
			line(t, c)
		}
		begun, sent := time.Now(), make(chan struct{})
		go func() {
			defer close(sent)
			for {
				time.Sleep(time.Second)
				if _, err := io.WriteString(c, "x"); err != nil {
					return
				}
			}
		}()
		if got := line(t, c); got != "ERR unknown \"No whole line within 10m0s.\"\n" || !closed(c) {
			t.Errorf("got %q", got)
		}
		if took := time.Since(begun); took != 10*time.Minute {
			t.Errorf("it took %v", took)
		}
		<-sent
		s.Shutdown(t.Context())
	})
}

// An idle client is closed without a line.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := build(t, Config{Config: pipeline.Config{IdleTimeout: time.Minute}})
		c := pipe(s)
		begun := time.Now()
		if got := rest(t, c); got != "" || time.Since(begun) != time.Minute {
			t.Errorf("got %q after %v", got, time.Since(begun))
		}
		patient := build(t, Config{})
		c = pipe(patient)
		time.Sleep(10_000 * time.Hour)
		send(t, c, "HIT ip=1\n")
		line(t, c)
		s.Shutdown(t.Context())
		patient.Shutdown(t.Context())
	})
}

// A client that does not read its replies is closed, and delays no other client.
func TestNeverReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := build(t, Config{})
		deaf := pipe(s)
		send(t, deaf, "HIT ip=1\n")
		synctest.Wait()
		c := pipe(s)
		send(t, c, "HIT ip=1\n")
		if got := line(t, c); got != "OK true 0 10\n" {
			t.Errorf("got %q", got)
		}
		time.Sleep(10*time.Second - 1)
		synctest.Wait()
		if open := s.Stats().Open; open != 2 {
			t.Errorf("%d open", open)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if open := s.Stats().Open; open != 1 {
			t.Errorf("%d open", open)
		}
		s.Shutdown(t.Context())
	})
}

// A client that sends endlessly and never reads is closed.
func TestFloodWithoutReading(t *testing.T) {
	s := build(t, Config{Config: pipeline.Config{WriteTimeout: 200 * time.Millisecond}})
	c := dial(t, start(t, s))
	flood := strings.Repeat("HIT ip=1\n", 10_000)
	for {
		if _, err := io.WriteString(c, flood); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("it is still served")
			}
			break
		}
	}
}

// A million pipelined requests are answered in order, with the memory of a few.
func TestMillionPipelined(t *testing.T) {
	const n = 500_000 // twice
	s := build(t, Config{})
	c := dial(t, start(t, s))
	if err := c.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	goroutines := runtime.NumGoroutine()
	go func() {
		w := bufio.NewWriter(c)
		for i := range n {
			fmt.Fprintf(w, "HIT cookie=\"б 🍪\" n=%d\nHIT ip=%d\n", i, i/4)
		}
		if w.Flush() != nil || c.CloseWrite() != nil {
			t.Error("not all was taken")
		}
	}()
	in := bufio.NewScanner(c)
	got := 0
	for ; in.Scan(); got++ {
		want := "OK true 4294967295 0"
		if got%2 == 1 {
			want = [...]string{"OK true 1 10", "OK true 0 10", "OK false 0 10", "OK false 0 10"}[got/2%4]
		}
		if in.Text() != want {
			t.Fatalf("reply %d: got %q, want %q", got, in.Text(), want)
		}
		if got == n/2 {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			if more := runtime.NumGoroutine() - goroutines; more > 5 || m.HeapAlloc > 200<<20 {
				t.Errorf("%d goroutines more, %d bytes of heap", more, m.HeapAlloc)
			}
		}
	}
	if in.Err() != nil || got != 2*n {
		t.Errorf("%d replies, %v", got, in.Err())
	}
}

// While all connections are active, a new one is refused, with an ERR for its first
// request. Otherwise the longest idle one makes room.
func TestFullPort(t *testing.T) {
	var s *Server
	var addr string
	var in []net.Conn
	for try := 0; ; try++ {
		s = build(t, Config{Config: pipeline.Config{MaxConnections: 2}})
		addr, in = start(t, s), nil
		active := time.Now()
		for range 2 {
			c := dial(t, addr)
			send(t, c, "HIT ip=1\n")
			line(t, c)
			in = append(in, c)
		}
		asked, silent, st := say(t, addr, "HIT ip=2\n"), say(t, addr, ""), s.Stats()
		if (time.Since(active) > 900*time.Millisecond || st.Evicted > 0) && try < 10 {
			// On a busy machine, a connection may be idle already, or its client may have read
			// a reply that the server has not counted yet.
			continue
		}
		if asked != "ERR unknown \"More than 2 connections.\"\n" {
			t.Errorf("got %q", asked)
		}
		if silent != "" {
			t.Errorf("got %q without asking", silent)
		}
		if st.Open != 2 || st.Accepted != 2 || st.Refused != 2 || st.ErrorReplies["unknown"] != 1 {
			t.Errorf("got %+v", st)
		}
		break
	}
	harness.Until(t, "a connection that became idle makes room", func() bool {
		return say(t, addr, "HIT ip=2\n") == "OK true 1 10\n"
	})
	if !closed(in[0]) || s.Stats().Evicted != 1 {
		t.Errorf("got %+v, want the longest idle connection closed", s.Stats())
	}
}

// The connection that holds the most is closed when the budget is used up.
func TestLongLinesCountInTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := connlimit.NewMemoryBudget(1 << 20)
		s := build(t, Config{Config: pipeline.Config{MemoryBudget: held}})
		small, large := pipe(s), pipe(s)
		send(t, small, strings.Repeat("x", 100_000))
		go func() { _, _ = io.WriteString(large, strings.Repeat("x", 1_000_000)) }() // until it is closed
		synctest.Wait()
		if st := s.Stats(); !closed(large) || st.Open != 1 || st.ClosedOverBudget != 1 {
			t.Errorf("got %+v, want one closed", st)
		}
		send(t, small, "\n")
		if got := line(t, small); !strings.HasPrefix(got, "ERR ") {
			t.Errorf("got %q", got)
		}
		s.Shutdown(t.Context())
		if n := held.HeldBytes(); n != 0 {
			t.Errorf("%d bytes are held after the end", n)
		}
	})
}

// Unread input after an ERR does not lose the replies before it.
func TestErrBeforeUnreadInput(t *testing.T) {
	addr := start(t, build(t, Config{}))
	for range 20 {
		c := dial(t, addr)
		send(t, c, "HIT ip=9\nEGGPLANT\n"+strings.Repeat("HIT ip=9\n", 50_000))
		got, err := io.ReadAll(c)
		if err != nil || !strings.HasSuffix(string(got), "ERR unknown-command \"Unrecognized command: EGGPLANT\"\n") ||
			!strings.HasPrefix(string(got), "OK ") {
			t.Fatalf("got %q, %v", got, err)
		}
		_ = c.Close()
	}
}

// TLS starts with the first byte, and ends with the connection.
func TestTLS(t *testing.T) {
	certificates := httptest.NewTLSServer(nil) // has some for 127.0.0.1
	defer certificates.Close()
	s := build(t, Config{
		Config: pipeline.Config{TLS: &tls.Config{Certificates: certificates.TLS.Certificates}, MaxConnections: 1},
	})
	addr := start(t, s)
	trust := certificates.Client().Transport.(*http.Transport).TLSClientConfig
	for _, said := range []string{"HIT ip=1\n", "HIT ip=1\nEGGPLANT\nHIT ip=1\n"} {
		c := tls.Client(dial(t, addr), &tls.Config{RootCAs: trust.RootCAs, ServerName: "127.0.0.1"})
		send(t, c, said)
		if said == "HIT ip=1\n" {
			if err := c.CloseWrite(); err != nil {
				t.Fatal(err)
			}
		}
		want := map[bool]string{
			true:  "OK true 1 10\n",
			false: "OK true 0 10\nERR unknown-command \"Unrecognized command: EGGPLANT\"\n",
		}[said == "HIT ip=1\n"]
		if got := rest(t, c); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		_ = c.Close()
		harness.Until(t, "the connection is closed", func() bool { return s.Stats().Open == 0 })
	}
	plain := dial(t, addr)
	send(t, plain, "HIT ip=1\n")
	if got, _ := io.ReadAll(plain); strings.Contains(string(got), "OK") { // it is an alert, and a reset
		t.Errorf("got %q without TLS", got)
	}
}

// A client that does not start TLS is closed.
func TestTLSHandshakeTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := build(t, Config{Config: pipeline.Config{TLS: new(tls.Config)}})
		begun := time.Now()
		if !closed(pipe(s)) || time.Since(begun) != 5*time.Second {
			t.Errorf("it took %v", time.Since(begun))
		}
		s.Shutdown(t.Context())
	})
}

// Shutdown answers requests that are on their way, sends nothing else, and has a
// deadline.
func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := build(t, Config{})
		quiet, busy, half := pipe(s), pipe(s), pipe(s)
		send(t, half, "HIT ip")
		synctest.Wait()
		done := make(chan struct{})
		go func() {
			s.Shutdown(t.Context())
			close(done)
		}()
		synctest.Wait()
		send(t, busy, "HIT ip=1\n")
		if got := line(t, busy); got != "OK true 1 10\n" {
			t.Errorf("got %q", got)
		}
		if !closed(pipe(s)) {
			t.Error("a new connection is taken")
		}
		begun := time.Now()
		for i, c := range []net.Conn{quiet, busy, half} {
			if got := rest(t, c); got != "" {
				t.Errorf("connection %d is told %q", i, got)
			}
		}
		<-done
		if took := time.Since(begun); took > 100*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		s.Shutdown(t.Context()) // once more is no harm

		s = build(t, Config{Config: pipeline.Config{WriteTimeout: time.Hour}})
		deaf := pipe(s)
		send(t, deaf, "HIT ip=1\n")
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		begun = time.Now()
		s.Shutdown(ctx)
		if took := time.Since(begun); took != 3*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// A client that never stops sending does not delay Shutdown.
func TestShutdownUnderLoad(t *testing.T) {
	s := build(t, Config{})
	l := harness.Listen(t)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	c := dial(t, l.Addr().String())
	asking := make(chan struct{})
	go func() {
		defer close(asking)
		for {
			if _, err := io.WriteString(c, "HIT ip=1\nHIT ip=2\n"); err != nil {
				return
			}
		}
	}()
	line(t, c)
	go s.Shutdown(t.Context())
	got, err := io.ReadAll(c) // to a whole line
	if err != nil || !regexp.MustCompile(`^(OK (true|false) \d+ \d+\n)*$`).Match(got) {
		t.Errorf("%v behind %d bytes, the last %q", err, len(got), got[max(0, len(got)-40):])
	}
	_ = c.Close()
	<-asking
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// flaky is a listener with temporary errors, and then a permanent one.
type flaky struct {
	net.Listener
	fail int
}

type temporary struct{}

func (temporary) Error() string   { return "too many open files" }
func (temporary) Temporary() bool { return true }

var errPermanent = errors.New("gone")

func (f *flaky) Accept() (net.Conn, error) {
	if f.fail--; f.fail >= 0 {
		return nil, temporary{}
	}
	return nil, errPermanent
}

func (f *flaky) Close() error { return nil }

func TestAcceptTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		if err := build(t, Config{}).Serve(&flaky{fail: 10}); !errors.Is(err, errPermanent) {
			t.Errorf("got %v", err)
		}
		// 5, 10, 20, 40, 80, 160, 320, 640, 1000 and 1000 ms
		if took := time.Since(begun); took != 3275*time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
}
