// Package xdsrules makes rule Sets from what a management server sends over xDS:
// resources of [TypeURL], one for each domain. They mean what the same keys mean
// in rule files, and are compiled by the same code, so they are refused and
// warned of in the same words. Where a file has a line, a resource has a path:
//
//	xds resource "edge": descriptors[2].rate_limit.unit: ...
//
// A [Watcher] holds a stream to the server (aggregated discovery, state of the
// world) and tells of each set, good or refused; the server is told too. A
// response is everything there is: what is not in it is gone, and an empty one
// is a good, empty set. A lost connection changes nothing but the log.
//
// The protocol's state is kept by go-control-plane's client (pkg/client/sotw/v3,
// v0.14.0), which is made for one stream and no trouble. What it leaves open is
// done around it, mostly below it, in the connection that it is given:
//
//   - A client that is used for a second stream begins it with the nonce of the
//     first, which the server takes for stale and never answers, and acknowledges
//     what it refused before. Each stream gets a client of its own.
//   - Fetch holds the client's lock while it waits, so nothing can be acknowledged
//     meanwhile, and hands out responses one by one, however old. Here it sees the
//     newest only: see newest.
//   - A response's type, version and nonce are not shown. We look below.
//   - Fetch waits for ever, Ack too if the server does not read. The first is right
//     (a server may have nothing to say for weeks), with keepalive for a peer that
//     is gone and a word in the log for one that has never said anything; the
//     second has a bound.
//   - It does not connect again, so it does not back off. Run does.
//   - A refusal names the last version that was accepted, as it should; but
//     go-control-plane's SnapshotCache answers every request that does not name
//     the current version at once, with the current version. What was refused
//     comes again as fast as it can be refused. Refusals of the same content
//     therefore wait longer and longer, up to some seconds.
//
// Time to live (envoy.service.discovery.v3.Resource.ttl) is not honoured, since
// rules stay when the server is gone. Heartbeats are acknowledged and change
// nothing.
package xdsrules
