package remote

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"ratelimit/testbed/harness"
)

// A reply that has arrived is read also when this process comes to it after the deadline.
func TestReplyBeforeLateReader(t *testing.T) {
	listener := harness.Listen(t)
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
	g := newConn(client, new(atomic.Int64))
	defer func() { _ = g.Close() }()
	if _, err := io.WriteString(server, "+PONG\r\n"); err != nil {
		t.Fatal(err)
	}
	harness.Await(t, 10*time.Second, "the reply in the socket", func() error {
		if !g.hasBytes() {
			return errors.New("it is not there")
		}
		return nil
	})
	var b [32]byte
	g.setTimeouts(-time.Second, -time.Second)
	if n, err := g.Read(b[:]); err != nil || string(b[:n]) != "+PONG\r\n" {
		t.Errorf("got %q, %v", b[:n], err)
	}
	if n, err := g.Read(b[:]); !errors.Is(err, ErrStalled) {
		t.Errorf("without a reply: %q, %v", b[:n], err)
	}
}

// slowToClose is a connection whose Close waits until the one below it is closed, as
// that of TLS may while the other end takes nothing.
type slowToClose struct {
	net.Conn
	below *closeTeller
}

func (c *slowToClose) Close() error {
	<-c.below.closed
	return nil
}

// closeTeller tells that it is closed.
type closeTeller struct {
	net.Conn
	closed chan struct{}
}

func (c *closeTeller) Close() error {
	close(c.closed)
	return c.Conn.Close()
}

// A connection that broke does not wait for the other end while it is closed.
func TestSlowClose(t *testing.T) {
	here, there := net.Pipe()
	defer func() { _ = there.Close() }()
	raw := &closeTeller{here, make(chan struct{})}
	var open atomic.Int64
	c := newConn(&slowToClose{here, raw}, &open)
	c.connUnderTLS = raw
	c.setTimeouts(time.Millisecond, time.Millisecond)
	_, err := c.Read(make([]byte, 1))
	if c.abort(); !errors.Is(err, ErrStalled) || open.Load() != 0 {
		t.Errorf("got %v, %d open", err, open.Load())
	}
}
