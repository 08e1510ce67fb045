// Package remote is what stores have in common whose counters are in servers:
// what a counter is called there, how the way to a server is made, when it is not
// gone, and what is known of calls on it.
package remote
