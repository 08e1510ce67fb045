package remote

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// Call is the work of one Take, or a part of it for one server. It has copies of keys and
// limits, because the caller may have left before a writer sends it.
type Call struct {
	Hits []Hit
	// Keys are the keys of all hits, one after the other. Append each key before AddHit.
	Keys []byte
	// UnixMicros is the instant of the call in µs since the Unix epoch. -1 means the server's clock.
	UnixMicros int64
	// SendAsking says that ASKING is sent before each command of Redis, because a slot is moving to the node.
	SendAsking bool

	scriptReplies    []int64       // the memory for Result.ScriptReply of all hits
	wholeCallIndexes []int32       // has, for each hit of a part, its index in the whole call
	hasRedirect      bool          // the result of a hit is a Redirect
	deadlineError    error         // set when the deadline has passed. Only the calling goroutine uses it.
	resultsReady     chan struct{} // gets an element when all results are set
	deadlineTimer    *time.Timer
	deadline         time.Time    // when the caller stops waiting
	heldKeyBytes     int          // how many bytes of the Admission the call uses
	abandoned        atomic.Bool  // The caller of an abandoned call has left, so its unsent hits need not be sent.
	holders          atomic.Int32 // counts the goroutines that use the call. The last one returns it to the pool.
	divideBuffer     divideBuffer // the memory for dividing the call into parts

	// The writer of the call sets the fields from here on.
	writer             *writer
	waitStart          WaitStart // when the writer got the call
	nextUnsentHit      int
	unsentCost         time.Duration // the estimated server time for the unsent hits
	allHitsSent        atomic.Bool
	delayedByFullBatch atomic.Bool // the call had to wait because a batch was full
	skippedAsLate      atomic.Bool // no hit is sent, because the deadline of the call is too near
}

// Hit is one hit of a call: the operation on a counter, and its Result.
type Hit struct {
	Limit     algorithm.Limit
	Amount    uint64
	Op        algorithm.Op
	Atomic    bool
	NoVeto    bool
	CountDown bool
	HoldID    algorithm.HoldID
	// Window is the backend.Hit.Window of a refund that the server must compare with the window of the counter.
	Window int64
	// HoldsKeyBytes is the length of the second key of a limit with holds, which was appended to Call.Keys behind the
	// first one; 0 for none.
	HoldsKeyBytes int
	// WindowStart and WindowEnd are the bounds of the fixed window of a limit with holds, in µs since the Unix epoch.
	WindowStart, WindowEnd int64
	// Delete says that the key is deleted, and that Limit, Amount and Op have no meaning.
	Delete bool
	// MinTTL is the number of seconds that the key has to live, TTL is the same with jitter.
	MinTTL, TTL int64
	// Cost is the time that the server is expected to work on the hit.
	Cost time.Duration
	// GroupEnd is the index after the last hit that the same script must count. A hit that is sent without a script has
	// 0.
	GroupEnd int
	Result

	keyStart, keyEnd int // The key is Call.Keys[keyStart:keyEnd].
}

// Result is the server's reply to a hit.
type Result struct {
	// CountBefore is the count before the hit.
	CountBefore int64
	Err         error
	// ScriptReply is the reply of a script. It is nil if the hit was sent without a script.
	ScriptReply []int64
}

// Costs are estimates of the time that an ordinary server works on a hit. A Pace learns how much faster or slower the
// server is.
const (
	CommandCost = time.Microsecond     // the cost of one command, the least cost of a hit
	scriptCost  = 8 * time.Microsecond // the cost of a script without its hits
)

// maxPooledKeyBytes is the largest buffer for keys, in bytes, that a pooled call keeps. There may be thousands of
// calls.
const maxPooledKeyBytes = 64 << 10

// NewCall returns an empty call with one holder.
func NewCall() *Call {
	c := &Call{resultsReady: make(chan struct{}, 1), deadlineTimer: time.NewTimer(time.Hour)}
	c.deadlineTimer.Stop()
	c.reset()
	return c
}

