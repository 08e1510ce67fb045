// Package replicas counts the processes that share a store. Each sends heartbeats to the store, whether or not it
// needs the count: it may need it during an outage, in which nothing can be counted.
package replicas

import (
	"context"
	"fmt"
	"sync/atomic"

	"ratelimit/src/backend"
)

// Config configures a Counter.
type Config struct {
	// Fixed is the number of replicas, which is then not counted. With 0, heartbeats in the store count them.
	Fixed int
	// KeyPrefix starts the key of the counter of heartbeats.
	KeyPrefix string
	// OnChange, if set, is called when heartbeats show another number of replicas. It must not block.
	OnChange func(before, after int)
	// OnFailure, if set, is called with the error when heartbeats have failed for some windows in a row. It is called
	// again only after a heartbeat has succeeded. It must not block.
	OnFailure func(error)
}

// Counter counts the replicas. Its methods are safe for concurrent use. Its zero value is not usable; see New.
type Counter struct {
	store     backend.Backend
	cfg       Config
	count     atomic.Int64
	isCounted atomic.Bool // set when a heartbeat has counted the replicas
}

// New returns a counter of the processes that share store. Run counts them.
func New(store backend.Backend, cfg Config) (*Counter, error) {
	if cfg.Fixed < 0 {
		return nil, fmt.Errorf("replicas: there cannot be %d", cfg.Fixed)
	}
	c := &Counter{store: store, cfg: cfg}
	c.count.Store(int64(max(cfg.Fixed, 1)))
	return c, nil
}

// Count returns the number of replicas, at least 1: before the first heartbeat it is 1, and without an answer of the
// store it is the last one.
func (c *Counter) Count() int { return int(c.count.Load()) }

// Known reports whether Count is configured, or was counted.
func (c *Counter) Known() bool { return c.cfg.Fixed > 0 || c.isCounted.Load() }

// Run counts the replicas until ctx ends, unless Config.Fixed is set.
func (c *Counter) Run(ctx context.Context) error {
	if c.cfg.Fixed > 0 {
		return nil
	}
	var h heartbeats
	for ctx.Err() == nil {
		c.beat(ctx, &h)
	}
	return nil
}
