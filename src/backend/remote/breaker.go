package remote

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Breaker keeps calls from a server that does not answer; doc.go draws its states. It
// opens after a number of attempts in a row without an answer, or when those outnumber
// the answers by twice that number: with 5, a server that answers one attempt in three
// opens it after some 30. While it is open, only probes are sent, after pauses that grow.
// While it is half open, a few calls may try and probes wait for their outcome: Redis
// under CLIENT PAUSE WRITE answers probes and nothing else.
//
// An attempt is a batch, or the opening of a connection.
// It has no answer when it broke, was refused, or took as long as a call may. An error
// reply is an answer. A caller that leaves early is no evidence, but what was sent for
// it still has its whole time. A hundred calls in one broken batch are one failure.
//
// Time is an argument. The zero value never opens.
type Breaker struct {
	name     string
	failures int           // in a row that open it; 0: it never opens
	patience time.Duration // until a call that tried has an answer, or is without one
	tell     func(open bool, why error)
	jitter   func(time.Duration) time.Duration // from 0 to below it

	// Callers read these without mu. They are changed under it.
	refusal atomic.Pointer[OpenError] // nil while closed
	balance atomic.Int64              // closed: 1 more for each failure, 1 less for each answer, down to 0
	changes atomic.Int64              // of state
	opened  atomic.Int64              // how often it has opened

	mu        sync.Mutex // guards what follows
	state     breakerState
	row       int       // closed: failures in a row
	trials    int       // half open: so many more calls may try
	waited    bool      // half open: those that tried were waited for
	next      time.Time // open, half open: when the next probe is due. Zero: not known yet
	wait      time.Duration
	retired   bool   // it does not open any more
	pending   []news // changes of which tell has not been told yet, in order
	notifying bool   // a goroutine is calling tell for pending
}

// news is a change of state that tell must be told: whether it opened, and why.
type news struct {
	open bool
	why  error
}

// imbalance times the failures in a row that open a Breaker is the surplus of failures over
// answers that opens it as well.
const imbalance = 2

type breakerState uint8

const (
	closed breakerState = iota
	opened
	halfOpen
)

// The pause between two probes doubles from probeLeast to probeMost, with jitter, so
// that a server that is back is found within a second and not by all replicas at once.
const (
	probeLeast = 50 * time.Millisecond
	probeMost  = 500 * time.Millisecond
)

// maxTrials is how many calls may be under way while a Breaker is half open.
const maxTrials = 5

// NewBreaker returns a closed Breaker of the server that has this name in errors. It
// opens after so many failures in a row; with 0 or less it never does. Timeout is that of
// an attempt. Tell, unless nil, hears when it opens, and why, and when it closes: in
// order, without locks held, on the goroutine of a call. It must not block.
func NewBreaker(name string, failures int, timeout time.Duration, tell func(open bool, why error)) *Breaker {
	if tell == nil {
		tell = func(bool, error) {}
	}
	return &Breaker{
		name: name, failures: max(failures, 0), patience: max(2*timeout, probeLeast), tell: tell, jitter: rand.N[time.Duration],
	}
}

// OpenError is the error of calls that a Breaker refuses.
type OpenError struct {
	name string
	why  error
}

// Error does not let callers unwrap why it opened: a call that was not sent has no part
// in what became of others.
func (e *OpenError) Error() string {
	return fmt.Sprintf("%s is not asked until it answers again: %v", e.name, e.why)
}

// Allow returns nil if a call may be made, else why not.
func (b *Breaker) Allow() error {
	if !b.Open() {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.state == closed:
		return nil
	case b.state == halfOpen && b.trials > 0:
		b.trials--
		return nil
	}
	return b.refusal.Load()
}