func (c *Call) reset() {
	if cap(c.Keys) > maxPooledKeyBytes {
		c.Keys = nil
	}
	c.Hits, c.Keys, c.scriptReplies = c.Hits[:0], c.Keys[:0], c.scriptReplies[:0]
	c.wholeCallIndexes = c.wholeCallIndexes[:0]
	c.UnixMicros, c.SendAsking, c.hasRedirect, c.deadlineError = -1, false, false, nil
	c.heldKeyBytes, c.unsentCost, c.writer, c.nextUnsentHit = 0, 0, nil, 0
	for _, flag := range [...]*atomic.Bool{&c.abandoned, &c.allHitsSent, &c.delayedByFullBatch, &c.skippedAsLate} {
		flag.Store(false)
	}
	c.holders.Store(1)
}

// removeHolder removes a holder and reports whether it was the last.
func (c *Call) removeHolder() bool {
	if c.holders.Add(-1) > 0 {
		return false
	}
	select {
	case <-c.resultsReady: // The caller of an abandoned call does not receive from resultsReady.
	default:
	}
	return true
}

// Key returns the key of hit i.
func (c *Call) Key(i int) []byte { return c.Keys[c.Hits[i].keyStart:c.Hits[i].keyEnd] }

// HoldsKey returns the second key of hit i, or nothing.
func (c *Call) HoldsKey(i int) []byte { return c.allKeys(i)[len(c.Key(i)):] }

// allKeys returns all keys of hit i, one after the other.
func (c *Call) allKeys(i int) []byte {
	h := &c.Hits[i]
	return c.Keys[h.keyStart : h.keyEnd+h.HoldsKeyBytes]
}

// NewHit returns what a call asks of the counter of h. Its key, times to live, cost and group are not set.
func NewHit(h *backend.Hit) Hit {
	return Hit{
		Limit: *h.Limit, Amount: h.Amount, Op: h.Op, Atomic: h.Atomic, NoVeto: h.NoVeto,
		CountDown: h.StoresRemaining, HoldID: h.HoldID, Window: h.Window,
	}
}

// ResolveWindow sets the amount of h if it is a refund of units that one window counted, where of is its hit in the
// batch. The key of h names the window of the instant now, so the server need not compare windows.
func (h *Hit) ResolveWindow(of *backend.Hit, now int64) {
	if of.Window != 0 {
		h.Amount, h.Window = of.AmountIn(new(algorithm.State), now), 0
	}
}

// borderSlack is how long the counter of a calendar window outlives its border. Meanwhile replicas whose clocks are
// behind may count in it.
const borderSlack = time.Minute

// WindowTTL returns how long the counter of a window of l has to live at the instant now: its period, or the time until
// a border of the calendar and a minute more.
func WindowTTL(l *algorithm.Limit, now int64) time.Duration {
	if l.Calendar == nil {
		return l.Period
	}
	_, end := l.WindowBounds(now)
	return time.Duration(end-now) + borderSlack
}

// minVirtualTTL is the least time to live of a key in virtual time, which may pass more slowly than the clock of the
// server.
const minVirtualTTL = time.Hour

// SetTTL sets MinTTL to ttl, rounded up to seconds. It sets TTL to up to jitter more, so that
// the keys of one window do not all expire at once.
func (h *Hit) SetTTL(ttl, jitter time.Duration, virtual bool) {
	if virtual {
		ttl = max(ttl, minVirtualTTL)
	}
	h.MinTTL = int64((ttl + time.Second - 1) / time.Second)
	h.TTL = h.MinTTL
	if bound := int64(jitter / time.Second); bound > 0 {
		h.TTL += rand.Int64N(bound)
	}
}

// AddHit adds a hit whose keys were appended to c.Keys.
func (c *Call) AddHit(h Hit) {
	h.keyStart = 0
	if n := len(c.Hits); n > 0 {
		h.keyStart = c.Hits[n-1].keyEnd + c.Hits[n-1].HoldsKeyBytes
	}
	h.keyEnd = len(c.Keys) - h.HoldsKeyBytes
	c.Hits = append(c.Hits, h)
}

