package xdsrules

import (
	"cmp"
	"math"
	"math/rand/v2"
	"time"
)

// Pauses is how long the server is left alone between two attempts to reach it.
type Pauses struct {
	// First is the pause after a good connection was lost, or the first attempt
	// failed. Defaults to 3s.
	First time.Duration
	// Initial is the one after that; each further one is Growth times as long.
	// They default to 10s and 2.
	Initial time.Duration
	Growth  float64
	// Max bounds them all. Defaults to 60s.
	Max time.Duration
	// Jitter is the share of a pause, 0 to 1, that is left to chance, so that
	// replicas do not come back all at once: with 0.5, 10s are 5s to 10s.
	Jitter float64
}

func (p Pauses) withDefaults() Pauses {
	p.First = cmp.Or(max(p.First, 0), 3*time.Second)
	p.Initial = cmp.Or(max(p.Initial, 0), 10*time.Second)
	p.Max = cmp.Or(max(p.Max, 0), time.Minute)
	if !(p.Growth >= 1) { // also if it is no number
		p.Growth = 2
	}
	if !(p.Jitter >= 0 && p.Jitter <= 1) {
		p.Jitter = 1
	}
	return p
}

// after is the pause after so many failures in a row, the first being 1. chance
// is from 0 to 1.
func (p Pauses) after(failures int, chance float64) time.Duration {
	pause := float64(p.First)
	if failures > 1 {
		pause = float64(p.Initial) * math.Pow(p.Growth, float64(failures-2))
	}
	pause = min(pause, float64(p.Max)) // before it is a Duration: it may be infinite
	return time.Duration(pause * (1 - p.Jitter*chance))
}

// next is after, with chance.
func (p Pauses) next(failures int) time.Duration { return p.after(failures, rand.Float64()) }
