//go:build amd64 || arm64

package memory

// prefetchSlot starts to load the lock of sh and the first slot for a hash into the processor's cache. It neither waits nor locks.
// It may read the address of a table that is being replaced; the processor ignores a prefetch from an invalid address.
//
//go:noescape
func prefetchSlot(sh *shard, hash uint64)
