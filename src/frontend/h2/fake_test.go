package h2

import (
	"bytes"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// inFakeTime runs a test with a server whose connections are pipes, so that time passes at once while all wait.
func inFakeTime(t *testing.T, cfg Config, test func(t *testing.T, s *testServer)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
		s := startServerOn(t, cfg, l)
		s.dialRaw = l.dial
		test(t, s)
	})
}

// pipeListener is a listener whose connections are pipes.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// Accept waits for the next dial.
func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr returns an address that says nothing.
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

// dial returns the client's end of a new connection.
func (l *pipeListener) dial() (net.Conn, error) {
	client, server := net.Pipe()
	p := &pipe{Conn: client}
	p.changed.L = &p.mu
	l.conns <- server
	go p.fill()
	return p, nil
}

// pipe is a pipe with a buffer for input, like that of a socket.
type pipe struct {
	net.Conn

	mu       sync.Mutex
	changed  sync.Cond
	input    bytes.Buffer // guarded by mu
	err      error        // guarded by mu
	deadline time.Time    // guarded by mu
	paused   bool         // guarded by mu; paused says that no more input is taken from the other end.
}

// fill fills the buffer until the end of the connection.
func (p *pipe) fill() {
	for b := make([]byte, 32<<10); ; {
		n, err := p.Conn.Read(b)
		p.mu.Lock()
		p.input.Write(b[:n])
		p.err = err
		p.changed.Broadcast()
		for p.paused {
			p.changed.Wait()
		}
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// pause stops or continues the taking of input, after the next piece.
func (p *pipe) pause(paused bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = paused
	p.changed.Broadcast()
}

// SetReadDeadline sets the end of Read.
func (p *pipe) SetReadDeadline(at time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deadline = at
	return nil
}

// Close closes the connection.
func (p *pipe) Close() error {
	p.pause(false)
	return p.Conn.Close()
}

// Read waits for input and reads it.
func (p *pipe) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	hasDeadline := !p.deadline.IsZero()
	if hasDeadline {
		defer time.AfterFunc(time.Until(p.deadline), p.changed.Broadcast).Stop()
	}
	for p.input.Len() == 0 && p.err == nil {
		if hasDeadline && !time.Now().Before(p.deadline) {
			return 0, os.ErrDeadlineExceeded
		}
		p.changed.Wait()
	}
	if p.input.Len() > 0 {
		return p.input.Read(b)
	}
	if p.err == io.ErrClosedPipe {
		return 0, io.EOF
	}
	return 0, p.err
}
