package remote

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Exchange is a batch of commands for one connection, used again and again. One
// goroutine uses it.
type Exchange interface {
	// Reset empties it. It will get so many hits at most.
	Reset(hits int)
	// Room reports whether so many hits more fit into it, which has some already.
	Room(has, more int) bool
	// Add adds the hits of c from begin to end, which are one group or a single hit.
	// It returns false if they cost the server nothing, because a command that is
	// there counts them too.
	Add(c *Call, begin, end int) bool
	// Send sends it on l, reads all replies and sets the result of each hit. An error is
	// that of the hits without an answer.
	Send(ctx context.Context, l *Link) (Sent, error)
	// Upkeep sends what no call asked for, if that is due or the server answers just now.
	// It reports whether it was, and else how long until it is; 0: nothing will be.
	Upkeep(ctx context.Context, l *Link, answers bool) (acted bool, wait time.Duration)
	// Close frees what it holds.
	Close()
}

// Sent is what became of a batch.
type Sent struct {
	Commands int
	// Extra is the estimated time of the server for what was sent besides the hits.
	Extra time.Duration
	// Leave, if set, is why the server is not the one to ask, or not now: a new
	// connection may lead to one that is.
	Leave error
	// Check says that the layout has changed.
	Check bool
}

// writer commits calls in groups: one batch is under way at a time, and what arrives
// meanwhile is the next. A batch has work for about a Slice, so a call with more than
// that is sent in pieces, in the order of the Queue.
type writer struct {
	store    *Store
	link     *Link
	exchange Exchange
	progress Progress     // batches that had an answer
	backlog  atomic.Int64 // calls that did not fit into the last batch
	wake     chan struct{}
	idle     *time.Timer   // fires when an idle connection is to be checked
	retired  chan struct{} // closed when the writer is to end after what is on its way

	mu      sync.Mutex // guards what follows
	arrived []*Call
	closed  error // no more calls are taken

	// What follows belongs to run.
	incoming     []*Call      // what arrived, in order
	queue        Queue[*Call] // what did not fit into the last batch
	sweepAt      int          // the length of queue at which calls whose callers left are dropped
	pace         Pace
	batch        []*Call       // calls that are sent whole with this batch, or whose callers left
	hits         int           // in the exchange
	cost         time.Duration // of them, estimated
	partial      *Call         // the call of which a part is sent with this batch; nil: none
	urgent       *Call         // goes first in the next batch, as it would not fit behind others; nil: none
	connectAt    time.Time     // when to try again to connect before the first call
	connectPause time.Duration // behind that
}

// idleCheck is the pause between two checks of an idle connection.
const idleCheck = time.Second

func newWriter(l *Link, s *Store) *writer {
	return &writer{
		store: s, link: l, exchange: s.protocol.NewExchange(),
		wake: make(chan struct{}, 1), idle: time.NewTimer(idleCheck), retired: make(chan struct{}),
	}
}

// put queues c, if there is room: callers that leave do not take their calls with
// them, so a server that cannot be reached must not make the queue grow.
func (w *writer) put(c *Call) error {
	c.writer, c.waiting = w, w.progress.Mark(time.Now())
	w.mu.Lock()
	err := w.closed
	if err == nil && len(w.arrived)+int(w.backlog.Load()) >= int(w.store.Config.MaxWaiting) {
		err = w.store.errBusy
	}
	if err == nil {
		c.holders.Add(1)
		w.arrived = append(w.arrived, c)
	}
	w.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case w.wake <- struct{}{}:
	default: // it is awake
	}
	return nil
}

// run commits until ctx ends, or the writer retires; then it refuses what waits.
func (w *writer) run(ctx context.Context) {
	for w.next(ctx) {
		w.commit(ctx)
	}
	why := error(errUnsent)
	if ctx.Err() != nil {
		why = w.store.errClosed
	}
	w.mu.Lock()
	w.closed = why
	w.mu.Unlock()
	w.receive()
	w.refuse(why)
	w.link.Close()
	w.exchange.Close()
}

