package remote

import (
	"context"
	"sync"
)

// part is the hits of a call that go to one server together.
type part struct {
	*Call
	destination
}

// destination is where a hit goes.
type destination struct {
	node *Node
	ask  bool // the node does not have the key yet, and is to take it
}

// division is what dividing a call needs, to be used again.
type division struct {
	parts []part
	index map[destination]int // of the part in parts
	// chain leads from a hit to the next one of its group that goes the same way; -1
	// ends it.
	chain []int32
}

// divide makes the parts of c: its hits that have no answer yet, by server. A group is
// divided by slot in a cluster, where a script cannot look into two. Hits that no
// server takes get an error. The parts are valid until c is divided again.
func (s *Store) divide(ctx context.Context, c *Call) []part {
	v := &c.division
	clear(v.parts)
	v.parts = v.parts[:0]
	clear(v.index)
	if v.index == nil {
		v.index = make(map[destination]int)
	}
	if cap(v.chain) < len(c.Hits) {
		v.chain = make([]int32, len(c.Hits))
	}
	v.chain = v.chain[:len(c.Hits)]
	t, linked := s.Table(), 0 // hits before linked have their place in chain
	for i := range c.Hits {
		if c.redirected(i) == nil {
			continue
		}
		if i >= linked {
			linked = max(c.Hits[i].GroupEnd, i+1)
			c.link(i, linked, t)
		}
		n, ask, err := s.target(ctx, c, i)
		if err != nil {
			c.Hits[i].Err = err
			continue
		}
		to := destination{n, ask}
		at, found := v.index[to]
		if !found {
			at = len(v.parts)
			v.index[to] = at
			p := part{s.newCall(), to}
			p.Ask, p.At, p.due = ask, c.At, c.due
			v.parts = append(v.parts, p)
		}
		v.parts[at].move(c, i)
	}
	for _, p := range v.parts {
		p.bytes = len(p.Keys)
		s.Figures.Room.Hold(p.bytes) // they may outlive c
	}
	return v.parts
}

// link sets the chain of the hits from begin to end that have no answer yet, which
// are one group: all of them go one way, but in a cluster those of each slot.
func (c *Call) link(begin, end int, t *Table) {
	chain := c.division.chain
	if end == begin+1 {
		chain[begin] = -1
		return
	}
	heads := slotHeads.Get().(map[int]int32) // 1 + the first hit in each slot
	for i := end - 1; i >= begin; i-- {
		if c.redirected(i) != nil {
			slot := t.slot(c.Key(i))
			chain[i] = heads[slot] - 1
			heads[slot] = int32(i) + 1
		}
	}
	clear(heads)
	slotHeads.Put(heads)
}

// slotHeads are empty tables for link.
var slotHeads = sync.Pool{New: func() any { return make(map[int]int32) }}

// move adds hit i of whole to p, and those of its group that go the same way.
func (p *part) move(whole *Call, i int) {
	from := len(p.Hits)
	for j := int32(i); j >= 0; j = whole.division.chain[j] {
		p.addFrom(whole, int(j))
		p.Hits[len(p.Hits)-1].Result = Result{}
		whole.Hits[j].Err = nil
	}
	if whole.Hits[i].GroupEnd > 0 {
		for j := from; j < len(p.Hits); j++ {
			p.Hits[j].GroupEnd = len(p.Hits)
		}
	}
}
