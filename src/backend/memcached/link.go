package memcached

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
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

// wire is the way to one server for many links: a pipe, which is made when it is
// needed, and anew when it broke.
type wire struct {
	*access
	ctx  context.Context // ends connecting
	addr server
	gate *gate

	pipe    atomic.Pointer[pipe]
	dialing sync.Mutex
	reading sync.WaitGroup
}

// open is the pipe there is, or a new one.
func (w *wire) open() (*pipe, error) {
	if p := w.pipe.Load(); p != nil {
		return p, nil
	}
	w.dialing.Lock()
	defer w.dialing.Unlock()
	if p := w.pipe.Load(); p != nil {
		return p, nil
	}
	if err := w.gate.pass(); err != nil {
		return nil, err
	}
	w.stats.dials.Add(1)
	conn, err := w.dial()
	if err != nil {
		err = &linkError{string(w.addr), true, err}
		w.gate.rest(err)
		return nil, err
	}
	w.stats.open.Add(1)
	p := &pipe{conn: conn, timeout: w.timeout, proved: w.gate.prove}
	p.ended = func(err error) {
		w.stats.open.Add(-1)
		w.pipe.CompareAndSwap(p, nil)
		if !p.proven {
			w.gate.rest(&linkError{string(w.addr), false, err})
		}
	}
	w.pipe.Store(p)
	w.reading.Go(p.read)
	return p, nil
}

func (w *wire) dial() (net.Conn, error) {
	d := remote.Dialer{Timeout: w.dialTimeout}
	if w.tls != nil {
		var err error
		if d.TLS, err = w.tls(); err != nil {
			return nil, err
		}
	}
	conn, _, err := d.Dial(w.ctx, w.addr.Network(), string(w.addr))
	return conn, err
}

// close ends the pipe. Nobody sends any more.
func (w *wire) close() {
	if p := w.pipe.Load(); p != nil {
		p.end(errClosed)
	}
	w.reading.Wait()
}

// link is a user of a wire, with gomemcache in between. It is used by one
// goroutine at a time.
type link struct {
	addr   server
	guard  *guard
	client *memcache.Client
}

func newLink(w *wire) *link {
	l := &link{addr: w.addr, guard: newGuard(w.open), client: memcache.NewFromSelector(w.addr)}
	l.client.MaxIdleConns = 1
	l.client.DialContext = func(context.Context, string, string) (net.Conn, error) { return l.guard, nil }
	return l
}

// Do has ask send one command.
func (l *link) Do(ask func(*memcache.Client) error) error {
	err := ask(l.client)
	switch {
	case l.guard.refused != nil:
		return l.guard.refused
	case err == nil, errors.Is(err, memcache.ErrCacheMiss), errors.Is(err, memcache.ErrNotStored):
		return err
	}
	if _, known := errors.AsType[*linkError](err); known {
		return err
	}
	return &linkError{string(l.addr), false, err}
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
