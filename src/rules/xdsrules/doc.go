// Package xdsrules makes rule Sets from what a management server sends over xDS: resources of [TypeURL], one for each
// domain. They mean the same as the same keys of rule files, and the same code compiles them, so errors and warnings
// are the same too. Where a file has a line, a resource has a path:
//
//	xds resource "edge": descriptors[2].rate_limit.unit: ...
//
// A [Watcher] holds a stream to the server (aggregated discovery), calls OnLoad for each new response, and acknowledges
// or refuses it. In the variant state of the world a response is everything there is: rules that are not in it are
// gone, and an empty one is an accepted, empty set. In the variant delta a response has what changed since the one
// before, and the names of what is gone.
//
//	        +---- Pauses, Reload ----+
//	        v                        |
//	connect --> open stream ---> the stream is lost: OnTrouble, the rules stay
//	               |                 ^
//	               v                 |
//	   +--> wait for a response -----+
//	   |           |
//	   |           v
//	   |      compile, OnLoad
//	   |           |
//	   +-- acknowledge or refuse: at most 10 times a second
//
// The stream is this package's own: go-control-plane's client does not reconnect, returns old responses, too, and is
// wrong on a second stream.
//
// A refusal names the last accepted version, as the protocol demands. go-control-plane's SnapshotCache then sends the
// refused version again at once, so refusals of the same content wait longer and longer, up to some seconds.
//
// With delta the Watcher keeps the resources that the server sent and those that are in force. They differ while a
// resource is refused: the server may not send it again before it changes. A new stream names the versions in force.
//
//	the server sends      sent          in force      answer
//	a v1, b v1            a v1, b v1    a v1, b v1    accepted
//	b v2, with a mistake  a v1, b v2    a v1, b v1    refused
//	a v3                  a v3, b v2    a v3, b v1    accepted
//	a new stream          a v3, b v1    a v3, b v1    the first request names a v3 and b v1
//
// Time to live (envoy.service.discovery.v3.Resource.ttl) has no effect, since rules stay when the server is gone.
// Heartbeats are acknowledged and change nothing.
package xdsrules