// Refusal returns an error while it is open: then only probes are to be sent, also of
// calls that were allowed before.
func (b *Breaker) Refusal() error {
	if !b.Open() {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == opened {
		return b.refusal.Load()
	}
	return nil
}

// Open reports whether the breaker is open or half open.
func (b *Breaker) Open() bool { return b.refusal.Load() != nil }

// Opened returns how often it has opened. Connections made before are not to be trusted
// after it.
func (b *Breaker) Opened() int64 { return b.opened.Load() }

// Mark is when an attempt began: the number of changes of state before it.
type Mark int64

// Begin marks the beginning of an attempt.
func (b *Breaker) Begin() Mark { return Mark(b.changes.Load()) }

// Succeed says that the server has answered.
func (b *Breaker) Succeed() {
	if b.balance.Load() == 0 && !b.Open() {
		return // nothing failed
	}
	b.mu.Lock()
	defer b.unlock()
	switch b.state {
	case closed:
		b.row = 0
		b.balance.Store(max(b.balance.Load()-1, 0))
	case opened:
		b.change(halfOpen)
		b.letTry(time.Time{})
	case halfOpen:
		b.close(nil)
	}
}

// letTry allows maxTrials calls while the breaker is half open, until the next probe.
func (b *Breaker) letTry(next time.Time) { b.trials, b.waited, b.next = maxTrials, false, next }

// close closes the breaker. tell gets why.
func (b *Breaker) close(why error) {
	b.change(closed)
	b.refusal.Store(nil)
	b.pending = append(b.pending, news{false, why})
}

// change sets the state, and forgets the failures so far.
func (b *Breaker) change(to breakerState) {
	b.state, b.row = to, 0
	b.balance.Store(0)
	b.changes.Add(1)
}

// unlock releases mu and calls tell with what happened. The first goroutine that comes
// here tells for all, so calls are in order and none waits for another.
func (b *Breaker) unlock() {
	defer b.mu.Unlock()
	if b.notifying {
		return
	}
	b.notifying = true
	for len(b.pending) > 0 {
		next := b.pending[0]
		b.pending = b.pending[1:]
		b.mu.Unlock()
		b.tell(next.open, next.why)
		b.mu.Lock()
	}
	b.pending, b.notifying = nil, false
}

// Fail says that an attempt that began at the mark has had no answer, and why. It is
// ignored if the state has changed since.
func (b *Breaker) Fail(began Mark, now time.Time, why error) {
	b.mu.Lock()
	defer b.unlock()
	if b.failures == 0 || b.retired || b.state == opened || b.Begin() != began {
		return
	}
	if b.state == closed {
		b.row++
		if b.balance.Add(1) < int64(imbalance*b.failures) && b.row < b.failures {
			return
		}
		b.wait = probeLeast
		b.refusal.Store(&OpenError{b.name, why})
		b.pending = append(b.pending, news{true, why})
	}
	b.opened.Add(1)
	b.pause(now)
	b.change(opened)
}

// pause sets when the next probe is due.
func (b *Breaker) pause(now time.Time) {
	b.next = now.Add(b.wait - b.jitter(b.wait/2))
	b.wait = min(2*b.wait, probeMost)
}

// Probe reports whether a probe is due now, which the caller has to send then, and if
// not how long until one is; 0: it is closed.
func (b *Breaker) Probe(now time.Time) (due bool, wait time.Duration) {
	if !b.Open() {
		return false, 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == halfOpen && b.next.IsZero() { // calls come first
		b.next = now.Add(probeLeast)
	}
	due = !now.Before(b.next)
	switch {
	case b.state == closed:
		return false, 0
	case !due:
	case b.state == opened:
		b.pause(now)
	case b.trials < maxTrials && !b.waited:
		due, b.waited, b.next = false, true, now.Add(b.patience)
	default: // those that tried may never have been sent
		b.letTry(now.Add(probeLeast))
	}
	return due, max(b.next.Sub(now), 1)
}

// Retire says that the server is not used any more, and why: tell hears the end if it is
// open, and it does not open again.
func (b *Breaker) Retire(why error) {
	b.mu.Lock()
	defer b.unlock()
	b.retired = true
	if b.state != closed {
		b.close(why)
	}
}

// Watch counts an attempt that takes long once for each time that passes, until stop is
// called: connecting may take many times as long as a call.
func (b *Breaker) Watch(began Mark, each time.Duration, why error) (stop func()) {
	done := make(chan struct{})
	go func() {
		passed := time.NewTicker(each)
		defer passed.Stop()
		for {
			select {
			case <-passed.C:
				b.Fail(began, time.Now(), why)
			case <-done:
				return
			}
		}
	}()
	return func() { close(done) }
}
