package denials

import (
	"sync"
	"time"

	"ratelimit/src/operator/callertext"
)

// maxRingDescriptorBytes bounds the descriptor of a denial in a Ring, in bytes. The texts of a denial then have less
// than 2 KiB.
const maxRingDescriptorBytes = 512

// Ring keeps the newest denials. It is safe for concurrent use.
type Ring struct {
	mu     sync.Mutex    // guards the fields below.
	list   []Denial      // list[id%len(list)] has the denial with that ID.
	count  int           // the number of denials in list.
	lastID uint64        // the ID of the newest denial. Earlier denials have the IDs before it.
	added  chan struct{} // closed by the next Add. It is nil while no goroutine waits.
}

// NewRing returns an empty Ring for size denials. The first one gets the ID start in microseconds since 1970, plus 1,
// and each further one the next. So IDs also increase over a restart of the process, as long as there are less than a
// million denials per second.
func NewRing(size int, start time.Time) *Ring {
	return &Ring{list: make([]Denial, size), lastID: uint64(start.UnixMicro())}
}

// Add adds d, in place of the oldest denial if the ring is full. It never blocks.
func (r *Ring) Add(d Denial) {
	d.Descriptor = callertext.Cut(d.Descriptor, maxRingDescriptorBytes)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastID++
	d.ID = r.lastID
	r.list[r.lastID%uint64(len(r.list))] = d
	r.count = min(r.count+1, len(r.list))
	if r.added != nil {
		close(r.added)
		r.added = nil
	}
}

// After returns the denials with an ID above after, oldest first. If there are more than limit, it returns the newest
// ones.
func (r *Ring) After(after uint64, limit int) []Denial {
	r.mu.Lock()
	defer r.mu.Unlock()
	if after >= r.lastID {
		return nil
	}
	n := min(r.lastID-after, uint64(r.count), uint64(max(limit, 0)))
	denials := make([]Denial, 0, n)
	for id := r.lastID - n + 1; id <= r.lastID; id++ {
		denials = append(denials, r.list[id%uint64(len(r.list))])
	}
	return denials
}

// Next returns a channel that is closed if there is a denial with an ID above after, and else when the next one is
// added.
func (r *Ring) Next(after uint64) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if after < r.lastID && r.count > 0 {
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	if r.added == nil {
		r.added = make(chan struct{})
	}
	return r.added
}
