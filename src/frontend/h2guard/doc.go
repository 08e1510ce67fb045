// Package h2guard bounds what the client of one HTTP/2 connection can make a
// server hold and do, whatever serves the connection. A Conn wraps a net.Conn,
// reads the frame headers that pass in both directions, and changes no byte:
//
//	           HEADERS        a stream opens: StreamBytes and its headers
//	client ──► DATA           of an open stream: its payload
//	           RST_STREAM     a stream ends; its bytes are held for two more
//	                          sweeps, or until its handler says that it ended
//	           any other      costs a token
//
//	       ◄── END_STREAM     a stream ends: all that it held is released
//	           RST_STREAM     as above
//
// What a stream holds is charged to the connection's account in the budget that
// all connections share; when the budget is used up, the connections that hold
// the most are closed, and others that hold more than 64 KiB are not read from until
// that memory is free. The server charges replies, until they are written, with
// Queued.
//
// Tokens bound the work that costs the client nothing. A connection earns 1,000 a
// second, and 8 with each stream that it opens, up to 1,000. A frame that is
// neither HEADERS nor a reasonable piece of DATA costs one; a stream that is reset
// within 5 ms, by either side, costs ten. A client without tokens is read from
// only as fast as it earns them.
//
// A connection is closed if a write to it is blocked for Config.Stall, or if
// replies are queued and none of them is written for that long.
package h2guard
