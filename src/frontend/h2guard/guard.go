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
// A connection is closed if a write to it is blocked for 10 s, or if replies are queued
// and none of them is written for that long.
package h2guard

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"ratelimit/src/frontend/connlimit"
)

const (
	// stall is longer than any pause of a client that still reads.
	stall = 10 * time.Second
	// sweepInterval is how often a connection is checked for progress.
	sweepInterval = time.Second
	// freedAfter is how long the handlers of an evicted connection may use its memory.
	freedAfter = 3 * time.Second
)

// Guard has what the connections of one server share. Create it with New.
type Guard struct {
	// Stalled counts connections that were closed because they made no progress in
	// writing, Slowed reads that waited because their connection had no tokens, and
	// LongRefused long calls that OpenLong refused.
	Stalled, Slowed, LongRefused atomic.Int64

	budget    *connlimit.Budget
	start     time.Time
	remains   atomic.Int64 // bytes of evicted connections that are in use
	longBytes atomic.Int64 // of long calls
}

// New returns a guard without connections. budget holds the bytes of all connections;
// nil: no bound.
func New(budget *connlimit.Budget) *Guard { return &Guard{budget: budget, start: time.Now()} }

// now returns the time since New.
func (g *Guard) now() time.Duration { return time.Since(g.start) }

// Wrap returns conn for the server to use. cut must close the connection under conn at
// once, without TLS's close_notify, so that blocked reads and writes fail. It must not block.
func (g *Guard) Wrap(conn net.Conn, cut func()) *Conn {
	c := &Conn{Conn: conn, guard: g, cut: cut, bucket: bucket{tokens: maxTokens}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.open = make(map[uint32]stream)
	c.in.skip = prefaceLen
	c.account = g.budget.Open(c.evict)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sweeps = time.AfterFunc(sweepInterval, c.sweep)
	return c
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
	most := g.budget.Max()
	return remains+g.budget.Held() > most+most/8
}
