package pipeline

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ratelimit/testbed/harness"
)

// numPolled returns how many connections the pollers of s serve.
func numPolled(s *Server) (n int) {
	s.pollers.mu.Lock()
	defer s.pollers.mu.Unlock()
	for _, p := range s.pollers.all {
		n += p.numConns()
	}
	return n
}

// serve starts s on a listener, and returns its address. The test ends with Shutdown.
func serve(tb testing.TB, s *Server, l net.Listener) net.Addr {
	tb.Helper()
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	tb.Cleanup(func() {
		s.Shutdown(context.Background())
		if err := <-done; err != nil {
			tb.Error(err)
		}
	})
	return l.Addr()
}

// dial connects, and fails the test if the connection lasts for a minute.
func dial(tb testing.TB, addr net.Addr) net.Conn {
	tb.Helper()
	c, err := net.Dial(addr.Network(), addr.String())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		tb.Fatal(err)
	}
	return c
}

// exchange sends input and compares what is answered.
func exchange(tb testing.TB, c net.Conn, input, want string) {
	tb.Helper()
	got := make([]byte, len(want))
	_, writeErr := io.WriteString(c, input)
	_, err := io.ReadFull(c, got)
	if string(got) != want || writeErr != nil {
		tb.Errorf("%.100q: got %.100q, %v, %v", input, got, writeErr, err)
	}
}

// dialPolled returns a connection that a poller of s serves.
func dialPolled(tb testing.TB, s *Server, addr net.Addr) net.Conn {
	tb.Helper()
	c, before := dial(tb, addr), numPolled(s)
	for range firstReadsToPoll {
		exchange(tb, c, "x\n", "..\n")
	}
	harness.Until(tb, "a poller serves the connection", func() bool { return numPolled(s) > before })
	return c
}

// exchangeUntilPolled exchanges requests until a poller serves the only connection of s.
func exchangeUntilPolled(tb testing.TB, s *Server, c net.Conn) {
	tb.Helper()
	harness.Until(tb, "a poller serves the connection", func() bool {
		exchange(tb, c, "x\n", "..\n")
		return numPolled(s) == 1
	})
}

// flood sends requests on c and reads nothing, until the server closes the connection. Then it closes the channel.
func flood(c net.Conn) <-chan struct{} {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for {
			if _, err := io.WriteString(c, strings.Repeat("\n", 100_000)); err != nil {
				return
			}
		}
	}()
	return closed
}

// openFiles returns how many file descriptors the process has.
func openFiles(tb testing.TB) int {
	tb.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		tb.Fatal(err)
	}
	return len(all)
}

// A polled connection answers as one with a goroutine of its own does, and then is polled again.
func TestPolledReplies(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 100_000) + "\n"
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			l := harness.Listen(t)
			if network == "unix" {
				_ = l.Close()
				var err error
				if l, err = net.Listen(network, filepath.Join(t.TempDir(), "s")); err != nil {
					t.Fatal(err)
				}
			}
			s := build(t, Config{MaxPollers: 1})
			c := dialPolled(t, s, serve(t, s, l))
			for _, tt := range []struct{ name, input, want string }{
				{"one", "ab\n", "...\n"},
				{"two", "a\nbc\n", "..\n...\n"},
				{"a long request", long + "a\n", "..........\n..\n"},
				{"long replies", strings.Repeat("\n", 60_000), strings.Repeat(".\n", 60_000)},
				{"begun", "a\nb", "..\n"},
				{"ended", "c\n", "...\n"},
			} {
				t.Run(tt.name, func(t *testing.T) {
					exchange(t, c, tt.input, tt.want)
				})
				if tt.name != "begun" {
					exchangeUntilPolled(t, s, c)
				}
			}
			exchange(t, c, "a\npanic\nb\n", "..\nInternal error.\n")
			if !closed(c) {
				t.Error("it is open after a panic")
			}
		})
	}
}

