// Package h2guard bounds what the client of one HTTP/2 connection can make the server hold and
// do. A Conn wraps a net.Conn and reads the frame headers in both directions. It changes no byte:
//
//	           HEADERS        opens a stream: charges StreamBytes and the headers
//	client ──► DATA           charges the payload, if the stream is open
//	           RST_STREAM     ends a stream; its bytes stay charged for two sweeps,
//	                          or until its handler calls ReleaseCancelledCall
//	           other frames   cost a token
//
//	       ◄── END_STREAM     ends a stream and releases its bytes
//	           RST_STREAM     as above
//
// The bytes are charged to the connection's account in the shared budget. When the budget is used up, the connections
// that hold the most are closed. Until their memory is free, connections that hold more than 64 KiB are not read from.
// The server charges replies that are not written yet with ChargeQueuedReply.
//
// Tokens bound work that costs the client nothing. A connection earns 1,000 tokens a second and 8 for each stream that
// it opens, and keeps at most 1,000. A frame costs one token, unless it is HEADERS, or DATA of a reasonable size. A
// stream that either side resets within 5 ms costs ten. A connection without tokens is read from only as fast as it
// earns them.
//
// A connection is closed if a write to it is blocked for 10 s, or if replies are queued and none
// of them is written for that long.
package h2guard

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"ratelimit/src/frontend/connlimit"
)

const (
	maxStallTime   = 10 * time.Second // longer than any pause of a client that still reads.
	sweepInterval  = time.Second      // the time between two checks of a connection for progress.
	maxHandlerTime = 3 * time.Second  // how long handlers of an evicted connection use memory at most.
)

// Guard holds the state that the connections of one server share. Create it with New.
type Guard struct {
	// StalledConnections counts connections that were closed because their client did not read. SlowedReads counts reads
	// that waited because their connection had no tokens.
	StalledConnections, SlowedReads atomic.Int64

	memoryBudget        *connlimit.MemoryBudget
	startTime           time.Time
	evictedHandlerBytes atomic.Int64 // the memory that the handlers of evicted connections still use.
}

// New returns a guard without connections. budget, if not nil, bounds the bytes of all connections.
func New(budget *connlimit.MemoryBudget) *Guard {
	return &Guard{memoryBudget: budget, startTime: time.Now()}
}

// timeSinceStart returns the time since New.
func (g *Guard) timeSinceStart() time.Duration { return time.Since(g.startTime) }

// WrapConn returns a Conn over raw, which is closed when connsCtx ends. The caller may put TLS between both before the
// first use: it sets Conn.Conn.
func (g *Guard) WrapConn(connsCtx context.Context, raw net.Conn) *Conn {
	// TLS would send a close_notify, and blocked reads and writes would go on. The server learns of the close from them.
	cut := func() { _ = raw.Close() }
	c := &Conn{Conn: raw, guard: g, closeUnderlying: cut, tokenBucket: tokenBucket{tokens: maxTokens}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.stopContextWatch = context.AfterFunc(connsCtx, cut)
	c.openStreams = make(map[uint32]openStream)
	c.clientFrames.bytesToSkip = len(http2.ClientPreface)
	c.Account = g.memoryBudget.OpenAccount(c.cutOffOverBudget)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sweepTimer = time.AfterFunc(sweepInterval, c.runSweep)
	return c
}

// budgetIsFull reports whether the budget has no room because handlers of evicted connections still use memory. An
// eighth more is allowed: calls without a handler never report their end, and few of them must not stop reading.
func (g *Guard) budgetIsFull() bool {
	evicted := g.evictedHandlerBytes.Load()
	return evicted > 0 && evicted+g.memoryBudget.HeldBytes() > g.memoryBudget.MaxBytes()+g.memoryBudget.MaxBytes()/8
}
