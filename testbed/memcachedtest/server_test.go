package memcachedtest

import (
	"testing"
	"time"

	"ratelimit/testbed/harness"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestServer(t *testing.T) {
	t.Parallel()
	certs := harness.NewCertificates(t)
	for name, o := range map[string]Options{
		"tcp":         {},
		"unix socket": {UnixSocket: true},
		"TLS":         {TLS: certs},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := Start(t, o)
			if got := s.Get(t, "k"); got != "" {
				t.Errorf("an empty server has %q", got)
			}
			s.Set(t, "k", "12")
			if got, life := s.Get(t, "k"), s.TTL(t, "k"); got != "12" || life != -1 {
				t.Errorf("got %q, which lives for %v", got, life)
			}
			s.Delete(t, "k")
			if got := s.Get(t, "k"); got != "" {
				t.Errorf("deleted, it is %q", got)
			}
			s.Set(t, "k", "12")
			s.Flush(t)
			if got := s.Get(t, "k"); got != "" {
				t.Errorf("flushed, it is %q", got)
			}
		})
	}
}

func TestEnds(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{})
	addr, pid := s.Addr, s.Stats(t)["pid"]
	s.Set(t, "k", "1")
	s.Pause()
	if _, err := s.stats(200 * time.Millisecond); err == nil {
		t.Error("it answers while it is paused")
	}
	s.Resume()
	if got := s.Get(t, "k"); got != "1" {
		t.Errorf("resumed, it has %q", got)
	}
	for _, end := range []func(){s.Stop, s.Kill} {
		end()
		if _, err := s.stats(time.Second); err == nil {
			t.Error("it answers after its end")
		}
		s.Restart(t)
		if got := s.Get(t, "k"); got != "" || s.Addr != addr || s.Stats(t)["pid"] == pid {
			t.Errorf("restarted at %s, it has %q", s.Addr, got)
		}
	}
}
