package push

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ratelimit/src/metrics"
	"ratelimit/testbed/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func c(name string, value int64) metrics.Stat {
	return metrics.Stat{Name: name, Kind: metrics.KindCounter, Value: value}
}

func g(name string, value int64) metrics.Stat {
	return metrics.Stat{Name: name, Kind: metrics.KindGauge, Value: value}
}

// figures is a registry whose values the test sets.
type figures struct {
	mu    sync.Mutex
	stats []metrics.Stat
	reads int // calls of read
}

func (f *figures) set(stats ...metrics.Stat) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats = stats
}

func (f *figures) read() []metrics.Stat {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	return slices.Clone(f.stats)
}

// awaitReads waits for n more reads; all but the last of them have been sent then.
func (f *figures) awaitReads(t *testing.T, n int) {
	t.Helper()
	count := func() int {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.reads
	}
	want := count() + n
	harness.Until(t, fmt.Sprint(n, " more flushes"), func() bool { return count() >= want })
}

const patience = 10 * time.Second

// start runs a sink and returns it with a function that ends it. It calls prepare before Run.
func start(t *testing.T, cfg Config, prepare ...func(*Sink)) (*Sink, func()) {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range prepare {
		f(s)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Error("Run does not end")
		}
	})
	t.Cleanup(stop)
	return s, stop
}

func listen(t *testing.T, addr string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func accept(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	if err := l.(*net.TCPListener).SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return conn
}

func expect(t *testing.T, r *bufio.Reader, want ...string) {
	t.Helper()
	for _, w := range want {
		got, err := r.ReadString('\n')
		if err != nil || got != w+"\n" {
			t.Fatalf("got %q, %v; want %q", got, err, w)
		}
	}
}

func TestTCP(t *testing.T) {
	l := listen(t, "127.0.0.1:0")
	var f figures
	f.set(c("a.hits", 3), c("b.zero", 0), g("c.now", 7), g("d.minus", -1), c("m.__code=ok", 1))
	s, stop := start(t, Config{
		ReadStats: f.read, Addr: l.Addr().String(), Interval: time.Hour,
		Tags: map[string]string{"zone": "a:b", "env": "x.y"},
	})
	s.AddTimings("server.time", 1, 12999*time.Microsecond)
	r := bufio.NewReader(accept(t, l))
	expect(t, r, "server.time.__env=x_y.__zone=a_b:12|ms")
	stop()
	expect(
		t, r,
		"a.hits.__env=x_y.__zone=a_b:3|c",
		"c.now.__env=x_y.__zone=a_b:7|g",
		"d.minus.__env=x_y.__zone=a_b:0|g",
		"m.__code=ok.__env=x_y.__zone=a_b:1|c",
	)
	if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
		t.Errorf("then %q, %v", rest, err)
	}
}

func listenUDP(t *testing.T) *net.UDPConn {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetReadBuffer(4 << 20); err != nil {
		t.Fatal(err)
	}
	return conn
}

// packets reads packets until one holds last.
func packets(t *testing.T, conn net.Conn, last string) (all []string) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1<<16)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatalf("after %d packets: %v", len(all), err)
		}
		all = append(all, string(buf[:n]))
		if strings.Contains(all[len(all)-1], last) {
			return all
		}
	}
}

func TestUDP(t *testing.T) {
	conn := listenUDP(t)
	var f figures
	var stats []metrics.Stat
	want := ""
	for i := range 1000 {
		stats = append(stats, c(fmt.Sprintf("a.%03d", i), 1))
		want += fmt.Sprintf("a.%03d:1|c\n", i)
	}
	stats = append(stats, c("b."+strings.Repeat("x", 1500), 1), c("c", 1))
	want += "c:1|c\n"
	f.set(stats...)
	s, stop := start(t, Config{ReadStats: f.read, Network: "udp", Addr: conn.LocalAddr().String(), Interval: time.Hour})
	stop()
	all := packets(t, conn, "c:1|c\n")
	for _, p := range all {
		if len(p) > 1432 || !strings.HasSuffix(p, "\n") {
			t.Errorf("packet of %d bytes: %q", len(p), p)
		}
	}
	if got := strings.Join(all, ""); got != want {
		t.Errorf("got %d bytes, want %d", len(got), len(want))
	}
	if len(all) > 10 { // 11 kB
		t.Errorf("%d packets: they are not full", len(all))
	}
	if s.Dropped() != 1 {
		t.Errorf("%d dropped, want the one that is too long", s.Dropped())
	}
}

func mogrifier(t *testing.T, pattern, name string, tags map[string]string) Mogrifier {
	t.Helper()
	return Mogrifier{regexp.MustCompile(pattern), name, tags}
}

func TestDogStatsD(t *testing.T) {
	conn := listenUDP(t)
	var f figures
	f.set(
		c("m.__code=ok", 1),
		c("other.hits", 2),
		g("pool.now", 4),
		c("rate.dom.key_a|b.total_hits", 3),
		c("rate.dom.key_c,d.over_limit", 5),
	)
	s, stop := start(t, Config{
		ReadStats: f.read, Format: DogStatsD, Network: "udp", Addr: conn.LocalAddr().String(), Interval: time.Hour,
		Tags: map[string]string{"zone": "a:b.c,d\n", "env": "x"},
		Mogrifiers: []Mogrifier{
			mogrifier(t, `^rate\.(\w+)\.(.*)\.(\w+_hits)`, "rate.$3",
				map[string]string{"domain": "$1", "rule": "$2", "odd": "$7-$0x"}),
			mogrifier(t, `ate\.`, "$9", map[string]string{"none": "$1"}),
			mogrifier(t, `^never`, "never", nil),
			mogrifier(t, `time`, "t", nil),
		},
	})
	s.AddTimings("server.time", 1, 5*time.Millisecond)
	stop()
	got := strings.Join(packets(t, conn, "$9:"), "")
	lines := strings.Split(strings.TrimSuffix(got, "\n"), "\n")
	expected := []string{
		"t:5.000000|ms|#env:x,zone:a_b_c_d_",
		"m:1|c|#code:ok,env:x,zone:a_b_c_d_",
		"other.hits:2|c|#env:x,zone:a_b_c_d_",
		"pool.now:4|g|#env:x,zone:a_b_c_d_",
		"rate.total_hits:3|c|#env:x,zone:a_b_c_d_,domain:dom,odd:$7-rate.dom.key_a_b.total_hitsx,rule:key_a_b",
		"$9:5|c|#env:x,zone:a_b_c_d_,none:$1",
	}
	if !slices.Equal(lines, expected) {
		t.Errorf("\n got %q\nwant %q", lines, expected)
	}
}
