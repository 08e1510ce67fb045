package remote

import "time"

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

	// The bounds of what is learned, for noisy machines.
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
