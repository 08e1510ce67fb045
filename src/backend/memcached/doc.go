// Package memcached keeps the counters in Memcached, on one server or on several that
// share the keys. Package remote does the work; this package is its protocol.
//
// Every charge is an increment, and what it returns decides: nothing is read first and
// written later, so what is counted is exact however many callers there are. A counter
// that is not there is added; the client that is second to do so increments it. That is
// all Memcached can do in one step, so it has fixed windows, and sliding window counters
// that count also what they refuse, and no groups that are charged whole or not at all.
//
//	watch (one goroutine, SRV only): DNS ──► remote.Layout ──► Store.Use
//
//	writer of package remote (one goroutine for each connection)
//	  exchange ──► round 1: incr a 3 | incr b 1 | version
//	     │         round 2:            add b 1  | version      b was not there
//	     └── one talker for each counter: gomemcache in a coroutine
//
// Hits on one counter are added up to one command, of which each hit gets its own count
// before, by the order of arrival. Commands that cannot be added up, such as a lookup
// after a charge, follow in later rounds. gomemcache writes the commands and reads the
// replies, one at a time on what it takes for a connection; the exchange sends those of
// all talkers together. The reply to "version" at the end of a round shows that the
// replies belong to the commands.
//
// # What is sent again
//
// Besides what package remote sends again:
//   - incr of a counter that is not there, as add, and add of one that is there, as incr
//     (talker.add): NOT_FOUND and NOT_STORED are said instead of doing anything.
//
// A command that was written and not answered is an error for its hits and never sent
// again, by this package or gomemcache: it is not known whether it counted. So no hit
// counts twice, unless the caller asks again after an error. What is said a second time
// without counting: that a counter which grew too far is set back, and the version.
package memcached
