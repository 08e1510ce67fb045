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
// sliding window (call.go). The ops of a call that belong to one node are a part, and
// parts share the node by remote.Queue: a call with one op does not wait for the
// thousand ops of another. Workers take key after key (node.go), and all ops that wait
// for one key are added up to a single command, of which each op gets its own count
// before by the order of arrival. Only one command is in flight for each key, so a hot
// one costs the server as much as any other.
//
// A call that times out because its ops wait in the queue, while the server answers
// others (remote.Progress), gets ErrOverload: the breaker does not hear of it.
//
// gomemcache writes the commands and reads the replies, one at a time on what it
// takes for a connection. Those are guards, which share a few real connections: on
// a pipe the commands of many workers leave together, and the replies come back
// together (pipe.go). Each write ends with "version", whose reply shows that the
// replies belong to the commands. gomemcache knows no contexts, and trusts its server
// with its time and its lines; the pipe does not.
//
// A node has a breaker, remote.Breaker, which each pipe tells of replies and of its
// end. While it is open no op is taken, those that wait are told, and a prober asks
// for the version over one pipe after the other (probe.go), all of which are made anew
// for it.
//
// # What is sent again
//
// A sum is sent a second time only when it is known that the first did not count:
//   - incr of a counter that is not there, as add, and add of one that is there, as
//     incr (worker.add): NOT_FOUND and NOT_STORED are said instead of doing anything;
//   - to a new pipe, when the old one was broken before the command got onto it
//     (guard.Write);
//   - to another node, when the one that was chosen takes no more ops (Store.put).
//
// A command that was handed to a pipe and not answered is an error for its ops and
// never sent again, by us or gomemcache: whether it counted is not known. So no hit
// counts twice, unless somebody above asks again after an error. What is said a
// second time without counting: that a counter which grew too far is set back, and
// the version.
//
// Package redis adds up hits as well, but within one batch for one connection, in
// which scripts and looks have their place between them, and the next batch waits
// for the whole of it. Here each key has a queue of its own.
package memcached
