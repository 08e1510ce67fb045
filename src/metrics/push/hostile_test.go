package push

import (
	"bufio"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"ratelimit/testbed/harness"
)

// A server that goes away is noticed, what was counted meanwhile is kept, and
// sent when it is back.
func TestServerVanishesAndReturns(t *testing.T) {
	l := listen(t, "127.0.0.1:0")
	addr := l.Addr().String()
	var f figures
	var mu sync.Mutex
	var states []error
	connected := make(chan (<-chan struct{}), 1) // the channel that tells that the server closed the connection
	s, stop := start(t, Config{
		ReadStats: f.read, Addr: addr, Interval: time.Hour,
		OnState: func(err error) {
			mu.Lock()
			defer mu.Unlock()
			states = append(states, err)
		},
	}, func(s *Sink) {
		s.cfg.limits.retryPause = 20 * time.Millisecond
		s.writeBatch = func(ctx context.Context, lines []byte) (int, error) {
			n, err := s.connection.writeLines(ctx, lines)
			if s.connection.conn != nil && len(connected) == 0 {
				connected <- s.connection.serverClosed
			}
			return n, err
		}
	})
	s.AddTimings("first", 1, time.Millisecond)
	conn := accept(t, l)
	expect(t, bufio.NewReader(conn), "first:1|ms")
	_, _ = l.Close(), conn.Close()
	<-<-connected
	s.AddTimings("second", 1, 2*time.Millisecond)
	harness.Until(t, "failure reported", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(states) == 2
	})
	s.AddTimings("third", 1, 3*time.Millisecond)
	f.set(c("hits", 4))

	l = listen(t, addr)
	r := bufio.NewReader(accept(t, l))
	expect(t, r, "second:2|ms", "third:3|ms")
	stop()
	expect(t, r, "hits:4|c")
	if len(states) != 3 || states[0] != nil || states[1] == nil || states[2] != nil {
		t.Errorf("states %v, want nil, a failure and nil", states)
	}
	if !strings.Contains(states[1].Error(), addr) || !strings.Contains(states[1].Error(), "trying again every 20ms") {
		t.Errorf("%v", states[1])
	}
}

// A server that never reads costs bounded memory and delays no caller.
func TestServerBlocks(t *testing.T) {
	l := listen(t, "127.0.0.1:0")
	var conns sync.WaitGroup
	conns.Go(func() {
		var open []net.Conn
		for {
			conn, err := l.Accept()
			if err != nil {
				break
			}
			_ = conn.(*net.TCPConn).SetReadBuffer(4096)
			open = append(open, conn)
		}
		for _, conn := range open {
			_ = conn.Close()
		}
	})
	var f figures
	f.set(c("hits", 1))
	s, stop := start(t, Config{ReadStats: f.read, Addr: l.Addr().String(), Interval: 10 * time.Millisecond},
		func(s *Sink) {
			s.cfg.limits = sinkLimits{
				batchBytes: s.cfg.limits.batchBytes, bufferBytes: 200_000, retryPause: time.Minute,
				writeTimeout: 50 * time.Millisecond, lastFlushTimeout: 200 * time.Millisecond,
			}
		})
	name := strings.Repeat("x", 1000)
	slowest := time.Duration(0)
	harness.Until(t, "timings dropped", func() bool {
		for range 10_000 {
			before := time.Now()
			s.AddTimings(name, 1, time.Millisecond)
			slowest = max(slowest, time.Since(before))
		}
		return s.Dropped() > 0
	})
	if waiting := s.WaitingBytes(); waiting > 200_000 {
		t.Errorf("%d bytes wait", waiting)
	}
	if slowest > time.Second {
		t.Errorf("a timing took %v", slowest)
	}
	begin := time.Now()
	stop()
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("stopping took %v", took)
	}
	_ = l.Close()
	conns.Wait()
}

