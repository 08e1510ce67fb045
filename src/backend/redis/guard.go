package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	"ratelimit/src/backend/remote"
)

// errStalled is a connection on which nothing moved for as long as a command
// may take. It is no deadline error on purpose: radix would keep a connection
// after one of those, and wait for the late reply without any limit.
var errStalled = errors.New("the connection stalled")

// dialer makes guarded connections, one at a time for each user.
type dialer struct {
	timeout time.Duration // of all that goes before the first command
	tls     *tls.Config   // nil: none
	dials   *atomic.Int64
	open    *atomic.Int64
	made    *guarded // the last one
}

// DialContext connects, and shakes hands where TLS is asked for. What is left of the
// timeout is for what else goes before the first command.
func (d *dialer) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	d.dials.Add(1)
	begun := time.Now()
	rd := remote.Dialer{Timeout: d.timeout, TLS: d.tls}
	conn, raw, err := rd.Dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	d.open.Add(1)
	d.made = &guarded{Conn: conn, watcher: newWatcher(raw), secure: d.tls != nil, open: d.open}
	d.made.bound(d.timeout, d.timeout-time.Since(begun))
	return d.made, nil
}

// guarded is a connection whose every Read and Write has a deadline of its own.
// radix clears deadlines as it likes; here that does nothing. When one passes,
// the connection closes itself, so that calls that wait on it fail at once.
//
// radix reads only while it waits for a reply, so a Read that gets nothing is a
// command without an answer. One that gets a little at a time is bounded, too: what
// was begun with bound has to end by then.
type guarded struct {
	net.Conn
	watcher *watcher // of the connection below TLS
	secure  bool     // Conn is TLS
	open    *atomic.Int64
	closed  atomic.Bool
	each    time.Duration // that one Read or Write may take
	all     time.Duration // that was given with the last bound
	due     time.Time     // the end of that
	looked  bool          // the deadline passed, and there was something to read
	// answered: what was read last is a reply, or part of one, that is not handed out yet.
	answered atomic.Bool
}

// whole is how many times as long as one Read or Write all of a command or batch
// may take, however it drips. Callers leave after the first.
const whole = 2

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// bound ends each Read and Write from now on after each, and all of them together after
// all.
func (g *guarded) bound(each, all time.Duration) {
	g.each, g.all, g.due, g.looked = each, all, time.Now().Add(all), false
}

// deadline is that of the next Read or Write.
func (g *guarded) deadline() time.Time {
	at := time.Now().Add(g.each)
	if at.After(g.due) {
		return g.due
	}
	return at
}

// lastLook bounds the reading of a reply that arrived before its deadline, and that this
// process comes to after it. It is there already; of TLS there may be half a record.
const lastLook = 10 * time.Millisecond

func (g *guarded) Read(p []byte) (int, error) {
	g.answered.Store(false)
	if err := g.Conn.SetReadDeadline(g.deadline()); err != nil {
		return 0, err
	}
	n, err := g.Conn.Read(p)
	if n == 0 && !g.looked && errors.Is(err, os.ErrDeadlineExceeded) && g.watcher.pending() {
		g.looked = true
		if err := g.Conn.SetReadDeadline(time.Now().Add(lastLook)); err != nil {
			return 0, err
		}
		n, err = g.Conn.Read(p)
	}
	if n > 0 {
		g.answered.Store(true)
	}
	return n, g.check(err)
}

// answering reports whether a reply has arrived and is not handed out yet. It is safe for
// concurrent use.
func (g *guarded) answering() bool { return g != nil && (g.answered.Load() || g.watcher.pending()) }

func (g *guarded) Write(p []byte) (int, error) {
	g.answered.Store(false)
	if err := g.Conn.SetWriteDeadline(g.deadline()); err != nil {
		return 0, err
	}
	n, err := g.Conn.Write(p)
	return n, g.check(err)
}

// spoke reports whether the server ended the connection or sent something since the last
// reply that was asked for; then the connection has to be closed. Call it only while nothing
// reads from it.
func (g *guarded) spoke() bool {
	if g.watcher.readable() {
		return true
	}
	if !g.secure {
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

func (g *guarded) check(err error) error {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	_ = g.Close() // calls that wait on it fail now
	return fmt.Errorf("%w: no answer in %v, or not all of it in %v", errStalled, g.each, g.all.Round(time.Millisecond))
}

// Close closes the connection; again does nothing.
func (g *guarded) Close() error {
	if !g.closed.CompareAndSwap(false, true) {
		return nil
	}
	g.open.Add(-1)
	return g.Conn.Close()
}

func (*guarded) SetDeadline(time.Time) error      { return nil }
func (*guarded) SetReadDeadline(time.Time) error  { return nil }
func (*guarded) SetWriteDeadline(time.Time) error { return nil }
