package memcached

import (
	"context"
	"hash/crc32"
	"slices"
	"sync"

	"ratelimit/src/backend/remote"
)

// Hash is how the server of a key is chosen.
type Hash uint8

const (
	// Modulo takes the CRC-32 of the key modulo the number of servers, as
	// gomemcache and with it envoyproxy/ratelimit does. When there is one server
	// more or less most keys have another.
	Modulo Hash = iota
	// Rendezvous gives each server a weight for the key and takes the heaviest.
	// When a server leaves, its keys go to the others, and no others do.
	Rendezvous

	hashes
)

// table is which servers there are. It is immutable.
type table struct {
	hash    Hash
	nodes   []*node // in order
	weights []uint64
	byAddr  map[string]*node
	err     error // there are none, and why
}

// newTable is the table of servers in their order.
func newTable(hash Hash, nodes []*node) *table {
	t := &table{hash: hash, nodes: nodes, byAddr: make(map[string]*node, len(nodes))}
	for _, n := range nodes {
		t.byAddr[string(n.addr)] = n
		t.weights = append(t.weights, fnv(string(n.addr)))
	}
	return t
}

// pick is the node that has a key.
func (t *table) pick(key []byte) *node {
	if len(t.nodes) == 1 {
		return t.nodes[0]
	}
	if t.hash == Modulo {
		return t.nodes[crc32.ChecksumIEEE(key)%uint32(len(t.nodes))]
	}
	hash, best, most := fnv(key), 0, uint64(0)
	for i, w := range t.weights {
		if weight := mix(hash ^ w); weight > most {
			best, most = i, weight
		}
	}
	return t.nodes[best]
}

// fnv is FNV-1a with 64 bits.
func fnv[T string | []byte](text T) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 0x100000001b3
	}
	return h
}

// mix spreads every bit of h over all of them.
//
// Source: Austin Appleby, MurmurHash3, the 64-bit finalizer.
func mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// addrs are the addresses of t's nodes, in order.
func (t *table) addrs() []string {
	var list []string
	for _, n := range t.nodes {
		list = append(list, string(n.addr))
	}
	return list
}

// use makes addrs the servers. Those that stay go on as they are; those that leave
// finish what they were given.
func (s *Store) use(ctx context.Context, addrs []string) {
	before := s.table.Load()
	var nodes []*node
	byAddr := make(map[string]*node)
	for _, addr := range addrs {
		n := byAddr[addr]
		if n == nil {
			n = before.byAddr[addr]
		}
		if n == nil {
			n = s.start(ctx, server(addr))
		}
		byAddr[addr] = n
		nodes = append(nodes, n)
	}
	s.table.Store(newTable(s.cfg.Hash, nodes))
	for addr, n := range before.byAddr {
		if byAddr[addr] == nil {
			n.close(nil)
		}
	}
}

// start makes a node and its workers.
func (s *Store) start(ctx context.Context, addr server) *node {
	n := &node{
		addr: addr, store: s,
		most: 2 * int(s.cfg.MaxWaiting), // of a hit there are up to two
		end:  make(chan struct{}), counters: make(map[string]*counter),
		opened: make(chan struct{}, 1),
	}
	n.breaker = remote.NewBreaker("memcached: "+string(addr), s.cfg.BreakerFailures, s.cfg.Timeout, n.tell)
	for range s.cfg.Connections {
		n.wires = append(n.wires, &wire{access: &s.access, ctx: ctx, addr: addr, gate: &n.gate, breaker: n.breaker})
	}
	var working sync.WaitGroup
	for _, w := range n.wires {
		working.Go(func() { w.connectFirst(n.end) })
	}
	for i := range s.cfg.InFlight {
		wire := n.wires[i%len(n.wires)]
		w := &worker{node: n, wire: wire, link: newLink(addr, wire.open), wake: make(chan struct{}, 1)}
		working.Go(func() { n.work(w) })
	}
	if n.breaker != nil {
		working.Go(n.probe)
	}
	s.running.Go(func() {
		working.Wait()
		for _, w := range n.wires {
			w.close()
		}
	})
	return n
}

// Change is that the servers are others than before.
type Change struct {
	Before, After []string
	// Moved is the share of keys that have another server now, 0 to 1.
	Moved float64
}

// change compares two tables.
func change(before, after *table) (Change, bool) {
	c := Change{Before: before.addrs(), After: after.addrs()}
	if before.err != nil || slices.Equal(c.Before, c.After) {
		return c, false
	}
	const samples = 10_000
	moved := 0
	key := make([]byte, 8)
	for i := range uint64(samples) {
		for j := range key {
			key[j] = byte(mix(i) >> (8 * j))
		}
		if before.pick(key).addr != after.pick(key).addr {
			moved++
		}
	}
	c.Moved = float64(moved) / samples
	return c, true
}
