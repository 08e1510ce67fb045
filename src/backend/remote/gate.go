package remote

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// Gate keeps the users of one server from connecting again and again while none
// of their connections is of use: a server that is down, or answers and is no good,
// as a replica is, must not be asked as often as we are.
//
// It stands behind the Breaker of the server. That is closed while a server answers
// and is no good, and until a few attempts have failed. Once it is open nobody
// comes to the gate: probes go past it, at the Breaker's pace, and one that is
// answered opens it.
type Gate struct {
	mu    sync.Mutex
	wait  time.Duration // 0: the gate is open
	after time.Time     // then one may try
	tried bool          // one does
	err   error         // why not
	setup time.Duration // that the last connection took to be made; 0: none was
}

// The pause between two attempts to connect doubles up to retryMost while none
// leads to a server that is of use, with jitter, so that one that comes back is
// found within a second and not by all at once.
const (
	retryLeast = 10 * time.Millisecond
	retryMost  = 500 * time.Millisecond
)

// Pass lets everybody through, or in bad times one in each pause.
func (g *Gate) Pass() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.wait == 0 {
		return nil
	}
	now := time.Now()
	if now.Before(g.after) {
		return g.err
	}
	g.after, g.tried = now.Add(g.wait), true
	return nil
}

// Rest closes the gate for a moment; err is why.
func (g *Gate) Rest(err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if g.wait > 0 && now.Before(g.after) && !g.tried {
		return // of several that failed together, one has seen to it
	}
	g.err, g.tried = err, false
	g.wait = min(max(2*g.wait, retryLeast), retryMost)
	g.after = now.Add(g.wait/2 + rand.N(g.wait/2+1))
}

// Connected says that a connection was made, and how long that took.
func (g *Gate) Connected(took time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.setup = took
}

// Patience returns how long the making of a connection goes on before it counts as an
// attempt without an answer: the time of a call, or twice as long as it took the last
// time, if that is more. A server that was never reached has half of the bound.
func (g *Gate) Patience(timeout, bound time.Duration) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.setup == 0 {
		return max(timeout, bound/2)
	}
	return max(timeout, 2*g.setup)
}

// Prove opens it: a connection was of use.
func (g *Gate) Prove() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wait, g.tried, g.err = 0, false, nil
}
