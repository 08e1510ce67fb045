package redis

import "hash/maphash"

// node is one server and its connections.
type node struct {
	writers []*writer
	seed    maphash.Seed
	unseen  int // looks since it was in the layout; belongs to watch
}

func (s *Store) newNode(addr string) *node {
	n := &node{seed: s.seed}
	for range s.cfg.Connections {
		n.writers = append(n.writers, newWriter(&link{access: &s.access, addr: addr}, &s.cfg, s.kick, &s.stats))
	}
	return n
}

// put queues c. Hits on one key meet in one batch: the writer is chosen by the
// first.
func (n *node) put(c *call) error {
	return n.writers[maphash.Bytes(n.seed, c.key(0))%uint64(len(n.writers))].put(c)
}

// retire ends the node once what is on its way has been answered.
func (n *node) retire() {
	for _, w := range n.writers {
		w.retire()
	}
}
