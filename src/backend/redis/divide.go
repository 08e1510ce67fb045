package redis

import (
	"context"
	"sync"

	"github.com/mediocregopher/radix/v4"
)

// part is the hits of a call that go to one node together.
type part struct {
	*call
	destination
}

// destination is where a hit goes.
type destination struct {
	node *node
	ask  bool // the node does not have the key yet, and is to take it
}

// division is what dividing a call needs, to be used again.
type division struct {
	parts []part
	// index is where the part for a destination stands in parts, of all but the first
	// few.
	index map[destination]int
	// chain leads from a hit to the next one of its group that goes the same way; -1
	// ends.
	chain []int32
}

// fewParts is how many parts are searched one by one.
const fewParts = 8

// part returns the index of the part for d; -1: there is none.
func (v *division) part(d destination) int {
	for i := range min(len(v.parts), fewParts) {
		if v.parts[i].destination == d {
			return i
		}
	}
	if i, ok := v.index[d]; ok {
		return i
	}
	return -1
}

// add adds a part and returns its index.
func (v *division) add(p part) int {
	i := len(v.parts)
	v.parts = append(v.parts, p)
	if i >= fewParts {
		if v.index == nil {
			v.index = make(map[destination]int)
		}
		v.index[p.destination] = i
	}
	return i
}

// reset empties v for a call of so many hits.
func (v *division) reset(hits int) {
	clear(v.parts)
	v.parts = v.parts[:0]
	clear(v.index)
	if cap(v.chain) < hits {
		v.chain = make([]int32, hits)
	}
	v.chain = v.chain[:hits]
}

// divide makes the parts of root: its hits that have no answer yet, by node.
// What stands in a group goes slot by slot in a cluster, where a script cannot
// look into two. Hits that no node takes get an error. The parts are valid until root is
// divided again.
func (s *Store) divide(ctx context.Context, root *call) []part {
	v := &root.division
	v.reset(len(root.hits))
	cluster, linked := len(s.cfg.Cluster) > 0, 0 // hits before linked have their place in chain
	for i := range root.hits {
		if root.redirected(i) == nil {
			continue
		}
		if i >= linked {
			linked = max(root.hits[i].last, i+1)
			root.link(i, linked, cluster)
		}
		n, ask, err := s.target(ctx, root, i)
		if err != nil {
			root.results[i].err = err
			continue
		}
		to := destination{n, ask}
		at := v.part(to)
		if at < 0 {
			at = v.add(part{s.stats.call(), to})
			p := &v.parts[at]
			p.call.ask, p.at, p.due = ask, root.at, root.due
		}
		v.parts[at].move(root, i)
	}
	for _, p := range v.parts {
		p.Bytes = len(p.keys)
		s.stats.room.Hold(p.Bytes) // they may outlive root
	}
	return v.parts
}

// link sets the chain of the hits from begin to end that have no answer yet, which
// are one group: all of them go one way, but in a cluster those of each slot.
func (c *call) link(begin, end int, cluster bool) {
	chain := c.division.chain
	if end == begin+1 {
		chain[begin] = -1
		return
	}
	heads := slotHeads.Get().(*[numSlots]int32)
	defer slotHeads.Put(heads)
	slot := func(i int) uint16 {
		if !cluster {
			return 0
		}
		return radix.ClusterSlot(c.key(i))
	}
	for i := end - 1; i >= begin; i-- {
		if c.redirected(i) != nil {
			head := &heads[slot(i)]
			chain[i] = *head - 1
			*head = int32(i) + 1
		}
	}
	for i := begin; i < end; i++ {
		heads[slot(i)] = 0
	}
}

// slotHeads are tables for link: 1 + the first hit in each slot, 0 if there is none. They
// are zero while nothing uses them.
var slotHeads = sync.Pool{New: func() any { return new([numSlots]int32) }}

// move adds hit i of root to p, and those of its group that go the same way.
func (p *part) move(root *call, i int) {
	from := len(p.hits)
	for j := int32(i); j >= 0; j = root.division.chain[j] {
		p.call.add(root, int(j))
		p.of = append(p.of, j)
		root.results[j].err = nil
	}
	if root.hits[i].last > 0 {
		for j := from; j < len(p.hits); j++ {
			p.hits[j].last = len(p.hits)
		}
	}
}