// Without a server, or with an invalid address, Run ends at once.
func TestNoServer(t *testing.T) {
	l := listen(t, "127.0.0.1:0")
	free := l.Addr().String()
	_ = l.Close()
	for _, cfg := range []Config{
		{Network: "tcp", Addr: free},
		{Network: "udp", Addr: free},
		{Network: "tcp", Addr: "127.0.0.1:http-no"},
		{Network: "udp", Addr: "no port"},
		{Format: DogStatsD, Network: "udp", Addr: free},
	} {
		var f figures
		f.set(c("hits", 1))
		cfg.ReadStats, cfg.Interval = f.read, 5*time.Millisecond
		s, stop := start(t, cfg)
		s.AddTimings("t", 1, time.Millisecond)
		f.awaitReads(t, 10)
		begin := time.Now()
		stop()
		if took := time.Since(begin); took > 1500*time.Millisecond {
			t.Errorf("%s %s: stopping took %v", cfg.Network, cfg.Addr, took)
		}
	}
}

// A UDP server that returns gets what could not be sent.
func TestUDPServerReturns(t *testing.T) {
	conn := listenUDP(t)
	addr := conn.LocalAddr().(*net.UDPAddr)
	_ = conn.Close()
	var f figures
	var once sync.Once
	refused := make(chan struct{})
	s, stop := start(t, Config{
		ReadStats: f.read, Network: "udp", Addr: addr.String(), Interval: time.Hour,
		OnState: func(err error) {
			if err != nil {
				once.Do(func() { close(refused) })
			}
		},
	}, func(s *Sink) { s.cfg.limits.retryPause = 20 * time.Millisecond })
	for i := 0; ; i++ {
		s.AddTimings("lost", 1, time.Millisecond)
		select {
		case <-refused:
		case <-time.After(50 * time.Millisecond):
			if i > 100 {
				t.Fatal("nothing was refused")
			}
			continue
		}
		break
	}
	back, err := net.ListenUDP("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = back.Close() })
	f.set(c("hits", 3))
	stop()
	packets(t, back, "hits:3|c\n")
}

func TestConfigProblems(t *testing.T) {
	var f figures
	for want, cfg := range map[string]Config{
		"statsd: Stats is nil: set it to the Flush of a registry": {Addr: "x:1"},
		"statsd: the address is empty: write host:port":           {ReadStats: f.read},
		`statsd: protocol "sctp" is not tcp or udp`: {
			ReadStats: f.read, Addr: "x:1",
			Network: "sctp",
		},
		"statsd: mogrifiers work with DogStatsD only: remove them or use it": {
			ReadStats: f.read, Addr: "x:1",
			Mogrifiers: make([]Mogrifier, 1),
		},
	} {
		if _, err := New(cfg); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// Of several equal timings those are dropped for which there is no room.
func TestTimingsWithoutRoom(t *testing.T) {
	t.Parallel()
	s, err := New(Config{ReadStats: new(figures).read, Addr: "x:1"})
	if err != nil {
		t.Fatal(err)
	}
	const line = "t:1|ms\n"
	s.cfg.limits.batchBytes, s.cfg.limits.bufferBytes = 100, 5*len(line)+3
	long := strings.Repeat("x", 100)
	for i, st := range []struct {
		name           string
		n              int
		lines, dropped int
	}{{"t", 2, 2, 0}, {long, 4, 2, 4}, {"t", 3, 5, 4}, {"t", 2, 5, 6}} {
		s.AddTimings(st.name, st.n, time.Millisecond)
		if got := string(s.appendBatch(nil)); got != strings.Repeat(line, st.lines) || s.Dropped() != uint64(st.dropped) {
			t.Errorf("step %d: %d dropped, and %q waits", i, s.Dropped(), got)
		}
	}
}

// Many add while a slow server reads: all lines arrive whole, once.
func TestManyTimings(t *testing.T) {
	l := listen(t, "127.0.0.1:0")
	var f figures
	s, stop := start(t, Config{ReadStats: f.read, Addr: l.Addr().String(), Interval: time.Millisecond})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 500 {
				s.AddTimings("t", 10, time.Millisecond)
			}
		})
	}
	read := make(chan string)
	conn := accept(t, l)
	go func() {
		all, _ := io.ReadAll(conn)
		read <- string(all)
	}()
	wg.Wait()
	stop()
	if got := <-read; got != strings.Repeat("t:1|ms\n", 20_000) {
		t.Errorf("%d bytes arrived, %d lines", len(got), strings.Count(got, "\n"))
	}
}
