package redis

import "math"

// recent remembers keys that have a time to live in Redis, so that EXPIRE is not sent
// with every hit. A key that it has forgotten gets another EXPIRE, which does no harm.
type recent struct{ sets []recentSet }

// recentSet has the keys whose hash belongs to one place, the newest first.
type recentSet struct {
	hashes [recentWays]uint64
	ttls   [recentWays]uint32 // seconds, of the longest EXPIRE that was sent
}

// recentKeys is how many keys one writer remembers, in 1.5 MiB. A key has one of
// recentWays places, so that two keys that are hit in turns do not evict each other.
const (
	recentKeys = 1 << 17
	recentWays = 4
)

func (r *recent) set(hash uint64) *recentSet {
	if r.sets == nil {
		r.sets = make([]recentSet, recentKeys/recentWays)
	}
	return &r.sets[hash%uint64(len(r.sets))]
}

// lives reports whether an EXPIRE of at least so many seconds was sent for the key of
// that hash. Else it remembers that one with ttl seconds is sent now, and forgets the
// oldest key of the set. A key may be counted in windows of several lengths: a longer
// one needs another EXPIRE, a shorter one must not send its own.
func (r *recent) lives(hash uint64, least, ttl int64) bool {
	set := r.set(hash)
	seconds := uint32(min(max(ttl, 0), math.MaxUint32))
	for i, h := range set.hashes {
		if h != hash {
			continue
		}
		if int64(set.ttls[i]) >= least {
			return true
		}
		set.ttls[i] = seconds
		return false
	}
	copy(set.hashes[1:], set.hashes[:])
	copy(set.ttls[1:], set.ttls[:])
	set.hashes[0], set.ttls[0] = hash, seconds
	return false
}

// forget removes the key with that hash.
func (r *recent) forget(hash uint64) {
	set := r.set(hash)
	for i, h := range set.hashes {
		if h == hash {
			set.hashes[i] = 0
		}
	}
}
