// Package redis keeps the counters in Redis: one server, the primary that sentinels name, or
// a cluster. It is the protocol of Redis for package remote, which does the rest.
//
//	FindServers (Sentinel and Cluster only)
//	  sentinels or cluster ──► topologyServers ──► remote.Layout ──► Store.UseLayout
//
//	writer of package remote (one goroutine for each connection)
//	  exchange: pipeline of commands ──► remote.Conn ──► Redis
//
// The commands of a pipeline:
//   - increment, for all hits on a key that only add: INCRBY, followed by EXPIRE if the key
//     may have no time to live. The count before each hit is computed in order of arrival;
//   - keyCommand: GET, or DEL for a counter that an operator resets;
//   - script, for a group that is charged together or not at all, and for all algorithms
//     but fixed windows: EVALSHA or EVAL of takeScript;
//   - expireCommand: EXPIRE for a key that Redis had lost.
//
// Each batch ends with PING. If its reply is not the last one, or a reply has a type that its command never returns, no
// reply of the batch counts and the connection is closed, because the replies may belong to other commands. A reply
// between two batches closes the connection, too.
//
// Keys and values of fixed windows are those of envoyproxy/ratelimit, so both can count in one Redis.
//
// # What is sent again
//
// Besides what package remote sends again:
//   - after NOSCRIPT, the same hits with EVAL (exchange.Send), because no script ran;
//   - after MOVED, ASK or TRYAGAIN (redirectFromReply), the same hits, because a node sends these
//     replies instead of counting, and before the first line of a script;
//   - EXPIRE of a key without a time to live, which counts nothing.
//
// So no hit counts twice, unless the caller sends its request again after an error.
package redis
