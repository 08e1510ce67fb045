package memcached

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"ratelimit/src/backend/remote"
)

// access is how connections to servers are made.
type access struct {
	tls         func() (*tls.Config, error)
	timeout     time.Duration
	dialTimeout time.Duration
	stats       *counters
}

// server is one of them, as gomemcache wants to be told of it.
type server string

func (s server) Network() string {
	if strings.Contains(string(s), "/") {
		return "unix"
	}
	return "tcp"
}

func (s server) String() string { return string(s) }

// PickServer and Each are gomemcache's ServerSelector of one server.
func (s server) PickServer(string) (net.Addr, error)  { return s, nil }
func (s server) Each(each func(net.Addr) error) error { return each(s) }

// link is a connection to one server. It is made when it is needed, and used by
// one goroutine at a time.
type link struct {
	*access
	addr   server
	gate   *gate
	client *memcache.Client

	conn   *guard    // nil: none
	used   time.Time // when conn last answered
	proven bool      // conn was of use
}

// quiet is how long a connection may not have been used without a look whether
// the server, or what is in between, has ended it meanwhile. That is no error:
// they do so with connections that are idle, and before they restart.
const quiet = 10 * time.Millisecond

// newLink is a link that lives no longer than ctx.
func newLink(ctx context.Context, a *access, addr server, g *gate) *link {
	l := &link{access: a, addr: addr, gate: g, client: memcache.NewFromSelector(addr)}
	l.client.MaxIdleConns = 1
	l.client.Timeout = max(a.timeout, a.dialTimeout) // the guard knows better
	l.client.DialContext = func(context.Context, string, string) (net.Conn, error) {
		return l.dial(ctx)
	}
	return l
}

// Do has ask send one command. What fails closes the connection, but for what
// the server itself says.
func (l *link) Do(ask func(*memcache.Client) error) error {
	if l.conn != nil && time.Since(l.used) > quiet && remote.HungUp(l.conn.raw) {
		l.Close()
	}
	err := ask(l.client)
	if l.conn != nil && !l.conn.closed.Load() {
		l.used, l.proven = time.Now(), true
		l.gate.prove()
		if l.conn.refused != nil {
			return l.conn.refused
		}
		return err
	}
	if l.conn == nil { // it could not be made
		return err
	}
	l.conn = nil
	err = &linkError{string(l.addr), false, err}
	if !l.proven {
		l.gate.rest(err)
	}
	return err
}

func (l *link) dial(ctx context.Context) (net.Conn, error) {
	if err := l.gate.pass(); err != nil {
		return nil, err
	}
	l.stats.dials.Add(1)
	conn, raw, err := l.reach(ctx)
	if err != nil {
		err = &linkError{string(l.addr), true, err}
		l.gate.rest(err)
		return nil, err
	}
	l.stats.open.Add(1)
	l.conn, l.proven, l.used = &guard{Conn: conn, raw: raw, timeout: l.timeout, open: &l.stats.open}, false, time.Now()
	return l.conn, nil
}

func (l *link) reach(ctx context.Context) (conn, raw net.Conn, err error) {
	d := remote.Dialer{Timeout: l.dialTimeout}
	if l.tls != nil {
		if d.TLS, err = l.tls(); err != nil {
			return nil, nil, err
		}
	}
	return d.Dial(ctx, l.addr.Network(), string(l.addr))
}

// Close closes the connection. The link makes another when it is used again.
func (l *link) Close() {
	_ = l.client.Close() // nobody waits on it any more
	l.conn = nil
}

// gate keeps the links to one server from connecting again and again while none
// of them is of use.
type gate struct {
	mu    sync.Mutex
	wait  time.Duration // 0: the gate is open
	after time.Time     // then one may try
	err   error         // why not
}

// The pause between two attempts to connect doubles up to retryMost while none
// leads to a server that is of use, with jitter, so that one that comes back is
// found within a second and not by all at once.
const (
	retryLeast = 10 * time.Millisecond
	retryMost  = 500 * time.Millisecond
)

// pass lets everybody through, or in bad times one in each pause.
func (g *gate) pass() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.wait == 0 {
		return nil
	}
	now := time.Now()
	if now.Before(g.after) {
		return g.err
	}
	g.after = now.Add(g.wait)
	return nil
}

// rest closes the gate for a moment; err is why.
func (g *gate) rest(err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	g.err = err
	if g.wait > 0 && now.Before(g.after) {
		return // of several that failed together, one has seen to it
	}
	g.wait = min(max(2*g.wait, retryLeast), retryMost)
	g.after = now.Add(g.wait/2 + rand.N(g.wait/2+1))
}

// prove opens it: a connection was of use.
func (g *gate) prove() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wait, g.err = 0, nil
}
