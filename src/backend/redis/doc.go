// Package redis keeps the counters in Redis: one server, what sentinels call the
// primary, or a cluster.
//
// Calls are committed in groups: while one batch is on its way, what arrives
// waits, and leaves as the next one. Hits on equal keys are added up to one
// command, and each caller gets its own count before and after by the order of
// arrival. At low load that is one command for a call, at high load a batch of
// hundreds, and there is no timer in between.
//
// A batch has work for about remote.Slice. What does not fit waits in a remote.Queue,
// which lets small calls overtake large ones, so a call with a thousand scripts is sent
// in pieces. A call whose caller has left is not sent, nor is what is left of it. Costs are
// estimates (call.unit), which a remote.Pace corrects. Only a group that stands or falls
// together is sent whole, whatever it costs. All calls that may need several batches go to one
// writer of a node (node.choose), so that the server has one of their pieces at a time.
//
// A call that is out of time although the server answered other batches until then
// (remote.Progress) gets ErrOverload. The breaker does not hear of it. While the server
// stands still, such a call gets ErrTimeout, and the breaker hears of the batch under way.
//
// Each batch ends with PING. If its reply is not the last one, or a reply is of a kind
// that its command does not have, no reply of the batch counts and the connection is closed: they
// may belong to other commands. What arrives between two batches closes it, too.
//
// Keys and values of fixed windows are those of envoyproxy/ratelimit, so both
// can count in one Redis.
//
// A Take becomes a call, which is given to the node that has its keys, or in
// parts to several (route.go). Each node has a few writers, each with one link;
// a writer makes a pipeline of the calls in its queue. Which nodes there are is
// in the table, which the finders, sentinels or cluster, keep up to date
// (layout.go).
//
// A node has a breaker, remote.Breaker, which each attempt on one of its links tells
// what became of it. While it is open the node's writers send nothing, tell those that
// wait, and probe the server with PING on their links, whose connections are made
// anew for it. Each node of a cluster has its own, and one that was not there before,
// as the primary after a failover, begins with a closed one.
//
// # What is sent again
//
// A hit is sent a second time only when it is known that the first did not count:
//   - EVALSHA that was answered with NOSCRIPT, as EVAL (writer.evaluate): the server
//     had nothing to run;
//   - MOVED, ASK and TRYAGAIN, elsewhere or a moment later (Store.scatter): the node
//     says so instead of doing anything, for a script before its first line;
//   - what a writer that retired had not sent (errUnsent), to the node that came in
//     its place;
//   - on a new connection, when a look showed that the server had closed the old one
//     before anything was written on it (link.Do).
//
// EXPIRE is sent again when Redis has lost the key, and counts nothing; nor does
// PING. A batch that was written, in part or whole, and not answered is an error
// for all its hits, and never sent again: whether they counted is not known. radix
// does not send anything again either, as it is given no pool or cluster to do so
// with. So no hit counts twice, unless the caller asks again after an error.
package redis
