package remote

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// Gate limits how often the links of one server connect while none of their connections is
// useful, because the server is down or cannot serve, as a replica cannot.
//
// While the Breaker of the server is open, probes connect without the gate, and the first one that is answered opens
// the gate.
type Gate struct {
	mu           sync.Mutex
	attemptPause time.Duration // the time between two attempts to connect, and 0 while the gate is open
	nextAttempt  time.Time     // when the next link may connect
	attempting   bool          // a link is connecting after a pause
	refusal      error         // the error that Pass returns during a pause
}

// The pause between two attempts doubles from minGatePause to maxGatePause, with jitter, so
// that a server that restarts is found soon and not by all replicas at once.
const (
	minGatePause = 10 * time.Millisecond
	maxGatePause = 500 * time.Millisecond
)

// Pass returns nil if a link may connect: always while the gate is open, else once in each pause.
func (g *Gate) Pass() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.attemptPause == 0 {
		return nil
	}
	now := time.Now()
	if now.Before(g.nextAttempt) {
		return g.refusal
	}
	g.nextAttempt, g.attempting = now.Add(g.attemptPause), true
	return nil
}

// CloseForPause closes the gate for a moment because of err. A canceled context is ignored.
func (g *Gate) CloseForPause(err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if g.attemptPause > 0 && now.Before(g.nextAttempt) && !g.attempting {
		return // Another link, which failed at the same time, has closed the gate.
	}
	g.refusal, g.attempting = err, false
	g.attemptPause = min(max(2*g.attemptPause, minGatePause), maxGatePause)
	g.nextAttempt = now.Add(g.attemptPause/2 + rand.N(g.attemptPause/2+1))
}

// Open opens the gate after a useful answer.
func (g *Gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.attemptPause, g.attempting, g.refusal = 0, false, nil
}
