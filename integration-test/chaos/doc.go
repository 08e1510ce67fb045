// Package chaos is the fault suite: it sends calls to the built program with real stores,
// while it causes a fault and ends it.
//
// Every fault is tried on every store that can have it. A trial sends calls before,
// during and after the fault. It checks that calls are answered in time, that memory and
// goroutines stay bounded, that the service recovers soon after its store, and that no
// more is admitted than docs/reliability.md allows, and no hold refused without a reason.
// Streams of quotas outlive the fault.
//
//   - TestMutants shows that the oracle finds mistakes of stores.
//   - TestFaultsInShort, a part of make test-long, tries each fault once, on one store.
//   - TestEveryFault, make chaos, tries all of them, prints the figures, and with
//     CHAOS=--write writes docs/reliability.md and docs/reliability.csv.
//
// It needs Linux, redis-server and memcached. RATELIMIT_BIN names
// a binary to try instead of this repository's.
package chaos
