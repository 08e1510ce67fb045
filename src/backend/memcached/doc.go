// Package memcached keeps the counters in Memcached, on one server or on several that
// share the keys. Package remote does the work; this package is its protocol.
//
// Every charge is an increment, and the count that it returns decides. So counts are exact with any number of clients,
// because none of them reads a count and writes it later. A counter that does not exist is added, and the client that
// is second to add it increments it. Memcached can do no more in one step. So it has only fixed windows and sliding
// window counters that count refused hits too, and no groups that are charged together or not at all.
//
//	FindServers (DNS with SRV) ──► remote.Layout ──► Store.UseLayout
//
//	writer of package remote (one goroutine for each connection)
//	  exchange ──► round 1: incr a 3 | incr b 1 | version
//	     │         round 2:            add b 1  | version      b did not exist
//	     └── one counter client for each counter: gomemcache in a coroutine
//
// Hits on one counter are added up to one command. The count before each hit is computed in order of arrival. Hits that
// cannot be added up, such as a lookup after a charge, follow in later rounds. Each counter client is the connection of
// a gomemcache client, which writes one command at a time and reads its reply. The exchange sends the commands of all
// counter clients together. The reply to "version" at the end of a round shows that the other replies belong to their
// commands.
//
// # What is sent again
//
// Besides what package remote sends again:
//   - after NOT_FOUND, incr as add, and after NOT_STORED, add as incr (counterClient.addSum), because
//     the server sends these replies if it has done nothing;
//   - version, and the commands that set back a counter which grew too far. They count no hits.
//
// If a command was written and not answered, its hits get an error. Neither this package nor gomemcache sends it again,
// because the server may have counted it. So no hit counts twice, unless the caller sends its request again after an
// error.
package memcached
