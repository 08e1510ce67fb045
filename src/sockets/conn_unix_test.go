//go:build unix

package sockets

import (
	"bytes"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"ratelimit/testbed/harness"
)

// connect returns both ends of a connection.
func connect(tb testing.TB, network string) (client, server net.Conn) {
	tb.Helper()
	l := harness.Listen(tb)
	if network == "unix" {
		_ = l.Close()
		var err error
		if l, err = net.Listen("unix", filepath.Join(tb.TempDir(), "s")); err != nil {
			tb.Fatal(err)
		}
	}
	defer func() { _ = l.Close() }()
	client, dialErr := net.Dial(l.Addr().Network(), l.Addr().String())
	server, err := l.Accept()
	if err = errors.Join(dialErr, err); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _, _ = client.Close(), server.Close() })
	return client, server
}

// Several goroutines may read and write at once: each write arrives whole.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	client, server := connect(t, "tcp")
	c, echo := New(server), New(client)
	var all sync.WaitGroup
	all.Go(func() {
		_, _ = io.Copy(struct{ io.Writer }{echo}, struct{ io.Reader }{echo}) // until c is closed
	})
	const writers, writes = 8, 200
	line := strings.Repeat("x", 10_000) + "\n"
	for range writers {
		all.Go(func() {
			for range writes {
				if _, err := io.WriteString(c, line); err != nil {
					t.Error(err)
				}
			}
		})
	}
	got := make([]byte, writers*writes*len(line))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, bytes.Repeat([]byte(line), writers*writes)) {
		t.Errorf("other bytes, %v", err)
	}
	_ = c.Close()
	all.Wait()
}

// Other connections stay as they are.
func TestOthers(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	defer func() { _, _ = a.Close(), b.Close() }()
	if c := New(a); c != a {
		t.Errorf("got %T", c)
	}
	_, server := connect(t, "tcp")
	if c := New(server); New(c) != c {
		t.Error("it is wrapped twice")
	}
}
