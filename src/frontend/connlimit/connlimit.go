// Package connlimit bounds the open connections of one port, and with a Budget the bytes
// that the connections of all ports hold. When the port is full, the connection that has
// been idle for longest makes room for a new one.
//
// A connection becomes idle when it is accepted and after each write to it. Only writes
// count: a client that sends one byte a second is idle. An HTTP connection is busy from
// the end of a request to its answer, see HTTP.
//
//	new connection, port full -> close the longest idle of
//	  established  answered before: if idle for a second or more
//	  fresh        all others: if no established one qualifies, or if the fresh ones
//	               are more than a quarter of the port
//	  An eighth of the port is for fresh ones, even if they were answered.
//	no idle connection -> refuse the new one
//
// So new connections that send nothing close each other. A connection that gets an
// answer each second stays open, unless such connections fill seven eighths of the port.
package connlimit

import (
	"container/list"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"
)

// Config says what a Listener allows.
type Config struct {
	// Max is how many connections may be open; 1 or more.
	Max int
	// Greeting is how many writes a connection gets before its first answer, such as
	// those of a TLS handshake.
	Greeting int
	// IdleUnderPressure is how long a connection may be idle while more than three
	// quarters of Max are open. 0: no bound.
	IdleUnderPressure time.Duration
	// Unread is how long a client may leave output unread before the kernel closes the
	// connection; on Linux only. 0: no bound.
	Unread time.Duration
	// Budget counts what connections hold. If it is used up, those that hold the most are
	// closed. Nil: no bound.
	Budget *Budget
	// Unmetered makes Hold and Release alone charge the budget. Otherwise a connection
	// also holds what was read since the last Answered, and what is being written.
	Unmetered bool
	// Refuse is given each connection for which there is no room, and must not block.
	// Nil: it is closed.
	Refuse func(net.Conn)
}

const (
	// activeTime is how long an established connection is not idle after a write.
	activeTime = time.Second
	// sweepInterval is how often connections are checked while more than half of Max
	// are open.
	sweepInterval = time.Second
)

// Listener is a listener with a bound on its open connections. Create it with New.
type Listener struct {
	net.Listener
	cfg Config

	mu       sync.Mutex // guards what follows
	stats    Stats
	sweeping bool // sweep is scheduled
	// fresh and established are the connections that are not busy, longest idle first.
	fresh, established list.List // of *Conn
}

// New returns a Listener over l.
func New(l net.Listener, cfg Config) *Listener {
	if cfg.Refuse == nil {
		cfg.Refuse = func(c net.Conn) { _ = c.Close() } // nothing was sent
	}
	return &Listener{Listener: l, cfg: cfg}
}

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
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats
}

// Accept returns the next connection for which there is room, as a *Conn. If the process
// has no file descriptor left, it closes the longest idle connection and returns the
// error, which is temporary.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
				l.mu.Lock()
				victim := l.evict(time.Now())
				l.mu.Unlock()
				_ = victim.Close() // its reader returns the error
			}
			return nil, err
		}
		if c := l.Admit(raw); c != nil {
			return c, nil
		}
	}
}

// Admit returns raw as a connection of the port. If there is no room, it passes raw to
// Config.Refuse and returns nil.
func (l *Listener) Admit(raw net.Conn) *Conn {
	var victim *Conn
	l.mu.Lock()
	now := time.Now()
	if l.full() {
		victim = l.evict(now)
	}
	if l.full() {
		l.stats.Refused++
		l.mu.Unlock()
		l.cfg.Refuse(raw)
		return nil
	}
	c := &Conn{Conn: raw, of: l}
	c.Account = l.cfg.Budget.Open(c.evict)
	l.stats.Open++
	l.stats.Accepted++
	c.push(&l.fresh, now)
	if !l.sweeping {
		l.scheduleSweep()
	}
	l.mu.Unlock()
	_ = victim.Close() // its reader returns the error
	boundUnread(raw, l.cfg.Unread)
	return c
}

