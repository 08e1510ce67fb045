package remote

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// Call is the work of one Take. It has copies of keys and limits, because the caller may
// have left before a writer sends it.
type Call struct {
	Hits []Hit
	// Keys are the keys of all hits, one after the other. Append a key and then
	// AddHit its hit.
	Keys []byte
	// At is the instant of the call in µs since the Unix epoch. -1: the time of the
	// server.
	At int64
	// Ask says that the node gets ASKING first, since a slot is moving to it (Redis Cluster).
	Ask bool

	numbers []int64 // of all Results
	of      []int32 // of a part: the index of each hit in the whole call
	again   bool    // some results say where to ask instead
	expired error   // set when the deadline passed; only the calling goroutine uses it

	done    chan struct{} // one send, when there is an answer
	timer   *time.Timer   // until the deadline
	bytes   int           // in the store's Room
	gone    atomic.Bool   // the caller left: what has not been sent need not be
	holders atomic.Int32  // the last one to leave returns the call to the pool

	due      time.Time     // when the caller leaves
	cost     time.Duration // estimated time of the server for the hits that are not sent yet
	writer   *writer       // that has the call; nil: none
	waiting  Waiting       // since the writer got it
	division division      // of this call into parts
	next     int           // the first hit that is not sent yet; the writer's
	sent     atomic.Bool   // it is in a batch that is under way, or was
	queued   atomic.Bool   // there was more to do than fits into one batch
	skipped  atomic.Bool   // the writer sends nothing of it, as there is not enough time
}

// Hit is one hit of a call: the operation on a counter, and its Result.
type Hit struct {
	Limit     algorithm.Limit
	Amount    uint64
	Op        algorithm.Op
	Atomic    bool
	NoVeto    bool
	CountDown bool
	// Least is the number of seconds that the key has to live, TTL the same with
	// jitter.
	Least, TTL int64
	// Cost is the time that the server is expected to work on the hit.
	Cost time.Duration
	// GroupEnd is the index behind the last hit that has to be sent together with
	// this one, by a script. 0: the hit is sent by a command.
	GroupEnd int
	Result

	from, to int // of the key in Call.Keys
}

// Result is the server's reply to a hit.
type Result struct {
	// Before is the count before the hit.
	Before int64
	Err    error
	// Numbers is the reply of a script; nil if the hit was sent without one.
	Numbers []int64
}

// The estimated costs of hits, in time of a server that works at an ordinary pace. A
// Pace learns how far the server at hand is from it.
const (
	CommandCost = time.Microsecond     // of a command, and the least of a hit
	scriptCost  = 8 * time.Microsecond // of a script, besides its hits
)

// maxSpare is the most bytes of keys for which the memory of a call is reused. There may be
// thousands of calls.
const maxSpare = 64 << 10

