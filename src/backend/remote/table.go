package remote

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"
)

// Layout says which servers there are, and which keys each of them has.
type Layout struct {
	// Addrs are the servers that calls are sent to.
	Addrs []string
	// Slot returns the slot of a key. Nil: the first server has all keys.
	Slot func(key []byte) int
	// Owners is 1 + the index in Addrs of each slot's server, 0 if none has it. Nil:
	// each server has the slot of its index.
	Owners []uint16
}

// Equal reports whether the same servers have the same slots.
func (l *Layout) Equal(other *Layout) bool {
	return slices.Equal(l.Addrs, other.Addrs) && slices.Equal(l.Owners, other.Owners)
}

// Table is the Layout as Take uses it. It is not changed, but replaced.
type Table struct {
	Layout
	// Nodes are the servers by address, with those that other servers named.
	Nodes map[string]*Node
	// Err is why nothing is known. Nil: it may be soon.
	Err error

	servers  int     // different ones in Addrs
	slots    []*Node // that have each slot; nil: none
	replaced chan struct{}
}

// ErrNoOwner is the error of hits whose key is in a slot that no server has.
var ErrNoOwner = errors.New("redis: no node has the slot of the key")

// errUnsent is a hit that was not sent to any server.
var errUnsent = &Redirect{Err: errors.New("not sent to any server")}

// Owner returns the server that has key, or why there is none.
func (t *Table) Owner(key []byte) (*Node, error) {
	if len(t.slots) == 0 {
		return nil, t.Err
	}
	if n := t.slots[t.slot(key)]; n != nil {
		return n, nil
	}
	return nil, ErrNoOwner
}

func (t *Table) slot(key []byte) int {
	if t.Slot == nil {
		return 0
	}
	return t.Slot(key)
}

// sole returns the server that can take c as it is; nil if there is none. In a
// cluster a group may have to be divided by slot.
func (t *Table) sole(c *Call) *Node {
	if t.Slot == nil {
		return t.slots[0]
	}
	var sole *Node
	for i := range c.Hits {
		n := t.slots[t.Slot(c.Key(i))]
		if n == nil || sole != nil && n != sole || c.Hits[i].GroupEnd > i+1 {
			return nil
		}
		sole = n
	}
	return sole
}

// MaxNodes bounds the servers of a Table: Redis advises 1,000 nodes at most.
const MaxNodes = 1000

// unseenLooks is how many calls of Use keep a server that is not in the Layout, but
// that another server named.
const unseenLooks = 60

// Table returns the table in force.
func (s *Store) Table() *Table { return s.table.Load() }

// Fail makes err the error of all calls, until the next Use.
func (s *Store) Fail(err error) { s.replace(&Table{Err: err}) }

// replace puts t in force.
func (s *Store) replace(t *Table) {
	t.replaced = make(chan struct{})
	close(s.table.Swap(t).replaced)
}

// Use puts a Layout in force. It starts nodes that are new, and those that are gone
// finish what they were given. One goroutine calls Use and AddNode.
func (s *Store) Use(ctx context.Context, l Layout) {
	old := s.Table()
	t := &Table{Layout: l, Nodes: make(map[string]*Node, len(l.Addrs))}
	nodes := make([]*Node, len(l.Addrs))
	for i, addr := range l.Addrs {
		n := t.Nodes[addr]
		if n == nil {
			n = old.Nodes[addr]
		}
		if n == nil {
			n = s.start(ctx, addr)
		}
		n.unseen = 0
		t.Nodes[addr], nodes[i] = n, n
	}
	t.servers, t.slots = len(t.Nodes), nodes
	if l.Owners != nil {
		t.slots = make([]*Node, len(l.Owners))
		for slot, n := range l.Owners {
			if n > 0 {
				t.slots[slot] = nodes[n-1]
			}
		}
	}
	var gone []*Node
	for addr, n := range old.Nodes {
		if t.Nodes[addr] != nil {
			continue
		}
		if n.unseen++; n.unseen <= unseenLooks && l.Owners != nil && len(t.Nodes) < MaxNodes {
			t.Nodes[addr] = n // calls may still be sent there
			continue
		}
		gone = append(gone, n)
	}
	s.replace(t) // first, so that no new call finds those that are gone
	for _, n := range gone {
		n.retire()
	}
}

// AddNode starts a server that another one named and that has no slots yet.
func (s *Store) AddNode(ctx context.Context, addr string) {
	old := s.Table()
	if old.Nodes[addr] != nil || len(old.Nodes) >= MaxNodes {
		return
	}
	t := *old
	t.Nodes = maps.Clone(old.Nodes)
	if t.Nodes == nil {
		t.Nodes = make(map[string]*Node)
	}
	t.Nodes[addr] = s.start(ctx, addr)
	s.replace(&t)
}

// checkSoon asks for a check of the Table.
func (s *Store) checkSoon() {
	select {
	case s.Kicks <- struct{}{}:
	default: // it will be checked already
	}
}

// awaitTable returns the table once it has servers.
func (s *Store) awaitTable(ctx context.Context, c *Call) (*Table, error) {
	for {
		t := s.Table()
		switch {
		case len(t.slots) > 0:
			return t, nil
		case t.Err != nil:
			s.checkSoon()
			return nil, t.Err
		}
		if err := wait(ctx, c, s, t.replaced); err != nil {
			return nil, err
		}
	}
}

// awaitNode returns the server at addr, which may be a new one.
func (s *Store) awaitNode(ctx context.Context, c *Call, addr string) (*Node, error) {
	for {
		t := s.Table()
		if n := t.Nodes[addr]; n != nil {
			return n, nil
		}
		select {
		case s.Discovered <- addr:
		default: // others are added; then it is the turn of this one
		}
		if err := wait(ctx, c, s, t.replaced); err != nil {
			return nil, err
		}
	}
}

// A retry waits for retryPause times the number of attempts, up to ten times.
const retryPause = 2 * time.Millisecond
