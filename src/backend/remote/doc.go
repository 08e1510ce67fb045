// Package remote has the code that Redis and Memcached share: everything between a Take and
// the bytes of a command. Each of them brings a Protocol, which fills a Call and reads
// verdicts from it, and an Exchange, which is the batch of one connection.
//
//	Store.Take ──► Admission ──► Protocol.FillCall ──► Call
//	                                                │ one server has all keys, or parts by server
//	                           Table ──► Node ◄─────┘
//	                                      │ Breaker.Allow
//	    caller waits until                ▼
//	    Call.resultsReady, its          writer (one goroutine for each connection)
//	    deadline, or the Timeout          │ FairQueue orders waiting calls, Pace sizes batches
//	          ▲                           ▼
//	          │                         Exchange: AddHits, Send, set results
//	          │                           │
//	          └── results ────────────── Link ──► Gate, Opener ──► Conn ──► server
//
// A writer sends one batch at a time and reads the replies itself. Calls that arrive meanwhile form the next batch. A
// batch has work for about BatchTime. A call whose caller has left is not sent.
//
// If a call gets no answer in time although the server answered other batches (ServerProgress),
// its error is backend.ErrOverload, which the breaker does not count. If the server answered
// no batches, its error is ErrTimeout, and the breaker counts the batch under way.
//
// The states of a Breaker:
//
//	         failures in a row, or many more than answers
//	closed ───────────────────────────────────────────────► opened ◄──┐
//	  ▲                                                       │       │ no answer
//	  │ answer                                  probe answers ▼       │
//	  └─────────────────────────────────────────────────── half open ─┘
//
// While it is open, the writers refuse all waiting calls and send probes on new connections.
//
// # What is sent again
//
// A hit is sent a second time only if it is certain that the server did not count it before:
//   - after a Redirect, which a server returns instead of counting;
//   - after a writer retired before it sent the hit (errUnsent), to another server;
//   - on a new connection, if Link.closeIfStale found the old one closed before anything was
//     written on it.
//
// If a batch was written, in part or whole, and not answered, its hits get an error and are
// never sent again, because the server may have counted them. Probes count nothing.
package remote
