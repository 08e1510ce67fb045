package remote

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// ErrStalled is a connection on which nothing moved for as long as a command may
// take. It is no deadline error on purpose: radix would keep a connection after one of
// those, and wait for the late reply without any limit.
var ErrStalled = errors.New("the connection stalled")

// The pause between two attempts to connect before the first call doubles from
// connectLeast up to connectMost.
const connectLeast, connectMost = 100 * time.Millisecond, 10 * time.Second

// Dialer opens one connection.
type Dialer struct {
	// Timeout bounds everything before the first command: connecting, TLS, authentication.
	Timeout time.Duration
	// TLS is nil without TLS. Without a ServerName, the host of the address is used.
	TLS     *tls.Config
	figures *Figures
	made    *Conn
}

// DialContext returns a *Conn. What is left of the Timeout is for what else goes
// before the first command.
func (d *Dialer) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	d.figures.Dials.Add(1)
	started := time.Now()
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	var nd net.Dialer
	raw, err := nd.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	conn := raw
	if d.TLS != nil {
		if conn, err = d.handshake(ctx, raw, addr); err != nil {
			_ = raw.Close() // it never worked
			return nil, err
		}
	}
	d.figures.open.Add(1)
	d.made = &Conn{Conn: conn, watcher: newWatcher(raw), raw: raw, open: &d.figures.open}
	d.made.setTimeouts(d.Timeout, d.Timeout-time.Since(started))
	return d.made, nil
}

func (d *Dialer) handshake(ctx context.Context, raw net.Conn, addr string) (net.Conn, error) {
	cfg := d.TLS
	if cfg.ServerName == "" { // also where it is not verified: proxies choose by it
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			host = addr
		}
		cfg = cfg.Clone()
		cfg.ServerName = host
	}
	secure := tls.Client(raw, cfg)
	return secure, secure.HandshakeContext(ctx)
}

// Conn is a connection whose every Read and Write has a deadline of its own. radix
// clears deadlines as it likes; here that does nothing. When a deadline passes, the
// connection closes itself, so that calls that wait on it fail at once.
//
// It is read only while a reply is due, so a Read that gets nothing is a command
// without an answer. Replies that arrive a little at a time are bounded as well: what
// setTimeouts began must end within its second timeout.
type Conn struct {
	net.Conn
	watcher *watcher // of raw
	raw     net.Conn // below TLS; Conn itself without
	open    *atomic.Int64
	closed  atomic.Bool
	each    time.Duration // that one Read or Write may take
	all     time.Duration // that was given with the last bound
	due     time.Time     // the end of that
	checked bool          // the deadline passed, and there was something to read
	// answered says that a reply was read, or a part of one, and has not been delivered yet.
	answered atomic.Bool
}

// whole is how many times as long as one Read or Write all of a batch may take.
// Callers leave after the first.
const whole = 2

// longAgo is an instant in the past, for deadlines that must have passed.
var longAgo = time.Unix(1, 0)

// setTimeouts bounds the Reads and Writes from now on: each of them by each, and all of them
// together by all.
func (g *Conn) setTimeouts(each, all time.Duration) {
	g.each, g.all, g.due, g.checked = each, all, time.Now().Add(all), false
}

// deadline returns the deadline of the next Read or Write.
func (g *Conn) deadline() time.Time {
	at := time.Now().Add(g.each)
	if at.After(g.due) {
		return g.due
	}
	return at
}

// lastRead bounds the reading of a reply that arrived before its deadline, and that
// this process comes to after it. It is there already; of TLS there may be half a
// record.
const lastRead = 10 * time.Millisecond

func (g *Conn) Read(p []byte) (int, error) {
	g.answered.Store(false)
	if err := g.Conn.SetReadDeadline(g.deadline()); err != nil {
		return 0, err
	}
	n, err := g.Conn.Read(p)
	if n == 0 && !g.checked && errors.Is(err, os.ErrDeadlineExceeded) && g.watcher.pending() {
		g.checked = true
		if err := g.Conn.SetReadDeadline(time.Now().Add(lastRead)); err != nil {
			return 0, err
		}
		n, err = g.Conn.Read(p)
	}
	if n > 0 {
		g.answered.Store(true)
	}
	return n, g.check(err)
}

// answering reports whether a reply has arrived and is not handed out yet. It is safe
// for concurrent use.
func (g *Conn) answering() bool { return g != nil && (g.answered.Load() || g.watcher.pending()) }

func (g *Conn) Write(p []byte) (int, error) {
	g.answered.Store(false)
	if err := g.Conn.SetWriteDeadline(g.deadline()); err != nil {
		return 0, err
	}
	n, err := g.Conn.Write(p)
	return n, g.check(err)
}

// spoke reports whether the server ended the connection, or sent something since the
// last reply that was asked for; then the connection has to be closed. Call it only
// while nothing reads from it.
func (g *Conn) spoke() bool {
	if g.watcher.readable() {
		return true
	}
	if g.raw == g.Conn {
		return false
	}
	// TLS may have read more than it was asked for. With a deadline that has passed it
	// returns that, and does not read.
	var b [1]byte
	err := g.Conn.SetReadDeadline(longAgo)
	if err == nil {
		_, err = g.Conn.Read(b[:])
	}
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

func (g *Conn) check(err error) error {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	g.abort()
	return fmt.Errorf("%w: no answer in %v, or not all of it in %v", ErrStalled, g.each, g.all.Round(time.Millisecond))
}

// abort closes a connection that is broken. It starts below TLS, which would say
// goodbye, for seconds if the other end takes nothing.
func (g *Conn) abort() {
	_ = g.raw.Close()
	_ = g.Close()
}

// Close closes the connection; again does nothing.
func (g *Conn) Close() error {
	if !g.closed.CompareAndSwap(false, true) {
		return nil
	}
	g.open.Add(-1)
	return g.Conn.Close()
}

// SetDeadline does nothing, as do SetReadDeadline and SetWriteDeadline.
func (*Conn) SetDeadline(time.Time) error      { return nil }
func (*Conn) SetReadDeadline(time.Time) error  { return nil }
func (*Conn) SetWriteDeadline(time.Time) error { return nil }