// next makes up the next batch, and waits if there is nothing to send. It returns
// false when ctx has ended or the writer has retired.
func (w *writer) next(ctx context.Context) bool {
	for {
		w.awaitWindow(ctx)
		w.receive()
		if w.waiting() > 0 {
			if ctx.Err() != nil {
				return false
			}
			err := w.link.breaker.Refusal() // it opened while they waited
			if err == nil {
				err = w.ready(ctx)
			}
			if err == nil {
				w.compose()
				return true
			}
			w.refuse(err)
			continue
		}
		acted, wait := w.chores(ctx)
		if acted {
			continue
		}
		var due <-chan time.Time
		if wait > 0 {
			due = time.After(wait)
		}
		w.idle.Reset(idleCheck)
		select {
		case <-w.wake:
		case <-due:
		case <-w.idle.C:
			w.link.inspect() // the server may have closed it
		case <-w.retired:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// awaitWindow gives calls the time to arrive that the next batch waits for them.
func (w *writer) awaitWindow(ctx context.Context) {
	if window := w.store.Config.PipelineWindow; window > 0 && w.waiting() == 0 {
		select {
		case <-time.After(window):
		case <-w.retired:
		case <-ctx.Done():
		}
	}
}

// chores does what is due while no call waits: a probe, upkeep, the first connection.
// If nothing is, it returns how long until something is; 0: nothing will be.
func (w *writer) chores(ctx context.Context) (acted bool, wait time.Duration) {
	due, wait := w.link.breaker.Probe(time.Now())
	if due {
		if w.link.probe(ctx) != nil {
			w.store.checkSoon() // another may be the one to ask by now
		}
		return true, 0
	}
	if wait > 0 { // a probe comes first
		return false, wait
	}
	acted, wait = w.exchange.Upkeep(ctx, w.link, false)
	if acted || wait > 0 || w.link.setup > 0 {
		return acted, wait
	}
	if wait = time.Until(w.connectAt); wait > 0 {
		return false, wait
	}
	_ = w.ready(ctx) // the first call finds it made, or tries again
	w.connectPause = min(max(2*w.connectPause, connectLeast), connectMost)
	w.connectAt = time.Now().Add(w.connectPause)
	return true, 0
}

// ready connects if need be, and receives what arrived meanwhile. It goes before the
// batch is made up: of callers that left meanwhile nothing is sent.
func (w *writer) ready(ctx context.Context) error {
	dials := w.link.dials
	err := w.link.ready(ctx)
	if w.link.dials != dials {
		w.pace.Reconnected()
		w.receive()
	}
	if err != nil {
		w.store.Figures.countBatch(0, err)
		w.store.checkSoon()
	}
	return err
}

// receive takes over what has arrived.
func (w *writer) receive() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.incoming = append(w.incoming, w.arrived...)
	clear(w.arrived)
	w.arrived = w.arrived[:0]
}

// waiting returns how many calls are not sent, or not whole.
func (w *writer) waiting() int {
	n := len(w.incoming) + w.queue.Len()
	for _, c := range [...]*Call{w.urgent, w.partial} {
		if c != nil {
			n++
		}
	}
	return n
}

// compose fills the exchange with what is to be sent next. If all that waits fits, it
// is sent in the order in which it came.
func (w *writer) compose() {
	piece := w.pace.Piece()
	hits, cost := 0, time.Duration(0)
	for _, c := range w.incoming {
		hits += len(c.Hits)
		cost += c.cost
	}
	w.hits, w.cost = 0, 0
	if w.queue.Len() == 0 && w.urgent == nil && cost <= piece && w.exchange.Room(0, hits) {
		w.exchange.Reset(hits)
		for _, c := range w.incoming {
			w.add(c, piece)
		}
		w.emptyIncoming()
	} else {
		w.exchange.Reset(int(piece/CommandCost) + 1)
		for _, c := range w.incoming {
			c.queued.Store(true)
			w.queue.Add(c, c.cost)
		}
		w.emptyIncoming()
		w.sweep()
		w.fill(piece)
	}
	w.link.heavy = w.cost > piece
	w.backlog.Store(int64(w.waiting()))
}

func (w *writer) emptyIncoming() {
	clear(w.incoming)
	w.incoming = w.incoming[:0]
}

// fill moves calls from the queue to the exchange until there is enough for a batch.
// What cannot be divided and fits behind no others goes first in the next batch; the
// batch after that has its room for others again.
func (w *writer) fill(piece time.Duration) {
	first := w.urgent
	if w.urgent = nil; first != nil {
		w.add(first, piece)
	}
	now := time.Now()
	for w.partial == nil && w.queue.Len() > 0 {
		c := w.queue.Head()
		if w.hopeless(c, now) {
			c.skipped.Store(true)
			w.store.release(w.queue.Pop())
			continue
		}
		if !c.gone.Load() && w.hits > 0 {
			end, cost := c.indivisible(c.next)
			if !w.fits(end-c.next, cost, piece) {
				if first == nil && (cost > piece || !w.exchange.Room(0, end-c.next)) {
					w.urgent = w.queue.Pop()
				}
				return
			}
		}
		before := w.cost
		w.add(c, piece)
		w.queue.Serve(w.cost - before)
		w.queue.Pop()
	}
}

// hopeless reports whether c cannot be sent as a whole before its time passes, while
// others wait that may. Nothing of it is sent then. Its caller is not told before its
// time: callers that come back at once would only come more often.
func (w *writer) hopeless(c *Call, now time.Time) bool {
	return c.next == 0 && w.queue.Len() > 1 && now.Add(w.pace.Estimate(c.cost)).After(c.due)
}

// fits reports whether the batch takes so many hits more that have to be sent
// together. An empty batch takes any group.
func (w *writer) fits(hits int, cost, piece time.Duration) bool {
	return w.hits == 0 || w.cost+cost <= piece && w.exchange.Room(w.hits, hits)
}

// add adds c to the batch, as far as it fits, unless its caller has left.
func (w *writer) add(c *Call, piece time.Duration) {
	gone := c.gone.Load()
	for !gone && c.next < len(c.Hits) {
		end, cost := c.indivisible(c.next)
		if !w.fits(end-c.next, cost, piece) {
			w.partial = c
			return
		}
		if w.exchange.Add(c, c.next, end) {
			w.cost += cost
		}
		w.hits += end - c.next
		c.next = end
		c.cost -= cost
	}
	w.batch = append(w.batch, c)
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
	w.queue.Drop(func(c *Call) bool {
		gone := c.gone.Load()
		if gone {
			w.batch = append(w.batch, c)
		}
		return gone
	})
	w.sweepAt = 2 * w.queue.Len()
}

// commit sends one batch and hands out the results.
func (w *writer) commit(ctx context.Context) {
	if w.hits == 0 { // all callers have left
		w.finish()
		return
	}
	for _, c := range w.batch {
		c.sent.Store(true)
	}
	dials := w.link.dials
	started := time.Now()
	sent, err := w.exchange.Send(ctx, w.link)
	took := time.Since(started)
	w.store.Figures.countBatch(sent.Commands, err)
	switch {
	case w.link.dials != dials: // took is that of the connecting as well
		w.pace.Reconnected()
	case err == nil:
		w.pace.Observe(w.cost+sent.Extra, took)
	}
	switch {
	case err != nil: // the link is closed
	case sent.Leave != nil:
		w.link.leave(sent.Leave)
	default:
		w.link.markUseful()
	}
	if err != nil || sent.Check {
		w.store.checkSoon()
	}
	if err == nil {
		w.progress.Answered(time.Now())
	}
	w.link.heavy = false
	w.carryOn(err)
	w.backlog.Store(int64(w.waiting()))
	w.finish()
	if err == nil {
		w.exchange.Upkeep(ctx, w.link, true)
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
		c.failRest(err)
		w.batch = append(w.batch, c)
		return
	}
	w.queue.Return(c, c.cost)
}

// refuse makes why the error of all hits that wait.
func (w *writer) refuse(why error) {
	if w.urgent != nil {
		w.incoming = append(w.incoming, w.urgent)
		w.urgent = nil
	}
	for w.queue.Len() > 0 {
		w.incoming = append(w.incoming, w.queue.Pop())
	}
	for _, c := range w.incoming {
		c.failRest(why)
	}
	w.batch = append(w.batch, w.incoming...)
	w.emptyIncoming()
	w.backlog.Store(0)
	w.finish()
}

// finish wakes all callers of the batch and lets go of their calls.
func (w *writer) finish() {
	for i, c := range w.batch {
		c.done <- struct{}{}
		w.store.release(c)
		w.batch[i] = nil
	}
	w.batch = w.batch[:0]
}
