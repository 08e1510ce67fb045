package memcached

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/remotetest"
)

func awaitBreakers(t *testing.T, s *Store, open int, meanwhile func()) {
	t.Helper()
	harness.Await(t, 20*time.Second, fmt.Sprintf("%d open breakers", open), func() error {
		meanwhile()
		if st := s.Stats(); st.OpenBreakers != open {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
}

// Of three servers only the keys of the one that does not answer are refused.
func TestBreakerOfOneServer(t *testing.T) {
	t.Parallel()
	servers, addrs := three(t)
	s := open(t, Config{Servers: addrs, Config: remote.Config{Timeout: 4 * faultTimeout}})
	recovers(t, s)
	servers[1].Pause()
	isDead := func(n int) bool {
		h := spread(n)
		return addrOfKey(&s.Table().Layout, appendKey(nil, &h, epoch.UnixNano(), false, 0)) == addrs[1]
	}
	awaitBreakers(t, s, 1, func() {
		for n := range 20 {
			if isDead(n) {
				remotetest.SendWithin(t, s, spread(n), 50*time.Millisecond)
			}
		}
	})
	for n := range 300 {
		if v := send(t, s, spread(n)); (v.Err != nil) != isDead(n) {
			t.Errorf("key %d, dead %t: %v", n, isDead(n), v.Err)
		}
	}
	servers[1].Resume()
	awaitBreakers(t, s, 0, func() {})
}

// Replies that drip, each well in time after the one before, hold no call longer than
// twice the timeout: when a batch is due does not move with its replies.
func TestSlowReplies(t *testing.T) {
	t.Parallel()
	pace := time.Tick(50 * time.Millisecond)
	closed := make(chan struct{})
	addr := liar(t, func(_ string, to net.Conn) {
		select {
		case <-pace:
		case <-closed:
		}
		_, _ = io.WriteString(to, "1\r\n")
	})
	t.Cleanup(func() { close(closed) }) // before liar waits for its connections
	s := open(t, Config{
		Servers: []string{addr}, MaxInFlight: 200,
		Config: remote.Config{Timeout: 200 * time.Millisecond, Connections: 1},
	})
	b := backend.Batch{Hits: make([]backend.Hit, 200), Verdicts: make([]backend.Verdict, 200), Now: epoch}
	for i := range b.Hits {
		b.Hits[i] = spread(i)
	}
	started := time.Now()
	if err := s.Take(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	harness.Await(t, 20*time.Second, "the batch is given up", func() error {
		if got := s.Stats(); got.Batches == 0 || got.OpenConnections != 0 {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	if took := time.Since(started); took > 9*time.Second { // the last reply would come after ten
		t.Errorf("it took %v", took)
	}
}
