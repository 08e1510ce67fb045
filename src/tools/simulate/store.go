package simulate

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/src/backend/redis"
	"ratelimit/src/backend/remote"
	servicestore "ratelimit/src/service/store"
	"ratelimit/src/settings"
)

// store holds the counters of one run.
type store struct {
	backend.Backend
	keyPrefix string
	// bytes returns the memory of the counters. It is nil if they are not in this process.
	bytes func() int64
	// close returns an error if the store lost counters during the run, or still keeps some.
	close func(context.Context) error
}

func (opt *options) openStore(ctx context.Context, cfg *Config) (*store, error) {
	if opt.backend == "redis" {
		var rc redis.Config
		rc.TagKeys = cfg.EscapeKeys // --key-format v2 asks for escaped keys and for hash tags.
		if err := servicestore.ReachRedis(&rc, opt.redis, settings.TLSFiles{}); err != nil {
			return nil, err
		}
		return openRedis(ctx, rc)
	}
	m, err := cfg.NewMemory(cfg.MaxMemoryBytes)
	if err != nil {
		return nil, err
	}
	return &store{Backend: m, bytes: m.Bytes, close: func(context.Context) error { return CheckEvictions(m) }}, nil
}

// CheckEvictions returns an error if counters of a replay have made room for others.
func CheckEvictions(m *memory.Store) error {
	if n := m.Stats().EvictedKeys; n > 0 {
		return fmt.Errorf("counters that made room for others: %d, so answers may be wrong; raise --memory-max-bytes", n)
	}
	return nil
}

// NewMemory returns a store in memory for a replay with this configuration, of at most that many bytes.
func (cfg *Config) NewMemory(maxBytes int64) (*memory.Store, error) {
	mc := memory.Config{MaxBytes: maxBytes}
	if cfg.AllowClockSteps {
		mc.ExpiryGrace = memory.MaxExpiryGrace
	}
	return memory.New(mc)
}

const (
	redisTimeout  = 5 * time.Second // bounds one decision.
	deleteTimeout = time.Minute     // bounds the deletion of all keys at the end.
)

// openRedis returns a store in the Redis that cfg names. All keys have a random prefix, and close deletes them.
func openRedis(ctx context.Context, cfg redis.Config) (*store, error) {
	cfg.Connections = 1 // The run makes one call at a time.
	cfg.Timeout, cfg.DialTimeout = redisTimeout, redisTimeout
	r, err := redis.New(cfg)
	if err != nil {
		return nil, err
	}
	runCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- r.Run(runCtx) }()
	pingCtx, cancel := context.WithTimeout(ctx, 2*remote.DefaultDialTimeout(0))
	defer cancel()
	if err := r.Ping(pingCtx); err != nil {
		stop()
		return nil, fmt.Errorf("no answer from Redis: %w", errors.Join(err, <-ended))
	}
	var random [8]byte
	_, _ = rand.Read(random[:]) // crypto/rand.Read never returns an error.
	prefix := fmt.Sprintf("simulate-%x:", random)
	return &store{Backend: r, keyPrefix: prefix, close: func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, deleteTimeout)
		defer cancel()
		err := r.ResetPrefixes(ctx, []backend.KeyPrefix{{Text: []byte(prefix)}}, false, func([][]byte) {})
		if err != nil {
			err = fmt.Errorf("keys that begin with %s may be left in Redis until they expire: %w", prefix, err)
		}
		stop()
		return errors.Join(err, <-ended)
	}}, nil
}
