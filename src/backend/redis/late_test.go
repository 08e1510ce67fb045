package redis

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"ratelimit/src/testbed/harness"
	"ratelimit/src/testbed/redistest"
)

// A reply that has arrived is read also when this process comes to it after the deadline.
func TestReplyBeforeLateReader(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	client, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	g := &guarded{Conn: client, watcher: newWatcher(client), open: new(atomic.Int64)}
	defer func() { _ = g.Close() }()
	if _, err := io.WriteString(server, "+PONG\r\n"); err != nil {
		t.Fatal(err)
	}
	harness.Await(t, 10*time.Second, "the reply in the socket", func() error {
		if !g.watcher.pending() {
			return errors.New("it is not there")
		}
		return nil
	})
	var b [32]byte
	g.bound(-time.Second, -time.Second)
	if n, err := g.Read(b[:]); err != nil || string(b[:n]) != "+PONG\r\n" {
		t.Errorf("got %q, %v", b[:n], err)
	}
	if n, err := g.Read(b[:]); !errors.Is(err, errStalled) {
		t.Errorf("without a reply: %q, %v", b[:n], err)
	}
}

// A caller whose time passes while the reply is being handed out gets it, up to as long
// again as the timeout.
func TestLateCaller(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	var busy atomic.Int64 // how long this process takes to hand a reply out
	s := open(t, Config{Addr: server.Addr, Timeout: faultTimeout, Connections: 1, OnBatch: func(int, time.Duration) {
		time.Sleep(time.Duration(busy.Load()))
	}})
	harness.Await(t, 20*time.Second, "answers", func() error { return take(t, s, hot(0)).Err })
	before := take(t, s, hot(0)).Before
	busy.Store(int64(faultTimeout * 3 / 2))
	if v := take(t, s, hot(0)); v.Err != nil || v.Before != before+1 {
		t.Errorf("got %+v after %d", v, before)
	}
	busy.Store(int64(10 * faultTimeout))
	begun := time.Now()
	v := take(t, s, hot(0))
	if took := time.Since(begun); !errors.Is(v.Err, ErrTimeout) || took > 4*faultTimeout {
		t.Errorf("got %+v after %v", v, took)
	}
	busy.Store(0)
}
