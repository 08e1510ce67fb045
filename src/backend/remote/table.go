package remote

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"maps"
)

// Layout says which servers there are, and which keys each of them has.
type Layout struct {
	// Addrs are the addresses of the servers.
	Addrs []string
	// SlotOfKey returns the slot of a key. Nil means that all keys are in slot 0.
	SlotOfKey func(key []byte) int
	// SlotOwners has, for each slot, 1 + the index in Addrs of the server that has the slot, or 0
	// if no server has it. Nil means that each server has the slot of its index.
	SlotOwners []uint16
}

// Table is the Layout with the connections to its servers. It is replaced, never changed.
type Table struct {
	Layout
	// Nodes are the servers by address, including those that only a Redirect named.
	Nodes map[string]*Node
	// Err is why no servers are known. Nil means that calls wait for the next Table.
	Err error

	serverCount    int                     // the number of different addresses in Addrs
	nodeOfSlot     []*Node                 // the server of each slot, or nil
	startNode      func(addr string) *Node // starts a Node with the context of UseLayout
	replacedSignal chan struct{}           // closed when another Table is in force
}

// ErrSlotWithoutNode is the error of hits whose key is in a slot that no server has.
var ErrSlotWithoutNode = errors.New("redis: no node has the slot of the key")

// errUnsent is the Redirect of a hit that was not sent to any server.
var errUnsent = &Redirect{Err: errors.New("not sent to any server")}

// NodeOfKey returns the server that has key, or why there is none.
func (t *Table) NodeOfKey(key []byte) (*Node, error) {
	if len(t.nodeOfSlot) == 0 {
		return nil, t.Err
	}
	if n := t.nodeOfSlot[t.SlotOfKey(key)]; n != nil {
		return n, nil
	}
	return nil, ErrSlotWithoutNode
}

// soleNode returns the server that has all keys of c. It returns nil if c must be divided,
// which in a cluster includes each call with a group.
func (t *Table) soleNode(c *Call) *Node {
	if len(t.nodeOfSlot) == 1 {
		return t.nodeOfSlot[0]
	}
	var sole *Node
	for i := range c.Hits {
		n := t.nodeOfSlot[t.SlotOfKey(c.Key(i))]
		if n == nil || sole != nil && n != sole || c.Hits[i].GroupEnd > i+1 {
			return nil
		}
		sole = n
	}
	return sole
}

// MaxTableNodes bounds the servers of a Table. Redis advises 1,000 nodes at most.
const MaxTableNodes = 1000

// maxMissedLayouts is how many calls of UseLayout keep a server that only a Redirect named.
const maxMissedLayouts = 60

// Table returns the table in force.
func (s *Store) Table() *Table { return s.table.Load() }

// FailUntilLayout makes err the error of all calls until the first UseLayout. After that it must not be called.
func (s *Store) FailUntilLayout(err error) {
	s.tableMu.Lock()
	defer s.tableMu.Unlock()
	s.replaceTable(&Table{Err: err})
}

// replaceTable puts t in force. The caller holds s.tableMu.
func (s *Store) replaceTable(t *Table) {
	t.replacedSignal = make(chan struct{})
	close(s.table.Swap(t).replacedSignal)
}

// UseLayout puts a Layout in force. It starts the connections to new servers. Those to servers
// that are gone end after the calls that they have.
func (s *Store) UseLayout(ctx context.Context, l Layout) {
	s.tableMu.Lock()
	defer s.tableMu.Unlock()
	if l.SlotOfKey == nil {
		l.SlotOfKey = func([]byte) int { return 0 }
	}
	old := s.Table()
	t := &Table{Layout: l, Nodes: make(map[string]*Node, len(l.Addrs))}
	t.startNode = func(addr string) *Node { return s.startNode(ctx, addr) }
	nodes := make([]*Node, len(l.Addrs))
	for i, addr := range l.Addrs {
		n := cmp.Or(t.Nodes[addr], old.Nodes[addr])
		if n == nil {
			if n = s.startNode(ctx, addr); n == nil {
				return
			}
		}
		n.missedLayouts = 0
		t.Nodes[addr], nodes[i] = n, n
	}
	t.serverCount, t.nodeOfSlot = len(t.Nodes), nodes
	if l.SlotOwners != nil {
		t.nodeOfSlot = make([]*Node, len(l.SlotOwners))
		for slot, owner := range l.SlotOwners {
			if owner > 0 {
				t.nodeOfSlot[slot] = nodes[owner-1]
			}
		}
	}
	var gone []*Node
	for addr, n := range old.Nodes {
		if t.Nodes[addr] != nil {
			continue
		}
		if n.missedLayouts++; n.missedLayouts <= maxMissedLayouts && l.SlotOwners != nil &&
			len(t.Nodes) < MaxTableNodes {
			t.Nodes[addr] = n // A Redirect may still name this server.
			continue
		}
		gone = append(gone, n)
	}
	s.replaceTable(t) // Retired servers must not be in the table, so this comes first.
	for _, n := range gone {
		n.retire()
	}
}

