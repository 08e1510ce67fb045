package leased

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// figures are what a Store counts outside its shards.
type figures struct {
	counters                                      atomic.Int64
	leases, unitsTaken, unitsReturned, unitsLost  atomic.Uint64
	contended, waited, refused, noRoom, evictions atomic.Uint64
	sent, tellErrors                              atomic.Uint64
	hasShortPeriods                               atomic.Bool // a period below shortPeriod was leased
}

// Stats are the figures of a Store. All but Counters, UnitsHeld and Bytes count since the start.
type Stats struct {
	Counters  int64  // counters with a lease.
	UnitsHeld uint64 // units that are taken and not used.
	Bytes     int64  // the memory of leases.
	// Served counts the hits on leased counters that were decided without the store, Sent the others, and Refused those
	// that the store refused.
	Served, Sent, Refused uint64
	// Leases counts how often units were taken ahead of need, UnitsTaken the units, UnitsReturned those that were given
	// back, and UnitsLost those that were given back without an answer, or were too many to wait.
	Leases, UnitsTaken, UnitsReturned, UnitsLost uint64
	// Contended counts the counters that this replica found to be contended, and Waited the hits that waited for other
	// replicas to give back units.
	Contended, Waited uint64
	// WithoutRoom counts the hits that were counted exactly because MaxBytes was used up, and Evictions the leases that
	// made room for others.
	WithoutRoom, Evictions uint64
	// TellErrors counts how often other replicas could not be told of contended counters.
	TellErrors uint64
}

// Stats returns the current figures.
func (s *Store) Stats() Stats {
	f := &s.figures
	st := Stats{
		Counters: f.counters.Load(), Leases: f.leases.Load(), UnitsTaken: f.unitsTaken.Load(),
		UnitsReturned: f.unitsReturned.Load(), UnitsLost: f.unitsLost.Load(), Contended: f.contended.Load(),
		Waited: f.waited.Load(), Refused: f.refused.Load(), Sent: f.sent.Load(), WithoutRoom: f.noRoom.Load(),
		Evictions: f.evictions.Load(), TellErrors: f.tellErrors.Load(),
	}
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		st.UnitsHeld += sh.held
		st.Served += sh.served
		st.Bytes += int64(sh.bytes())
		sh.mu.Unlock()
	}
	st.Bytes += int64(unsafe.Sizeof(s.shards)) + s.limits.bytes()
	s.returns.mu.Lock()
	st.UnitsLost += s.returns.lost
	s.returns.mu.Unlock()
	return st
}

// Use is what this replica has of the counters of an owner; see backend.Hit.
type Use struct {
	Counters  int    // with a lease of a window that has not ended.
	Contended int    // those of Counters that are contended.
	Held      uint64 // units that are taken and not used.
}

// uses has the result of Uses.
type uses struct {
	mu      sync.Mutex
	byOwner map[uint32]Use // guarded by mu
	at      int64          // when it was made, by instant.mono; guarded by mu
}

// maxUsesAge is how old the result of Uses may be.
const maxUsesAge = time.Second

// Uses returns the use of all owners of leases. It visits all leases, at most once a second. Callers must not change
// the result.
func (s *Store) Uses() map[uint32]Use {
	s.uses.mu.Lock()
	defer s.uses.mu.Unlock()
	now := s.now()
	if s.uses.byOwner != nil && now.mono-s.uses.at < int64(maxUsesAge) {
		return s.uses.byOwner
	}
	all := make(map[uint32]Use)
	s.forAll(func(_ *shard, l lease, _ uint32) {
		if !l.contains(now) {
			return
		}
		owner := s.limits.ownerOf(l.limitID)
		u := all[owner]
		if u.Counters++; l.isContended() {
			u.Contended++
		}
		u.Held += uint64(l.held)
		all[owner] = u
	})
	s.uses.byOwner, s.uses.at = all, now.mono
	return all
}
