package redis

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/mediocregopher/radix/v4"
)

// finder finds out which servers there are. It is used by one goroutine at a
// time.
type finder interface {
	// find asks, with another preferably not the one that answered last.
	find(ctx context.Context, another bool) (layout, error)
	close()
}

// layout is which servers there are, as they themselves say.
type layout struct {
	primaries []string
	slots     *[numSlots]uint16 // 1 + index in primaries, 0: none has it. nil: the first primary has them all
	all       []string          // replicas, too; each once
}

func (l *layout) equal(other *layout) bool {
	return slices.Equal(l.primaries, other.primaries) &&
		(l.slots == nil) == (other.slots == nil) && (l.slots == nil || *l.slots == *other.slots)
}

// table is the layout as Take uses it. It is not changed, but replaced.
type table struct {
	nodes     map[string]*node // those to which others sent us, too
	primaries []string         // of the layout
	only      *node            // has every key; nil: it depends on the slot
	slots     *[numSlots]*node // nil: not known yet
	err       error            // why nothing is known; nil: it may be soon
	replaced  chan struct{}    // closed once there is another table
}

// has returns the node that has key, or why there is none.
func (t *table) has(key []byte) (*node, error) {
	switch {
	case t.only != nil:
		return t.only, nil
	case t.slots == nil:
		return nil, t.err
	}
	if n := t.slots[radix.ClusterSlot(key)]; n != nil {
		return n, nil
	}
	return nil, errNoOwner
}

// errNoOwner is a slot that no node of the cluster has.
var errNoOwner = errors.New("redis: no node has the slot of the key")

// The layout is asked for every lookEvery, and when something went wrong, but
// not more often than once in lookLeast: that is how long a failover is not
// noticed at most, besides the time Redis takes for it.
const (
	lookEvery = time.Second
	lookLeast = 100 * time.Millisecond
)

// discoveredStay is how many looks a node stays that is not in the layout and
// that another one sent us to.
const discoveredStay = 60

// watch keeps the table in step with what the finder finds until ctx ends.
func (s *Store) watch(ctx context.Context, f finder) {
	defer f.close()
	var last layout
	trouble := false
	for {
		begun := time.Now()
		found, err := s.look(ctx, f, trouble)
		t := s.table.Load()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && found.equal(&last) && len(t.nodes) == len(found.primaries): // as it was
		case err == nil:
			s.use(ctx, found)
			last = found
		case t.nodes == nil:
			s.replace(&table{err: err})
		default: // what was known may still be right
		}
		var ok bool
		if trouble, ok = s.pause(ctx, begun); !ok {
			return
		}
	}
}

// look has f find the servers. Meanwhile it admits those that others name: who
// waits for them has less time than it may take to find a node that answers.
func (s *Store) look(ctx context.Context, f finder, another bool) (found layout, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		found, err = f.find(ctx, another)
	}()
	for {
		select {
		case addr := <-s.discovered:
			s.admit(ctx, addr)
		case <-done:
			return found, err
		}
	}
}

// pause waits until it is time to look again. It reports whether there was
// trouble, and false when ctx has ended.
func (s *Store) pause(ctx context.Context, begun time.Time) (trouble, ok bool) {
	least, most := time.After(time.Until(begun.Add(lookLeast))), time.After(lookEvery)
	kicks := (<-chan struct{})(nil) // not heard before least
	for {
		select {
		case <-least:
			kicks = s.kicks
		case <-kicks:
			return true, true
		case addr := <-s.discovered:
			s.admit(ctx, addr)
		case <-most:
			return false, true
		case <-ctx.Done():
			return false, false
		}
	}
}

// kick has the layout looked at soon.
func (s *Store) kick() {
	select {
	case s.kicks <- struct{}{}:
	default: // it will be already
	}
}

// replace puts t in force.
func (s *Store) replace(t *table) {
	t.replaced = make(chan struct{})
	close(s.table.Swap(t).replaced)
}

// use makes a table of what was found, starts nodes that are new and retires
// those that are gone.
func (s *Store) use(ctx context.Context, found layout) {
	old := s.table.Load()
	t := &table{nodes: make(map[string]*node, len(found.primaries)), primaries: found.primaries}
	owners := make([]*node, len(found.primaries))
	for i, addr := range found.primaries {
		owners[i] = old.nodes[addr]
		if owners[i] == nil {
			owners[i] = s.start(ctx, addr)
		}
		owners[i].unseen = 0
		t.nodes[addr] = owners[i]
	}
	if found.slots == nil {
		t.only = owners[0]
	} else {
		t.slots = new([numSlots]*node)
		for slot, n := range found.slots {
			if n > 0 {
				t.slots[slot] = owners[n-1]
			}
		}
	}
	var gone []*node
	for addr, n := range old.nodes {
		if t.nodes[addr] != nil {
			continue
		}
		if n.unseen++; n.unseen <= discoveredStay && found.slots != nil && len(t.nodes) < maxNodes {
			t.nodes[addr] = n // calls may still be sent there
			continue
		}
		gone = append(gone, n)
	}
	s.replace(t) // first, so that no new call finds those that are gone
	for _, n := range gone {
		n.retire()
	}
}

// admit starts a node that another one sent us to and that has no slots yet.
func (s *Store) admit(ctx context.Context, addr string) {
	old := s.table.Load()
	if old.nodes[addr] != nil || len(old.nodes) >= maxNodes {
		return
	}
	t := &table{nodes: map[string]*node{addr: s.start(ctx, addr)}, primaries: old.primaries, only: old.only, slots: old.slots}
	for a, n := range old.nodes {
		t.nodes[a] = n
	}
	s.replace(t)
}

// maxNodes is how many nodes a cluster has at most, by Redis' own advice.
const maxNodes = 1000

// start starts a node. It ends with ctx, or when it retires.
func (s *Store) start(ctx context.Context, addr string) *node {
	n := s.newNode(addr)
	for _, w := range n.writers {
		s.running.Go(func() { w.run(ctx) })
	}
	return n
}
