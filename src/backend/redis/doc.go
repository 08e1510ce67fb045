// Package redis keeps the counters in Redis: one server, what sentinels call the
// primary, or a cluster.
//
// Calls are committed in groups: while one batch is on its way, what arrives
// waits, and leaves as the next one. Hits on equal keys are added up to one
// command, and each caller gets its own count before and after by the order of
// arrival. At low load that is one command for a call, at high load a batch of
// hundreds, and there is no timer in between.
//
// Keys and values of fixed windows are those of envoyproxy/ratelimit, so both
// can count in one Redis.
//
// A Take becomes a call, which is given to the node that has its keys, or in
// parts to several (route.go). Each node has a few writers, each with one link;
// a writer makes a pipeline of the calls in its queue. Which nodes there are is
// in the table, which the finders, sentinels or cluster, keep up to date
// (layout.go).
package redis
