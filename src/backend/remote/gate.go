package remote

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// Gate bounds how often the links of one server connect while none of their connections
// is of use, because the server is down, or answers and is of no use, as a replica is.
//
// It works while the Breaker of the server is closed. Once that is open, probes connect
// at the Breaker's pace without the gate, and one that is answered opens the gate.
type Gate struct {
	mu    sync.Mutex
	wait  time.Duration // 0: the gate is open
	after time.Time     // then one link may try
	tried bool          // one does
	err   error         // why not
	setup time.Duration // that the last connection took to be made; 0: none was
}

// The pause between two attempts to connect doubles up to retryMost, with jitter, so
// that a server that comes back is found within a second and not by all at once.
const (
	retryLeast = 10 * time.Millisecond
	retryMost  = 500 * time.Millisecond
)

// Pass returns nil if a link may connect: always while the gate is open, else once in
// each pause.
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

// Pause closes the gate for a moment; err is why.
func (g *Gate) Pause(err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if g.wait > 0 && now.Before(g.after) && !g.tried {
		return // another link that failed at the same time has closed it
	}
	g.err, g.tried = err, false
	g.wait = min(max(2*g.wait, retryLeast), retryMost)
	g.after = now.Add(g.wait/2 + rand.N(g.wait/2+1))
}

// Connected says how long the making of a connection took.
func (g *Gate) Connected(took time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.setup = took
}

// Patience returns how long the making of a connection goes on before it counts as an
// attempt without an answer: the timeout of a call, or twice as long as it took the last
// time, if that is more. A server that was never reached has half of the bound.
func (g *Gate) Patience(timeout, bound time.Duration) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.setup == 0 {
		return max(timeout, bound/2)
	}
	return max(timeout, 2*g.setup)
}

// Open opens the gate: a connection was of use.
func (g *Gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wait, g.tried, g.err = 0, false, nil
}
