package redis

// recent remembers keys that have a time to live in Redis, so that EXPIRE is
// not sent with every hit. It forgets: a key that is not known any more gets
// another EXPIRE, which does no harm.
type recent struct{ hashes []uint64 }

// recentKeys is how many keys one writer remembers, in 512 KiB.
const recentKeys = 1 << 16

// add reports whether the key of that hash was known, and remembers it.
func (r *recent) add(hash uint64) bool {
	if r.hashes == nil {
		r.hashes = make([]uint64, recentKeys)
	}
	slot := &r.hashes[hash%recentKeys]
	known := *slot == hash
	*slot = hash
	return known
}

// forget forgets the key of that hash.
func (r *recent) forget(hash uint64) {
	if r.hashes != nil && r.hashes[hash%recentKeys] == hash {
		r.hashes[hash%recentKeys] = 0
	}
}
