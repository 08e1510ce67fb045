//go:build !amd64 && !arm64

package memory

// prefetchSlot does nothing on this architecture.
func prefetchSlot(*shard, uint64) {}
