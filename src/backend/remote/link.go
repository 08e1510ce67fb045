package remote

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Access has what is needed to connect to the servers of one store.
type Access struct {
	// Name is the name of the store in errors: redis or memcached.
	Name string
	// Open connects with d and sends what goes before the first command.
	Open func(ctx context.Context, d *Dialer, addr string) (Session, error)
	// IsAnswer reports whether err is the reply of a server.
	IsAnswer func(error) bool
	// TLS is Config.TLS.
	TLS func() (*tls.Config, error)
	// Timeout bounds a command or batch, DialTimeout the connecting and the handshakes.
	Timeout, DialTimeout time.Duration
	// Figures is where connections are counted.
	Figures *Figures
	// stalled, if set, receives the address of a server that did not answer within the Timeout,
	// unless it is full.
	stalled chan string
}

// Occasional returns a copy of a for commands that no call waits for. Its Timeout is at least
// timeout.
func (a *Access) Occasional(timeout time.Duration) *Access {
	o := *a
	o.Timeout, o.stalled = max(a.Timeout, timeout), nil
	return &o
}

// Session is an open connection, as the client library of a store sees it.
type Session interface {
	Ping(ctx context.Context) error
	Close() error
}

// Trip is one exchange with a server: commands are written and their replies read.
type Trip interface {
	Trip(ctx context.Context, s Session) error
}

// ping is the Trip of a probe.
type ping struct{}

func (ping) Trip(ctx context.Context, s Session) error { return s.Ping(ctx) }

// Link is a connection to one server. It connects when it is needed, and asks the
// gate first. One goroutine at a time uses it; gate and breaker are those of the
// server, for all its links.
type Link struct {
	*Access
	Addr    string
	gate    *Gate
	breaker *Breaker

	session Session
	conn    *Conn                // below it
	current atomic.Pointer[Conn] // conn, for callers
	proven  bool                 // session was of use
	opened  int64                // how often the breaker had opened when it was made
	setup   time.Duration        // that the last connection took to be made; 0: none was
	dials   int                  // how many connections were tried
	// heavy says that the next Trip cannot be divided and takes the server long. If it stalls, the
	// breaker is not told, because that is no evidence against the server.
	heavy bool
	// excused says that a heavy Trip has stalled since the last answer. A second one is evidence.
	excused bool
}

// NewLink returns a link with its own gate and without a breaker, for occasional commands.
func NewLink(a *Access, addr string) *Link {
	return &Link{Access: a, Addr: addr, gate: new(Gate), breaker: new(Breaker)}
}

// Do makes t, connecting first if need be; ctx bounds the connecting. An error closes
// the connection: its state is not known.
func (l *Link) Do(ctx context.Context, t Trip) error {
	if err := l.ready(ctx); err != nil {
		return err
	}
	return l.Perform(ctx, t)
}

// ready connects if there is no connection that can be used and the gate is open.
func (l *Link) ready(ctx context.Context) error {
	l.inspect()
	if l.session != nil {
		return nil
	}
	if err := l.gate.Pass(); err != nil {
		return err
	}
	return l.connect(ctx)
}

// inspect closes a connection that is not to be used any more: it was made before the
// breaker opened, or the server ended it or sent what it was not asked for. The end is
// no error: servers end connections that are idle, and all before they restart.
func (l *Link) inspect() {
	if l.session != nil && (l.opened != l.breaker.Opened() || l.conn.spoke()) {
		l.Close()
	}
}

// probe asks whether the server is there, at the breaker's pace: without the gate, and
// with a new connection, unless the old one was made for a probe.
func (l *Link) probe(ctx context.Context) error {
	l.inspect()
	if l.session == nil {
		if err := l.connect(ctx); err != nil {
			return err
		}
	}
	err := l.Perform(ctx, ping{})
	if err == nil || l.IsAnswer(err) {
		l.gate.Open() // else the gate would refuse the breaker's calls
		return nil
	}
	return err
}

// Perform makes t on the connection there is. An error closes it.
func (l *Link) Perform(ctx context.Context, t Trip) error {
	began := l.breaker.Begin()
	l.conn.setTimeouts(l.Timeout, whole*l.Timeout)
	// A context that ends would leave radix reading in the background. The Conn sees to
	// it that this ends.
	err := t.Trip(context.WithoutCancel(ctx), l.session)
	if err == nil {
		l.excused = false
		l.breaker.Succeed()
		return nil
	}
	l.conn.abort()
	l.Close()
	stalled := errors.Is(err, ErrStalled)
	if stalled {
		select {
		case l.Access.stalled <- l.Addr:
		default:
		}
	}
	if stalled && l.heavy && !l.excused {
		l.excused = true
	} else {
		l.report(began, err)
	}
	err = l.failure(false, err)
	if !l.proven && !stalled { // that took its time
		l.gate.Pause(err)
	}
	return err
}

