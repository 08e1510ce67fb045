package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mediocregopher/radix/v4"

	"ratelimit/src/backend/remote"
)

// access is how connections to servers of one sort are made.
type access struct {
	network     string
	credentials func() (user, password string, err error)
	db          string
	tls         func() (*tls.Config, error)
	timeout     time.Duration // of a command or batch
	dialTimeout time.Duration // of all that goes before the first
	// stalled hears of a server that did not answer in the timeout. Nil: nobody asks.
	stalled func(addr string)
	// primary: a server that says it is a replica is no good.
	primary bool
	stats   *counters
}

// link is a connection to one server. It connects when it is needed, and passes
// the gate for it. It is used by one goroutine at a time; gate and breaker are
// those of the server, for all its links.
type link struct {
	*access
	addr    string
	gate    *remote.Gate
	breaker *remote.Breaker // nil: none

	conn  radix.Conn
	guard *guarded // below it
	// current is guard, for callers.
	current atomic.Pointer[guarded]
	proven  bool  // conn was of use
	opened  int64 // how often the breaker had opened when it was made
	made    bool  // there was a connection
	dials   int   // how many connections were tried
	// heavy: what is performed next cannot be divided and takes the server long. If that
	// stalls, the breaker is not told: it says nothing of the server.
	heavy bool
	// excused: that has happened since the last answer. A server that answers nothing
	// in between stands still.
	excused bool
}

// newLink returns a link with a gate of its own and without a breaker, for
// occasional questions.
func newLink(a *access, addr string) *link {
	return &link{access: a, addr: addr, gate: new(remote.Gate)}
}

// errReplica is a server that should be a primary and is not.
var errReplica = errors.New("it is a replica, not a primary")

// Do performs a, connecting first if need be; ctx bounds the connecting. What
// fails closes the connection: its state is not known.
func (l *link) Do(ctx context.Context, a radix.Action) error {
	if err := l.ready(ctx); err != nil {
		return err
	}
	return l.perform(ctx, a)
}

// ready connects if there is no connection that can be used, and passes the gate for it.
func (l *link) ready(ctx context.Context) error {
	l.inspect()
	if l.conn != nil {
		return nil
	}
	if err := l.gate.Pass(); err != nil {
		return err
	}
	return l.connect(ctx)
}

// inspect closes a connection that is not to be used any more: it was made before the
// breaker opened, or the server ended it or sent what it was not asked for. The end is no
// error: servers end connections that are idle, and all before they restart.
func (l *link) inspect() {
	if l.conn != nil && (l.opened != l.breaker.Opened() || l.guard.spoke()) {
		l.Close()
	}
}

// Probe asks whether the server is there, at the breaker's pace: past the gate, and
// with a new connection, unless the old one was made for a probe.
func (l *link) Probe(ctx context.Context) error {
	l.inspect()
	if l.conn == nil {
		if err := l.connect(ctx); err != nil {
			return err
		}
	}
	err := l.perform(ctx, radix.Cmd(nil, "PING"))
	if err == nil || isAnswer(err) {
		l.gate.Prove() // else the breaker's calls would be refused by the gate
		return nil
	}
	return err
}

// perform performs a on the connection there is.
func (l *link) perform(ctx context.Context, a radix.Action) error {
	began := l.breaker.Begin()
	l.guard.bound(l.timeout, whole*l.timeout)
	// A context that ends would leave radix reading into a in the background.
	// The guard sees to it that this ends.
	err := a.Perform(context.WithoutCancel(ctx), l.conn)
	if err == nil {
		l.excused = false
		l.breaker.Succeed()
		return nil
	}
	l.Close()
	err = plain(err)
	if l.stalled != nil && errors.Is(err, errStalled) {
		l.stalled(l.addr)
	}
	if l.heavy && !l.excused && errors.Is(err, errStalled) {
		l.excused = true
	} else {
		l.report(began, err)
	}
	err = l.failure(false, err)
	if !l.proven && !errors.Is(err, errStalled) { // that took its time
		l.gate.Rest(err)
	}
	return err
}

