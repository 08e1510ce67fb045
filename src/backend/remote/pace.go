package remote

import (
	"cmp"
	"sync/atomic"
	"time"
)

// Pace says how much work one batch for a server may have, so that the server answers it
// in about BatchTime and a round trip. It learns from the batches that were answered:
//
//	MaxBatchCost() = 2 ms          nothing is known yet
//	ObserveBatch(0, 300 µs)        a batch without work takes one round trip
//	ObserveBatch(1 ms, 4.3 ms)     repeated: work takes 4 times as long as estimated
//	MaxBatchCost() = 575 µs        which the server answers in 2 ms and two round trips
//
// A slow server gets smaller batches. A distant server gets larger batches, because it has
// nothing to do for a round trip after each batch.
//
// The zero value is ready to use. A Pace has neither lock nor clock.
type Pace struct {
	fastestRoundTrip time.Duration // the time of the fastest small batch on this connection, and 0 before the first
	// the measured time of batches divided by their estimated cost, and 0 before the first
	timePerCost float64
}

const (
	// BatchTime is how long a server should be busy with one batch.
	BatchTime = 2 * time.Millisecond

	// Bounds keep a few odd measurements from changing the Pace too much.
	minTimePerCost, maxTimePerCost = 0.5, 4
	maxRoundTrip                   = 5 * time.Millisecond

	// A batch of at most smallBatchCost measures the round trip, one of at least largeBatchCost the scale.
	smallBatchCost, largeBatchCost = BatchTime / 40, BatchTime / 10
)

// MaxBatchCost returns the largest estimated cost that one batch should have.
func (p *Pace) MaxBatchCost() time.Duration {
	return time.Duration(float64(BatchTime+p.fastestRoundTrip) / p.timeFactor())
}

// ExpectedTime returns how long the server is likely to work on hits of this estimated cost.
func (p *Pace) ExpectedTime(cost time.Duration) time.Duration {
	return time.Duration(float64(cost) * p.timeFactor())
}

func (p *Pace) timeFactor() float64 { return cmp.Or(p.timePerCost, 1) }

// ObserveBatch records that a batch of this estimated cost was answered after took.
func (p *Pace) ObserveBatch(cost, took time.Duration) {
	switch {
	case took <= 0:
	case cost <= smallBatchCost:
		if took = min(took, maxRoundTrip); p.fastestRoundTrip == 0 || took < p.fastestRoundTrip {
			p.fastestRoundTrip = took
		}
	case cost >= largeBatchCost:
		scale := min(max(float64(took-p.fastestRoundTrip)/float64(cost), minTimePerCost), maxTimePerCost)
		p.timePerCost = p.timeFactor() + (scale-p.timeFactor())/8
	}
}

// ForgetRoundTrip records that the next batches use a new connection, which may be faster or slower.
func (p *Pace) ForgetRoundTrip() { p.fastestRoundTrip = 0 }

// ServerProgress tells an overloaded server from one that has stopped, for a call that got no answer:
//
//	a call waits from 0 to 50 ms
//	answers at 2, 12, 22, 32, 42 ms   the server works, so the call was too much
//	answers at 2, 4 ms                the server has stopped, so the call timed out
//	no answers                        the server has stopped, so the call timed out
//
// The zero value is ready to use. It is safe for concurrent use.
type ServerProgress struct {
	answerCount    atomic.Int64
	lastAnswerTime atomic.Int64 // the time of the last answer, in ns since progressEpoch
}

// progressEpoch is the origin of ServerProgress.lastAnswerTime, on the monotonic clock.
var progressEpoch = time.Now()

// RecordAnswer counts an answer of the server.
func (p *ServerProgress) RecordAnswer(now time.Time) {
	p.lastAnswerTime.Store(int64(now.Sub(progressEpoch)))
	p.answerCount.Add(1)
}

// WaitStart is the state of a ServerProgress when a call began to wait.
type WaitStart struct {
	Since         time.Time
	answersBefore int64 // the number of answers before the call
}

// StartWaiting returns the WaitStart of a call that begins to wait now.
func (p *ServerProgress) StartWaiting(now time.Time) WaitStart {
	return WaitStart{now, p.answerCount.Load()}
}

// AnsweredDuring reports whether the server gave at least this number of answers during a wait, and
// one of them in the second half of it.
func (p *ServerProgress) AnsweredDuring(from WaitStart, now time.Time, least int) bool {
	silent := now.Sub(progressEpoch) - time.Duration(p.lastAnswerTime.Load())
	return p.answerCount.Load()-from.answersBefore >= int64(least) && silent <= now.Sub(from.Since)/2
}
