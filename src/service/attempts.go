package service

import (
	"context"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
)

// wrongTokenLimit is how many wrong tokens a client may send to the debug port: 10 at once, and 10 in each minute.
var wrongTokenLimit = algorithm.Limit{Kind: algorithm.GCRA, Max: 10, Burst: 9, Period: time.Minute}

// tokenAttempts is an admin.Attempts. It has 128 KiB for clients, and evicts those that it refuses last.
type tokenAttempts struct{ counters *memory.Store }

func newTokenAttempts() (*tokenAttempts, error) {
	counters, err := memory.New(memory.Config{MaxBytes: memory.MinBytes})
	return &tokenAttempts{counters}, err
}

// Add counts an attempt, and returns how long the client has to wait if it has made too many.
func (a *tokenAttempts) Add(client string) time.Duration {
	return a.take(client, algorithm.Charge).RetryAfter
}

// Forgive takes an attempt back.
func (a *tokenAttempts) Forgive(client string) { a.take(client, algorithm.Refund) }

func (a *tokenAttempts) take(client string, op algorithm.Op) backend.Verdict {
	b := backend.Batch{
		Hits:     []backend.Hit{{Key: []byte(client), Limit: &wrongTokenLimit, Op: op, Amount: 1}},
		Verdicts: make([]backend.Verdict, 1),
	}
	_ = a.counters.Take(context.Background(), &b) // The batch is valid.
	return b.Verdicts[0]
}
