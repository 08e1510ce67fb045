// Package connlimit bounds the open connections of one port, and with a MemoryBudget the bytes that the connections of
// all ports hold. When a port is full, a new connection closes the one that has been idle for longest.
//
// A connection becomes idle when it is accepted and after each write to it. Only writes count: a client that sends one
// byte a second is idle. An HTTP connection is busy from the end of a request to its answer, see TrackHTTPServer.
//
// Established connections have been answered; all others are fresh. An eighth of the port is reserved for fresh
// connections. A new connection on a full port closes
//
//	the longest idle established one, if it is idle for a second and at most a quarter of the port is fresh;
//	else the longest idle fresh one;
//	else none: the new connection is refused.
//
// So new connections that send nothing close each other. A connection that gets an answer each second stays open,
// unless such connections fill seven eighths of the port.
package connlimit

import (
	"container/list"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"ratelimit/src/sockets"
)

// Config configures a Listener.
type Config struct {
	// MaxConnections is how many connections may be open; 1 or more.
	MaxConnections int
	// GreetingWrites is how many writes precede the first answer on a connection, as in a TLS handshake.
	GreetingWrites int
	// MaxIdleUnderPressure is how long a connection may be idle while over 3/4 of MaxConnections are open. 0 means no
	// bound.
	MaxIdleUnderPressure time.Duration
	// UnreadTimeout is after which time without a read by its client the kernel closes a connection with output; on Linux
	// only. 0 means no bound.
	UnreadTimeout time.Duration
	// MemoryBudget bounds the bytes that connections hold. If it is nil, there is no bound.
	MemoryBudget *MemoryBudget
	// OnlyManualCharges says that only HoldBytes and ReleaseBytes charge the budget. Otherwise a connection also holds
	// what was read since the last MarkAnswered, and what is being written.
	OnlyManualCharges bool
	// AnswersAreShort says that answers take less than some ms of CPU time. Then connections are those of package
	// sockets.
	AnswersAreShort bool
	// OnRefuse, if set, gets each connection for which there is no room, instead of Close. It must not block.
	OnRefuse func(net.Conn)
}

const (
	activeTimeAfterWrite = time.Second // how long after a write an established connection is not idle.
	sweepInterval        = time.Second // the time between two checks while over half of MaxConnections are open.
)

// Listener bounds the open connections of the embedded listener. Create it with New.
type Listener struct {
	net.Listener
	cfg Config

	mu             sync.Mutex
	stats          Stats // guarded by mu
	sweepScheduled bool  // guarded by mu
	// freshConns and establishedConns hold each *Conn that is not busy, the longest idle first; guarded by mu.
	freshConns, establishedConns list.List
}

// New returns a Listener that accepts connections from l.
func New(l net.Listener, cfg Config) *Listener {
	if cfg.OnRefuse == nil {
		cfg.OnRefuse = func(c net.Conn) { _ = c.Close() } // The connection was not used, so an error of Close loses nothing.
	}
	return &Listener{Listener: l, cfg: cfg}
}

// Stats are the figures of a Listener.
type Stats struct {
	// Open is how many connections there are now.
	Open int64
	// These count connections since the start. Evicted ones were closed for a new connection, ClosedIdle ones because they
	// were idle on a nearly full port, and ClosedOverBudget ones because they held too many bytes.
	Accepted, Refused, Evicted, ClosedIdle, ClosedOverBudget int64
}

// Stats returns the figures of l.
func (l *Listener) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats
}

// Accept returns the next connection for which there is room, as a *Conn. If the process has no file descriptor left,
// Accept closes the longest idle connection and returns a temporary error.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
				l.mu.Lock()
				victim := l.evictIdleConn(time.Now())
				l.mu.Unlock()
				_ = victim.Close() // The server learns from Read or Write that the connection is closed.
			}
			return nil, err
		}
		if c := l.AdmitConn(raw); c != nil {
			return c, nil
		}
	}
}

// AdmitConn makes raw a connection of the port. Without room, it calls Config.OnRefuse and returns nil.
func (l *Listener) AdmitConn(raw net.Conn) *Conn {
	var victim *Conn
	l.mu.Lock()
	now := time.Now()
	if l.isFull() {
		victim = l.evictIdleConn(now)
	}
	if l.isFull() {
		l.stats.Refused++
		l.mu.Unlock()
		l.cfg.OnRefuse(raw)
		return nil
	}
	c := &Conn{Conn: raw, listener: l}
	if l.cfg.AnswersAreShort {
		c.Conn = sockets.New(raw)
	}
	c.MemoryAccount = l.cfg.MemoryBudget.OpenAccount(c.closeOverBudget)
	l.stats.Open++
	l.stats.Accepted++
	c.moveTo(&l.freshConns, now)
	if !l.sweepScheduled {
		l.scheduleSweep()
	}
	l.mu.Unlock()
	_ = victim.Close() // The server learns from Read or Write that the connection is closed.
	limitUnreadTime(raw, l.cfg.UnreadTimeout)
	return c
}

