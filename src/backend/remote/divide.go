package remote

import (
	"cmp"
	"slices"
)

// destination is the server that a hit is sent to, and whether ASKING comes first.
type destination struct {
	node *Node
	ask  bool // the node does not have the key yet, and is to take it
}

// division is the working memory for dividing a call. The next call reuses it.
type division struct {
	parts map[destination]*Call
	group []slotted
}

// slotted is a hit and the slot of its key.
type slotted struct{ slot, hit int }

// divide makes the parts of c: its hits that have no answer yet, by server. A group is
// divided by slot in a cluster, where a script cannot look into two. Hits that no server
// takes get an error. The parts are valid until c is divided again.
func (s *Store) divide(c *Call) map[destination]*Call {
	v := &c.division
	clear(v.parts)
	t := s.Table()
	for i := 0; i < len(c.Hits); {
		end := max(c.Hits[i].GroupEnd, i+1)
		for v.group = v.group[:0]; i < end; i++ {
			if e := c.redirected(i); e != nil {
				if e != errUnsent {
					s.Figures.sentOn.Add(1)
				}
				v.group = append(v.group, slotted{t.Slot(c.Key(i)), i})
			}
		}
		slices.SortStableFunc(v.group, func(a, b slotted) int { return cmp.Compare(a.slot, b.slot) })
		for group := v.group; len(group) > 0; {
			n := 1
			for n < len(group) && group[n].slot == group[0].slot {
				n++
			}
			s.assign(c, group[:n])
			group = group[n:]
		}
	}
	for _, p := range v.parts {
		p.bytes = len(p.Keys)
		s.Figures.Room.Hold(p.bytes) // they may outlive c
	}
	return v.parts
}

// assign adds the hits of one group and slot to the part of their server.
func (s *Store) assign(c *Call, group []slotted) {
	v, first := &c.division, group[0].hit
	n, ask, err := s.target(c, first)
	if err != nil {
		for _, g := range group {
			c.Hits[g.hit].Err = err
		}
		return
	}
	to := destination{n, ask}
	p := v.parts[to]
	if p == nil {
		p = s.newCall()
		p.Ask, p.At, p.due = ask, c.At, c.due
		if v.parts == nil {
			v.parts = make(map[destination]*Call)
		}
		v.parts[to] = p
	}
	end := 0
	if c.Hits[first].GroupEnd > 0 {
		end = len(p.Hits) + len(group)
	}
	for _, g := range group {
		h := &c.Hits[g.hit]
		h.Result = Result{}
		p.Keys = append(p.Keys, c.Key(g.hit)...)
		p.AddHit(*h)
		p.Hits[len(p.Hits)-1].GroupEnd = end
		p.of = append(p.of, int32(g.hit))
	}
}
