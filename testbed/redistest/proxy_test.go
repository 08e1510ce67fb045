package redistest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"ratelimit/testbed/harness"
)

// proxyLab is a proxy before a server of Redis.
type proxyLab struct {
	s *Server
	p *harness.Proxy
}

func TestProxy(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{})
	x := proxyLab{s, harness.StartProxy(t, s.Addr)}
	for _, tt := range []struct {
		name string
		test func(*testing.T)
	}{
		{"passes", x.passes},
		{"black hole", x.blackHole},
		{"reset", x.reset},
		{"reset of a black hole", x.resetOfABlackHole},
		{"latency", x.latency},
		{"refuse", x.refuse},
		{"drop replies", x.dropReplies},
		{"garbage", x.garbage},
		{"cut", x.cut},
		{"drip", x.drip},
		{"jitter", x.jitter},
		{"silence", x.silence},
		{"another target", x.anotherTarget},
		{"another address", x.anotherAddress},
		{"hold", x.hold},
		{"half close", x.halfClose},
		{"the server dies", x.theServerDies},
		{"Unix socket", x.unixSocket},
	} {
		t.Run(tt.name, tt.test)
	}
}

func (x proxyLab) dial(t *testing.T) *Client {
	t.Helper()
	c, err := Dial(x.p.Addr, DialOptions{Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (x proxyLab) incr(t *testing.T, c *Client, want int64) {
	t.Helper()
	if reply, err := c.Do("INCR", t.Name()); err != nil || reply != want {
		t.Errorf("INCR: %v, %v, want %d", reply, err, want)
	}
}

func (x proxyLab) fails(t *testing.T, c *Client, want error) {
	t.Helper()
	if reply, err := c.Do("INCR", t.Name()); !errors.Is(err, want) {
		t.Errorf("INCR: %v, %v, want %v", reply, err, want)
	}
}

func (x proxyLab) stored(t *testing.T, want any) {
	t.Helper()
	if reply := x.s.Do(t, "GET", t.Name()); reply != want {
		t.Errorf("Redis has %v, not %v", reply, want)
	}
}

func (x proxyLab) passes(t *testing.T) {
	c := x.dial(t)
	x.incr(t, c, 1)
	if x.p.Open() != 1 {
		t.Errorf("open %d", x.p.Open())
	}
	long := strings.Repeat("x", 1<<20)
	if reply, err := c.Do("ECHO", long); err != nil || reply != long {
		t.Errorf("ECHO: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	harness.Await(t, harness.Deadline, "the connection stays", func() error { return x.open(0) })
}

func (x proxyLab) blackHole(t *testing.T) {
	old, idle := x.dial(t), x.dial(t)
	x.incr(t, old, 1)
	x.incr(t, idle, 2)
	x.p.Blackhole()
	x.fails(t, old, os.ErrDeadlineExceeded)
	x.fails(t, x.dial(t), os.ErrDeadlineExceeded)
	x.p.Heal()
	x.fails(t, old, os.ErrDeadlineExceeded) // it lost bytes
	x.incr(t, idle, 3)
	x.incr(t, x.dial(t), 4)
	x.stored(t, "4")
}

func (x proxyLab) reset(t *testing.T) {
	c := x.dial(t)
	x.incr(t, c, 1)
	x.p.Reset()
	x.fails(t, c, syscall.ECONNRESET)
	x.incr(t, x.dial(t), 2)
}

func (x proxyLab) resetOfABlackHole(t *testing.T) {
	x.p.Blackhole()
	x.p.Reset()
	harness.Await(t, harness.Deadline, "old connections stay", func() error { return x.open(0) })
	c := x.dial(t)
	harness.Await(t, harness.Deadline, "not accepted", func() error { return x.open(1) })
	x.p.Reset()
	x.fails(t, c, syscall.ECONNRESET)
	x.p.Heal()
}

// open returns an error unless the proxy has that many connections.
func (x proxyLab) open(want int) error {
	if n := x.p.Open(); n != want {
		return fmt.Errorf("%d connections are open", n)
	}
	return nil
}

func (x proxyLab) latency(t *testing.T) {
	c := x.dial(t)
	x.incr(t, c, 1)
	x.p.Latency(100 * time.Millisecond)
	begin := time.Now()
	const replies = 20
	for range replies {
		if err := c.Send("INCR", t.Name()); err != nil {
			t.Fatal(err)
		}
	}
	for range replies {
		if _, err := c.Receive(); err != nil {
			t.Error(err)
		}
	}
	// The replies are late together: one after the other they would take 2 s.
	if took := time.Since(begin); took < 100*time.Millisecond || took > replies*90*time.Millisecond {
		t.Errorf("%d replies took %v", replies, took)
	}
	x.p.Heal()
	x.incr(t, c, replies+2)
}

func (x proxyLab) refuse(t *testing.T) {
	c := x.dial(t)
	x.incr(t, c, 1)
	x.p.Refuse()
	x.p.Refuse()
	if _, err := Dial(x.p.Addr, DialOptions{}); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("Dial: %v", err)
	}
	x.incr(t, c, 2)
	x.p.Heal()
	x.p.Heal()
	x.incr(t, x.dial(t), 3)
}

func (x proxyLab) dropReplies(t *testing.T) {
	c := x.dial(t)
	x.incr(t, c, 1)
	x.p.DropReplies()
	x.fails(t, c, os.ErrDeadlineExceeded)
	x.stored(t, "2")
	x.p.Heal()
	x.fails(t, c, os.ErrDeadlineExceeded)
	x.incr(t, x.dial(t), 4)
}

func (x proxyLab) garbage(t *testing.T) {
	c := x.dial(t)
	x.incr(t, c, 1)
	x.p.Garbage()
	if reply, err := c.Do("INCR", t.Name()); err == nil || !strings.Contains(err.Error(), "unexpected prefix") {
		t.Errorf("INCR: %v, %v", reply, err)
	}
	x.p.Heal()
	x.incr(t, x.dial(t), 3)
}

func (x proxyLab) cut(t *testing.T) {
	c := x.dial(t)
	x.incr(t, c, 1)
	x.p.Cut()
	x.fails(t, c, io.EOF) // in the middle of ":2"
	x.stored(t, "2")
	x.p.Heal()
	x.incr(t, x.dial(t), 3)
}

func (x proxyLab) drip(t *testing.T) {
	c := x.dial(t)
	x.incr(t, c, 1)
	x.p.Drip(20 * time.Millisecond)
	begin := time.Now()
	x.incr(t, c, 2) // of four bytes
	if took := time.Since(begin); took < 80*time.Millisecond {
		t.Errorf("four bytes took %v", took)
	}
	x.p.Heal()
	x.incr(t, c, 3)
}

func (x proxyLab) jitter(t *testing.T) {
	c := x.dial(t)
	x.p.Jitter(20*time.Millisecond, 60*time.Millisecond)
	begin := time.Now()
	for n := range int64(3) {
		x.incr(t, c, n+1)
	}
	if took := time.Since(begin); took < 60*time.Millisecond {
		t.Errorf("three replies took %v", took)
	}
	x.p.Heal()
	x.incr(t, c, 4)
}

func (x proxyLab) silence(t *testing.T) {
	old := x.dial(t)
	x.incr(t, old, 1)
	x.p.Silence()
	x.fails(t, old, os.ErrDeadlineExceeded)
	x.incr(t, x.dial(t), 2)
}

func (x proxyLab) anotherTarget(t *testing.T) {
	other := Start(t, Options{})
	other.Do(t, "SET", t.Name(), 41)
	old := x.dial(t)
	x.incr(t, old, 1)
	x.p.SetTarget(other.Addr)
	x.incr(t, x.dial(t), 42)
	x.incr(t, old, 2)
	x.p.SetTarget(x.s.Addr)
	x.incr(t, x.dial(t), 3)
}

func (x proxyLab) anotherAddress(t *testing.T) {
	_, port, err := net.SplitHostPort(x.p.Addr)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Dial(harness.StartProxyAt(t, net.JoinHostPort("127.0.0.2", port), x.s.Addr).Addr, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	x.incr(t, c, 1)
}

func (x proxyLab) hold(t *testing.T) {
	c := x.dial(t)
	x.incr(t, c, 1)
	x.p.Hold()
	x.fails(t, c, os.ErrDeadlineExceeded)
	x.stored(t, "1")
	x.p.Heal()
	if reply, err := c.Receive(); err != nil || reply != int64(2) {
		t.Errorf("after the hold: %v, %v", reply, err)
	}
	x.incr(t, c, 3)
}

func (x proxyLab) halfClose(t *testing.T) {
	c := x.dial(t)
	x.incr(t, c, 1)
	x.p.HalfClose()
	x.fails(t, c, io.EOF)
	harness.Await(t, harness.Deadline, "the request did not arrive", func() error {
		if reply := x.s.Do(t, "GET", t.Name()); reply != "2" {
			return errors.New("not yet")
		}
		return nil
	})
	x.incr(t, x.dial(t), 3)
}

func (x proxyLab) theServerDies(t *testing.T) {
	c := x.dial(t)
	x.incr(t, c, 1)
	x.s.Kill()
	x.fails(t, c, io.EOF)
	// The proxy resets what it cannot pass on, maybe before Dial returns.
	if late, err := Dial(x.p.Addr, DialOptions{}); err == nil {
		if _, err := late.Do("PING"); err == nil {
			t.Error("PING: no error")
		}
		_ = late.Close()
	}
	x.p.Blackhole()
	x.fails(t, x.dial(t), os.ErrDeadlineExceeded)
	x.p.Heal()
	x.s.Restart(t)
	x.incr(t, x.dial(t), 1)
}

func (x proxyLab) unixSocket(t *testing.T) {
	s := Start(t, Options{UnixSocket: true})
	c, err := Dial(harness.StartProxy(t, s.Socket).Addr, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	x.incr(t, c, 1)
}

// Servers behind proxies announce the proxies' addresses only.
func TestProxiesAreTold(t *testing.T) {
	t.Parallel()
	t.Run("by sentinels", func(t *testing.T) {
		t.Parallel()
		c := StartSentinel(t, SentinelOptions{Server: Options{Proxy: true}})
		for range 2 { // the first primary, and one that took over
			primary := c.Primary(t)
			reply := c.Sentinels[0].Do(t, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", c.PrimaryName)
			host, port, err := net.SplitHostPort(primary.Proxy.Addr)
			if want := fmt.Sprint([]any{host, port}); err != nil || fmt.Sprint(reply) != want {
				t.Errorf("the primary is at %v, want %s", reply, want)
			}
			c.Failover(t)
		}
	})
	t.Run("by nodes", func(t *testing.T) {
		t.Parallel()
		c := StartCluster(t, ClusterOptions{Server: Options{Proxy: true}})
		text := fmt.Sprint(c.Nodes[0].Do(t, "CLUSTER", "NODES"))
		for _, s := range c.Nodes {
			_, own, err := net.SplitHostPort(s.Addr)
			if err != nil {
				t.Fatal(err)
			}
			_, told, err := net.SplitHostPort(s.Proxy.Addr)
			if err != nil || strings.Contains(text, ":"+own+"@") || !strings.Contains(text, ":"+told+"@") {
				t.Errorf("CLUSTER NODES is %s, want %s and not %s", text, told, own)
			}
		}
	})
}