func (l *Listener) isFull() bool                   { return l.hasMoreOpenThan(l.cfg.MaxConnections - 1) }
func (l *Listener) hasMoreOpenThan(conns int) bool { return l.stats.Open > int64(conns) }

// evictIdleConn removes the connection to close for a new one; nil if none is idle. The caller holds mu, and closes the
// connection after releasing mu.
func (l *Listener) evictIdleConn(now time.Time) *Conn {
	// Each refreshIfWritten moves a connection that was written to since it was last checked, at most once in
	// activeTimeAfterWrite. So the cost is constant per new connection and per write.
	for range l.stats.Open + 1 {
		c := longestIdleConn(&l.establishedConns)
		if c == nil || now.Sub(c.idleSince) < activeTimeAfterWrite || l.freshConns.Len() > l.cfg.MaxConnections/4 {
			c = longestIdleConn(&l.freshConns)
		}
		if c == nil {
			return nil
		}
		if !l.refreshIfWritten(c, now) {
			l.removeConn(c)
			l.stats.Evicted++
			return c
		}
	}
	return nil // All connections were written to just now.
}

// longestIdleConn returns the longest idle connection of conns, or nil.
func longestIdleConn(conns *list.List) *Conn {
	if e := conns.Front(); e != nil {
		return e.Value.(*Conn)
	}
	return nil
}

// refreshIfWritten moves c to the end of its list if it was written to, and reports that. The caller holds mu.
func (l *Listener) refreshIfWritten(c *Conn, now time.Time) bool {
	written := c.writeCount.Load() != c.writesWhenIdle
	if written {
		l.markIdle(c, now)
	}
	return written
}

// markIdle makes c the connection that became idle last. The caller holds mu.
func (l *Listener) markIdle(c *Conn, now time.Time) {
	conns := &l.freshConns
	c.writesWhenIdle = c.writeCount.Load()
	if c.idleList == &l.establishedConns || l.tryAddToEstablished(c, now) {
		conns = &l.establishedConns
	}
	c.moveTo(conns, now)
}

// tryAddToEstablished reports whether c becomes established. An eighth of MaxConnections is reserved for fresh
// connections. If no other place is free, c takes the place of the longest idle established connection, but only if c
// was written to more often: a flood of connections with one request each must not displace lasting ones. The caller
// holds mu.
func (l *Listener) tryAddToEstablished(c *Conn, now time.Time) bool {
	if int(c.writesWhenIdle) <= l.cfg.GreetingWrites {
		return false
	}
	if l.establishedConns.Len() < l.cfg.MaxConnections-l.cfg.MaxConnections/8 {
		return true
	}
	other := longestIdleConn(&l.establishedConns)
	if other == nil || other.writesWhenIdle >= c.writesWhenIdle {
		return false
	}
	other.moveTo(&l.freshConns, now)
	return true
}

// removeConn stops counting c as open. Further calls do nothing. The caller holds mu.
func (l *Listener) removeConn(c *Conn) {
	if !c.isRemoved {
		c.isRemoved = true
		l.stats.Open--
		c.moveTo(nil, time.Time{})
	}
}

// scheduleSweep schedules a sweep if more than half of MaxConnections are open. The caller holds mu.
func (l *Listener) scheduleSweep() {
	if l.sweepScheduled = l.hasMoreOpenThan(l.cfg.MaxConnections / 2); l.sweepScheduled {
		time.AfterFunc(sweepInterval, l.sweepConns)
	}
}

// sweepConns checks all connections: it moves those that were written to, and closes those that are idle for too long
// while more than three quarters of MaxConnections are open.
func (l *Listener) sweepConns() {
	var expired []*Conn
	l.mu.Lock()
	now := time.Now()
	for _, conns := range []*list.List{&l.freshConns, &l.establishedConns} {
		for e := conns.Front(); e != nil; {
			c := e.Value.(*Conn)
			if now.Sub(c.idleSince) < activeTimeAfterWrite {
				break
			}
			e = e.Next()
			pressure := l.cfg.MaxIdleUnderPressure > 0 && l.hasMoreOpenThan(l.cfg.MaxConnections-l.cfg.MaxConnections/4)
			if !l.refreshIfWritten(c, now) && pressure && now.Sub(c.idleSince) >= l.cfg.MaxIdleUnderPressure {
				l.removeConn(c)
				l.stats.ClosedIdle++
				expired = append(expired, c)
			}
		}
	}
	l.scheduleSweep()
	l.mu.Unlock()
	for _, c := range expired {
		_ = c.Close() // The server learns from Read or Write that the connection is closed.
	}
}
