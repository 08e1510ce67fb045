package remote

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Breaker stops calls to a server that does not answer; doc.go draws its states. With a limit of 5, it opens after 5
// failed attempts in a row. It also opens when failures outnumber answers by 10, so a server that answers one attempt
// in three opens it after 30. While it is open, only probes are sent, after pauses that grow. While it is half open, a
// few calls are tried before the next probe, because a probe may succeed and calls fail, as after CLIENT PAUSE WRITE of
// Redis.
//
// An attempt is a batch, or the opening of a connection. It fails when it breaks, is refused or takes as long as a call
// may. An error reply is an answer. A caller that leaves early is no failure, and 100 calls in one broken batch are one
// failure.
//
// Time is an argument. The zero value never opens.
type Breaker struct {
	serverName   string
	maxFailures  int           // in a row open the breaker. With 0 it never opens. mu guards this field.
	trialTimeout time.Duration // A call that is tried has an answer or fails within trialTimeout.
	notify       func(open bool, reason error)
	jitter       func(time.Duration) time.Duration // returns a random duration below its argument

	// refusal and the counters are written with mu held, and read without it.
	refusal        atomic.Pointer[OpenError] // the error of refused calls, and nil while the breaker is closed
	excessFailures atomic.Int64              // how many more failures than answers there were, at least 0
	stateChanges   atomic.Int64
	timesOpened    atomic.Int64

	mu             sync.Mutex // guards state and the fields after it
	state          breakerState
	failuresInRow  int           // while the breaker is closed
	silentSince    time.Time     // the first of the failures in a row, which may have opened the breaker. Zero: none.
	trialsLeft     int           // A half open breaker allows trialsLeft more calls.
	awaitingTrials bool          // a probe was put off to wait for the calls that are tried
	nextProbe      time.Time     // the time of the next probe. Zero means that it is not set yet.
	probePause     time.Duration // the pause before the next probe, without jitter
	pendingNotices []func()      // the calls of notify that are still to be made, in order
	notifying      bool          // true while one goroutine makes the pending calls of notify
}

// excessFailuresFactor times maxFailures is how many more failures than answers open a Breaker.
const excessFailuresFactor = 2

type breakerState uint8

const (
	breakerClosed breakerState = iota
	breakerOpen
	breakerHalfOpen
)

// The pause between two probes doubles from minProbePause to maxProbePause, with jitter, so
// that a server that restarts is found soon and not by all replicas at once.
const (
	minProbePause = 50 * time.Millisecond
	maxProbePause = 500 * time.Millisecond
)

// maxTrialCallsPerProbe is how many calls a half open Breaker lets through between two probes.
const maxTrialCallsPerProbe = 5

// NewBreaker returns a closed Breaker of the server with this name in errors. It opens after maxFailures failed
// attempts in a row; with 0 or less it never does. Timeout bounds an attempt. Notify is called in order with each
// opening, its reason and each closing. It is called on the goroutine of a call without locks, and must not block.
func NewBreaker(name string, maxFailures int, timeout time.Duration, notify func(open bool, reason error)) *Breaker {
	return &Breaker{
		serverName: name, maxFailures: max(maxFailures, 0), trialTimeout: max(2*timeout, minProbePause),
		notify: notify, jitter: rand.N[time.Duration],
	}
}

// OpenError is the error of calls that a Breaker refuses.
type OpenError struct {
	serverName string
	reason     error
}

// Error shows the reason. It cannot be unwrapped, because it is not the error of this call, which was not sent.
func (e *OpenError) Error() string {
	return fmt.Sprintf("%s is not asked until it answers again: %v", e.serverName, e.reason)
}

// Allow returns nil if a call may be made, else why not.
func (b *Breaker) Allow() error {
	if !b.IsOpen() {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.state == breakerClosed:
		return nil
	case b.state == breakerHalfOpen && b.trialsLeft > 0:
		b.trialsLeft--
		return nil
	}
	return b.refusal.Load()
}

