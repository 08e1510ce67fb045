package remote

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"maps"
	"slices"
	"time"
)

// Layout says which servers there are, and which keys each of them has.
type Layout struct {
	// Addrs are the servers that calls are sent to.
	Addrs []string
	// Slot returns the slot of a key. Nil: all keys are in the first.
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
	start    func(addr string) *Node
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
	if n := t.slots[t.Slot(key)]; n != nil {
		return n, nil
	}
	return nil, ErrNoOwner
}

// sole returns the server that can take c as it is; nil if there is none. In a
// cluster a group may have to be divided by slot.
func (t *Table) sole(c *Call) *Node {
	if len(t.slots) == 1 {
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

// Fail makes err the error of all calls, until the next Use. Call it only before the
// first.
func (s *Store) Fail(err error) {
	s.tables.Lock()
	defer s.tables.Unlock()
	s.replace(&Table{Err: err})
}

// replace puts t in force. The caller holds s.tables.
func (s *Store) replace(t *Table) {
	t.replaced = make(chan struct{})
	close(s.table.Swap(t).replaced)
}

// Use puts a Layout in force. It starts nodes that are new, and those that are gone
// finish what they were given.
func (s *Store) Use(ctx context.Context, l Layout) {
	s.tables.Lock()
	defer s.tables.Unlock()
	if l.Slot == nil {
		l.Slot = func([]byte) int { return 0 }
	}
	old := s.Table()
	t := &Table{Layout: l, Nodes: make(map[string]*Node, len(l.Addrs))}
	t.start = func(addr string) *Node { return s.start(ctx, addr) }
	nodes := make([]*Node, len(l.Addrs))
	for i, addr := range l.Addrs {
		n := cmp.Or(t.Nodes[addr], old.Nodes[addr])
		if n == nil {
			if n = s.start(ctx, addr); n == nil {
				return // Run has ended
			}
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

// node returns the server at addr, which another server named. A new one is started; it
// has no slots yet. Nil: there are too many, or Run has ended.
func (s *Store) node(addr string) *Node {
	s.tables.Lock()
	defer s.tables.Unlock()
	t := *s.Table()
	n := t.Nodes[addr]
	if n != nil || t.start == nil || len(t.Nodes) >= MaxNodes {
		return n
	}
	if n = t.start(addr); n != nil {
		t.Nodes = maps.Clone(t.Nodes)
		t.Nodes[addr] = n
		s.replace(&t)
	}
	return n
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

// A retry waits for retryPause times the number of attempts, up to ten times.
const retryPause = 2 * time.Millisecond

// Node is one server and its connections.
type Node struct {
	Addr    string
	store   *Store
	writers []*writer
	breaker *Breaker
	unseen  int // calls of Store.Use since it was in the Layout; guarded by Store.tables
}

// start starts the writers of the server at addr. They end with ctx, or when the node
// retires. Nil: ctx has ended. The caller holds s.tables, for which Run waits before it
// waits for the writers.
func (s *Store) start(ctx context.Context, addr string) *Node {
	if ctx.Err() != nil {
		return nil
	}
	n := &Node{Addr: addr, store: s}
	n.breaker = NewBreaker(s.Access.Name+": "+addr, s.Config.BreakerFailures, s.Config.Timeout, func(open bool, why error) {
		if open {
			s.Figures.breakersOpened.Add(1)
		}
		if s.Config.OnBreaker != nil {
			s.Config.OnBreaker(addr, open, why)
		}
	})
	gate := new(Gate)
	for range s.Config.Connections {
		w := newWriter(&Link{Access: &s.Access, Addr: addr, gate: gate, breaker: n.breaker}, s)
		n.writers = append(n.writers, w)
		s.running.Go(func() { w.run(ctx) })
	}
	return n
}

// put queues c, unless the server does not answer or a group of c takes too long.
func (n *Node) put(c *Call) error {
	if c.estimate() > n.store.Config.Timeout {
		return n.store.errOverload
	}
	if err := n.breaker.Allow(); err != nil {
		return err
	}
	return n.choose(c).put(c)
}

// choose returns the writer for c. Hits on one key share a batch: the writer is chosen
// by the first key. All calls that may take more than one batch go to one writer, so
// that the server works on one of them at a time, and other calls avoid that writer
// while it has such work.
func (n *Node) choose(c *Call) *writer {
	first, others := n.writers[0], n.writers[1:]
	if c.cost > Slice || len(others) == 0 {
		return first
	}
	hash := maphash.Bytes(n.store.seed, c.Key(0))
	if w := n.writers[hash%uint64(len(n.writers))]; w != first || first.backlog.Load() == 0 {
		return w
	}
	return others[hash/uint64(len(n.writers))%uint64(len(others))]
}

// Queued returns the number of calls that its writers have not looked at yet.
func (n *Node) Queued() (calls int) {
	for _, w := range n.writers {
		w.mu.Lock()
		calls += len(w.arrived)
		w.mu.Unlock()
	}
	return calls
}

// retire ends the node once what is on its way has been answered.
func (n *Node) retire() {
	for _, w := range n.writers {
		close(w.retired)
	}
	n.breaker.Retire(ErrRetired)
}
