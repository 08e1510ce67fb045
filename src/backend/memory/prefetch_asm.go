//go:build amd64 || arm64

package memory

import "ratelimit/src/backend"

// prefetchShard starts to load sh into the processor's cache. It does not wait.
//
//go:noescape
func prefetchShard(sh *shard)

// prefetchSlot starts to load the first slot for a hash into the processor's cache. It waits for sh, but not for the
// slot, and does not lock. It may read the address of a table that is being replaced; the processor ignores a prefetch
// from an invalid address.
//
//go:noescape
func prefetchSlot(sh *shard, hash uint64)

// prefetchHit starts to load h into the processor's cache. It does not wait.
//
//go:noescape
func prefetchHit(h *backend.Hit)

// prefetchVerdict starts to load v into the processor's cache. It does not wait.
//
//go:noescape
func prefetchVerdict(v *backend.Verdict)
