package remote

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"ratelimit/src/sockets"
)

// Access is how to connect to the servers of one store.
type Access struct {
	// Name is the name of the store in errors: redis or memcached.
	Name string
	Opener
	// TLS is Config.TLS.
	TLS func() (*tls.Config, error)
	// Timeout bounds a command or batch, DialTimeout the time to connect.
	Timeout, DialTimeout time.Duration
	// Figures counts the connections.
	Figures *Figures
	// stalledAddrs, if set and not full, gets the address of a server without an answer in time.
	stalledAddrs chan string
}

// WithMinTimeout returns a copy of a with at least this timeout, for commands that no call waits for.
func (a *Access) WithMinTimeout(timeout time.Duration) *Access {
	o := *a
	o.Timeout, o.stalledAddrs = max(a.Timeout, timeout), nil
	return &o
}

// Opener is the part of a protocol that opens and checks connections.
type Opener interface {
	// Network returns the network of an address, such as tcp.
	Network(addr string) string
	// Open sends the commands that must come first on a new connection, such as AUTH. Ctx ends when the time to connect
	// is over.
	Open(ctx context.Context, c *Conn) error
	// Renew does again what expires, such as AUTH with another token, and sets c.RenewAt to a later time. It is called
	// between two batches. An error closes the connection.
	Renew(c *Conn) error
	// Ping asks the server for a sign of life.
	Ping(c *Conn) error
	// IsServerReply reports whether err is the reply of a server, which is therefore reachable.
	IsServerReply(err error) bool
}

// Link is a connection to one server, which it opens when it is used. One goroutine at a
// time uses it. All links of a server share its gate and breaker.
type Link struct {
	*Access
	Addr    string
	gate    *Gate
	breaker *Breaker

	conn              atomic.Pointer[Conn] // nil while there is no connection. Callers load it too.
	connUseful        bool                 // conn has answered a batch
	openingsAtConnect int64                // Breaker.TimesOpened when conn was opened
	setupTime         time.Duration        // how long the last connection took to open, and 0 before the first
	dialAttempts      int
	// batchIsHeavy says that the next round trip takes the server long and cannot be divided. The breaker
	// does not count the first such round trip that stalls, because that is no sign of an outage.
	batchIsHeavy bool
	// heavyBatchStalled says that a heavy batch has stalled since the last answer.
	heavyBatchStalled bool
}

// NewLink returns a link with its own gate and without a breaker, for occasional commands.
func NewLink(a *Access, addr string) *Link {
	return &Link{Access: a, Addr: addr, gate: new(Gate), breaker: new(Breaker)}
}

// Do connects if there is no connection, and performs roundTrip. Ctx bounds only the connecting.
func (l *Link) Do(ctx context.Context, roundTrip func(*Conn) error) error {
	l.renewIfDue()
	if err := l.connectIfNeeded(ctx); err != nil {
		return err
	}
	return l.Perform(roundTrip)
}

// connectIfNeeded connects if there is no usable connection. It returns an error while the gate is closed.
func (l *Link) connectIfNeeded(ctx context.Context) error {
	l.closeIfStale()
	if l.conn.Load() != nil {
		return nil
	}
	if err := l.gate.Pass(); err != nil {
		return err
	}
	return l.connect(ctx)
}

// closeIfStale closes a connection that the server has ended, on which it sent an unrequested reply, or that is older
// than the last opening of the breaker. It reports no error, because servers end idle connections, and all connections
// before a restart.
func (l *Link) closeIfStale() {
	if c := l.conn.Load(); c != nil && (l.openingsAtConnect != l.breaker.TimesOpened() || c.mustBeClosed()) {
		l.Close()
	}
}

// renewIfDue calls Opener.Renew if its time has come. If that fails, the next use opens another connection.
func (l *Link) renewIfDue() {
	if c := l.conn.Load(); c == nil || c.RenewAt.IsZero() || time.Now().Before(c.RenewAt) {
		return
	}
	if l.closeIfStale(); l.conn.Load() != nil {
		_ = l.Perform(l.Renew)
	}
}

// untilRenewal returns the time until Opener.Renew is due, and at most longest.
func (l *Link) untilRenewal(longest time.Duration) time.Duration {
	if c := l.conn.Load(); c != nil && !c.RenewAt.IsZero() {
		return max(min(time.Until(c.RenewAt), longest), 0)
	}
	return longest
}

// sendProbe pings the server on a new connection or on that of the last probe. It ignores the
// gate, because the breaker limits the probes.
func (l *Link) sendProbe(ctx context.Context) error {
	l.closeIfStale()
	if l.conn.Load() == nil {
		if err := l.connect(ctx); err != nil {
			return err
		}
	}
	err := l.Perform(l.Ping)
	if err == nil || l.IsServerReply(err) {
		l.gate.Open() // Otherwise the gate would refuse the calls that the breaker allows.
		return nil
	}
	return err
}

