//go:build !amd64 && !arm64

package memory

// prefetchShard does nothing on this architecture.
func prefetchShard(*shard) {}

// prefetchSlot does nothing on this architecture.
func prefetchSlot(*shard, uint64) {}
