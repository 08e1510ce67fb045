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
// others on that key; a few workers, each with one connection, take key after key
// (node.go), and all that waits for one is added up to a single command, of which
// each op gets its own count before by the order of arrival. Only one command is
// under way for each key, so a hot one costs the server as much as any other.
//
// Package redis adds up hits as well, but into a pipeline: there what meets in
// one batch is one command, in order, and the next batch has to wait. gomemcache
// sends one command and waits for its reply, so here each key is on its own. What
// the two would share is the loop that hands out a sum, and no more.
//
// gomemcache knows no contexts, and trusts its server: it may extend its deadline
// for as long as bytes trickle, and takes a line apart without looking how long
// it is. It is given connections that have the last word on both (guard.go).
package memcached
