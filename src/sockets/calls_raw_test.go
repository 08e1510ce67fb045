//go:build !race && linux

package sockets

import (
	"errors"
	"io"
	"net"
	"os"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"

	"ratelimit/testbed/harness"
)

var ports = regexp.MustCompile(`:\d+|@|/\S*/s\b`)

// describe returns what a caller can learn from an error. Ports and paths are replaced.
func describe(err error) string {
	if err == nil {
		return "no error"
	}
	text := ports.ReplaceAllString(err.Error(), ":port")
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		text += ", a timeout"
	}
	for _, known := range []error{
		io.EOF, net.ErrClosed, os.ErrDeadlineExceeded, syscall.ECONNRESET, syscall.EPIPE,
	} {
		if errors.Is(err, known) {
			text += ", is " + known.Error()
		}
	}
	return text
}

// A Conn returns the same bytes and the same errors as package net.
func TestLikeNet(t *testing.T) {
	t.Parallel()
	past := time.Unix(1, 0)
	for _, tt := range []struct {
		name string
		act  func(c, client net.Conn) (n int, err error)
	}{
		{"a read of some bytes", func(c, client net.Conn) (int, error) {
			_, _ = io.WriteString(client, "hello")
			return io.ReadFull(c, make([]byte, 5))
		}},
		{"a read that waits", func(c, client net.Conn) (int, error) {
			go func() {
				time.Sleep(20 * time.Millisecond)
				_, _ = io.WriteString(client, "x")
			}()
			return c.Read(make([]byte, 5))
		}},
		{"a read of nothing", func(c, _ net.Conn) (int, error) { return c.Read(nil) }},
		{"a write of nothing", func(c, _ net.Conn) (int, error) { return c.Write(nil) }},
		{"a write", func(c, _ net.Conn) (int, error) { return c.Write([]byte("hello")) }},
		{"the end of the input", func(c, client net.Conn) (int, error) {
			_ = client.Close()
			return c.Read(make([]byte, 5))
		}},
		{"a read after Close", func(c, _ net.Conn) (int, error) {
			_ = c.Close()
			return c.Read(make([]byte, 5))
		}},
		{"a write after Close", func(c, _ net.Conn) (int, error) {
			_ = c.Close()
			return c.Write(make([]byte, 5))
		}},
		{"Close during a read", func(c, _ net.Conn) (int, error) {
			time.AfterFunc(20*time.Millisecond, func() { _ = c.Close() })
			return c.Read(make([]byte, 5))
		}},
		{"a read after the deadline", func(c, client net.Conn) (int, error) {
			_, _ = io.WriteString(client, "hello")
			_ = c.SetReadDeadline(past)
			return c.Read(make([]byte, 5))
		}},
		{"the deadline passes during a read", func(c, _ net.Conn) (int, error) {
			_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			return c.Read(make([]byte, 5))
		}},
		{"a write after the deadline", func(c, _ net.Conn) (int, error) {
			_ = c.SetWriteDeadline(past)
			return c.Write(make([]byte, 5))
		}},
		{"a write that nobody reads, and after it", func(c, client net.Conn) (int, error) {
			_ = c.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
			n, err := c.Write(make([]byte, 64<<20))
			_ = c.(interface{ CloseWrite() error }).CloseWrite()
			got, _ := io.Copy(io.Discard, client)
			if int(got) != n { // What was written arrives.
				return n, nil
			}
			return 0, err
		}},
		{"a large write", func(c, client net.Conn) (int, error) {
			var reading sync.WaitGroup
			defer reading.Wait()
			reading.Go(func() { _, _ = io.CopyN(io.Discard, client, 20<<20) })
			return c.Write(make([]byte, 20<<20))
		}},
		{"Close during a write", func(c, client net.Conn) (int, error) {
			time.AfterFunc(50*time.Millisecond, func() { _ = c.Close() })
			n, err := c.Write(make([]byte, 64<<20))
			got, _ := io.Copy(io.Discard, client)
			return n - int(got), err
		}},
		{"a deadline that is set during a write, and after it", func(c, _ net.Conn) (int, error) {
			time.AfterFunc(50*time.Millisecond, func() { _ = c.SetWriteDeadline(past) })
			_, first := c.Write(make([]byte, 64<<20))
			_, second := c.Write(make([]byte, 1))
			return 0, errors.Join(first, second)
		}},
		{"Close during two writes", func(c, _ net.Conn) (int, error) {
			var errs [2]error
			var writing sync.WaitGroup
			for i := range errs {
				writing.Go(func() { _, errs[i] = c.Write(make([]byte, 64<<20)) })
			}
			time.Sleep(50 * time.Millisecond)
			_ = c.Close()
			writing.Wait()
			return 0, errors.Join(errs[:]...)
		}},
		{"a write of nothing after CloseWrite", func(c, _ net.Conn) (int, error) {
			_ = c.(interface{ CloseWrite() error }).CloseWrite()
			return c.Write(nil)
		}},
		{"a read of nothing after the deadline", func(c, _ net.Conn) (int, error) {
			_ = c.SetReadDeadline(past)
			return c.Read(nil)
		}},
		{"a read after a reset", func(c, client net.Conn) (int, error) {
			if tcp, ok := client.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0)
			}
			_ = client.Close()
			time.Sleep(20 * time.Millisecond)
			return c.Read(make([]byte, 5))
		}},
		{"the second write to a closed client", func(c, client net.Conn) (int, error) {
			_ = client.Close()
			_, _ = c.Write(make([]byte, 5))
			time.Sleep(20 * time.Millisecond)
			return c.Write(make([]byte, 5))
		}},
		{"a write after CloseWrite", func(c, _ net.Conn) (int, error) {
			_ = c.(interface{ CloseWrite() error }).CloseWrite()
			return c.Write(make([]byte, 5))
		}},
	} {
		for _, network := range []string{"tcp", "unix"} {
			t.Run(tt.name+" over "+network, func(t *testing.T) {
				t.Parallel()
				client, server := connect(t, network)
				wantN, want := tt.act(server, client)
				client, server = connect(t, network)
				c := New(server)
				if _, ok := c.(*Conn); !ok {
					t.Fatalf("%T is not wrapped", server)
				}
				n, err := tt.act(c, client)
				if n != wantN || describe(err) != describe(want) {
					t.Errorf("got %d, %s\nwant %d, %s", n, describe(err), wantN, describe(want))
				}
			})
		}
	}
}

func TestPeek(t *testing.T) {
	t.Parallel()
	client, server := connect(t, "tcp")
	raw, err := New(server).(*Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	peek := func(wantN int, want error) {
		t.Helper()
		harness.Until(t, "the input has arrived", func() (isDone bool) {
			_ = raw.Control(func(fd uintptr) {
				n, err := Peek(int(fd))
				isDone = n == wantN && errors.Is(err, want)
			})
			return isDone
		})
	}
	peek(0, syscall.EAGAIN)
	_, _ = io.WriteString(client, "hello")
	peek(1, nil)
	peek(1, nil)
	if _, err := io.ReadFull(server, make([]byte, 5)); err != nil {
		t.Error(err)
	}
	peek(0, syscall.EAGAIN)
	_ = client.Close()
	peek(0, nil)
}

func TestReadAndWriteAllocateNothing(t *testing.T) {
	client, server := connect(t, "tcp")
	a, b, p := New(client), New(server), make([]byte, 64)
	if n := testing.AllocsPerRun(100, func() {
		_, writeErr := a.Write(p)
		if _, err := b.Read(p); err != nil || writeErr != nil {
			t.Error(writeErr, err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
