// Package algorithm is what a limit is, and its arithmetic: state, time and an
// amount go in, the new state and a verdict come out. There is no clock, lock,
// goroutine or network in it, so every store can be held to it.
//
// It also owns the seam between the limiter and the stores: a [Batch] of
// [Hit]s goes down, one [Outcome] per hit comes back.
package algorithm