// Perform calls roundTrip with the open connection, to write commands and read all replies.
// After an error it closes the connection, because replies may be missing. The end of a
// context does not end a round trip, because the next one would read the rest of its replies.
func (l *Link) Perform(roundTrip func(*Conn) error) error {
	attempt := l.breaker.BeginAttempt()
	conn := l.conn.Load()
	conn.setTimeouts(l.Timeout, batchTimeoutFactor*l.Timeout)
	err := roundTrip(conn)
	if err == nil {
		l.heavyBatchStalled = false
		l.breaker.Succeed()
		return nil
	}
	l.conn.Store(nil)
	conn.abort()
	stalled := errors.Is(err, ErrStalled)
	if stalled {
		select {
		case l.Access.stalledAddrs <- l.Addr:
		default:
		}
	}
	if stalled && l.batchIsHeavy && !l.heavyBatchStalled {
		l.heavyBatchStalled = true
	} else {
		l.reportToBreaker(attempt, err)
	}
	err = l.newLinkError(false, err)
	if !l.connUseful && !stalled { // After a stall no pause is needed, because it has taken the whole timeout.
		l.gate.CloseForPause(err)
	}
	return err
}

// reportToBreaker tells the breaker that an attempt failed with err, which may be an answer.
func (l *Link) reportToBreaker(attempt AttemptID, err error) {
	if l.IsServerReply(err) {
		l.breaker.Succeed()
	} else {
		l.breaker.Fail(attempt, time.Now(), err)
	}
}

func (l *Link) newLinkError(connect bool, err error) error {
	return &LinkError{Store: l.Name, Addr: l.Addr, WhileConnecting: connect, Err: err}
}

func (l *Link) connect(ctx context.Context) error {
	attempt := l.breaker.BeginAttempt()
	l.dialAttempts++
	l.openingsAtConnect = l.breaker.TimesOpened()
	stop := l.breaker.FailEvery(attempt, l.slowConnectTime(), ErrSlowConnect)
	started := time.Now()
	err := l.dial(ctx)
	stop()
	switch {
	case err == nil:
		l.setupTime, l.connUseful = time.Since(started), false
		return nil
	case ctx.Err() == nil: // After the end of ctx, the error is not the server's.
		l.reportToBreaker(attempt, err)
	}
	err = l.newLinkError(true, err)
	l.gate.CloseForPause(err)
	return err
}

// slowConnectTime returns the time after which an attempt to connect counts as a failure: the timeout of a call, or
// twice setupTime if that is longer. If no attempt has succeeded yet, it is half of DialTimeout.
func (l *Link) slowConnectTime() time.Duration {
	if l.setupTime == 0 {
		return max(l.Timeout, l.DialTimeout/2)
	}
	return max(l.Timeout, 2*l.setupTime)
}

// dial opens a connection within DialTimeout, which includes TLS and the commands of Open.
func (l *Link) dial(ctx context.Context) error {
	dialer := new(net.Dialer).DialContext
	if l.TLS != nil {
		config, err := l.TLS()
		if err != nil {
			return err
		}
		dialer = (&tls.Dialer{Config: config}).DialContext
	}
	l.Figures.Dials.Add(1)
	started := time.Now()
	dialCtx, cancel := context.WithTimeout(ctx, l.DialTimeout)
	defer cancel()
	netConn, err := dialer(dialCtx, l.Network(l.Addr), l.Addr)
	if err != nil {
		return err
	}
	c := newConn(sockets.New(netConn), &l.Figures.openConnections)
	c.setTimeouts(l.DialTimeout, l.DialTimeout-time.Since(started))
	defer context.AfterFunc(ctx, func() { _ = c.connUnderTLS.Close() })()
	err = l.Open(dialCtx, c)
	if err == nil && c.connUnderTLS != c.Conn {
		// The ping reads the messages that servers send after the handshake of TLS 1.3. Later
		// they would look like a reply that no command asked for.
		err = l.Ping(c)
	}
	if err != nil {
		c.abort()
		return cmp.Or(ctx.Err(), err)
	}
	l.conn.Store(c)
	return nil
}

// markSessionUseful opens the gate after the first answered batch of a connection. If a connection
// breaks before, the cause may break the next one too, so the gate stays closed.
func (l *Link) markSessionUseful() {
	if !l.connUseful {
		l.connUseful = true
		l.gate.Open()
	}
}

// closeAndPause closes a connection that works, but whose server cannot serve, as err says. That
// may last, so the next attempt to connect has to wait.
func (l *Link) closeAndPause(err error) {
	l.Close()
	l.gate.CloseForPause(l.newLinkError(true, err))
}

// Close closes the connection. The link opens another when it is used again.
func (l *Link) Close() {
	if c := l.conn.Swap(nil); c != nil {
		_ = c.Close()
	}
}
