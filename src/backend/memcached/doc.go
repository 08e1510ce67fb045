// Package memcached keeps the counters in Memcached, on one server or on several
// that share the keys.
//
// Every charge is an increment, and what it returns decides: nothing is read
// first and written later, so what is counted is exact however many ask. A
// counter that is not there is added; who is second to do so increments it. That
// is all Memcached can do in one step, so it has fixed windows, and sliding
// window counters, that count also what they refuse, and no groups that are
// charged all or none.
//
// A Take becomes a call with one op for each counter that it is about, two for a
// sliding window (call.go). Each op waits at the node that has its key, behind the
// others on that key; workers take key after key (node.go), and all that waits for
// one is added up to a single command, of which each op gets its own count before
// by the order of arrival. Only one command is under way for each key, so a hot one
// costs the server as much as any other.
//
// gomemcache writes the commands and reads the replies, one at a time on what it
// takes for a connection. Those are guards, which share a few real connections: on
// a pipe the commands of many workers leave together, and the replies come back
// together (pipe.go). gomemcache knows no contexts, and trusts its server with its
// time and its lines; the pipe does not.
//
// Package redis adds up hits as well, but within one batch for one connection, in
// which scripts and looks have their place between them, and the next batch waits
// for the whole of it. Here each key has a queue of its own. What the two would
// share is the loop that hands out a sum, and no more.
package memcached
