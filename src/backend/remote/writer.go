package remote

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Exchange is a batch of commands for one connection. One goroutine uses it again and again.
type Exchange interface {
	// Reset empties the batch.
	Reset()
	// HasRoom reports whether a batch of has hits takes more hits.
	HasRoom(has, more int) bool
	// AddHits adds the hits of c from begin to end, which are one group or a single hit. It
	// returns false if a command of the batch counts them too, so they cost nothing more.
	AddHits(c *Call, begin, end int) bool
	// Send sends the batch on l, reads all replies and sets the result of each hit. It
	// returns the error of the hits without an answer.
	Send(ctx context.Context, l *Link) (SentBatch, error)
	// Upkeep sends commands that no call asked for, if their time has come or answers says
	// that the server answers just now. It returns the time until the next Upkeep, 0 for none.
	Upkeep(ctx context.Context, l *Link, answers bool) time.Duration
	// Close releases the resources of the Exchange.
	Close()
}

// SentBatch describes a batch that was sent.
type SentBatch struct {
	Commands int
	// ExtraCost is the estimated time of the server for commands besides those of the hits.
	ExtraCost time.Duration
	// DisconnectReason, if set, is why the server cannot serve now. The writer then closes the
	// connection, because a new one may lead to another server.
	DisconnectReason error
	// LayoutChanged says that an error reply named other servers, so FindServers should run again.
	LayoutChanged bool
}

// writer sends the calls of one connection in batches, one at a time. A batch has work for
// about BatchTime: a larger call is sent in pieces, in the order of the FairQueue.
type writer struct {
	store         *Store
	connection    *Link
	exchange      Exchange
	progress      ServerProgress // counts the batches that were answered
	backlogCalls  atomic.Int64   // how many calls did not fit into the last batch
	wakeSignal    chan struct{}  // an element when calls have arrived
	idleWorkTimer *time.Timer    // wakes the writer for doIdleWork while there are no calls
	retireSignal  chan struct{}  // closed when the writer must end after the batch under way

	mu           sync.Mutex // guards arrivedCalls and closedReason
	arrivedCalls []*Call
	closedReason error // why no more calls are accepted. It is nil while they are.

	// Only run uses the fields below.
	incomingCalls []*Call          // the calls that have arrived since the last batch, in order
	queue         FairQueue[*Call] // the calls that did not fit into the last batch
	// At the length removeAbandonedAtLength, abandoned calls are removed from queue.
	removeAbandonedAtLength int
	pace                    Pace
	batchCalls              []*Call // the calls that end with this batch
	batchHits               int
	batchCost               time.Duration // the estimated server time for the hits in exchange
	partlySentCall          *Call         // the call of which this batch sends only a part, or nil
	firstInNextBatch        *Call         // goes first in the next batch, because its group fits behind no other call
}

const (
	// idleCheckPause is the pause between two checks of an idle connection.
	idleCheckPause = time.Second
	// firstConnectPause is the pause between two attempts to connect before the first call.
	firstConnectPause = 100 * time.Millisecond
)

func newWriter(l *Link, s *Store, x Exchange) *writer {
	return &writer{
		store: s, connection: l, exchange: x,
		wakeSignal: make(chan struct{}, 1), idleWorkTimer: time.NewTimer(idleCheckPause),
		retireSignal: make(chan struct{}),
	}
}

// enqueue queues c. It returns an error if MaxWaitingCalls calls are queued: callers that leave do
// not remove their calls, so the queue of a server that cannot be reached would grow.
func (w *writer) enqueue(c *Call) error {
	c.writer, c.waitStart = w, w.progress.StartWaiting(time.Now())
	w.mu.Lock()
	err := w.closedReason
	if err == nil && len(w.arrivedCalls)+int(w.backlogCalls.Load()) >= int(w.store.Config.MaxWaitingCalls) {
		err = w.store.errTooManyCalls
	}
	if err == nil {
		c.holders.Add(1)
		w.arrivedCalls = append(w.arrivedCalls, c)
	}
	w.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case w.wakeSignal <- struct{}{}:
	default: // The writer is awake.
	}
	return nil
}

// run sends batches until ctx ends or the writer retires, and then refuses the other calls.
func (w *writer) run(ctx context.Context) {
	for w.awaitNextBatch(ctx) {
		w.sendBatch(ctx)
	}
	reason := error(errUnsent)
	if ctx.Err() != nil {
		reason = w.store.errClosed
	}
	w.mu.Lock()
	w.closedReason = reason
	w.mu.Unlock()
	w.receiveArrivedCalls()
	w.refuseAllCalls(reason)
	w.connection.Close()
	w.exchange.Close()
}

