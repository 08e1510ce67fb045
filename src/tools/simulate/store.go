package simulate

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/src/backend/redis"
	"ratelimit/src/backend/remote"
)

// Store holds the counters of one run, under keys that begin with Prefix.
type Store struct {
	backend.Backend
	Prefix string
	Bytes  func() int64 // that the counters take in this process; nil: they are elsewhere
	// Close ends the store. It returns an error if the store lost counters or keeps some.
	Close func(context.Context) error
}

// OpenMemory returns a store that takes at most maxBytes. With clockSteps it keeps
// counters for requests that are earlier than those before them.
func OpenMemory(maxBytes int64, clockSteps bool) (*Store, error) {
	cfg := memory.Config{MaxBytes: maxBytes}
	if clockSteps {
		cfg.Grace = memory.MaxGrace
	}
	m, err := memory.New(cfg)
	if err != nil {
		return nil, err
	}
	return &Store{Backend: m, Bytes: m.Bytes, Close: func(context.Context) error {
		if n := m.Stats().Evicted; n > 0 {
			return fmt.Errorf("counters that made room for others: %d, so decisions may be wrong; raise --memory-max-bytes", n)
		}
		return nil
	}}, nil
}

// A single decision may take long; the end of the run may not.
const (
	redisTimeout  = 5 * time.Second
	forgetTimeout = time.Minute
)

// OpenRedis returns a store in the Redis that cfg names, under a random prefix. Close
// deletes its keys.
func OpenRedis(ctx context.Context, cfg redis.Config) (*Store, error) {
	cfg.Connections = 1 // calls come one after the other
	cfg.Timeout, cfg.DialTimeout = redisTimeout, redisTimeout
	r, err := redis.New(cfg)
	if err != nil {
		return nil, err
	}
	pingCtx, cancel := context.WithTimeout(ctx, 2*remote.SetupTimeout(0))
	defer cancel()
	if err := r.Ping(pingCtx); err != nil {
		return nil, fmt.Errorf("no answer from Redis: %w", err)
	}
	var random [8]byte
	_, _ = rand.Read(random[:]) // it never fails
	prefix := "simulate-" + hex.EncodeToString(random[:]) + ":"
	runs, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- r.Run(runs) }()
	return &Store{Backend: r, Prefix: prefix, Close: func(ctx context.Context) error {
		stop() // first, so that no call is under way any more
		err := <-ended
		ctx, cancel := context.WithTimeout(ctx, forgetTimeout)
		defer cancel()
		_, left := r.Forget(ctx, prefix)
		if left != nil {
			left = fmt.Errorf("keys that begin with %s may be left in Redis until they expire: %w", prefix, left)
		}
		return errors.Join(err, left)
	}}, nil
}
