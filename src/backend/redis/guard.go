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
	raw         net.Conn // the last one made, below TLS
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
	d.raw = raw
	return &guarded{Conn: conn, timeout: d.ioTimeout, open: d.open}, nil
}

// guarded is a connection whose every Read and Write has a deadline of its own.
// radix clears deadlines as it likes; here that does nothing. When one passes,
// the connection closes itself, so that whoever waits on it fails at once.
//
// radix reads only while it waits for a reply, so a Read that gets nothing is a
// command without an answer.
type guarded struct {
	net.Conn
	timeout time.Duration
	open    *atomic.Int64
	closed  atomic.Bool
}

func (g *guarded) Read(p []byte) (int, error) {
	if err := g.Conn.SetReadDeadline(time.Now().Add(g.timeout)); err != nil {
		return 0, err
	}
	n, err := g.Conn.Read(p)
	return n, g.check(err)
}

func (g *guarded) Write(p []byte) (int, error) {
	if err := g.Conn.SetWriteDeadline(time.Now().Add(g.timeout)); err != nil {
		return 0, err
	}
	n, err := g.Conn.Write(p)
	return n, g.check(err)
}

func (g *guarded) check(err error) error {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	_ = g.Close() // what matters is that nobody waits on it any more
	return fmt.Errorf("%w: nothing moved for %v", errStalled, g.timeout)
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