// awaitNextBatch waits for calls and composes the next batch. It returns false when ctx has ended or the writer has
// retired.
func (w *writer) awaitNextBatch(ctx context.Context) bool {
	for {
		w.awaitBatchDelay(ctx)
		w.receiveArrivedCalls()
		if w.waitingCalls() > 0 {
			if ctx.Err() != nil {
				return false
			}
			err := w.connection.breaker.Refusal() // The breaker may have opened while the calls waited.
			if err == nil {
				err = w.connectIfNeeded(ctx)
			}
			if err == nil {
				w.composeBatch()
				return true
			}
			w.refuseAllCalls(err)
			continue
		}
		w.idleWorkTimer.Reset(w.connection.untilRenewal(min(w.doIdleWork(ctx), idleCheckPause)))
		select {
		case <-w.wakeSignal:
		case <-w.idleWorkTimer.C:
			w.connection.closeIfStale()
		case <-w.retireSignal:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// awaitBatchDelay pauses for the PipelineWindow, so that more calls arrive for the next batch.
func (w *writer) awaitBatchDelay(ctx context.Context) {
	if window := w.store.Config.PipelineWindow; window > 0 && w.waitingCalls() == 0 {
		select {
		case <-time.After(window):
		case <-w.retireSignal:
		case <-ctx.Done():
		}
	}
}

// doIdleWork sends a probe, renews what expires, does upkeep or makes the first connection while no call waits. It
// returns the time until something has to be done again.
func (w *writer) doIdleWork(ctx context.Context) time.Duration {
	due, wait := w.connection.breaker.ProbeDue(time.Now())
	if due {
		if w.connection.sendProbe(ctx) != nil {
			w.store.requestServerSearch() // Another server may have the keys by now.
		}
		return 0
	}
	if wait > 0 { // While the breaker is open, only probes are sent.
		return wait
	}
	w.connection.renewIfDue()
	if wait = w.exchange.Upkeep(ctx, w.connection, false); wait > 0 {
		return wait
	}
	if w.connection.setupTime == 0 && w.connection.connectIfNeeded(ctx) != nil {
		return firstConnectPause
	}
	return idleCheckPause
}

// connectIfNeeded connects if there is no connection, and then receives the calls that arrived
// meanwhile. awaitNextBatch calls it before composeBatch, so that calls abandoned meanwhile are not sent.
func (w *writer) connectIfNeeded(ctx context.Context) error {
	dials := w.connection.dialAttempts
	err := w.connection.connectIfNeeded(ctx)
	if w.connection.dialAttempts != dials {
		w.pace.ForgetRoundTrip()
		w.receiveArrivedCalls()
	}
	if err != nil {
		w.store.Figures.countBatch(0, err)
		w.store.requestServerSearch()
	}
	return err
}

func (w *writer) receiveArrivedCalls() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.incomingCalls = append(w.incomingCalls, w.arrivedCalls...)
	w.arrivedCalls = clearCalls(w.arrivedCalls)
}

func clearCalls(calls []*Call) []*Call {
	clear(calls)
	return calls[:0]
}

// waitingCalls returns the number of calls of which something has not been sent.
func (w *writer) waitingCalls() int {
	n := len(w.incomingCalls) + w.queue.Len()
	for _, c := range [...]*Call{w.firstInNextBatch, w.partlySentCall} {
		if c != nil {
			n++
		}
	}
	return n
}

// composeBatch fills the exchange with the next batch. If all waiting calls fit, they are sent in
// the order in which they came, else in the order of the queue.
func (w *writer) composeBatch() {
	maxCost := w.pace.MaxBatchCost()
	hits, cost := 0, time.Duration(0)
	for _, c := range w.incomingCalls {
		hits += len(c.Hits)
		cost += c.unsentCost
	}
	w.batchHits, w.batchCost = 0, 0
	w.exchange.Reset()
	if w.queue.Len() == 0 && w.firstInNextBatch == nil && cost <= maxCost && w.exchange.HasRoom(0, hits) {
		for _, c := range w.incomingCalls {
			w.addToBatch(c, maxCost)
		}
	} else {
		for _, c := range w.incomingCalls {
			c.delayedByFullBatch.Store(true)
			w.queue.Add(c, c.unsentCost)
		}
		w.dropAbandoned()
		w.fillBatch(maxCost)
	}
	w.incomingCalls = clearCalls(w.incomingCalls)
	w.connection.batchIsHeavy = w.batchCost > maxCost
	w.backlogCalls.Store(int64(w.waitingCalls()))
}

// fillBatch moves calls from the queue to the exchange until the batch is full. A group that
// fits behind no others goes first in the next batch, but not in two batches in a row.
func (w *writer) fillBatch(maxCost time.Duration) {
	first := w.firstInNextBatch
	if w.firstInNextBatch = nil; first != nil {
		w.addToBatch(first, maxCost)
	}
	now := time.Now()
	for w.partlySentCall == nil && w.queue.Len() > 0 {
		c := w.queue.Head()
		if w.cannotFinishInTime(c, now) {
			c.skippedAsLate.Store(true)
			w.store.releaseCall(w.queue.Pop())
			continue
		}
		if !c.abandoned.Load() && w.batchHits > 0 {
			end, cost := c.indivisibleGroup(c.nextUnsentHit)
			if !w.fitsInBatch(end-c.nextUnsentHit, cost, maxCost) {
				if first == nil && (cost > maxCost || !w.exchange.HasRoom(0, end-c.nextUnsentHit)) {
					w.firstInNextBatch = w.queue.Pop()
				}
				return
			}
		}
		before := w.batchCost
		w.addToBatch(c, maxCost)
		w.queue.RecordWork(w.batchCost - before)
		w.queue.Pop()
	}
}

// cannotFinishInTime reports whether other calls should be sent instead of c, because c cannot be done before its
// deadline. Its caller still waits until then: callers that were answered at once would only come back more often.
func (w *writer) cannotFinishInTime(c *Call, now time.Time) bool {
	return c.nextUnsentHit == 0 && w.queue.Len() > 1 && now.Add(w.pace.ExpectedTime(c.unsentCost)).After(c.deadline)
}

// fitsInBatch reports whether the batch takes this number of hits of one group. An empty batch takes any group.
func (w *writer) fitsInBatch(hits int, cost, maxCost time.Duration) bool {
	return w.batchHits == 0 || w.batchCost+cost <= maxCost && w.exchange.HasRoom(w.batchHits, hits)
}

// addToBatch adds the hits of c that fit to the batch. An abandoned call only ends with the batch.
func (w *writer) addToBatch(c *Call, maxCost time.Duration) {
	abandoned := c.abandoned.Load()
	for !abandoned && c.nextUnsentHit < len(c.Hits) {
		end, cost := c.indivisibleGroup(c.nextUnsentHit)
		if !w.fitsInBatch(end-c.nextUnsentHit, cost, maxCost) {
			w.partlySentCall = c
			return
		}
		if w.exchange.AddHits(c, c.nextUnsentHit, end) {
			w.batchCost += cost
		}
		w.batchHits += end - c.nextUnsentHit
		c.nextUnsentHit = end
		c.unsentCost -= cost
	}
	w.batchCalls = append(w.batchCalls, c)
}

// shortQueueLength is the longest queue that dropAbandoned always searches, which takes some µs.
const shortQueueLength = 1024

// dropAbandoned removes abandoned calls from the queue, so that large calls that are overtaken do
// not pile up. A long queue is searched when it has doubled.
func (w *writer) dropAbandoned() {
	if n := w.queue.Len(); n > shortQueueLength && n < w.removeAbandonedAtLength {
		return
	}
	w.queue.DropWhere(func(c *Call) bool {
		abandoned := c.abandoned.Load()
		if abandoned {
			w.batchCalls = append(w.batchCalls, c)
		}
		return abandoned
	})
	w.removeAbandonedAtLength = 2 * w.queue.Len()
}

// sendBatch sends the batch and delivers the results. If a part of a call gets no answer, the
// rest of the call is not sent and gets the same error.
func (w *writer) sendBatch(ctx context.Context) {
	if w.batchHits == 0 { // All calls of the batch are abandoned.
		w.finishBatch()
		return
	}
	for _, c := range w.batchCalls {
		c.allHitsSent.Store(true)
	}
	dials := w.connection.dialAttempts
	started := time.Now()
	sent, err := w.exchange.Send(ctx, w.connection)
	took := time.Since(started)
	w.store.Figures.countBatch(sent.Commands, err)
	if err != nil || sent.LayoutChanged {
		w.store.requestServerSearch()
	}
	switch {
	case w.connection.dialAttempts != dials: // The measured time includes the time to connect.
		w.pace.ForgetRoundTrip()
	case err == nil:
		w.pace.ObserveBatch(w.batchCost+sent.ExtraCost, took)
	}
	if err == nil {
		w.progress.RecordAnswer(time.Now())
		if sent.DisconnectReason != nil {
			w.connection.closeAndPause(sent.DisconnectReason)
		} else {
			w.connection.markSessionUseful()
		}
	}
	w.connection.batchIsHeavy = false
	if c := w.partlySentCall; c != nil {
		w.partlySentCall = nil
		if err == nil {
			w.queue.PutBack(c, c.unsentCost)
		} else {
			c.failUnsentHits(err)
			w.batchCalls = append(w.batchCalls, c)
		}
	}
	w.backlogCalls.Store(int64(w.waitingCalls()))
	w.finishBatch()
	if err == nil {
		w.exchange.Upkeep(ctx, w.connection, true)
		w.connection.renewIfDue()
	}
}

// refuseAllCalls makes reason the error of all hits that wait.
func (w *writer) refuseAllCalls(reason error) {
	if w.firstInNextBatch != nil {
		w.incomingCalls = append(w.incomingCalls, w.firstInNextBatch)
		w.firstInNextBatch = nil
	}
	for w.queue.Len() > 0 {
		w.incomingCalls = append(w.incomingCalls, w.queue.Pop())
	}
	for _, c := range w.incomingCalls {
		c.failUnsentHits(reason)
	}
	w.batchCalls = append(w.batchCalls, w.incomingCalls...)
	w.incomingCalls = clearCalls(w.incomingCalls)
	w.backlogCalls.Store(0)
	w.finishBatch()
}

// finishBatch wakes the callers of the batch and releases their calls.
func (w *writer) finishBatch() {
	for _, c := range w.batchCalls {
		c.resultsReady <- struct{}{}
		w.store.releaseCall(c)
	}
	w.batchCalls = clearCalls(w.batchCalls)
}
