package admin

import (
	"context"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
)

// wrongTokenLimit is how many wrong tokens a client may send to the debug port: 10 at once, and 10 in each minute.
var wrongTokenLimit = algorithm.Limit{Kind: algorithm.GCRA, Max: 10, Burst: 9, Period: time.Minute}

// Attempts bounds how often a client may send a wrong token. It has 128 KiB for clients, and evicts those that it
// refuses last.
type Attempts struct{ counters *memory.Store }

// NewAttempts returns an Attempts without clients.
func NewAttempts() (*Attempts, error) {
	counters, err := memory.New(memory.Config{MaxBytes: memory.MinBytes})
	return &Attempts{counters}, err
}

// Add counts an attempt of a client. It returns 0 if the attempt is allowed, else the time until the next one is.
func (a *Attempts) Add(client string) time.Duration {
	return a.take(client, algorithm.Charge).RetryAfter
}

// Forgive takes the last attempt of a client back, because its token was right.
func (a *Attempts) Forgive(client string) { a.take(client, algorithm.Refund) }

func (a *Attempts) take(client string, op algorithm.Op) backend.Verdict {
	hit := backend.Hit{Key: []byte(client), Limit: &wrongTokenLimit, Op: op, Amount: 1}
	v, _ := backend.TakeHit(context.Background(), a.counters, hit) // The hit is valid, and memory always answers.
	return v
}
