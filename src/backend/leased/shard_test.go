package leased

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

var minutely = &algorithm.Limit{Max: 100, Period: time.Minute}

const numTestCounters = 1000

func newShard() *shard {
	sh := &shard{limits: new(limitTable)}
	sh.limits.init()
	sh.tables.Store(new(tables))
	return sh
}

// shardModel is a shard beside a plain map of what must be in it.
type shardModel struct {
	*shard
	limitID uint32
	slots   map[string]uint32 // by key
	refs    []ref             // of leases that were removed
}

func newShardModel() *shardModel {
	m := &shardModel{shard: newShard(), slots: make(map[string]uint32)}
	m.limitID = m.limits.intern(minutely, 0)
	return m
}

// hashOf returns a hash for counter n that has one of a few tags, so that searches meet many other counters. Some share
// a tag at the end of the index.
func hashOf(n uint16) *hash {
	h := &hash{record: uint64(n) + 1, tag: uint32(n%251) << 24}
	if n%32 == 0 {
		h.tag = math.MaxUint32
	}
	return h
}

func hitOf(n uint16) *backend.Hit {
	return &backend.Hit{
		Key: fmt.Appendf(nil, "%0*d", n%300, n), TagLength: int(n % 150), SharesKey: n%3 == 0, Limit: minutely,
	}
}

// toggle removes the lease of counter n, or adds it if there is none.
func (m *shardModel) toggle(t *testing.T, n uint16) {
	h := hitOf(n)
	slot, found := m.slots[string(h.Key)]
	l, at, mayAdd := m.find(hashOf(n), slot, h)
	if found == l.isNone() || found && at != slot || !mayAdd {
		t.Fatalf("counter %d: slot %d, %v, want %d, %v", n, at, !l.isNone(), slot, found)
	}
	if found {
		m.refs = append(m.refs, ref{m.shard, slot, l.generation})
		m.remove(hashOf(n), slot)
		delete(m.slots, string(h.Key))
		return
	}
	room := m.bytesWith(len(h.Key))
	l, slot = m.add(hashOf(n), h, m.limitID)
	l.held, l.used, m.held = uint32(n), 7, m.held+uint64(n)
	m.slots[string(h.Key)] = slot
	if m.bytes() > room {
		t.Fatalf("%d bytes after an add that was said to need %d", m.bytes(), room)
	}
}

// check compares all leases with the map.
func (m *shardModel) check(t *testing.T) {
	if m.leases != len(m.slots) {
		t.Fatalf("%d leases, want %d", m.leases, len(m.slots))
	}
	held := uint64(0)
	for n := range uint16(numTestCounters) {
		h := hitOf(n)
		slot, found := m.slots[string(h.Key)]
		l, at, _ := m.find(hashOf(n), 0, h)
		if found == l.isNone() || at != slot {
			t.Fatalf("counter %d: slot %d, %v, want %d, %v", n, at, !l.isNone(), slot, found)
		}
		if !found {
			continue
		}
		held += uint64(l.held)
		k := m.key(l)
		if string(k.bytes) != string(h.Key) || k.tagLength != h.TagLength || k.sharesKey != h.SharesKey ||
			l.held != uint32(n) || l.used != 7 || l.limit.Max != 100 {
			t.Fatalf("counter %d: %q %+v, %+v", n, k.bytes, k, l.state)
		}
	}
	visited := 0
	m.forEach(func(lease, uint32) { visited++ })
	if visited != m.leases || held != m.shard.held {
		t.Errorf("%d of %d leases are visited, with %d units instead of %d", visited, m.leases, m.shard.held, held)
	}
	if len(m.keys) > 1<<17 && m.deadKeys > len(m.keys)*2/3 {
		t.Errorf("%d of %d bytes of keys are dead", m.deadKeys, len(m.keys))
	}
}

func TestShard(t *testing.T) {
	for seed := range uint64(4) {
		m, rng := newShardModel(), rand.New(rand.NewPCG(seed, 0))
		for range 5 {
			// First more and more counters, and then fewer and fewer.
			most := 1 + rng.IntN(numTestCounters)
			for range 2000 {
				m.toggle(t, uint16(rng.IntN(most)))
			}
			m.check(t)
		}
		for n := range uint16(numTestCounters) {
			if _, found := m.slots[string(hitOf(n).Key)]; found {
				m.toggle(t, n)
			}
		}
		if m.check(t); len(m.keys) > 64<<10 {
			t.Errorf("%d bytes of keys stay after %d", len(m.keys), m.deadKeys)
		}
		for _, r := range m.refs {
			if !r.lease().isNone() {
				t.Fatal("a lease is found that was removed")
			}
		}
	}
}

