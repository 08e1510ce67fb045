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
// arrives meanwhile is the next. A batch has work for about remote.Slice, so a call with
// more than that is sent in pieces, in the order of remote.Queue.
type writer struct {
	link     *link
	cluster  bool
	kick     func() // has the layout looked at
	onBatch  func(hits int, took time.Duration)
	window   time.Duration // how long to wait for more before each batch
	limit    int           // hits in a batch; 0: no limit
	most     int           // calls in the queue
	stats    *counters
	progress remote.Progress // batches that had an answer
	backlog  atomic.Int64    // calls that did not fit into the last batch

	mu      sync.Mutex
	arrived []*call
	closed  error // no more calls are taken
	wake    chan struct{}
	// retired is closed when the writer is to end after what is on its way.
	retired chan struct{}

	// What follows belongs to run.
	incoming []*call             // what arrived, in order
	queue    remote.Queue[*call] // what did not fit into the last batch
	sweepAt  int                 // the length of queue at which it is searched for calls whose callers left
	pace     remote.Pace
	batch    []*call // calls that are sent whole with this batch, or whose callers left
	// tried, connectAfter: the attempts to connect before the first call.
	tried        bool
	connectAfter time.Duration
	partial      *call // the call of which a part is sent with this batch; nil: none
	urgent       *call // goes first in the next batch, as it would not fit behind others; nil: none
	pipeline     pipeline
	again        pipeline // for scripts that Redis did not know, and endless
	endless      endless
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
	c.writer, c.waiting = w, w.progress.Mark(time.Now())
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
	case len(w.arrived)+int(w.backlog.Load()) >= w.most:
		return ErrBusy
	}
	w.arrived = append(w.arrived, c)
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
	w.closed = why
	w.mu.Unlock()
	w.receive()
	w.refuse(why)
	w.link.Close()
}

// after is when d has passed, or never if it is 0.
func after(d time.Duration) <-chan time.Time {
	if d == 0 {
		return nil
	}
	return time.After(d)
}

