// Package algorithm is the arithmetic of limits. A function takes a limit, the state of
// one counter, an instant and an amount, and returns the new state and an [Outcome].
// There is no clock, lock, goroutine or network, so each store can be compared with it.
package algorithm