// Each of several clients gets its replies, however its input is cut.
func TestPolledClients(t *testing.T) {
	t.Parallel()
	s := build(t, Config{MaxPollers: 2})
	addr := serve(t, s, harness.Listen(t))
	var clients sync.WaitGroup
	for i := range 20 {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 1))
			var input, want strings.Builder
			for range 3000 {
				n := random.IntN(20)
				if random.IntN(500) == 0 {
					n = random.IntN(50_000)
				}
				input.WriteString(strings.Repeat("x", n) + "\n")
				want.WriteString(strings.Repeat(".", min(n+1, 10)) + "\n")
			}
			c := dial(t, addr)
			go func() {
				size := func() int { return 1 + random.IntN(5000) }
				for _, packet := range harness.CutPackets([]byte(input.String()), size) {
					_, _ = c.Write(packet) // After an error, the replies are not complete.
				}
				_ = c.(*net.TCPConn).CloseWrite()
			}()
			if got, err := io.ReadAll(c); string(got) != want.String() || err != nil {
				t.Errorf("client %d: got %d bytes, %v, want %d", i, len(got), err, want.Len())
			}
		})
	}
	clients.Wait()
}

// Clients that do not read, and answers that wait, delay no other client.
func TestPolledClientsDoNotWaitForOthers(t *testing.T) {
	t.Parallel()
	s := build(t, Config{MaxPollers: 1, WriteTimeout: time.Second})
	addr := serve(t, s, harness.Listen(t))
	deaf, waiting, other := dialPolled(t, s, addr), dialPolled(t, s, addr), dialPolled(t, s, addr)
	released := make(chan struct{})
	waits.Store(s, released)
	defer waits.Delete(s)
	if _, err := io.WriteString(waiting, "wait\n"); err != nil {
		t.Fatal(err)
	}
	flooded := flood(deaf)
	for range 1000 {
		exchange(t, other, "a\n", "..\n")
	}
	select {
	case <-flooded:
	case <-time.After(30 * time.Second):
		t.Error("a client that does not read is never closed")
	}
	close(released)
	exchange(t, waiting, "", "waited\n")
	exchange(t, waiting, "a\n", "..\n")
	exchange(t, other, "a\n", "..\n")
}

// A connection that leaves its poller again and again is polled less and less often.
func TestPolledLessOften(t *testing.T) {
	t.Parallel()
	s := build(t, Config{MaxPollers: 1})
	c := dialPolled(t, s, serve(t, s, harness.Listen(t)))
	for _, want := range []int{4, 8, 16} {
		exchange(t, c, "wait\n", "waited\n")
		for i := range want {
			if numPolled(s) > 0 {
				t.Fatalf("it is polled after %d of %d requests", i, want)
			}
			exchange(t, c, "x\n", "..\n")
		}
		harness.Until(t, "it is polled", func() bool { return numPolled(s) == 1 })
	}
}

// A panic of the front end ends only its connection.
func TestPanics(t *testing.T) {
	t.Parallel()
	panics := 0
	s := build(t, Config{Events: Events{OnPanic: func(any, []byte) { panics++ }}}) // one at a time
	s.cfg.FaultReply = func(*Fault) []byte { panic("a bug") }
	c := pipe(s)
	exchange(t, c, "panic\n", "")
	if !closed(c) || panics != 2 {
		t.Errorf("%d panics", panics)
	}
	s.cfg.NewSession = func(net.Addr) Session { panic("a bug") }
	if !closed(pipe(s)) || panics != 3 {
		t.Errorf("%d panics", panics)
	}
	s.Shutdown(t.Context())
	if n := s.Stats().Open; n != 0 {
		t.Errorf("%d are open", n)
	}
}

// Idle clients are closed, with a reply if they have begun a request. Others stay.
func TestPolledIdle(t *testing.T) {
	t.Parallel()
	s := build(t, Config{MaxPollers: 1, IdleTimeout: 2 * time.Second})
	addr := serve(t, s, harness.Listen(t))
	silent, begun, active := dialPolled(t, s, addr), dialPolled(t, s, addr), dialPolled(t, s, addr)
	started := time.Now()
	if _, err := io.WriteString(begun, "x"); err != nil {
		t.Fatal(err)
	}
	for time.Since(started) < 4*time.Second {
		exchange(t, active, "a\n", "..\n")
		time.Sleep(10 * time.Millisecond)
	}
	if numPolled(s) != 1 {
		t.Errorf("%d connections are polled", numPolled(s))
	}
	if got, err := io.ReadAll(silent); len(got) > 0 || err != nil {
		t.Errorf("a silent client gets %q, %v", got, err)
	}
	if got, err := io.ReadAll(begun); string(got) != "No whole line within 2s.\n" || err != nil {
		t.Errorf("got %q, %v for a begun request", got, err)
	}
}

