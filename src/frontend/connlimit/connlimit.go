// Package connlimit bounds the open connections of one port. When the port is full,
// the connection that has been idle for longest makes room for the newcomer, so
// idle connections never keep others out.
//
// A connection is idle from its accept, and from each write to it, until it is
// written to again. Writes count and reads do not: a caller that sends one byte a
// second is idle, one that gets answers is not. An HTTP connection whose request has
// been read as a whole is busy until the answer, see HTTP.
//
//	newcomer, port full -> close the longest idle of
//	  established  answered before: if idle for a second or more
//	  fresh        all others: if there is none of those, or if the fresh ones are
//	               more than a quarter of the port
//	  An eighth of the port is for fresh ones, whether or not they were answered.
//	no idle connection -> refuse the newcomer
//
// So a flood of newcomers that ask nothing closes each other, and a connection that
// gets an answer each second is not closed
// unless such connections are more than seven eighths of the port.
package connlimit

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"ratelimit/src/frontend/budget"
)

// Config says what a Listener allows.
type Config struct {
	// Max is how many connections may be open; 1 or more.
	Max int
	// Greeting is how many writes a connection gets before its first answer, such as
	// those of a TLS handshake.
	Greeting int
	// IdleUnderPressure is how long a connection may be idle while more than three
	// quarters of Max are open. 0: without end.
	IdleUnderPressure time.Duration
	// Unread is how long a client may leave what was written unread before the kernel
	// closes the connection; on Linux only. 0: without end.
	Unread time.Duration
	// Budget counts what connections hold: bytes read since the last answer, and bytes
	// being written. The connections that hold the most are closed when it is used up.
	// It needs Waiting after each answer, which HTTP calls. Nil: no bound.
	Budget *budget.Budget
	// Refuse is given each newcomer for which there is no room, and must not block.
	// Nil: it is closed.
	Refuse func(net.Conn)
}

const (
	// activeTime is how long an established connection is not idle after a write.
	activeTime = time.Second
	// sweepInterval is how often connections are looked at while more than half of
	// Max are open.
	sweepInterval = time.Second
)

// Listener is a listener with a bound on its open connections. Create it with New.
type Listener struct {
	net.Listener
	cfg Config

	accepted, refused, evicted, expired, overBudget atomic.Int64

	mu     sync.Mutex // guards what follows
	open   int
	closed bool
	sweeps *time.Timer // nil: not started
	// fresh and established are the connections that are not busy, longest idle first.
	fresh, established list
}

// New returns a Listener over l.
func New(l net.Listener, cfg Config) *Listener {
	if cfg.Refuse == nil {
		cfg.Refuse = func(c net.Conn) { _ = c.Close() } // nothing was said on it
	}
	n := &Listener{Listener: l, cfg: cfg}
	n.fresh.init()
	n.established.init()
	return n
}

// Max returns how many connections may be open.
func (l *Listener) Max() int { return l.cfg.Max }

// Stats are the figures of a Listener.
type Stats struct {
	// Open is how many connections there are now.
	Open int64
	// Accepted, Refused, Evicted, Expired and OverBudget count connections since the
	// start. Refused had no room, Evicted made room for another connection, Expired
	// were idle while the port was nearly full, OverBudget held too many bytes.
	Accepted, Refused, Evicted, Expired, OverBudget int64
}

// Stats returns the figures of l.
func (l *Listener) Stats() Stats {
	st := Stats{
		Accepted: l.accepted.Load(), Refused: l.refused.Load(), Evicted: l.evicted.Load(),
		Expired: l.expired.Load(), OverBudget: l.overBudget.Load(),
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	st.Open = int64(l.open)
	return st
}

// Accept returns the next connection for which there is room. Without a file
// descriptor it closes the longest idle connection and returns the error, which is
// temporary.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
				l.evictOne()
			}
			return nil, err
		}
		if c := l.admit(raw); c != nil {
			boundUnread(raw, l.cfg.Unread)
			return c, nil
		}
		l.refused.Add(1)
		l.cfg.Refuse(raw)
	}
}

// admit returns the connection over raw, or nil if there is no room for it.
func (l *Listener) admit(raw net.Conn) *Conn {
	c := &Conn{Conn: raw, of: l}
	c.account = l.cfg.Budget.Open(func() {
		l.overBudget.Add(1)
		_ = c.Close() // its reader says so
	})
	var victim *Conn
	l.mu.Lock()
	now := time.Now()
	if l.open >= l.cfg.Max {
		if victim = l.victim(now); victim == nil {
			l.mu.Unlock()
			c.account.Close()
			return nil
		}
		l.drop(victim)
	}
	l.open++
	l.fresh.push(c, now)
	if l.sweeps == nil && l.open > l.cfg.Max/2 {
		l.sweeps = time.AfterFunc(sweepInterval, l.sweep)
	}
	l.mu.Unlock()
	l.accepted.Add(1)
	if victim != nil {
		l.evict(victim)
	}
	return c
}

func (l *Listener) evict(c *Conn) {
	l.evicted.Add(1)
	_ = c.Close() // its reader says so
}

// evictOne closes the connection that would make room for a newcomer, if any.
func (l *Listener) evictOne() {
	l.mu.Lock()
	c := l.victim(time.Now())
	if c != nil {
		l.drop(c)
	}
	l.mu.Unlock()
	if c != nil {
		l.evict(c)
	}
}

// victim returns the connection that makes room for a newcomer, or nil. Each
// connection that it passes over was written to since it was last looked at, and
// established ones are looked at once in activeTime, so the cost is constant per
// newcomer and per write. The caller holds mu.
func (l *Listener) victim(now time.Time) *Conn {
	for range l.open + 1 {
		c := l.established.oldest()
		if c == nil || now.Sub(c.since) < activeTime || l.fresh.len > l.cfg.Max/4 {
			c = l.fresh.oldest()
		}
		if c == nil || !l.refresh(c, now) {
			return c
		}
	}
	return nil // all were written to just now
}

