// Package remote is what Redis and Memcached have in common: everything between a Take
// and the bytes of a command. Each of them brings a Protocol, which fills a Call and
// reads verdicts from it, and an Exchange, which is the batch of one connection.
//
//	Store.Take ──► Room ──► Protocol.Fill ──► Call
//	                                           │ one server has all keys, or parts by server
//	                      Table ──► Node ◄─────┘
//	                                 │ Breaker.Allow
//	    caller waits until           ▼
//	    Call.done, its deadline,   writer (one goroutine for each connection)
//	    or the Timeout               │ Queue orders what does not fit, Pace sizes batches
//	          ▲                      ▼
//	          │                    Exchange: Add hits, Send, set results
//	          │                      │
//	          └── results ───────── Link ──► Gate, Dialer ──► Conn ──► server
//
// A writer sends one batch at a time; what arrives meanwhile is the next batch. A batch
// has work for about a Slice. A call whose caller has left is not sent.
//
// A call that is out of time although the server answered other batches until then
// (Progress) gets backend.ErrOverload, and the breaker does not hear of it. While the
// server stands still, such a call gets ErrTimeout, and the breaker hears of the batch
// under way.
//
// The states of a Breaker:
//
//	         failures in a row, or many more than answers
//	closed ───────────────────────────────────────────────► opened ◄──┐
//	  ▲                                                       │       │ no answer
//	  │ answer                                  probe answers ▼       │
//	  └─────────────────────────────────────────────────── half open ─┘
//
// While it is open, the writers refuse what waits and send probes on new connections.
//
// # What is sent again
//
// A hit is sent a second time only when it is known that the first did not count:
//   - after a Redirect, because the server says so instead of counting;
//   - when a writer retired before it sent the hit (errUnsent), to the server that came
//     in its place;
//   - on a new connection, when Link.inspect found the old one closed before anything
//     was written on it.
//
// A batch that was written, in part or whole, and not answered is an error for its hits
// and never sent again: it is not known whether they counted. Probes count nothing.
package remote
