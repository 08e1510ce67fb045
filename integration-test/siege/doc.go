// Package siege attacks the built program through its ports, while a well-behaved
// caller, the neighbour, makes 200 calls a second from a process of its own.
//
// Each attack is an entry in one of the tables attacks_*_test.go. It says how the
// service is set up, what the attacker does, and what must hold meanwhile. All
// attacks are judged by the same rules:
//
//   - The process lives, and its peak resident memory stays within the bound.
//   - Fewer than 0.1 % of the neighbour's calls fail, and their 99th percentile
//     stays within a multiple of that of a calm phase just before. Times are judged
//     as ratios with a floor, since a machine that runs tests is busy.
//   - Goroutines are bounded during the attack. Afterwards goroutines, files and
//     the live heap are back, and the neighbour is served as before.
//
// Two tests run the attacks:
//
//   - TestSiegeInShort, a part of make test-long, scales each attack down.
//   - TestSiege, make siege, has them in full size and takes several minutes. With
//     SIEGE=--write it writes docs/attacks.md and docs/attacks.csv.
//
// The service has two cores (GOMAXPROCS=2), GOMEMLIMIT=224MiB and, where the
// machine allows it, a memory control group of 256 MiB (version 1 or 2). Elsewhere
// its peak resident memory is compared with the same bound.
//
// It needs Linux, redis-server and memcached. RATELIMIT_BIN names a binary to
// attack instead of this repository's.
package siege
