// Package redis keeps the counters in Redis: one server, the primary that sentinels
// name, or a cluster. Package remote does the work; this package is its protocol.
//
//	watch (one goroutine, Sentinel and Cluster only)
//	  finder: sentinels or cluster ──► panel ──► remote.Layout ──► Store.Use
//
//	writer of package remote (one goroutine for each connection)
//	  exchange: pipeline of commands ──► radix session ──► Redis
//
// The commands of a pipeline:
//   - increment, for all hits on a key that only add: INCRBY, with EXPIRE behind it if
//     the key may have no time to live. Each hit gets its own count before, by the order
//     of arrival;
//   - lookup: GET;
//   - script, for a group that is charged whole or not at all, and for all algorithms
//     but fixed windows: EVALSHA or EVAL of take.lua;
//   - expiry: EXPIRE for a key that Redis had lost.
//
// Each batch ends with PING. If its reply is not the last one, or a reply is of a kind
// that its command does not have, no reply of the batch counts and the connection is
// closed: the replies may belong to other commands. What arrives between two batches
// closes it, too.
//
// Keys and values of fixed windows are those of envoyproxy/ratelimit, so both can count
// in one Redis.
//
// # What is sent again
//
// Besides what package remote sends again:
//   - EVALSHA that was answered with NOSCRIPT, as EVAL (exchange.Send): the server had
//     nothing to run;
//   - hits that were answered with MOVED, ASK or TRYAGAIN (redirectOf): the node says so
//     instead of counting, for a script before its first line;
//   - EXPIRE of a key without a time to live, which counts nothing.
//
// radix does not send anything again, as it is given no pool or cluster to do so with.
// So no hit counts twice, unless the caller asks again after an error.
package redis
