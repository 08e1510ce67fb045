package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"time"

	"github.com/mediocregopher/radix/v4"
)

// access is how connections to servers of one sort are made.
type access struct {
	network     string
	credentials func() (user, password string, err error)
	db          string
	tls         func() (*tls.Config, error)
	timeout     time.Duration
	dialTimeout time.Duration
	// primary: a server that says it is a replica is no good.
	primary bool
	stats   *counters
}

// link is a connection to one server. It connects when it is needed, and after
// a failure not again before a moment has passed: a server that is down must
// not be asked as often as we are. It is used by one goroutine at a time.
type link struct {
	*access
	addr string

	conn   radix.Conn
	raw    net.Conn  // below it
	used   time.Time // when conn last answered
	proven bool      // conn was of use
	after  time.Time // no new connection before
	wait   time.Duration
	err    error // why not
}

// The pause between two attempts to connect doubles up to retryMost while none
// leads to a server that is of use, with jitter, so that one that comes back is
// found within a second and not by all at once.
const (
	retryLeast = 10 * time.Millisecond
	retryMost  = 500 * time.Millisecond
)

// quiet is how long a connection may not have been used without a look whether
// the server, or what is in between, has ended it meanwhile. That is no error:
// they do so with connections that are idle, and before they restart.
const quiet = 10 * time.Millisecond

// errReplica is a server that should be a primary and is not.
var errReplica = errors.New("it is a replica, not a primary")

// Do performs a, connecting first if need be; ctx bounds the connecting. What
// fails closes the connection: its state is not known.
func (l *link) Do(ctx context.Context, a radix.Action) error {
	if l.conn != nil && time.Since(l.used) > quiet && hungUp(l.raw) {
		l.Close()
	}
	if l.conn == nil {
		if err := l.connect(ctx); err != nil {
			return err
		}
	}
	// A context that ends would leave radix reading into a in the background.
	// The guard sees to it that this ends.
	if err := a.Perform(context.WithoutCancel(ctx), l.conn); err != nil {
		l.Close()
		err = &linkError{l.addr, false, err}
		if !l.proven && !errors.Is(err, errStalled) { // that took its time
			l.rest(err)
		}
		return err
	}
	l.used = time.Now()
	return nil
}

func (l *link) connect(ctx context.Context) error {
	if time.Now().Before(l.after) {
		return l.err
	}
	conn, err := l.dial(ctx)
	if err != nil {
		l.rest(&linkError{l.addr, true, err})
		return l.err
	}
	l.conn, l.proven = conn, false
	return nil
}

// rest keeps the link from connecting for a moment; err is why.
func (l *link) rest(err error) {
	l.wait = min(max(2*l.wait, retryLeast), retryMost)
	l.after = time.Now().Add(l.wait/2 + rand.N(l.wait/2+1))
	l.err = err
}

// prove says that the connection is of use. What breaks one that was not may
// break the next as well, so that one has to wait.
func (l *link) prove() { l.wait, l.proven = 0, true }

// leave closes a connection that works, but whose server is of no use, as err
// says. That may be so for long: the next one has to wait, too.
func (l *link) leave(err error) {
	l.Close()
	l.rest(&linkError{l.addr, true, err})
}

func (l *link) dial(ctx context.Context) (radix.Conn, error) {
	guard := &dialer{
		dialTimeout: l.dialTimeout, ioTimeout: l.timeout,
		dials: &l.stats.dials, open: &l.stats.open,
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
	l.raw = guard.raw
	if err != nil || !l.primary {
		return conn, err
	}
	if err := checkPrimary(ctx, conn); err != nil {
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
		_ = l.conn.Close() // nobody waits on it any more
		l.conn = nil
	}
}

// linkError is a connection that could not be made or broke.
type linkError struct {
	addr    string
	connect bool // while it was being made
	err     error
}

func (e *linkError) Error() string { return fmt.Sprintf("redis: %s: %v", e.addr, e.err) }

func (e *linkError) Unwrap() error { return e.err }
