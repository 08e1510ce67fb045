package memcached

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"golang.org/x/sync/singleflight"

	"ratelimit/src/backend/remote"
)

// access is how connections to servers are made.
type access struct {
	tls         func() (*tls.Config, error)
	timeout     time.Duration
	dialTimeout time.Duration
	// stalled hears of a server that did not answer in the timeout. Nil: nobody asks.
	stalled func(addr string)
	stats   *counters
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
	ctx     context.Context // ends connecting
	addr    server
	gate    *remote.Gate
	breaker *remote.Breaker // nil: none

	pipe    atomic.Pointer[pipe]
	made    atomic.Bool // there was a pipe
	dialing singleflight.Group
	reading sync.WaitGroup
}

// open is the pipe there is, or a new one, if the gate lets us.
func (w *wire) open() (*pipe, error) { return w.reach(false) }

// probe is the same, past the gate: the breaker has a pace of its own.
func (w *wire) probe() (*pipe, error) { return w.reach(true) }

func (w *wire) failure(connect bool, err error) error {
	return &remote.LinkError{Store: "memcached", Addr: string(w.addr), Connect: connect, Err: err}
}

func (w *wire) reach(probe bool) (*pipe, error) {
	if p := w.pipe.Load(); p != nil {
		return p, nil
	}
	p, err, _ := w.dialing.Do("", func() (any, error) { return w.connect(probe) })
	if err != nil {
		return nil, err
	}
	return p.(*pipe), nil
}

// connect makes the pipe, unless another goroutine just did.
func (w *wire) connect(probe bool) (*pipe, error) {
	if p := w.pipe.Load(); p != nil {
		return p, nil
	}
	if !probe {
		if err := w.gate.Pass(); err != nil {
			return nil, err
		}
	}
	w.stats.dials.Add(1)
	began := w.breaker.Begin()
	stop := w.breaker.Watch(began, w.gate.Patience(w.timeout, w.dialTimeout), remote.ErrSlow)
	begun := time.Now()
	conn, err := w.dial()
	stop()
	if err != nil {
		if w.ctx.Err() == nil { // else it is no fault of the server
			w.breaker.Fail(began, time.Now(), err)
		}
		err = w.failure(true, err)
		w.gate.Rest(err)
		return nil, err
	}
	w.gate.Connected(time.Since(begun))
	w.made.Store(true)
	w.stats.open.Add(1)
	p := &pipe{conn: conn, timeout: w.timeout, proved: w.gate.Prove, answered: w.breaker.Succeed}
	p.ended = func(err error, unanswered bool) {
		w.stats.open.Add(-1)
		w.pipe.CompareAndSwap(p, nil)
		if w.stalled != nil && errors.Is(err, errStalled) {
			w.stalled(string(w.addr))
		}
		switch {
		case isAnswer(err):
			w.breaker.Succeed()
		case unanswered && !errors.Is(err, errClosed):
			w.breaker.Fail(w.breaker.Begin(), time.Now(), err)
		}
		if !p.proven.Load() {
			w.gate.Rest(w.failure(false, err))
		}
	}
	w.pipe.Store(p)
	w.reading.Go(p.receive)
	return p, nil
}

// connectFirst makes the first pipe, so that the first command finds it. It returns when
// there has been one, or no more commands come.
func (w *wire) connectFirst(end <-chan struct{}) {
	for pause := remote.ConnectLeast; !w.made.Load(); pause = min(2*pause, remote.ConnectMost) {
		if w.breaker.Refusal() == nil { // else probes find out when it can be made
			if _, err := w.open(); err == nil {
				return
			}
		}
		select {
		case <-time.After(pause):
		case <-end:
			return
		case <-w.ctx.Done():
			return
		}
	}
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

// end ends the pipe, if there is one, as err says.
func (w *wire) end(err error) {
	if p := w.pipe.Load(); p != nil {
		p.end(err)
	}
}

// close ends the pipe. Nobody sends any more.
func (w *wire) close() {
	w.end(errClosed)
	w.reading.Wait()
}

// link is a user of a wire, with gomemcache in between. It is used by one
// goroutine at a time.
type link struct {
	addr   server
	guard  *guard
	client *memcache.Client
}

func newLink(addr server, pipe func() (*pipe, error)) *link {
	l := &link{addr: addr, guard: newGuard(pipe), client: memcache.NewFromSelector(addr)}
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
	if _, known := errors.AsType[*remote.LinkError](err); known {
		return err
	}
	return &remote.LinkError{Store: "memcached", Addr: string(l.addr), Err: err}
}
