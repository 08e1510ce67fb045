package leased

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"ratelimit/src/algorithm"
)

// limitTable has one copy of each limit that leases of an owner have, so that leases do not keep the rules of which
// limits are part, and name a limit in four bytes.
type limitTable struct {
	mu      sync.Mutex
	ids     map[limitValue]uint32 // guarded by mu
	freeIDs []uint32              // guarded by mu
	// byID has the limits with their identifiers as indexes. The first one is nil. Written with mu held; who has a lease
	// of a limit reads it without.
	byID  atomic.Pointer[[]*internedLimit]
	count atomic.Int64 // how many limits there are
}

type internedLimit struct {
	limit  algorithm.Limit
	owner  uint32 // the Hit.Owner of the hits
	leases uint32 // how many leases have it; guarded by limitTable.mu
}

// limitBytes is about what a limit takes: here, in the map and in the list.
const limitBytes = int64(unsafe.Sizeof(internedLimit{})+unsafe.Sizeof(limitValue{})*3/2) + 16

// limitValue is what tells limits that can be leased, and their owners, apart.
type limitValue struct {
	window       algorithm.Window
	max, burst   uint64
	owner        uint32
	countBlocked bool
}

func valueOf(l *algorithm.Limit, owner uint32) limitValue {
	return limitValue{l.Window(), l.Max, l.Burst, owner, l.CountBlocked}
}

// init makes an empty table.
func (t *limitTable) init() {
	t.ids = make(map[limitValue]uint32)
	t.byID.Store(&[]*internedLimit{nil})
}

// at returns the limit with an identifier.
func (t *limitTable) at(id uint32) *algorithm.Limit { return &(*t.byID.Load())[id].limit }

// ownerOf returns the owner of the limit with an identifier.
func (t *limitTable) ownerOf(id uint32) uint32 { return (*t.byID.Load())[id].owner }

// bytes returns about how much memory the limits take.
func (t *limitTable) bytes() int64 { return t.count.Load() * limitBytes }

// intern returns the identifier of the copy of l that an owner has, for one more lease.
func (t *limitTable) intern(l *algorithm.Limit, owner uint32) (id uint32) {
	value := valueOf(l, owner)
	t.mu.Lock()
	defer t.mu.Unlock()
	id, list := t.ids[value], *t.byID.Load()
	if id > 0 {
		list[id].leases++
		return id
	}
	in := &internedLimit{*l, owner, 1}
	if n := len(t.freeIDs); n > 0 {
		id = t.freeIDs[n-1]
		t.freeIDs = t.freeIDs[:n-1]
		list[id] = in // No lease has id, so nobody reads it.
	} else {
		id = uint32(len(list))
		list = append(list, in)
		t.byID.Store(&list)
	}
	t.ids[value] = id
	t.count.Add(1)
	return id
}

// release gives back a copy that intern returned.
func (t *limitTable) release(id uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := *t.byID.Load()
	if in := list[id]; in.leases > 1 {
		in.leases--
		return
	}
	delete(t.ids, valueOf(&list[id].limit, list[id].owner))
	list[id] = nil
	t.freeIDs = append(t.freeIDs, id)
	t.count.Add(-1)
}