func FuzzShard(f *testing.F) {
	f.Add([]byte{1, 0, 3, 0, 1, 0, 3, 0})
	f.Add([]byte{2, 0, 4, 0, 6, 0, 8, 0, 4, 0, 2, 0, 10, 0, 12, 0, 6, 0})
	f.Fuzz(func(t *testing.T, counters []byte) {
		m := newShardModel()
		for ; len(counters) >= 2; counters = counters[2:] {
			m.toggle(t, binary.LittleEndian.Uint16(counters)%numTestCounters)
		}
		m.check(t)
	})
}

// A ref finds its lease until the lease is removed, though another one gets the slot.
func TestRefOfRemovedLease(t *testing.T) {
	m := newShardModel()
	l, slot := m.add(hashOf(1), hitOf(1), m.limitID)
	r := ref{m.shard, slot, l.generation}
	if got := r.lease(); got != l {
		t.Errorf("%v, want %v", got, l)
	}
	m.remove(hashOf(1), slot)
	if !r.lease().isNone() {
		t.Error("a free slot has a lease")
	}
	if _, again := m.add(hashOf(2), hitOf(2), m.limitID); again != slot || !r.lease().isNone() {
		t.Errorf("slot %d after slot %d: the old ref finds the new lease", again, slot)
	}
}

// Counters with one hash and other windows, as months and days of 30 of them, have no lease both.
func TestSameHashOtherWindow(t *testing.T) {
	m := newShardModel()
	m.add(hashOf(1), hitOf(1), m.limitID)
	other := hitOf(1)
	other.Limit = &algorithm.Limit{Max: 100, Period: time.Hour}
	if l, _, mayAdd := m.find(hashOf(1), 0, other); !l.isNone() || mayAdd {
		t.Errorf("%v, %v", l, mayAdd)
	}
}

// The hash depends on all that tells counters apart.
func TestHash(t *testing.T) {
	s := New(Config{})
	seen := make(map[hash]string)
	for _, key := range []string{"", "a", "b", "ab"} {
		for kind := range algorithm.Concurrency {
			for _, period := range []time.Duration{time.Second, time.Minute} {
				for _, sharesKey := range []bool{false, true} {
					h := s.seeds.of([]byte(key), kind, period, sharesKey)
					name := fmt.Sprint(key, kind, period, sharesKey)
					if seen[h] != "" || h != s.seeds.of([]byte(key), kind, period, sharesKey) {
						t.Errorf("%s and %s have the same hash", name, seen[h])
					}
					for other, otherName := range seen {
						if other.record == h.record || other.tag == h.tag {
							t.Errorf("%s and %s share a half of the hash", name, otherName)
						}
					}
					seen[h] = name
				}
			}
		}
	}
}

func TestRecordIsACacheLine(t *testing.T) {
	if size := unsafe.Sizeof(record{}); size != 64 {
		t.Errorf("a record has %d bytes", size)
	}
}

func TestLimitTable(t *testing.T) {
	var table limitTable
	table.init()
	one, two := *minutely, *minutely
	two.Max++
	a, b := table.intern(&one, 7), table.intern(&two, 7)
	again := one
	c := table.intern(&again, 7)
	if a == 0 || b == 0 || a == b || c != a || table.at(b).Max != 101 || table.count.Load() != 2 {
		t.Errorf("%d, %d, %d, %d limits", a, b, c, table.count.Load())
	}
	if d := table.intern(&one, 8); d == a || table.ownerOf(a) != 7 || table.ownerOf(d) != 8 {
		t.Errorf("two owners have the limits %d and %d", a, d)
	} else {
		table.release(d)
	}
	table.release(a)
	if table.at(a).Max != 100 {
		t.Error("a limit is gone while a lease has it")
	}
	table.release(a)
	three := one
	three.Max = 3
	if c := table.intern(&three, 7); c != a || table.at(a).Max != 3 || table.at(b).Max != 101 || table.count.Load() != 2 {
		t.Errorf("identifier %d instead of %d; %d limits", c, a, table.count.Load())
	}
}
