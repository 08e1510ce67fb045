// Package redis keeps the counters in Redis.
//
// Calls are committed in groups: while one batch is on its way, what arrives
// waits, and leaves as the next one. Hits on equal keys are added up to one
// command, and each caller gets its own count before and after by the order of
// arrival. At low load that is one command for a call, at high load a batch of
// hundreds, and there is no timer in between.
//
// Keys and values of fixed windows are those of envoyproxy/ratelimit, so both
// can count in one Redis.
package redis