// plain is err without radix's word of where it met it, which tells operators nothing.
func plain(err error) error {
	if inner := errors.Unwrap(err); inner != nil && strings.HasPrefix(err.Error(), "response returned from Conn: ") {
		return inner
	}
	return err
}

// report tells the breaker what became of an attempt that failed.
func (l *link) report(began remote.Mark, err error) {
	if isAnswer(err) {
		l.breaker.Succeed()
	} else {
		l.breaker.Fail(began, time.Now(), err)
	}
}

func (l *link) failure(connect bool, err error) error {
	return &remote.LinkError{Store: "redis", Addr: l.addr, Connect: connect, Err: err}
}

func (l *link) connect(ctx context.Context) error {
	began := l.breaker.Begin()
	l.dials++
	l.opened = l.breaker.Opened()
	stop := l.breaker.Watch(began, l.gate.Patience(l.timeout, l.dialTimeout), remote.ErrSlow)
	begun := time.Now()
	conn, err := l.dial(ctx)
	stop()
	switch {
	case err == nil:
		l.gate.Connected(time.Since(begun))
		l.conn, l.made, l.proven = conn, true, false
		return nil
	case ctx.Err() == nil: // else it is no fault of the server
		l.report(began, err)
	}
	err = l.failure(true, err)
	l.gate.Rest(err)
	return err
}

// prove says that the connection is of use. What breaks one that was not may
// break the next as well, so that one has to wait.
func (l *link) prove() {
	if !l.proven {
		l.proven = true
		l.gate.Prove()
	}
}

// leave closes a connection that works, but whose server is of no use, as err
// says. That may be so for long: the next one has to wait, too.
func (l *link) leave(err error) {
	l.Close()
	l.gate.Rest(l.failure(true, err))
}

func (l *link) dial(ctx context.Context) (radix.Conn, error) {
	guard := &dialer{
		timeout: l.dialTimeout, dials: &l.stats.dials, open: &l.stats.open,
	}
	d := radix.Dialer{NetDialer: guard}
	if l.db != "0" { // where one is anyway: proxies do not know SELECT, or share it among their clients
		d.SelectDB = l.db
	}
	var err error
	if l.credentials != nil {
		if d.AuthUser, d.AuthPass, err = l.credentials(); err != nil {
			return nil, err
		}
	}
	if l.tls != nil {
		if guard.tls, err = l.tls(); err != nil {
			return nil, err
		}
	}
	conn, err := d.Dial(ctx, l.network, l.addr)
	if err != nil {
		return nil, err
	}
	l.guard = guard.made
	l.current.Store(l.guard)
	switch {
	case l.primary:
		err = checkPrimary(ctx, conn)
	case l.tls != nil:
		// What a server sends on its own after the handshake of TLS 1.3 is read with the
		// answer. Else it would lie there as what nobody asked for.
		err = conn.Do(context.WithoutCancel(ctx), radix.Cmd(nil, "PING"))
	}
	if err != nil {
		_ = conn.Close() // it is of no use
		return nil, err
	}
	return conn, nil
}

// checkPrimary asks a server what it is. One that does not tell, as ACLs often
// forbid ROLE, is taken for what it was called; it answers writes with READONLY
// otherwise.
func checkPrimary(ctx context.Context, conn radix.Conn) error {
	role := question{words: []string{"ROLE"}}
	if err := role.Perform(context.WithoutCancel(ctx), conn); err != nil {
		return err
	}
	if len(role.reply) > 0 && role.reply[0] != "master" {
		return errReplica
	}
	return nil
}

// Close closes the connection. The link makes another when it is used again.
func (l *link) Close() {
	if l.conn != nil {
		_ = l.conn.Close()
		l.conn = nil
		l.current.Store(nil)
	}
}
