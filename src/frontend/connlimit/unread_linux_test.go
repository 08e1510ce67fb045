package connlimit

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"ratelimit/testbed/harness"
)

// A client that reads nothing is closed although no write to it is blocked; one that
// reads, and one that has nothing to read, are not.
func TestUnread(t *testing.T) {
	t.Parallel()
	raw := harness.Listen(t)
	l := New(raw, Config{MaxConnections: 10, UnreadTimeout: time.Second})
	t.Cleanup(func() { _ = l.Close() })
	// connect returns the service's end and the client's.
	connect := func() (server, client net.Conn) {
		t.Helper()
		d := net.Dialer{Timeout: 10 * time.Second}
		client, err := d.Dial("tcp", raw.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		if err := client.(*net.TCPConn).SetReadBuffer(4096); err != nil {
			t.Fatal(err)
		}
		if server, err = l.Accept(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = server.Close() })
		return server, client
	}
	idle, _ := connect()
	reads, reader := connect()
	unread, _ := connect()
	go func() {
		b := make([]byte, 1<<10)
		for {
			if _, err := reader.Read(b); err != nil {
				return
			}
		}
	}()
	for _, c := range []net.Conn{reads, unread} {
		if err := c.SetWriteDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(make([]byte, 256<<10)); err != nil {
			t.Fatalf("the write was blocked: %v", err)
		}
	}
	state := func(c net.Conn, wait time.Duration) error {
		if err := c.SetReadDeadline(time.Now().Add(wait)); err != nil {
			return err
		}
		_, err := c.Read(make([]byte, 1))
		return err
	}
	if err := state(unread, 30*time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection that is not read: %v", err)
	}
	for _, c := range []net.Conn{idle, reads} {
		if err := state(c, 10*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a connection that is fine: %v", err)
		}
	}
}
