package limiter

import (
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/rules"
)

// Batch has the hits of one decision, or of several that share a call of the store, and the memory that they need until
// the store has answered. The zero value is empty.
type Batch struct {
	backend.Batch
	counterKeys   []byte              // the keys of all charges, one after the other
	requestLimits []algorithm.Limit   // the limits that came with requests
	search        rules.SearchScratch // its Canaries are those of all statuses
	replaced      rules.ReplacedNames // the limits that other rules of the present request replace
}

// clearForReuse removes all hits, and keeps the memory.
func (b *Batch) clearForReuse(now time.Time) {
	b.Batch = backend.Batch{Hits: b.Hits[:0], Verdicts: b.Verdicts[:0], Now: now}
	b.counterKeys, b.requestLimits = b.counterKeys[:0], b.requestLimits[:0]
	b.search.Canaries = b.search.Canaries[:0]
}

// Search returns the memory of searches for rules, whose work the last Find of b bounds.
func (b *Batch) Search() *rules.SearchScratch { return &b.search }

// maxPooledKeyBytes is how many bytes of keys a pooled batch may keep for each charge.
const maxPooledKeyBytes = 64

// reset removes all references to requests and rules, and keeps the memory. It returns false if that is memory for more
// than limit charges; b is not usable then.
func (b *Batch) reset(limit int) (small bool) {
	if cap(b.Hits) > limit || cap(b.counterKeys) > limit*maxPooledKeyBytes {
		return false
	}
	clear(b.Hits)
	clear(b.Verdicts)
	b.search.Reset(limit * maxPooledKeyBytes)
	b.clearForReuse(time.Time{})
	return true
}

// nextGroupID returns the GroupID of a group that starts behind the last hit of b. Numbers may wrap around, but
// adjacent groups differ.
func (b *Batch) nextGroupID() uint16 {
	if n := len(b.Hits); n > 0 {
		return b.Hits[n-1].GroupID + 1
	}
	return 0
}
