// Package leased stands in front of a store that several replicas share. It decides hits whose Counting is
// [backend.Leased] in this process, from units that it has taken from the store before.
//
// Units are charged in the store when they are taken, under the key and with the arithmetic of exact counting. So all
// replicas together never admit more than the limit, whatever happens to them: a unit that a replica holds and never
// uses is lost, and none is used twice. Replicas that lease, replicas that do not and envoyproxy/ratelimit can share a
// counter.
//
//	hit ──► lease has the units? ──yes──► admitted here, without a command
//	             │ no
//	             ▼
//	        the store is charged with the units of the hit and, if it is alone, with more for later ones
//
// A replica takes the 2n-th part of what is left, with n replicas, so the units that replicas hold shrink as the limit
// is used up. It takes more before its units are used up, while no hit waits; see Store.refill. Those of the next fixed
// window are charged under its key shortly before it begins, by the clock of this process, and their reply is learned
// when it has begun; see aheadReplies.
//
// # States of a lease
//
//	         a hit                    the store has little left         the window ends
//	(none) ────────► current ───────────────────────────► contended ────────────────────► (none)
//	                    │                                     ▲
//	                    └──── another replica says so ────────┘
//
// The first replica that finds little left of a limit tells the others, through a [Board] in the store. From then on
// each gives back, at every tick, the units that it did not need in the last one. A hit that the store refuses waits
// until they had time to do so (backend.Wait), or is refused at once (backend.Refuse).
//
// # When units expire
//
//   - fixed_window: with the window that names their key, by the clock of this process.
//   - first_hit_window, sliding_window_counter: with the window in which the store charged them, measured from before
//     the store was asked. A refund names this window, so that it changes no other one.
//   - gcra: after a tenth of the period, at least 100 ms and at most the period. A replica gives them back then.
//
// # What exceeds a limit
//
// Nothing in a window of fixed_window and first_hit_window. A sliding_window_counter keeps its bound of 2 x Max - 1:
// units count from when they are taken, which is stricter. Of a gcra, at most Burst + 1 + 1.2 x Max units pass in a
// period of a second or more: units are used at most a tenth of the period after the bucket gave them, and those that
// are given back later than that are fewer, see returnQueue.takeAll.
//
// Changes of operators count from the store's counter on: units that a replica holds then were taken before.
//
// # Memory
//
// A lease is a cache line without pointers, and has an entry of 8 bytes in an index of its shard, which is at most
// three quarters full. Keys stand one behind the other. So a counter takes at most 100 bytes with a key of 14 bytes.
// Units are counted in 32 bits: limits whose capacity is larger are counted exactly. A batch finds its leases before it
// locks the shards, 32 at a time, so that the processor loads them at the same time.
package leased