// SetResult makes r, with a copy of its ScriptReply, the result of hit i.
func (c *Call) SetResult(i int, r Result) {
	if n := len(c.scriptReplies); r.ScriptReply != nil {
		c.scriptReplies = append(c.scriptReplies, r.ScriptReply...)
		r.ScriptReply = c.scriptReplies[n:]
	}
	c.Hits[i].Result = r
	c.hasRedirect = c.hasRedirect || c.redirectOfHit(i) != nil
}

func (c *Call) failAllHits(err error) {
	for i := range c.Hits {
		c.Hits[i].Result = Result{Err: err}
	}
}

func (c *Call) failUnsentHits(err error) {
	for ; c.nextUnsentHit < len(c.Hits); c.nextUnsentHit++ {
		c.SetResult(c.nextUnsentHit, Result{Err: err})
	}
}

// indivisibleGroup returns the index after the last hit that must be sent together with hit i,
// and how long the server is expected to work on these hits.
func (c *Call) indivisibleGroup(i int) (end int, cost time.Duration) {
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

// estimateCost sets unsentCost to the cost of all hits, and returns the cost of the most expensive group.
func (c *Call) estimateCost() (largest time.Duration) {
	c.unsentCost = 0
	for i := 0; i < len(c.Hits); {
		end, cost := c.indivisibleGroup(i)
		c.unsentCost += cost
		largest = max(largest, cost)
		i = end
	}
	return largest
}

func waitUntilDeadline[T any](ctx context.Context, c *Call, s *Store, ready <-chan T) error {
	if c.deadlineError == nil {
		select {
		case <-ready:
			return nil
		case <-ctx.Done():
			c.deadlineError = fmt.Errorf("%s: %w", s.Access.Name, context.Cause(ctx))
		case <-c.deadlineTimer.C:
			c.deadlineError = s.errTimeout
		}
	}
	select {
	case <-ready: // On a busy machine, an answer and the deadline may come at the same moment.
		return nil
	default:
		return c.deadlineError
	}
}

// lateError returns the error of c when its deadline has passed: err, or ErrOverload if the
// server answered other calls while c waited for its batch.
func (c *Call) lateError(err error, now time.Time) error {
	timedOut := errors.Is(err, ErrTimeout) || errors.Is(err, context.DeadlineExceeded)
	if !timedOut || !c.delayedByFullBatch.Load() {
		return err
	}
	least := 2 // The first answer may be to a batch that was under way before this call.
	if c.skippedAsLate.Load() {
		least = 1
	}
	if c.writer.progress.AnsweredDuring(c.waitStart, now, least) {
		return c.writer.store.errOverload
	}
	return err
}

// lateCheckPause is the pause between two checks for a late answer.
const lateCheckPause = time.Millisecond

// awaitLateAnswer waits after the deadline for an answer that has reached this process, while
// its reply is being read and at most for the Timeout. It reports whether c is answered.
func (c *Call) awaitLateAnswer(ctx context.Context) bool {
	if c.writer == nil || !c.allHitsSent.Load() {
		return false
	}
	link := c.writer.connection
	end, answering := time.Now().Add(link.Timeout), link.conn.Load().isAnswering()
	for answering && ctx.Err() == nil && time.Now().Before(end) {
		answering = link.conn.Load().isAnswering() // After the last reply is read, the result is set in a moment.
		select {
		case <-c.resultsReady:
			return true
		case <-ctx.Done():
		case <-time.After(lateCheckPause):
		}
	}
	select {
	case <-c.resultsReady:
		return true
	default:
		return false
	}
}

// maxFallbackTime is the most time that a call leaves between its end and its caller's deadline.
const maxFallbackTime = 5 * time.Millisecond

// maxCallWait returns how long a call may wait for a server: the timeout, or less if ctx ends
// sooner. Then it leaves a quarter of the time, 5 ms at most, for the use of the fallback.
func maxCallWait(ctx context.Context, timeout time.Duration) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return timeout
	}
	left := time.Until(deadline)
	return min(timeout, left-min(left/4, maxFallbackTime))
}
