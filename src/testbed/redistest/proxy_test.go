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

	"ratelimit/src/testbed/harness"
)

func TestProxy(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{})
	p := harness.StartProxy(t, s.Addr)
	dial := func(t *testing.T) *Client {
		t.Helper()
		c, err := Dial(p.Addr, DialOptions{Timeout: 300 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	incr := func(t *testing.T, c *Client, want int64) {
		t.Helper()
		if reply, err := c.Do("INCR", t.Name()); err != nil || reply != want {
			t.Errorf("INCR: %v, %v, want %d", reply, err, want)
		}
	}
	fails := func(t *testing.T, c *Client, want error) {
		t.Helper()
		if reply, err := c.Do("INCR", t.Name()); !errors.Is(err, want) {
			t.Errorf("INCR: %v, %v, want %v", reply, err, want)
		}
	}
	stored := func(t *testing.T, want any) {
		t.Helper()
		if reply := s.Do(t, "GET", t.Name()); reply != want {
			t.Errorf("Redis has %v, not %v", reply, want)
		}
	}

	t.Run("passes", func(t *testing.T) {
		c := dial(t)
		incr(t, c, 1)
		if p.Open() != 1 || p.Accepted() != 1 {
			t.Errorf("open %d, accepted %d", p.Open(), p.Accepted())
		}
		long := strings.Repeat("x", 1<<20)
		if reply, err := c.Do("ECHO", long); err != nil || reply != long {
			t.Errorf("ECHO: %v", err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		harness.Await(t, harness.Deadline, "the connection stays", func() error {
			if p.Open() > 0 {
				return errors.New("open")
			}
			return nil
		})
	})
	t.Run("black hole", func(t *testing.T) {
		old, idle := dial(t), dial(t)
		incr(t, old, 1)
		incr(t, idle, 2)
		p.Blackhole()
		fails(t, old, os.ErrDeadlineExceeded)
		fails(t, dial(t), os.ErrDeadlineExceeded)
		p.Heal()
		fails(t, old, os.ErrDeadlineExceeded) // it lost bytes
		incr(t, idle, 3)
		incr(t, dial(t), 4)
		stored(t, "4")
	})
	t.Run("reset", func(t *testing.T) {
		c := dial(t)
		incr(t, c, 1)
		p.Reset()
		fails(t, c, syscall.ECONNRESET)
		incr(t, dial(t), 2)
	})
	t.Run("reset of a black hole", func(t *testing.T) {
		p.Blackhole()
		before := p.Accepted()
		c := dial(t)
		harness.Await(t, harness.Deadline, "not accepted", func() error {
			if p.Accepted() == before {
				return errors.New("not yet")
			}
			return nil
		})
		p.Reset()
		fails(t, c, syscall.ECONNRESET)
		p.Heal()
	})
	t.Run("latency", func(t *testing.T) {
		c := dial(t)
		incr(t, c, 1)
		p.Latency(100 * time.Millisecond)
		begin := time.Now()
		for range 5 {
			if err := c.Send("INCR", t.Name()); err != nil {
				t.Fatal(err)
			}
		}
		for range 5 {
			if _, err := c.Receive(); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(begin); took < 100*time.Millisecond || took > 290*time.Millisecond {
			t.Errorf("five replies took %v", took)
		}
		p.Heal()
		incr(t, c, 7)
	})
	t.Run("refuse", func(t *testing.T) {
		c := dial(t)
		incr(t, c, 1)
		p.Refuse()
		p.Refuse()
		if _, err := Dial(p.Addr, DialOptions{}); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("Dial: %v", err)
		}
		incr(t, c, 2)
		p.Heal()
		p.Heal()
		incr(t, dial(t), 3)
	})
	t.Run("drop replies", func(t *testing.T) {
		c := dial(t)
		incr(t, c, 1)
		p.DropReplies()
		fails(t, c, os.ErrDeadlineExceeded)
		stored(t, "2")
		p.Heal()
		fails(t, c, os.ErrDeadlineExceeded)
		incr(t, dial(t), 4)
	})
	t.Run("garbage", func(t *testing.T) {
		c := dial(t)
		incr(t, c, 1)
		p.Garbage()
		if reply, err := c.Do("INCR", t.Name()); err == nil || !strings.Contains(err.Error(), "not a reply") {
			t.Errorf("INCR: %v, %v", reply, err)
		}
		p.Heal()
		incr(t, dial(t), 3)
	})
	t.Run("cut", func(t *testing.T) {
		c := dial(t)
		incr(t, c, 1)
		p.Cut()
		fails(t, c, io.EOF) // in the middle of ":2"
		stored(t, "2")
		p.Heal()
		incr(t, dial(t), 3)
	})
	t.Run("drip", func(t *testing.T) {
		c := dial(t)
		incr(t, c, 1)
		p.Drip(20 * time.Millisecond)
		begin := time.Now()
		incr(t, c, 2) // of four bytes
		if took := time.Since(begin); took < 80*time.Millisecond {
			t.Errorf("four bytes took %v", took)
		}
		p.Heal()
		incr(t, c, 3)
	})
	t.Run("jitter", func(t *testing.T) {
		c := dial(t)
		p.Jitter(20*time.Millisecond, 60*time.Millisecond)
		begin := time.Now()
		for n := range int64(3) {
			incr(t, c, n+1)
		}
		if took := time.Since(begin); took < 60*time.Millisecond {
			t.Errorf("three replies took %v", took)
		}
		p.Heal()
		incr(t, c, 4)
	})
	t.Run("silence", func(t *testing.T) {
		old := dial(t)
		incr(t, old, 1)
		p.Silence()
		fails(t, old, os.ErrDeadlineExceeded)
		incr(t, dial(t), 2)
	})
	t.Run("another target", func(t *testing.T) {
		other := Start(t, Options{})
		other.Do(t, "SET", t.Name(), 41)
		old := dial(t)
		incr(t, old, 1)
		p.Aim(other.Addr)
		incr(t, dial(t), 42)
		incr(t, old, 2)
		p.Aim(s.Addr)
		incr(t, dial(t), 3)
	})
	t.Run("another address", func(t *testing.T) {
		_, port, err := net.SplitHostPort(p.Addr)
		if err != nil {
			t.Fatal(err)
		}
		c, err := Dial(harness.StartProxyAt(t, net.JoinHostPort("127.0.0.2", port), s.Addr).Addr, DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		incr(t, c, 1)
	})
	t.Run("hold", func(t *testing.T) {
		c := dial(t)
		incr(t, c, 1)
		p.Hold()
		fails(t, c, os.ErrDeadlineExceeded)
		stored(t, "1")
		p.Heal()
		if reply, err := c.Receive(); err != nil || reply != int64(2) {
			t.Errorf("after the hold: %v, %v", reply, err)
		}
		incr(t, c, 3)
	})
	t.Run("half close", func(t *testing.T) {
		c := dial(t)
		incr(t, c, 1)
		p.HalfClose()
		fails(t, c, io.EOF)
		harness.Await(t, harness.Deadline, "the request did not arrive", func() error {
			if reply := s.Do(t, "GET", t.Name()); reply != "2" {
				return errors.New("not yet")
			}
			return nil
		})
		incr(t, dial(t), 3)
	})
	t.Run("the server dies", func(t *testing.T) {
		c := dial(t)
		incr(t, c, 1)
		s.Kill()
		fails(t, c, io.EOF)
		// The proxy resets what it cannot pass on, maybe before Dial returns.
		if late, err := Dial(p.Addr, DialOptions{}); err == nil {
			if _, err := late.Do("PING"); err == nil {
				t.Error("PING: no error")
			}
			_ = late.Close()
		}
		p.Blackhole()
		fails(t, dial(t), os.ErrDeadlineExceeded)
		p.Heal()
		s.Restart(t)
		incr(t, dial(t), 1)
	})
	t.Run("Unix socket", func(t *testing.T) {
		s := Start(t, Options{UnixSocket: true})
		c, err := Dial(harness.StartProxy(t, s.Socket).Addr, DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		incr(t, c, 1)
	})
}

// Servers behind proxies tell everybody the proxies' addresses, and nobody their
// own.
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
			if err != nil || strings.Contains(text, own) || !strings.Contains(text, told) {
				t.Errorf("CLUSTER NODES is %s, want %s and not %s", text, told, own)
			}
		}
	})
}