// refresh moves c behind all others if it was written to since it was last looked
// at, and reports whether it was. The caller holds mu.
func (l *Listener) refresh(c *Conn, now time.Time) bool {
	if c.writes.Load() == c.seen {
		return false
	}
	l.wait(c, now)
	return true
}

// wait makes c the one that has been idle for the shortest time. The caller holds mu.
func (l *Listener) wait(c *Conn, now time.Time) {
	was := c.list
	if was != nil {
		was.remove(c)
	}
	c.seen = c.writes.Load()
	if was == &l.established || l.establish(c, now) {
		l.established.push(c, now)
	} else {
		l.fresh.push(c, now)
	}
}

// establish reports whether c becomes established. An eighth of Max is left to fresh
// connections, so newcomers have room however many are established. Beyond that c
// takes the place of the longest idle one if it was written to more often: callers that
// stay are not kept out by a flood of connections with one request each. The caller
// holds mu.
func (l *Listener) establish(c *Conn, now time.Time) bool {
	if int(c.seen) <= l.cfg.Greeting {
		return false
	}
	if l.established.len < l.cfg.Max-l.cfg.Max/8 {
		return true
	}
	oldest := l.established.oldest()
	if oldest == nil || oldest.seen >= c.seen {
		return false
	}
	l.established.remove(oldest)
	l.fresh.push(oldest, now)
	return true
}

// drop forgets c, if it was not forgotten before. The caller holds mu.
func (l *Listener) drop(c *Conn) {
	if c.gone {
		return
	}
	c.gone = true
	l.open--
	if c.list != nil {
		c.list.remove(c)
	}
}

// sweep notes which connections were written to, closes idle ones while the port
// is under pressure, and runs again after sweepInterval while the port is more than half full.
func (l *Listener) sweep() {
	var expired []*Conn
	l.mu.Lock()
	now := time.Now()
	for _, all := range []*list{&l.fresh, &l.established} {
		for c := all.oldest(); c != nil && now.Sub(c.since) >= activeTime; {
			next := all.after(c)
			if !l.refresh(c, now) && l.underPressure() && now.Sub(c.since) >= l.cfg.IdleUnderPressure {
				l.drop(c)
				expired = append(expired, c)
			}
			c = next
		}
	}
	if !l.closed && l.open > l.cfg.Max/2 {
		l.sweeps.Reset(sweepInterval)
	} else {
		l.sweeps = nil
	}
	l.mu.Unlock()
	l.expired.Add(int64(len(expired)))
	for _, c := range expired {
		_ = c.Close() // its reader says so
	}
}

// underPressure reports whether idle connections are to end early. The caller holds mu.
func (l *Listener) underPressure() bool {
	return l.cfg.IdleUnderPressure > 0 && l.open > l.cfg.Max-l.cfg.Max/4
}

// Close closes the listener. Its connections stay open.
func (l *Listener) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	return l.Listener.Close()
}

// Conn is a connection of a Listener.
type Conn struct {
	net.Conn
	of      *Listener
	account *budget.Account // nil: no bound
	charged atomic.Int64    // bytes read that account holds
	writes  atomic.Uint32
	busy    atomic.Bool

	// What follows is guarded by of.mu.
	list       *list // nil while busy, and once gone
	next, prev *Conn
	since      time.Time // idle since, if in a list
	seen       uint32    // writes at that time
	gone       bool      // closed, or about to be
}

// Read reads, and charges what was read to the budget.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.account != nil && n > 0 && c.account.Add(int64(n)) {
		c.charged.Add(int64(n))
	}
	return n, err
}

// Write writes, and holds p in the budget meanwhile.
func (c *Conn) Write(p []byte) (int, error) {
	if c.busy.Load() {
		c.Waiting() // for the caller to read its answer
	}
	if !c.account.Add(int64(len(p))) {
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Write(p)
	c.account.Release(int64(len(p)))
	if err == nil {
		c.writes.Add(1)
	}
	return n, err
}

// Hold charges n bytes that are needed to answer a request, and reports false if the
// connection is closed, because it held the most when the budget was used up or for
// another reason. A nil Conn holds nothing.
func (c *Conn) Hold(n int64) bool { return c == nil || c.account.Add(n) }

// Release gives back n of the bytes that Hold took.
func (c *Conn) Release(n int64) {
	if c != nil {
		c.account.Release(n)
	}
}

// Busy says that the caller waits for an answer. A busy connection makes room for no
// other, until it is written to.
func (c *Conn) Busy() {
	l := c.of
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.list != nil {
		c.list.remove(c)
	}
	c.busy.Store(true)
}

// Waiting says that we wait for the caller from now on.
func (c *Conn) Waiting() {
	l := c.of
	l.mu.Lock()
	defer l.mu.Unlock()
	c.busy.Store(false)
	if !c.gone {
		l.wait(c, time.Now())
	}
}

// Answered says that nothing is held of what was read so far, and that we wait for
// the next request.
func (c *Conn) Answered() {
	c.account.Release(c.charged.Swap(0))
	c.Waiting()
}

// Close closes the connection and makes room for another.
func (c *Conn) Close() error {
	c.of.mu.Lock()
	c.of.drop(c)
	c.of.mu.Unlock()
	c.account.Close()
	return c.Conn.Close()
}

// CloseWrite ends what is sent, if the connection can. net/http and divvy look for
// it, to let a client read an answer to its end.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
