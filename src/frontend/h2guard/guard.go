package h2guard

import (
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

// Config says what a Guard holds connections to.
type Config struct {
	// Budget is what the bytes of all connections are charged to; nil: no bound.
	Budget *budget.Budget
	// Stall is how long a connection may make no progress in writing before it is
	// closed. Defaults to 10 s.
	Stall time.Duration
}

// defaultStall is longer than any pause of a client that still reads.
const defaultStall = 10 * time.Second

// sweepEvery is how often Run looks for connections that make no progress.
const sweepEvery = time.Second

// Guard watches the connections of one server. Create it with New.
type Guard struct {
	cfg   Config
	begun time.Time

	mu    sync.Mutex
	conns map[*Conn]struct{} // guarded by mu
	// evicted are connections that were closed for what they held, and when what is
	// left of it is taken to be collected, since begun; guarded by mu.
	evicted map[*Conn]time.Duration
	remains atomic.Int64 // of them all

	long    atomic.Int64 // bytes of long calls
	maxLong int64

	stalled, slowed, longRefused atomic.Int64

	now func() time.Duration // since begun
}

// Stats are the figures of a Guard.
type Stats struct {
	// Stalled is how many connections were closed because they made no progress
	// in writing.
	Stalled int64
	// Slowed is how often a connection was read from later because it had used
	// up its tokens.
	Slowed int64
	// LongRefused is how many long calls OpenLong refused.
	LongRefused int64
}

// New returns a guard without connections.
func New(cfg Config) *Guard {
	if cfg.Stall == 0 {
		cfg.Stall = defaultStall
	}
	g := &Guard{cfg: cfg, begun: time.Now(), conns: make(map[*Conn]struct{}), evicted: make(map[*Conn]time.Duration)}
	g.now = func() time.Duration { return time.Since(g.begun) }
	g.maxLong = math.MaxInt64
	if cfg.Budget != nil {
		g.maxLong = cfg.Budget.Max() / 4
	}
	return g
}

// Stats returns the figures since the start.
func (g *Guard) Stats() Stats {
	return Stats{Stalled: g.stalled.Load(), Slowed: g.slowed.Load(), LongRefused: g.longRefused.Load()}
}

// Wrap returns conn as the server should use it. cut must close what is under
// conn at once, without the farewell of TLS, and must not block; it ends reads and
// writes that are blocked.
func (g *Guard) Wrap(conn net.Conn, cut func()) *Conn {
	c := &Conn{Conn: conn, guard: g, cut: cut, done: make(chan struct{}), tokens: maxTokens, streams: make(map[uint32]stream)}
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
		g.evicted[c] = g.now() + collectedAfter
	}
}

// collectedAfter is how long what an evicted connection held can be in use after its
// server closed it.
const collectedAfter = 3 * time.Second

// crowded reports whether there is no room in the budget as long as what evicted
// connections held is still in use. An eighth of the budget, which an eviction frees,
// may be exceeded: a call without a handler never says that it ended, and reading
// must not stop for collectedAfter because of a few such calls.
func (g *Guard) crowded() bool {
	remains := g.remains.Load()
	if remains == 0 {
		return false
	}
	most := g.cfg.Budget.Max()
	return remains+g.cfg.Budget.Held() > most+most/8
}

// Run closes connections that make no progress, until ctx ends.
func (g *Guard) Run(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
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
			c.collected(math.MaxInt64)
			delete(g.evicted, c)
		}
	}
	g.mu.Unlock()
	for _, c := range conns { // without mu: evict takes it while it holds that of a connection
		if c.sweep(now) {
			g.stalled.Add(1)
			c.kill()
		}
	}
}
