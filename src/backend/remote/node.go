package remote

import (
	"context"
	"hash/maphash"
	"time"
)

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
	c.estimate()
	if c.largest > n.store.Config.Timeout {
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

// after returns a channel that gets a value when d has passed; nil, so never, if d is 0.
func after(d time.Duration) <-chan time.Time {
	if d == 0 {
		return nil
	}
	return time.After(d)
}
