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
	dialTimeout time.Duration
	ioTimeout   time.Duration
	tls         *tls.Config // nil: none
	dials       *atomic.Int64
	open        *atomic.Int64
	made        *guarded // the last one
}

// DialContext connects, and shakes hands where TLS is asked for, within the
// dial timeout.
func (d *dialer) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	d.dials.Add(1)
	rd := remote.Dialer{Timeout: d.dialTimeout, TLS: d.tls}
	conn, raw, err := rd.Dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	d.open.Add(1)
	d.made = &guarded{Conn: conn, watcher: newWatcher(raw), secure: d.tls != nil, timeout: d.ioTimeout, open: d.open}
	d.made.bound(max(d.dialTimeout, whole*d.ioTimeout)) // what goes before the first command
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
	timeout time.Duration
	open    *atomic.Int64
	closed  atomic.Bool
	due     atomic.Int64 // ns since the guard's epoch
}

// whole is how many times as long as one Read or Write all of a command or batch
// may take, however it drips. Callers leave after the first.
const whole = 2

// guardEpoch is what due counts from, with the monotonic clock.
var guardEpoch = time.Now()

// bound ends whatever is done from now on after so long.
func (g *guarded) bound(d time.Duration) { g.due.Store(int64(time.Since(guardEpoch) + d)) }

// deadline is that of the next Read or Write.
func (g *guarded) deadline() time.Time {
	now := time.Now()
	left := time.Duration(g.due.Load()) - now.Sub(guardEpoch)
	return now.Add(min(g.timeout, left))
}

func (g *guarded) Read(p []byte) (int, error) {
	if err := g.Conn.SetReadDeadline(g.deadline()); err != nil {
		return 0, err
	}
	n, err := g.Conn.Read(p)
	return n, g.check(err)
}

func (g *guarded) Write(p []byte) (int, error) {
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
	err := g.Conn.SetReadDeadline(guardEpoch)
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
	return fmt.Errorf("%w: no answer in %v, or not all of it in %v", errStalled, g.timeout, whole*g.timeout)
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
