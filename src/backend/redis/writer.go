package redis

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/backend/remote"
)

// writer commits calls in groups: one batch is under way at a time, and what
// arrives meanwhile is the next.
type writer struct {
	link    *link
	cluster bool
	kick    func() // has the layout looked at
	onBatch func(hits int, took time.Duration)
	window  time.Duration // to wait for more, if somebody wants that
	limit   int           // hits in a batch; 0: no limit
	most    int           // calls in the queue
	stats   *counters

	mu     sync.Mutex
	queue  []*call
	closed error // nobody reads the queue any more
	wake   chan struct{}
	// retired is closed when the writer is to end after what is on its way.
	retired chan struct{}

	// What follows belongs to run.
	batch    []*call
	more     bool // the limit left some in the queue, which have waited for the window
	pipeline pipeline
	again    pipeline // for scripts that Redis did not know, and endless
	endless  endless
}

func newWriter(l *link, cfg *Config, kick func(), stats *counters) *writer {
	return &writer{
		link: l, cluster: len(cfg.Cluster) > 0, kick: kick, onBatch: cfg.OnBatch,
		window: cfg.PipelineWindow, limit: cfg.PipelineLimit, most: int(cfg.MaxWaiting), stats: stats,
		wake: make(chan struct{}, 1), retired: make(chan struct{}),
		pipeline: pipeline{seed: maphash.MakeSeed()},
		again:    pipeline{seed: maphash.MakeSeed()},
	}
}

// put queues c, if there is room: callers that leave do not take their calls
// with them, so a server that cannot be reached must not make the queue grow.
func (w *writer) put(c *call) error {
	c.Hold()
	err := w.push(c)
	if err != nil {
		c.Release() // the caller still holds it
		return err
	}
	select {
	case w.wake <- struct{}{}:
	default: // it is awake
	}
	return nil
}

func (w *writer) push(c *call) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed != nil:
		return w.closed
	case len(w.queue) >= w.most:
		return ErrBusy
	}
	w.queue = append(w.queue, c)
	return nil
}

func (w *writer) retire() { close(w.retired) }

// run commits until ctx ends, or the writer retires; then what waits is told
// so.
func (w *writer) run(ctx context.Context) {
	why := error(errUnsent)
	for w.next(ctx) {
		w.commit(ctx)
	}
	if ctx.Err() != nil {
		why = errClosed
	}
	w.mu.Lock()
	// next may have taken a batch just before.
	w.batch, w.queue, w.closed = append(w.batch, w.queue...), nil, why
	w.mu.Unlock()
	w.refuse(why)
	w.link.Close()
}

// refuse tells the callers of the batch why it is not sent.
func (w *writer) refuse(why error) {
	for _, c := range w.batch {
		for i := range c.results {
			c.settle(i, result{err: why})
		}
	}
	w.finish()
}

// after is when d has passed, or never if it is 0.
func after(d time.Duration) <-chan time.Time {
	if d == 0 {
		return nil
	}
	return time.After(d)
}

// next takes what waits into w.batch, and waits for it if there is nothing.
func (w *writer) next(ctx context.Context) bool {
	for {
		if w.window > 0 && !w.more {
			select {
			case <-time.After(w.window):
			case <-w.retired:
			case <-ctx.Done():
			}
		}
		w.mu.Lock()
		w.batch = w.take(w.batch[:0])
		w.more = len(w.queue) > 0
		w.mu.Unlock()
		if len(w.batch) > 0 {
			err := w.link.breaker.Refusal()
			if err == nil || ctx.Err() != nil {
				return ctx.Err() == nil
			}
			w.refuse(err) // it opened while they waited
			continue
		}
		due, wait := w.link.breaker.Probe(time.Now())
		if due {
			if w.link.Probe(ctx) != nil {
				w.kick() // another may be the one to ask by now
			}
			continue
		}
		if wait == 0 { // else a probe comes first
			due, wait = w.endless.due(time.Now())
		}
		if due {
			w.expire(ctx)
			continue
		}
		select {
		case <-w.wake:
		case <-after(wait):
		case <-w.retired:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// take moves calls from the queue to batch, up to the limit. Those whose callers
// have left do not count, as they are not sent: with so many in the queue as there
// may be, others would wait behind them for longer than they can.
func (w *writer) take(batch []*call) []*call {
	if w.limit <= 0 {
		batch, w.queue = w.queue, batch
		return batch
	}
	hits := 0
	for len(w.queue) > 0 {
		if c := w.queue[0]; !c.Gone.Load() {
			if hits > 0 && hits+len(c.hits) > w.limit {
				break
			}
			hits += len(c.hits)
		}
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
		if !c.Gone.Load() {
			p.add(c)
		}
	}
	if len(p.commands) == 0 {
		w.finish()
		return
	}
	p.introduce()
	begun := time.Now()
	err := w.link.Do(ctx, p)
	if err == nil {
		err = w.evaluate(ctx, p)
	}
	w.stats.batch(len(p.commands), err)
	if w.onBatch != nil {
		w.onBatch(p.hits, time.Since(begun))
	}
	advice := p.advice(w.link.addr, w.cluster)
	p.settle(err)
	switch {
	case err != nil: // the link is closed
	case advice.leave != nil:
		w.link.leave(advice.leave)
	default:
		w.link.prove()
	}
	if err != nil || advice.look {
		w.kick()
	}
	w.endless.note(p)
	w.finish()
	if err == nil && len(w.endless.keys) > 0 {
		w.expire(ctx)
	}
}

// evaluate sends the scripts again that Redis does not know, in full this time.
func (w *writer) evaluate(ctx context.Context, p *pipeline) error {
	w.again.reset(nil)
	for i := range p.commands {
		c := &p.commands[i]
		if c.kind == script && c.err != nil && replyWord(c.err) == "NOSCRIPT" {
			c.answered, c.err = false, nil
			full := *c
			full.kind = eval
			w.again.commands = append(w.again.commands, full)
		}
	}
	if len(w.again.commands) == 0 {
		return nil
	}
	err := w.link.Do(ctx, &w.again)
	next := 0
	for i := range p.commands {
		if c := &p.commands[i]; c.kind == script && !c.answered {
			c.answered, c.err = w.again.commands[next].answered, w.again.commands[next].err
			next++
		}
	}
	return err
}

// finish wakes all callers of the batch and lets go of their calls.
func (w *writer) finish() {
	for i, c := range w.batch {
		c.Done <- struct{}{}
		w.stats.release(c)
		w.batch[i] = nil
	}
}

// counters are what a Store counts of itself, and its pool of calls.
type counters struct {
	calls   sync.Pool
	room    remote.Room
	opened  atomic.Int64 // breakers
	dials   atomic.Int64
	open    atomic.Int64
	batches atomic.Int64
	sent    atomic.Int64
	failed  atomic.Int64
	sentOn  atomic.Int64
	errors  remote.Tally
}

func (s *counters) batch(commands int, err error) {
	s.batches.Add(1)
	s.sent.Add(int64(commands))
	if err != nil {
		s.failed.Add(1)
	}
}

// call is an empty one, held by whoever asked for it.
func (s *counters) call() *call {
	c := s.calls.Get().(*call)
	c.Reset()
	c.hits, c.keys, c.results = c.hits[:0], c.keys[:0], c.results[:0]
	c.limits, c.found = c.limits[:0], c.found[:0]
	c.ask, c.again, c.up = false, false, nil
	return c
}

// release puts c away if nobody else holds it.
func (s *counters) release(c *call) {
	if c.Release() {
		s.room.Free(c.Bytes)
		c.keys = remote.Spare(c.keys)
		s.calls.Put(c)
	}
}