// report tells the breaker what became of an attempt that failed.
func (l *Link) report(began Mark, err error) {
	if l.IsAnswer(err) {
		l.breaker.Succeed()
	} else {
		l.breaker.Fail(began, time.Now(), err)
	}
}

func (l *Link) failure(connect bool, err error) error {
	return &LinkError{Store: l.Name, Addr: l.Addr, Connect: connect, Err: err}
}

func (l *Link) connect(ctx context.Context) error {
	began := l.breaker.Begin()
	l.dials++
	l.opened = l.breaker.Opened()
	stop := l.breaker.Watch(began, l.patience(), ErrSlow)
	started := time.Now()
	err := l.dial(ctx)
	stop()
	switch {
	case err == nil:
		l.setup, l.proven = time.Since(started), false
		return nil
	case ctx.Err() == nil: // else it is no fault of the server
		l.report(began, err)
	}
	err = l.failure(true, err)
	l.gate.Pause(err)
	return err
}

// patience returns how long the making of a connection goes on before it counts as an
// attempt without an answer: the timeout of a call, or twice as long as it took the last
// time, if that is more. A server that was never reached has half of the bound.
func (l *Link) patience() time.Duration {
	if l.setup == 0 {
		return max(l.Timeout, l.DialTimeout/2)
	}
	return max(l.Timeout, 2*l.setup)
}

func (l *Link) dial(ctx context.Context) (err error) {
	d := Dialer{Timeout: l.DialTimeout, figures: l.Figures}
	if l.TLS != nil {
		if d.TLS, err = l.TLS(); err != nil {
			return err
		}
	}
	session, err := l.Open(ctx, &d, l.Addr)
	if err != nil {
		if d.made != nil {
			_ = d.made.Close() // it is of no use
		}
		return err
	}
	l.session, l.conn = session, d.made
	l.current.Store(d.made)
	return nil
}

// markUseful says that the connection is of use. What breaks one that was not may break the
// next as well, so that one has to wait.
func (l *Link) markUseful() {
	if !l.proven {
		l.proven = true
		l.gate.Open()
	}
}

// leave closes a connection that works, but whose server is of no use, as err says.
// That may be so for long: the next one has to wait, too.
func (l *Link) leave(err error) {
	l.Close()
	l.gate.Pause(l.failure(true, err))
}

// Close closes the connection. The link makes another when it is used again.
func (l *Link) Close() {
	if l.session != nil {
		_ = l.session.Close()
		l.session = nil
		l.current.Store(nil)
	}
}

// Gate bounds how often the links of one server connect while none of their connections
// is of use, because the server is down, or answers and is of no use, as a replica is.
//
// It works while the Breaker of the server is closed. Once that is open, probes connect
// at the Breaker's pace without the gate, and one that is answered opens the gate.
type Gate struct {
	mu    sync.Mutex
	wait  time.Duration // 0: the gate is open
	after time.Time     // then one link may try
	tried bool          // one does
	err   error         // why not
}

// The pause between two attempts to connect doubles up to retryMost, with jitter, so
// that a server that comes back is found within a second and not by all at once.
const (
	retryLeast = 10 * time.Millisecond
	retryMost  = 500 * time.Millisecond
)

// Pass returns nil if a link may connect: always while the gate is open, else once in
// each pause.
func (g *Gate) Pass() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.wait == 0 {
		return nil
	}
	now := time.Now()
	if now.Before(g.after) {
		return g.err
	}
	g.after, g.tried = now.Add(g.wait), true
	return nil
}

// Pause closes the gate for a moment; err is why.
func (g *Gate) Pause(err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if g.wait > 0 && now.Before(g.after) && !g.tried {
		return // another link that failed at the same time has closed it
	}
	g.err, g.tried = err, false
	g.wait = min(max(2*g.wait, retryLeast), retryMost)
	g.after = now.Add(g.wait/2 + rand.N(g.wait/2+1))
}

// Open opens the gate: a connection was of use.
func (g *Gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wait, g.tried, g.err = 0, false, nil
}
