package redistest

import (
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"ratelimit/src/backend/harness"
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