// A full port closes polled connections, and they release all that they held.
func TestPolledEviction(t *testing.T) {
	t.Parallel()
	s := build(t, Config{MaxPollers: 1, MaxConnections: 8})
	addr := serve(t, s, harness.Listen(t))
	var all []net.Conn
	for i := range 14 {
		if i == 7 {
			time.Sleep(time.Second) // Then the first ones are idle.
		}
		c := dial(t, addr)
		for range firstReadsToPoll {
			exchange(t, c, "x\n", "..\n")
		}
		all = append(all, c)
	}
	harness.Until(t, "the pollers serve all that are open", func() bool { return numPolled(s) == 8 })
	open := 0
	for _, c := range all {
		if _, err := io.WriteString(c, "x\n"); err == nil && !closed(c) {
			open++
		}
	}
	if st := s.Stats(); open != 8 || st.Open != 8 || st.Evicted != 6 {
		t.Errorf("%d are open: %+v", open, st)
	}
}

// Shutdown answers what arrives within 100 ms, and closes all connections and files.
func TestPolledShutdown(t *testing.T) {
	files := openFiles(t)
	s := build(t, Config{MaxPollers: 1})
	l := harness.Listen(t)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	var all []net.Conn
	for i := range 200 {
		all = append(all, dialPolled(t, s, l.Addr()))
		if i%10 == 0 {
			_ = all[i].Close()
			harness.Until(t, "the end is seen", func() bool { return numPolled(s) == i-i/10 })
		}
	}
	go s.Shutdown(t.Context())
	<-s.stoppingCtx.Done()
	exchange(t, all[1], "a\n", "..\n")
	for i, c := range all {
		if i%10 > 0 && !closed(c) {
			t.Fatalf("connection %d is open", i)
		}
		_ = c.Close()
	}
	s.Shutdown(t.Context())
	if err := <-done; err != nil || numPolled(s) > 0 {
		t.Errorf("%v, %d are polled", err, numPolled(s))
	}
	if n := openFiles(t); n > files {
		t.Errorf("%d files are open, %d before", n, files)
	}
}

// A polled connection is closed by the end of the context of Shutdown, even if its client does not read.
func TestPolledShutdownHasADeadline(t *testing.T) {
	t.Parallel()
	s := build(t, Config{MaxPollers: 1, WriteTimeout: time.Hour})
	l := harness.Listen(t)
	go func() { _ = s.Serve(l) }() // It ends with Shutdown.
	deaf := dialPolled(t, s, l.Addr())
	flooded := flood(deaf)
	harness.Until(t, "the server waits for the client", func() bool { return numPolled(s) == 0 })
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	started := time.Now()
	s.Shutdown(ctx)
	if took := time.Since(started); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
	<-flooded
}

// Without file descriptors, connections keep goroutines of their own; one that must leave a poller is closed.
func TestPolledWithoutFiles(t *testing.T) {
	s := build(t, Config{MaxPollers: 1})
	addr := serve(t, s, harness.Listen(t))
	polled, own := dialPolled(t, s, addr), dial(t, addr)
	exchange(t, own, "a\n", "..\n")
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 1
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	for range 3 * firstReadsToPoll {
		exchange(t, own, "a\n", "..\n")
		exchange(t, polled, "a\n", "..\n")
	}
	_, writeErr := io.WriteString(polled, "end\n")
	_, err := io.ReadAll(polled)
	if restoreErr := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); restoreErr != nil {
		t.Fatal(restoreErr)
	}
	if numPolled(s) > 0 || writeErr != nil || err != nil {
		t.Errorf("%d are polled, %v, %v", numPolled(s), writeErr, err)
	}
	exchangeUntilPolled(t, s, own)
}
