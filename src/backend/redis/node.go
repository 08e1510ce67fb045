package redis

import (
	"hash/maphash"
	"time"

	"ratelimit/src/backend/remote"
)

// node is one server and its connections.
type node struct {
	writers []*writer
	seed    maphash.Seed
	breaker *remote.Breaker
	timeout time.Duration // of a call
	unseen  int           // looks since it was in the layout; belongs to watch
}

func (s *Store) newNode(addr string) *node {
	n := &node{seed: s.seed, timeout: s.cfg.Timeout}
	n.breaker = remote.NewBreaker("redis: "+addr, s.cfg.BreakerFailures, s.cfg.Timeout, func(open bool, why error) {
		if open {
			s.stats.opened.Add(1)
		}
		if s.cfg.OnBreaker != nil {
			s.cfg.OnBreaker(addr, open, why)
		}
	})
	gate := new(remote.Gate)
	for range s.cfg.Connections {
		l := &link{access: &s.access, addr: addr, gate: gate, breaker: n.breaker}
		n.writers = append(n.writers, newWriter(l, &s.cfg, s.kick, &s.stats))
	}
	return n
}

// put queues c, unless the server does not answer.
func (n *node) put(c *call) error {
	c.estimate()
	if c.largest > n.timeout {
		return ErrOverload
	}
	if err := n.breaker.Allow(); err != nil {
		return err
	}
	return n.choose(c).put(c)
}

// choose returns the writer for c. Hits on one key meet in one batch: the writer is
// chosen by the first. All calls that may take more than one batch go to one writer, so
// that the server works on one of them at a time, and others avoid that writer
// while it has such work.
func (n *node) choose(c *call) *writer {
	first, others := n.writers[0], n.writers[1:]
	if c.cost > remote.Slice || len(others) == 0 {
		return first
	}
	hash := maphash.Bytes(n.seed, c.key(0))
	if w := n.writers[hash%uint64(len(n.writers))]; w != first || first.backlog.Load() == 0 {
		return w
	}
	return others[hash/uint64(len(n.writers))%uint64(len(others))]
}

// retire ends the node once what is on its way has been answered.
func (n *node) retire() {
	for _, w := range n.writers {
		w.retire()
	}
	n.breaker.Retire(remote.ErrRetired)
}