// nodeOfRedirect returns the server at addr, which a Redirect named. It starts a new server,
// without slots. It returns nil if there are too many servers or Run has ended.
func (s *Store) nodeOfRedirect(addr string) *Node {
	s.tableMu.Lock()
	defer s.tableMu.Unlock()
	t := *s.Table()
	n := t.Nodes[addr]
	if n != nil || t.startNode == nil || len(t.Nodes) >= MaxTableNodes {
		return n
	}
	if n = t.startNode(addr); n != nil {
		t.Nodes = maps.Clone(t.Nodes)
		t.Nodes[addr] = n
		s.replaceTable(&t)
	}
	return n
}

// requestServerSearch makes FindServers find the servers again.
func (s *Store) requestServerSearch() {
	select {
	case s.ServerSearchRequests <- struct{}{}:
	default: // FindServers has a request already.
	}
}

func (s *Store) awaitTable(ctx context.Context, c *Call) (*Table, error) {
	for {
		t := s.Table()
		switch {
		case len(t.nodeOfSlot) > 0:
			return t, nil
		case t.Err != nil:
			s.requestServerSearch()
			return nil, t.Err
		}
		if err := waitUntilDeadline(ctx, c, s, t.replacedSignal); err != nil {
			return nil, err
		}
	}
}

// Node is one server and its connections.
type Node struct {
	Addr          string
	store         *Store
	writers       []*writer
	breaker       *Breaker
	missedLayouts int // counts the calls of UseLayout without this server. Store.tableMu guards it.
}

// startNode starts the writers of the server at addr, which end when ctx ends or the Node
// retires. It returns nil if ctx has ended. The caller holds s.tableMu.
func (s *Store) startNode(ctx context.Context, addr string) *Node {
	if ctx.Err() != nil {
		return nil
	}
	n := &Node{Addr: addr, store: s}
	n.breaker = NewBreaker(s.Access.Name+": "+addr, s.Config.BreakerFailures, s.Config.Timeout,
		func(open bool, reason error) {
			if open {
				s.Figures.breakerOpenings.Add(1)
			}
			if s.Config.OnBreaker != nil {
				s.Config.OnBreaker(addr, open, reason)
			}
		})
	gate := new(Gate)
	for _, x := range s.protocol.NewExchanges(s.Config.Connections) {
		w := newWriter(&Link{Access: &s.Access, Addr: addr, gate: gate, breaker: n.breaker}, s, x)
		n.writers = append(n.writers, w)
		s.goroutines.Go(func() { w.run(ctx) })
	}
	return n
}

// enqueue queues c. It returns an error if the breaker is open, or a group of c would take the server longer than the
// Timeout.
func (n *Node) enqueue(c *Call) error {
	if c.estimateCost() > n.store.Config.Timeout {
		return n.store.errOverload
	}
	if err := n.breaker.Allow(); err != nil {
		return err
	}
	return n.chooseWriter(c).enqueue(c)
}

// chooseWriter returns the writer for c by its first key, so that hits on one key share a batch.
// The first writer takes the calls that may need several batches, so that the server works
// on one of them at a time. While it has some, the others take all other calls.
func (n *Node) chooseWriter(c *Call) *writer {
	first, others := n.writers[0], n.writers[1:]
	if c.unsentCost > BatchTime || len(others) == 0 {
		return first
	}
	hash := maphash.Bytes(n.store.hashSeed, c.Key(0))
	if w := n.writers[hash%uint64(len(n.writers))]; w != first || first.backlogCalls.Load() == 0 {
		return w
	}
	return others[hash/uint64(len(n.writers))%uint64(len(others))]
}

// UnreceivedCalls returns the number of calls that its writers have not received yet.
func (n *Node) UnreceivedCalls() (calls int) {
	for _, w := range n.writers {
		w.mu.Lock()
		calls += len(w.arrivedCalls)
		w.mu.Unlock()
	}
	return calls
}

func (n *Node) retire() {
	for _, w := range n.writers {
		close(w.retireSignal)
	}
	n.breaker.Retire(ErrServerRetired)
}
