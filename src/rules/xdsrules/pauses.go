package xdsrules

import (
	"cmp"
	"math"
	"math/rand/v2"
	"time"
)

// Pauses are the back-off between attempts to reach the server.
type Pauses struct {
	// First is the pause after a good connection was lost, or the first attempt failed. Defaults to 3s.
	First time.Duration
	// Initial is the second pause; each further one is Growth times as long, up to Max. They default to 10s, 2 and 60s.
	Initial time.Duration
	Growth  float64
	Max     time.Duration
	// Jitter is the random share of a pause, 0 to 1, so that replicas do not reconnect at the same time: with 0.5, 10s become 5s
	// to 10s.
	Jitter float64
}

func (p Pauses) withDefaults() Pauses {
	p.First = cmp.Or(max(p.First, 0), 3*time.Second)
	p.Initial = cmp.Or(max(p.Initial, 0), 10*time.Second)
	p.Max = cmp.Or(max(p.Max, 0), time.Minute)
	if !(p.Growth >= 1) { // true for NaN
		p.Growth = 2
	}
	if !(p.Jitter >= 0 && p.Jitter <= 1) {
		p.Jitter = 1
	}
	return p
}

// after returns the pause after so many failures in a row, 1 or more. chance is from 0 to 1.
func (p Pauses) after(failures int, chance float64) time.Duration {
	pause := float64(p.First)
	if failures > 1 {
		pause = float64(p.Initial) * math.Pow(p.Growth, float64(failures-2))
	}
	pause = min(pause, float64(p.Max)) // it may be infinite
	return time.Duration(pause * (1 - p.Jitter*chance))
}

func (p Pauses) next(failures int) time.Duration { return p.after(failures, rand.Float64()) }