// NewCall returns an empty call with one holder.
func NewCall() *Call {
	c := &Call{done: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	c.timer.Stop()
	c.reset()
	return c
}

func (c *Call) reset() {
	if cap(c.Keys) > maxSpare {
		c.Keys = nil
	}
	c.Hits, c.Keys, c.numbers, c.of = c.Hits[:0], c.Keys[:0], c.numbers[:0], c.of[:0]
	c.At, c.Ask, c.again, c.expired = -1, false, false, nil
	c.bytes, c.cost, c.writer, c.next = 0, 0, nil, 0
	for _, flag := range [...]*atomic.Bool{&c.gone, &c.sent, &c.queued, &c.skipped} {
		flag.Store(false)
	}
	c.holders.Store(1)
}

// release removes a holder and reports whether it was the last.
func (c *Call) release() bool {
	if c.holders.Add(-1) > 0 {
		return false
	}
	select {
	case <-c.done: // of a caller that did not wait for it
	default:
	}
	return true
}

// Key returns the key of hit i.
func (c *Call) Key(i int) []byte { return c.Keys[c.Hits[i].from:c.Hits[i].to] }

// AddHit adds a hit whose key was appended to c.Keys.
func (c *Call) AddHit(h Hit) {
	h.from = 0
	if n := len(c.Hits); n > 0 {
		h.from = c.Hits[n-1].to
	}
	h.to = len(c.Keys)
	c.Hits = append(c.Hits, h)
}

// SetResult makes r, with a copy of its Numbers, the result of hit i.
func (c *Call) SetResult(i int, r Result) {
	if n := len(c.numbers); r.Numbers != nil {
		c.numbers = append(c.numbers, r.Numbers...)
		r.Numbers = c.numbers[n:]
	}
	c.Hits[i].Result = r
	c.again = c.again || c.redirected(i) != nil
}

// copyResults copies the results of part to its hits in c. If err is not nil, it becomes the result.
func (c *Call) copyResults(part *Call, err error) {
	for i, of := range part.of {
		r := Result{Err: err}
		if err == nil {
			r = part.Hits[i].Result
		}
		c.SetResult(int(of), r)
	}
}

// failAll makes err the result of each hit.
func (c *Call) failAll(err error) {
	for i := range c.Hits {
		c.Hits[i].Result = Result{Err: err}
	}
}

// failRest makes err the result of the hits that are not sent yet.
func (c *Call) failRest(err error) {
	for ; c.next < len(c.Hits); c.next++ {
		c.SetResult(c.next, Result{Err: err})
	}
}

// indivisible returns the index after the last hit that must be sent together with hit i, which
// is the end of its group or i + 1, and how long the server is expected to work on them.
func (c *Call) indivisible(i int) (end int, cost time.Duration) {
	h := &c.Hits[i]
	if h.GroupEnd == 0 {
		return i + 1, h.Cost
	}
	cost = scriptCost
	for j := i; j < h.GroupEnd; j++ {
		cost += c.Hits[j].Cost
	}
	return h.GroupEnd, cost
}

// estimate sets the cost of the call, and returns the cost of its most expensive group.
func (c *Call) estimate() (largest time.Duration) {
	c.cost = 0
	for i := 0; i < len(c.Hits); {
		end, cost := c.indivisible(i)
		c.cost += cost
		largest = max(largest, cost)
		i = end
	}
	return largest
}

// wait waits for ready until the deadline of c.
func wait[T any](ctx context.Context, c *Call, s *Store, ready <-chan T) error {
	if c.expired == nil {
		select {
		case <-ready:
			return nil
		case <-ctx.Done():
			c.expired = fmt.Errorf("%s: %w", s.Access.Name, context.Cause(ctx))
		case <-c.timer.C:
			c.expired = s.errTimeout
		}
	}
	select {
	case <-ready: // at the same moment, on a busy machine
		return nil
	default:
		return c.expired
	}
}

// lateError returns the error of c if it has no answer now, when its time has passed:
// err, or backend.ErrOverload if c waited for its turn while the server worked.
func (c *Call) lateError(err error, now time.Time) error {
	timedOut := errors.Is(err, ErrTimeout) || errors.Is(err, context.DeadlineExceeded)
	if !timedOut || !c.queued.Load() {
		return err
	}
	least := 2 // the first answer may be to a batch that was under way already
	if c.skipped.Load() {
		least = 1 // the estimate says that there is not enough time
	}
	if c.writer.progress.Worked(c.waiting, now, least) {
		return c.writer.store.errOverload
	}
	return err
}

// lateSlice is the pause between two checks of a caller whose time has passed.
const lateSlice = time.Millisecond

// arrivesLate waits for a reply that has arrived, but that this process has not
// handed out: at most as long again as the timeout, until the caller's deadline, and
// while the reply is being read. It reports whether c has its answer.
func (c *Call) arrivesLate(ctx context.Context) bool {
	if c.writer == nil || !c.sent.Load() {
		return false
	}
	link := c.writer.link
	end, answering := time.Now().Add(link.Timeout), link.current.Load().answering()
	for answering && ctx.Err() == nil && time.Now().Before(end) {
		answering = link.current.Load().answering() // else it is handed out in a moment
		select {
		case <-c.done:
			return true
		case <-ctx.Done():
		case <-time.After(lateSlice):
		}
	}
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// maxMargin is how long before its caller's deadline a call gives up at most.
const maxMargin = 5 * time.Millisecond

// Wait returns how long a call may wait for a server: the timeout, or less if ctx ends
// sooner. Then it is three quarters of what is left, or ends 5 ms before ctx does, so
// that the layer in front of the store has time to use the fallback.
func Wait(ctx context.Context, timeout time.Duration) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return timeout
	}
	left := time.Until(deadline)
	return min(timeout, left-min(left/4, maxMargin))
}

// NewHit returns what a call asks of the counter of h, without a key, times to live, a
// cost and a group.
func NewHit(h *backend.Hit) Hit {
	return Hit{Limit: *h.Limit, Amount: h.Amount, Op: h.Op, Atomic: h.Atomic, NoVeto: h.NoVeto, CountDown: h.CountDown}
}
