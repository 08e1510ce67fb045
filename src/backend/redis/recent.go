package redis

// recent remembers keys that have a time to live in Redis, so that EXPIRE is
// not sent with every hit. It forgets: a key that is not known any more gets
// another EXPIRE, which does no harm.
type recent struct{ sets [][recentWays]uint64 }

// recentKeys is how many keys one writer remembers, in 1 MiB. A key has one of
// a few places, so that two keys that are hit in turns do not drive each other
// out.
const (
	recentKeys = 1 << 17
	recentWays = 4
)

func (r *recent) set(hash uint64) *[recentWays]uint64 {
	if r.sets == nil {
		r.sets = make([][recentWays]uint64, recentKeys/recentWays)
	}
	return &r.sets[hash%uint64(len(r.sets))]
}

// add reports whether the key of that hash was known, and remembers it in the
// place of the one that was added longest ago.
func (r *recent) add(hash uint64) bool {
	set := r.set(hash)
	for _, h := range set {
		if h == hash {
			return true
		}
	}
	copy(set[1:], set[:])
	set[0] = hash
	return false
}

// forget forgets the key of that hash.
func (r *recent) forget(hash uint64) {
	set := r.set(hash)
	for i, h := range set {
		if h == hash {
			set[i] = 0
		}
	}
}