func (l *Listener) full() bool           { return l.above(l.cfg.Max - 1) }
func (l *Listener) above(conns int) bool { return l.stats.Open > int64(conns) }

// evict removes the connection that makes room for a new one, for the caller to close
// without mu. It returns nil if none is idle. The caller holds mu.
func (l *Listener) evict(now time.Time) *Conn {
	// Each connection that is refreshed was written to since it was last checked, and
	// established ones are checked once in activeTime, so the cost is constant per new
	// connection and per write.
	for range l.stats.Open + 1 {
		c := oldest(&l.established)
		if c == nil || now.Sub(c.since) < activeTime || l.fresh.Len() > l.cfg.Max/4 {
			c = oldest(&l.fresh)
		}
		if c == nil {
			return nil
		}
		if !l.refresh(c, now) {
			l.remove(c)
			l.stats.Evicted++
			return c
		}
	}
	return nil // all were written to just now
}

// oldest returns the longest idle connection of conns, or nil.
func oldest(conns *list.List) *Conn {
	if e := conns.Front(); e != nil {
		return e.Value.(*Conn)
	}
	return nil
}

// refresh reports whether c was written to since it was last checked, and if so moves it
// behind all others. The caller holds mu.
func (l *Listener) refresh(c *Conn, now time.Time) bool {
	written := c.writes.Load() != c.seen
	if written {
		l.idle(c, now)
	}
	return written
}

// idle makes c the connection that became idle last. The caller holds mu.
func (l *Listener) idle(c *Conn, now time.Time) {
	was := c.list
	c.unlist()
	c.seen = c.writes.Load()
	if was == &l.established || l.establish(c, now) {
		c.push(&l.established, now)
	} else {
		c.push(&l.fresh, now)
	}
}

// establish reports whether c becomes established. An eighth of Max is left to fresh
// connections, so there is room for new ones. Beyond that, c takes the place of the
// longest idle one if it was written to more often: a flood of connections with one
// request each does not displace lasting ones. The caller holds mu.
func (l *Listener) establish(c *Conn, now time.Time) bool {
	if int(c.seen) <= l.cfg.Greeting {
		return false
	}
	if l.established.Len() < l.cfg.Max-l.cfg.Max/8 {
		return true
	}
	other := oldest(&l.established)
	if other == nil || other.seen >= c.seen {
		return false
	}
	other.unlist()
	other.push(&l.fresh, now)
	return true
}

// remove stops counting c, if it did not do so before. The caller holds mu.
func (l *Listener) remove(c *Conn) {
	if c.gone {
		return
	}
	c.gone = true
	l.stats.Open--
	c.unlist()
}

// scheduleSweep schedules a sweep if more than half of Max are open. The caller holds mu.
func (l *Listener) scheduleSweep() {
	if l.sweeping = l.above(l.cfg.Max / 2); l.sweeping {
		time.AfterFunc(sweepInterval, l.sweep)
	}
}

// sweep refreshes connections that were written to, and closes idle ones while more than
// three quarters of Max are open.
func (l *Listener) sweep() {
	var expired []*Conn
	l.mu.Lock()
	now := time.Now()
	for _, conns := range []*list.List{&l.fresh, &l.established} {
		for e := conns.Front(); e != nil; {
			c := e.Value.(*Conn)
			if now.Sub(c.since) < activeTime {
				break
			}
			e = e.Next()
			pressure := l.cfg.IdleUnderPressure > 0 && l.above(l.cfg.Max-l.cfg.Max/4)
			if !l.refresh(c, now) && pressure && now.Sub(c.since) >= l.cfg.IdleUnderPressure {
				l.remove(c)
				l.stats.Expired++
				expired = append(expired, c)
			}
		}
	}
	l.scheduleSweep()
	l.mu.Unlock()
	for _, c := range expired {
		_ = c.Close() // its reader returns the error
	}
}
