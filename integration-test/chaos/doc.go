// Package chaos is the fault suite: the program as it is built, with real stores
// behind it, under calls that go on whatever happens, while something is broken
// and mended again.
//
// Every fault is tried on every store that can have it. A trial has calls before,
// during and after the fault, and asks the same of all: that calls are answered
// in time, that nothing piles up, that the service is back soon after its store,
// and that no more was admitted than docs/reliability.md says.
//
//   - TestFaultsInShort, a part of make test, has each fault once, on one store.
//   - TestEveryFault, make chaos, has all of them, prints the figures, and with
//     CHAOS=--write keeps them in docs/reliability.md.
//
// It needs Linux, redis-server, redis-sentinel and memcached. RATELIMIT_BIN names
// a binary to try instead of this repository's.
package chaos