// next makes up the next batch, and waits if there is nothing to send. It returns
// false when ctx has ended or the writer has retired.
func (w *writer) next(ctx context.Context) bool {
	for {
		if w.window > 0 && w.waiting() == 0 {
			select {
			case <-time.After(w.window):
			case <-w.retired:
			case <-ctx.Done():
			}
		}
		w.receive()
		if w.waiting() > 0 {
			if ctx.Err() != nil {
				return false
			}
			err := w.link.breaker.Refusal() // it opened while they waited
			if err == nil {
				err = w.ready(ctx)
			}
			if err != nil {
				w.refuse(err)
				continue
			}
			w.compose()
			return true
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
		if wait == 0 && !w.link.made && !w.tried {
			w.tried = true
			_ = w.ready(ctx) // the first call finds it made, or tries again
			continue
		}
		if wait == 0 && !w.link.made {
			w.connectAfter = min(max(2*w.connectAfter, remote.ConnectLeast), remote.ConnectMost)
			wait, w.tried = w.connectAfter, false
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

// ready connects if need be, and receives what arrived meanwhile. It goes before the batch
// is made up: of callers that left meanwhile nothing is sent.
func (w *writer) ready(ctx context.Context) error {
	dials := w.link.dials
	err := w.link.ready(ctx)
	if w.link.dials != dials {
		w.pace.Reconnected()
		w.receive()
	}
	if err != nil {
		w.stats.batch(0, err)
		w.kick()
	}
	return err
}

// receive takes over what has arrived.
func (w *writer) receive() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.incoming) == 0 {
		w.incoming, w.arrived = w.arrived, w.incoming
		return
	}
	w.incoming = append(w.incoming, w.arrived...)
	clear(w.arrived)
	w.arrived = w.arrived[:0]
}

// waiting returns how many calls next has to do with.
func (w *writer) waiting() int {
	n := len(w.incoming) + w.queue.Len()
	if w.urgent != nil {
		n++
	}
	return n
}

// compose fills the pipeline with what is to be sent next. Where all that waits
// fits, it is sent in the order in which it came.
func (w *writer) compose() {
	piece := w.pace.Piece()
	if w.queue.Len() == 0 && w.urgent == nil {
		hits, cost := 0, time.Duration(0)
		for _, c := range w.incoming {
			hits += len(c.hits)
			cost += c.cost
		}
		if cost <= piece && (w.limit <= 0 || hits <= w.limit) {
			w.pipeline.reset(hits)
			for _, c := range w.incoming {
				w.send(c, piece)
			}
			w.incoming = w.emptied()
			w.link.heavy = false
			w.backlog.Store(0)
			return
		}
	}
	for _, c := range w.incoming {
		c.queued.Store(true)
		w.queue.Add(c, c.cost)
	}
	w.incoming = w.emptied()
	w.sweep()
	w.pipeline.reset(int(piece/commandCost) + 1)
	w.serve(piece)
	w.link.heavy = w.pipeline.cost > piece
	left := w.waiting()
	if w.partial != nil {
		left++
	}
	w.backlog.Store(int64(left))
}

// emptied returns w.incoming without its calls.
func (w *writer) emptied() []*call {
	clear(w.incoming)
	return w.incoming[:0]
}

// serve takes calls out of the queue until there is enough for a batch. What cannot be
// divided and fits behind no others goes first in the next batch; the batch after that
// has its room for others again.
func (w *writer) serve(piece time.Duration) {
	p, first := &w.pipeline, w.urgent
	if w.urgent = nil; first != nil {
		w.send(first, piece)
	}
	now := time.Now()
	for w.partial == nil && w.queue.Len() > 0 {
		c := w.queue.Head()
		if w.hopeless(c, now) {
			c.skipped.Store(true)
			w.stats.release(w.queue.Pop())
			continue
		}
		if !c.Gone.Load() && p.hits > 0 {
			end, cost := c.unit(c.next)
			if !p.fits(end-c.next, cost, piece, w.limit) {
				if first == nil && (cost > piece || w.limit > 0 && end-c.next > w.limit) {
					w.urgent = w.queue.Pop()
				}
				return
			}
		}
		before := p.cost
		w.send(c, piece)
		w.queue.Serve(p.cost - before)
		w.queue.Pop()
	}
}

// hopeless reports whether c cannot be sent as a whole before its time passes, while
// others wait that may. Nothing of it is sent then. Its caller is not told before its
// time: callers that come back at once would only come more often.
func (w *writer) hopeless(c *call, now time.Time) bool {
	return c.next == 0 && w.queue.Len() > 1 && now.Add(w.pace.Estimate(c.cost)).After(c.due)
}

// send adds c to the pipeline, as far as it fits. A call whose caller has left is
// not sent.
func (w *writer) send(c *call, piece time.Duration) {
	switch {
	case c.Gone.Load():
		w.batch = append(w.batch, c)
	case w.pipeline.add(c, piece, w.limit):
		w.batch = append(w.batch, c)
	default:
		w.partial = c
	}
}

// shortQueue is how long a queue is that is always searched for calls whose callers
// have left: it takes some µs.
const shortQueue = 1024

// sweep removes the calls whose callers have left, so that large ones that are
// overtaken do not pile up. A long queue is searched when it has doubled.
func (w *writer) sweep() {
	if n := w.queue.Len(); n > shortQueue && n < w.sweepAt {
		return
	}
	w.queue.Drop(func(c *call) bool {
		gone := c.Gone.Load()
		if gone {
			w.batch = append(w.batch, c)
		}
		return gone
	})
	w.sweepAt = 2 * w.queue.Len()
}

// commit sends one batch and hands out what came of it.
func (w *writer) commit(ctx context.Context) {
	p := &w.pipeline
	if len(p.commands) == 0 {
		w.finish()
		return
	}
	p.introduce()
	for _, c := range w.batch {
		c.sent.Store(true)
	}
	dials := w.link.dials
	begun := time.Now()
	err := w.link.perform(ctx, p)
	if err == nil {
		err = w.evaluate(ctx, p)
	}
	took := time.Since(begun)
	w.stats.batch(len(p.commands), err)
	if w.onBatch != nil {
		w.onBatch(p.hits, took)
	}
	switch {
	case w.link.dials != dials: // took is that of the connecting as well
		w.pace.Reconnected()
	case err == nil:
		w.pace.Observe(p.cost, took)
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
	if err == nil {
		w.progress.Answered(time.Now())
	}
	w.endless.note(p)
	w.link.heavy = false
	w.carryOn(err)
	w.backlog.Store(int64(w.waiting()))
	w.finish()
	if err == nil && len(w.endless.keys) > 0 {
		w.expire(ctx)
	}
}

// carryOn puts the call of which only a part was sent back into the queue. If that
// part had no answer the rest is not sent, and gets the same error.
func (w *writer) carryOn(err error) {
	c := w.partial
	if w.partial = nil; c == nil {
		return
	}
	if err != nil {
		c.refuse(err)
		w.batch = append(w.batch, c)
		return
	}
	w.queue.Return(c, c.cost)
}

// refuse tells all callers that wait why their hits are not sent.
func (w *writer) refuse(why error) {
	for _, c := range w.incoming {
		w.queue.Add(c, c.cost)
	}
	w.incoming = w.emptied()
	if w.urgent != nil {
		w.queue.Add(w.urgent, 0)
		w.urgent = nil
	}
	for w.queue.Len() > 0 {
		c := w.queue.Pop()
		c.refuse(why)
		w.batch = append(w.batch, c)
	}
	w.backlog.Store(0)
	w.finish()
}

// evaluate sends the scripts again that Redis does not know, in full this time.
func (w *writer) evaluate(ctx context.Context, p *pipeline) error {
	w.again.reset(0)
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
	w.batch = w.batch[:0]
}

// counters are what a Store counts of itself, and its pool of calls.
type counters struct {
	calls     sync.Pool
	room      remote.Room
	opened    atomic.Int64 // breakers
	dials     atomic.Int64
	open      atomic.Int64
	batches   atomic.Int64
	sent      atomic.Int64
	failed    atomic.Int64
	redirects atomic.Int64
	errors    remote.Tally
}

func (s *counters) batch(commands int, err error) {
	s.batches.Add(1)
	s.sent.Add(int64(commands))
	if err != nil {
		s.failed.Add(1)
	}
}

// call is an empty one, which the caller holds.
func (s *counters) call() *call {
	c := s.calls.Get().(*call)
	c.Reset()
	c.hits, c.keys, c.results = c.hits[:0], c.keys[:0], c.results[:0]
	c.limits, c.found, c.of = c.limits[:0], c.found[:0], c.of[:0]
	c.ask, c.again, c.up = false, false, nil
	c.cost, c.largest, c.writer, c.next = 0, 0, nil, 0
	c.sent.Store(false)
	c.queued.Store(false)
	c.skipped.Store(false)
	return c
}

// release puts c away if it has no other holder.
func (s *counters) release(c *call) {
	if c.Release() {
		s.room.Free(c.Bytes)
		c.keys = remote.Spare(c.keys)
		s.calls.Put(c)
	}
}
