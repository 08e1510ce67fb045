// Package remote is what stores have in common whose counters are in servers:
// what a counter is called there, and how the way to a server is made.
package remote
