package redis

import (
	"bytes"
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mediocregopher/radix/v4"
)

// doer is what a writer sends batches through: one node, or whatever stands for
// it.
type doer interface {
	Do(context.Context, radix.Action) error
	Close() error
}

// writer commits calls in groups: one batch is under way at a time, and what
// arrives meanwhile is the next.
type writer struct {
	client doer
	window time.Duration // to wait for more, if somebody wants that
	limit  int           // hits in a batch; 0: no limit
	most   int           // calls in the queue
	stats  *counters

	mu    sync.Mutex
	queue []*call
	wake  chan struct{}

	// What follows belongs to run.
	batch    []*call
	pipeline pipeline
	again    pipeline // for scripts that Redis did not know, and keys it lost
}

func newWriter(client doer, cfg *Config, stats *counters) *writer {
	return &writer{
		client: client, window: cfg.PipelineWindow, limit: cfg.PipelineLimit, most: int(cfg.MaxWaiting), stats: stats,
		wake:     make(chan struct{}, 1),
		pipeline: pipeline{seed: maphash.MakeSeed()},
		again:    pipeline{seed: maphash.MakeSeed()},
	}
}

// put queues c, if there is room: callers that leave do not take their calls
// with them, so a server that cannot be reached must not make the queue grow.
func (w *writer) put(c *call) bool {
	w.mu.Lock()
	full := len(w.queue) >= w.most
	if !full {
		w.queue = append(w.queue, c)
	}
	w.mu.Unlock()
	if full {
		return false
	}
	select {
	case w.wake <- struct{}{}:
	default: // it is awake
	}
	return true
}

// run commits until ctx ends; then what waits is told so.
func (w *writer) run(ctx context.Context) {
	for w.next(ctx) {
		w.commit(ctx)
	}
	w.mu.Lock()
	w.batch, w.queue = w.queue, nil
	w.mu.Unlock()
	for _, c := range w.batch {
		for i := range c.results {
			c.results[i] = result{err: errClosed}
		}
	}
	w.finish()
	_ = w.client.Close() // nobody waits on it any more
}

// next takes what waits into w.batch, and waits for it if there is nothing.
func (w *writer) next(ctx context.Context) bool {
	for {
		if w.window > 0 {
			select {
			case <-time.After(w.window):
			case <-ctx.Done():
				return false
			}
		}
		w.mu.Lock()
		w.batch = w.take(w.batch[:0])
		w.mu.Unlock()
		if len(w.batch) > 0 {
			return ctx.Err() == nil
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			return false
		}
	}
}

// take moves calls from the queue to batch, up to the limit.
func (w *writer) take(batch []*call) []*call {
	if w.limit <= 0 {
		batch, w.queue = w.queue, batch
		return batch
	}
	hits := 0
	for len(w.queue) > 0 && (hits == 0 || hits+len(w.queue[0].hits) <= w.limit) {
		hits += len(w.queue[0].hits)
		batch = append(batch, w.queue[0])
		w.queue[0] = nil
		w.queue = w.queue[1:]
	}
	return batch
}

// commit sends one batch and hands out what came of it.
func (w *writer) commit(ctx context.Context) {
	p := &w.pipeline
	p.reset(w.batch)
	for _, c := range w.batch {
		if !c.gone.Load() {
			p.add(c)
		}
	}
	if len(p.commands) == 0 {
		w.finish()
		return
	}
	begun := time.Now()
	err := w.client.Do(ctx, p)
	w.stats.batch(len(p.commands), time.Since(begun), err)
	if err == nil {
		err = w.evaluate(ctx, p)
	}
	p.settle(err)
	if err == nil && p.elsewhere() {
		_ = w.client.Close()
	}
	lost := w.lost(p)
	w.finish()
	if lost {
		_ = w.client.Do(ctx, &w.again) // the next hit on the key tries again
	}
}

// evaluate sends the scripts again that Redis does not know, in full this time.
func (w *writer) evaluate(ctx context.Context, p *pipeline) error {
	w.again.reset(nil)
	for i := range p.commands {
		c := &p.commands[i]
		if c.kind == script && c.reply() == "NOSCRIPT" {
			c.answered, c.err = false, nil
			full := *c
			full.kind = eval
			w.again.commands = append(w.again.commands, full)
		}
	}
	if len(w.again.commands) == 0 {
		return nil
	}
	err := w.client.Do(ctx, &w.again)
	next := 0
	for i := range p.commands {
		if c := &p.commands[i]; c.kind == script && !c.answered {
			c.answered, c.err = w.again.commands[next].answered, w.again.commands[next].err
			next++
		}
	}
	return err
}

// lost looks for keys that were believed to have a time to live and were made
// by this batch, after Redis lost them, and puts their EXPIREs into w.again.
func (w *writer) lost(p *pipeline) bool {
	w.again.reset(nil)
	for i := range p.commands {
		c := &p.commands[i]
		if c.kind == incr && c.answered && c.err == nil && !c.expire && c.value == int64(c.sum) {
			w.again.commands = append(w.again.commands, command{kind: expire, key: bytes.Clone(c.key), ttl: c.ttl})
		}
	}
	return len(w.again.commands) > 0
}

// finish wakes all callers of the batch and lets go of their calls.
func (w *writer) finish() {
	for i, c := range w.batch {
		c.done <- struct{}{}
		w.stats.release(c)
		w.batch[i] = nil
	}
}

// counters are what a Store counts of itself, and its pool of calls.
type counters struct {
	calls   sync.Pool
	waiting atomic.Int64
	dials   atomic.Int64
	open    atomic.Int64
	batches atomic.Int64
	sent    atomic.Int64
	failed  atomic.Int64
	took    atomic.Int64
}

func (s *counters) batch(commands int, took time.Duration, err error) {
	s.batches.Add(1)
	s.sent.Add(int64(commands))
	s.took.Add(int64(took))
	if err != nil {
		s.failed.Add(1)
	}
}

// release puts c away if nobody else holds it.
func (s *counters) release(c *call) {
	if c.holders.Add(-1) > 0 {
		return
	}
	select {
	case <-c.done: // of a caller that did not wait for it
	default:
	}
	s.calls.Put(c)
}
