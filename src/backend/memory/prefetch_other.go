//go:build !amd64 && !arm64

package memory

import "ratelimit/src/backend"

// prefetchShard does nothing on this architecture.
func prefetchShard(*shard) {}

// prefetchSlot does nothing on this architecture.
func prefetchSlot(*shard, uint64) {}

// prefetchHit does nothing on this architecture.
func prefetchHit(*backend.Hit) {}

// prefetchVerdict does nothing on this architecture.
func prefetchVerdict(*backend.Verdict) {}
