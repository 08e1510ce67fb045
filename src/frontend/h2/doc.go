// Package h2 is an HTTP/2 server for one unary gRPC method with small messages. It decides the calls that arrive
// together as one batch, and writes their answers with one system call. An http.Handler answers all other requests on
// the same connections. The package follows RFC 9113 (HTTP/2), RFC 7541 (HPACK) and gRPC's "gRPC over HTTP2".
//
// # A connection
//
// One goroutine per connection, the reader, does all the work of its calls:
//
//	                 ┌─────────────────────── reader ───────────────────────┐
//	client ──read──► frames ──► calls ──► Config.Decide ──► answers ──write──► client
//	                   │                                        ▲
//	                   └─► other requests ─► Config.Handler ────┘  (a goroutine each)
//
// Requests are not copied: Call.Message refers to the read buffer. If Decide is slow, as with a distant store, a new
// goroutine becomes the reader of the connection. The old one keeps its buffer until its batch is answered. See
// reader.go.
//
// A connection is in one of these phases:
//
//	awaitingPreface ──► awaitingSettings ──► open ──► leaving ──► lastCalls ──► closed
//
//	awaitingPreface   the client must send the connection preface within HandshakeTimeout
//	awaitingSettings  the first frame must be SETTINGS
//	open              calls are answered
//	leaving           the first GOAWAY is sent: calls are answered, and a PING finds out when the client knows
//	lastCalls         the second GOAWAY is sent: new streams are ignored, open ones are answered
//	closed            the socket is closed, or about to be
//
// Any phase ends in closed if the client violates the protocol, floods, stalls, or leaves.
//
// # A stream
//
//	          headers of the method        message complete          answer queued
//	  idle ───────────────────► collecting ───────────► deciding ─────────────► replying ──► closed
//	   │                            │ irregular, large, other unary methods         ▲
//	   │ streams, not gRPC          ▼                       handler returns         │
//	   └───────────────► waiting ──► handled ───────────────────────────────────────┘
//
//	collecting  the first message of a unary method is incomplete: it takes no goroutine
//	deciding    the call is in a batch; it has no entry in conn.streams
//	waiting     the connection runs maxHandlersOfConn handlers, or the server maxHandlers, and this one starts after
//	            another has ended; or the handler before it has not begun to run
//	handled     Config.Handler runs
//	replying    the rest of the answer waits for the client's flow control window
//
// A reset by either side ends a stream at once. A call in deciding and a handler count towards Config.MaxStreams until
// they end, so resets buy a client nothing.
package h2