// Refusal returns an error while the breaker is open. Calls that it allowed earlier, but that are not sent yet, fail
// with it.
func (b *Breaker) Refusal() error {
	if !b.IsOpen() {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == breakerOpen {
		return b.refusal.Load()
	}
	return nil
}

// IsOpen reports whether the breaker is open or half open.
func (b *Breaker) IsOpen() bool { return b.refusal.Load() != nil }

// failuresOfSilence is how many attempts must fail in a row before a server counts as silent. One may fail because a
// server restarted.
const failuresOfSilence = 2

// SilentSince returns when the server ceased to answer. It is zero if the breaker is closed and the last attempts did
// not fail.
func (b *Breaker) SilentSince() time.Time {
	if b.excessFailures.Load() == 0 && !b.IsOpen() {
		return time.Time{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == breakerClosed && b.failuresInRow < failuresOfSilence {
		return time.Time{}
	}
	return b.silentSince
}

// TimesOpened returns how often the breaker opened. A connection that was made before it opened must not be used after
// it.
func (b *Breaker) TimesOpened() int64 { return b.timesOpened.Load() }

// AttemptID identifies an attempt by the number of changes of state before it.
type AttemptID int64

// BeginAttempt returns the AttemptID of an attempt that begins now.
func (b *Breaker) BeginAttempt() AttemptID { return AttemptID(b.stateChanges.Load()) }

// Succeed records that the server has answered.
func (b *Breaker) Succeed() {
	if b.excessFailures.Load() == 0 && !b.IsOpen() {
		return // An answer changes nothing if nothing has failed.
	}
	b.mu.Lock()
	defer b.notifyAndUnlock()
	switch b.state {
	case breakerClosed:
		b.failuresInRow, b.silentSince = 0, time.Time{}
		b.excessFailures.Store(max(b.excessFailures.Load()-1, 0))
	case breakerOpen:
		b.setState(breakerHalfOpen)
		b.trialsLeft, b.awaitingTrials, b.nextProbe = maxTrialCallsPerProbe, false, time.Time{}
	case breakerHalfOpen:
		b.close(nil)
	}
}

// close closes the breaker and gives notify the reason.
func (b *Breaker) close(reason error) {
	b.setState(breakerClosed)
	b.silentSince = time.Time{}
	b.refusal.Store(nil)
	b.pendingNotices = append(b.pendingNotices, func() { b.notify(false, reason) })
}

// setState sets the state and forgets the failures in the old one.
func (b *Breaker) setState(to breakerState) {
	b.state, b.failuresInRow = to, 0
	b.excessFailures.Store(0)
	b.stateChanges.Add(1)
}

// notifyAndUnlock makes the pending calls of notify and unlocks mu. Only one goroutine calls it, so
// that the changes are in order, and the others do not wait for it.
func (b *Breaker) notifyAndUnlock() {
	defer b.mu.Unlock()
	if b.notifying {
		return
	}
	b.notifying = true
	for len(b.pendingNotices) > 0 {
		next := b.pendingNotices[0]
		b.pendingNotices = b.pendingNotices[1:]
		b.mu.Unlock()
		next()
		b.mu.Lock()
	}
	b.pendingNotices, b.notifying = nil, false
}

// Fail records that an attempt has failed with the reason. It ignores an attempt that began before the last change of
// state.
func (b *Breaker) Fail(attempt AttemptID, now time.Time, reason error) {
	b.mu.Lock()
	defer b.notifyAndUnlock()
	if b.maxFailures == 0 || b.state == breakerOpen || b.BeginAttempt() != attempt {
		return
	}
	if b.state == breakerClosed {
		if b.failuresInRow++; b.failuresInRow == 1 {
			b.silentSince = now
		}
		if b.excessFailures.Add(1) < int64(excessFailuresFactor*b.maxFailures) && b.failuresInRow < b.maxFailures {
			return
		}
		b.probePause = minProbePause
		b.refusal.Store(&OpenError{b.serverName, reason})
		b.pendingNotices = append(b.pendingNotices, func() { b.notify(true, reason) })
	}
	b.timesOpened.Add(1)
	b.pauseProbes(now)
	b.setState(breakerOpen)
}

// pauseProbes sets nextProbe to the end of a pause that starts now.
func (b *Breaker) pauseProbes(now time.Time) {
	b.nextProbe = now.Add(b.probePause - b.jitter(b.probePause/2))
	b.probePause = min(2*b.probePause, maxProbePause)
}

// ProbeDue reports whether a probe is due, which the caller then has to send. If not, it
// returns the time until one is due, 0 while the breaker is closed.
func (b *Breaker) ProbeDue(now time.Time) (due bool, wait time.Duration) {
	if !b.IsOpen() {
		return false, 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == breakerHalfOpen && b.nextProbe.IsZero() { // A half open breaker tries calls before the next probe.
		b.nextProbe = now.Add(minProbePause)
	}
	due = !now.Before(b.nextProbe)
	switch {
	case b.state == breakerClosed:
		return false, 0
	case !due:
	case b.state == breakerOpen:
		b.pauseProbes(now)
	case b.trialsLeft < maxTrialCallsPerProbe && !b.awaitingTrials:
		due, b.awaitingTrials, b.nextProbe = false, true, now.Add(b.trialTimeout)
	default: // A half open breaker tries more calls, because perhaps none was sent.
		b.trialsLeft, b.awaitingTrials, b.nextProbe = maxTrialCallsPerProbe, false, now.Add(minProbePause)
	}
	return due, max(b.nextProbe.Sub(now), 1)
}

// Retire closes the breaker of a server that is no longer used, which does not open again.
// If it was open, notify is called with the reason.
func (b *Breaker) Retire(reason error) {
	b.mu.Lock()
	defer b.notifyAndUnlock()
	b.maxFailures = 0
	if b.state != breakerClosed {
		b.close(reason)
	}
}

// FailEvery records a failure each time that interval passes before stop is called, because
// the opening of a connection may take much longer than a call.
func (b *Breaker) FailEvery(attempt AttemptID, interval time.Duration, reason error) (stop func()) {
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-time.After(interval):
				b.Fail(attempt, time.Now(), reason)
			case <-done:
				return
			}
		}
	}()
	return func() { close(done) }
}
