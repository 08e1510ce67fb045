// Package remote is what stores have in common whose counters are in servers:
// what a counter is called there, how the way to a server is made, when it is not
// gone, and what is known of calls on it.
//
// What a store does with them: a Take enters the Room, if there is any, and becomes
// a Call that may wait so long as Wait says. The Breaker of the server lets it in. Where
// more waits than the server does in a moment, a Queue gives the order and a Pace the
// size of what is sent at once; Progress tells whether the server worked while a call
// waited in vain. An attempt begins with Begin, passes the Gate if it has to connect, and ends with
// Succeed or Fail. CauseOf an error of it is what a Tally counts.
package remote
