// Package h2guard bounds what the client of one HTTP/2 connection can make the server
// hold and do. A Conn wraps a net.Conn, reads the frame headers in both directions, and
// changes no byte:
//
//	           HEADERS        opens a stream: StreamBytes and its headers
//	client ──► DATA           of an open stream: its payload
//	           RST_STREAM     ends a stream; its bytes stay charged for two sweeps,
//	                          or until its handler calls Cancelled
//	           any other      costs a token
//
//	       ◄── END_STREAM     ends a stream and releases its bytes
//	           RST_STREAM     as above
//
// The connection's account in the shared budget holds the bytes. When the budget is used
// up, the connections that hold the most are closed, and connections that hold more than
// 64 KiB are not read from until that memory is free. The server charges replies that are
// not written yet with Queued.
//
// Tokens bound work that costs the client nothing. A connection earns 1,000 a second and
// 8 for each stream it opens, and keeps at most 1,000. A frame other than HEADERS and DATA
// of a reasonable size costs one; a stream that either side resets within 5 ms costs ten.
// Without tokens, a connection is read from only as fast as it earns them.
//
// A connection is closed if a write to it is blocked for Config.Stall, or if replies are
// queued and none of them is written for that long.
package h2guard

import (
	"cmp"
	"context"
	"maps"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/frontend/budget"
)

// Config configures a Guard.
type Config struct {
	// Budget holds the bytes of all connections; nil: no bound.
	Budget *budget.Budget
	// Stall is how long a connection may make no progress in writing before it is
	// closed. Defaults to 10 s.
	Stall time.Duration
}

const (
	// defaultStall is longer than any pause of a client that still reads.
	defaultStall = 10 * time.Second
	// sweepInterval is how often Run checks for connections that make no progress.
	sweepInterval = time.Second
	// freedAfter is how long the handlers of an evicted connection may use its memory
	// after the server closed it.
	freedAfter = 3 * time.Second
)

// Guard watches the connections of one server. Create it with New.
type Guard struct {
	cfg Config
	now func() time.Duration // since New

	mu    sync.Mutex
	conns map[*Conn]struct{} // guarded by mu
	// evicted are closed connections whose memory is in use until the given time at the
	// latest; guarded by mu.
	evicted map[*Conn]time.Duration
	remains atomic.Int64 // bytes of evicted connections that are in use

	longBytes                    atomic.Int64 // of long calls
	stalled, slowed, longRefused atomic.Int64 // see Stats
}

// Stats are the figures of a Guard since the start.
type Stats struct {
	// Stalled is how many connections were closed because they made no progress
	// in writing.
	Stalled int64
	// Slowed is how often a read waited because the connection had no tokens.
	Slowed int64
	// LongRefused is how many long calls OpenLong refused.
	LongRefused int64
}

// New returns a guard without connections.
func New(cfg Config) *Guard {
	cfg.Stall = cmp.Or(cfg.Stall, defaultStall)
	start := time.Now()
	return &Guard{
		cfg: cfg, now: func() time.Duration { return time.Since(start) },
		conns: make(map[*Conn]struct{}), evicted: make(map[*Conn]time.Duration),
	}
}

// Stats returns the figures of g.
func (g *Guard) Stats() Stats {
	return Stats{Stalled: g.stalled.Load(), Slowed: g.slowed.Load(), LongRefused: g.longRefused.Load()}
}

// Wrap returns conn for the server to use. cut must close the connection under conn at
// once, without TLS's close_notify, so that blocked reads and writes fail. It must not block.
func (g *Guard) Wrap(conn net.Conn, cut func()) *Conn {
	c := &Conn{Conn: conn, guard: g, cut: cut, bucket: bucket{tokens: maxTokens}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.open = make(map[uint32]stream)
	c.in.skip = prefaceLen
	c.account = g.cfg.Budget.Open(c.evict)
	g.mu.Lock()
	g.conns[c] = struct{}{}
	g.mu.Unlock()
	return c
}

func (g *Guard) closed(c *Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, c)
	if c.remains.Load() > 0 {
		g.evicted[c] = g.now() + freedAfter
	}
}

// full reports whether the budget has no room because handlers of evicted connections
// still use memory. The budget may be exceeded by an eighth, which an eviction frees:
// a call without a handler never reports its end, and a few of them must not stop
// reading for freedAfter.
func (g *Guard) full() bool {
	remains := g.remains.Load()
	if remains == 0 {
		return false
	}
	most := g.cfg.Budget.Max()
	return remains+g.cfg.Budget.Held() > most+most/8
}

// Run closes connections that make no progress, until ctx ends.
func (g *Guard) Run(ctx context.Context) {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			g.sweep()
		case <-ctx.Done():
			return
		}
	}
}

func (g *Guard) sweep() {
	now := g.now()
	g.mu.Lock()
	conns := slices.Collect(maps.Keys(g.conns))
	for c, until := range g.evicted {
		if now >= until || c.remains.Load() == 0 {
			c.freed(math.MaxInt64)
			delete(g.evicted, c)
		}
	}
	g.mu.Unlock()
	for _, c := range conns { // without mu: evict takes it while it holds a connection's mu
		if c.sweep(now) {
			g.stalled.Add(1)
			c.kill()
		}
	}
}
