package remote

import (
	"sync/atomic"
	"time"
)

// Pace says how much work one batch for a server may have, so that the server
// answers it in about Slice and the round trip. It learns from the batches that
// were answered:
//
//	Piece() = 2 ms            nothing is known yet
//	Observe(0, 300 µs)        a batch that costs the server nothing: the round trip
//	Observe(1 ms, 4.3 ms)     again and again: work takes 4 times as long as estimated
//	Piece() = 575 µs          which the server answers in 2 ms and two round trips
//
// A busy server gets smaller pieces. A server far away gets larger ones, as it would be
// idle for a round trip after each piece otherwise.
//
// The zero value is ready to use. A Pace has neither lock nor clock.
type Pace struct {
	trip  time.Duration // the shortest answer to a small batch on this connection; 0: none yet
	scale float64       // measured time for estimated time; 0: not measured yet
}

const (
	// Slice is how long a server should be busy with one batch.
	Slice = 2 * time.Millisecond

	// minScale and maxScale bound the learned scale, against noise.
	minScale, maxScale = 0.5, 4
	maxTrip            = 5 * time.Millisecond

	// A batch of small cost tells the round trip, one of large cost the scale.
	smallBatch, largeBatch = Slice / 40, Slice / 10
)

// Piece returns the most work that one batch should have, in estimated cost.
func (p *Pace) Piece() time.Duration {
	return time.Duration(float64(Slice+p.trip) / p.factor())
}

// Estimate returns how long the server is likely to work on what costs that much.
func (p *Pace) Estimate(cost time.Duration) time.Duration {
	return time.Duration(float64(cost) * p.factor())
}

func (p *Pace) factor() float64 {
	if p.scale == 0 {
		return 1
	}
	return p.scale
}

// Observe says that a batch of this estimated cost was answered after took.
func (p *Pace) Observe(cost, took time.Duration) {
	switch {
	case took <= 0:
	case cost <= smallBatch:
		if took = min(took, maxTrip); p.trip == 0 || took < p.trip {
			p.trip = took
		}
	case cost >= largeBatch:
		now := min(max(float64(took-p.trip)/float64(cost), minScale), maxScale)
		p.scale = p.factor() + (now-p.factor())/8
	}
}

// Reconnected says that the next batches travel on a new connection: the way to the
// server may be another.
func (p *Pace) Reconnected() { p.trip = 0 }

// Progress tells a server that works from one that stands still, as far as a call
// noticed that waited for it in vain:
//
//	a call waits from 0 to 50 ms
//	answers at 2, 12, 22, 32, 42 ms   the server works, so the call was too much
//	answers at 2, 4 ms                the server stands still, so the call timed out
//	no answers                        the same
//
// The zero value is ready to use, by any number of goroutines.
type Progress struct {
	answers atomic.Int64
	last    atomic.Int64 // when the last answer came, in ns since progressEpoch
}

// progressEpoch is what Progress.last counts from, with the monotonic clock.
var progressEpoch = time.Now()

// Answered counts an answer of the server.
func (p *Progress) Answered(now time.Time) {
	p.last.Store(int64(now.Sub(progressEpoch)))
	p.answers.Add(1)
}

// Waiting is the moment at which a call began to wait.
type Waiting struct {
	Since   time.Time
	answers int64 // before
}

// Mark marks the beginning of a wait.
func (p *Progress) Mark(now time.Time) Waiting { return Waiting{now, p.answers.Load()} }

// Worked reports whether the server gave at least so many answers during a wait, and was
// not silent for the second half of it.
func (p *Progress) Worked(from Waiting, now time.Time, least int) bool {
	silent := now.Sub(progressEpoch) - time.Duration(p.last.Load())
	return p.answers.Load()-from.answers >= int64(least) && silent <= now.Sub(from.Since)/2
}
