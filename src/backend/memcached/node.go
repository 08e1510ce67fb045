package memcached

import (
	"sync"

	"ratelimit/src/backend/remote"
)

// node is one server, and what waits for it.
type node struct {
	addr    server
	gate    remote.Gate
	breaker *remote.Breaker
	opened  chan struct{} // the breaker did; of one place
	wires   []*wire
	store   *Store
	most    int           // ops that wait
	end     chan struct{} // closed when no more come

	mu       sync.Mutex          // guards what follows
	counters map[string]*counter // those that ops wait for, or that are worked on
	ready    queue               // of them: nobody works on it
	waiting  int                 // ops
	idle     []*worker           // the one that worked last is at the end
	closed   error               // no more ops are taken
}

// counter is one key, with the ops that wait for it in order of arrival.
type counter struct {
	key         string
	first, last *op
	next        *counter // in ready
}

// queue is counters in the order in which they are worked on.
type queue struct{ first, last *counter }

func (q *queue) push(c *counter) {
	if q.first == nil {
		q.first = c
	} else {
		q.last.next = c
	}
	q.last = c
}

func (q *queue) pop() *counter {
	c := q.first
	if c != nil {
		q.first, c.next = c.next, nil
	}
	return c
}

// put queues o, if the server answers and there is room: callers that leave do not take their ops with
// them, so a server that cannot be reached must not make the queue grow.
func (n *node) put(o *op) error {
	if err := n.breaker.Allow(); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.closed != nil:
		return n.closed
	case n.waiting >= n.most:
		return ErrBusy
	}
	n.waiting++
	c := n.counters[string(o.key())]
	if c != nil {
		if c.first == nil {
			c.first = o
		} else {
			c.last.next = o
		}
		c.last = o
		return nil // somebody will come to it, or does just now
	}
	c = &counter{key: string(o.key()), first: o, last: o}
	n.counters[c.key] = c
	n.ready.push(c)
	if last := len(n.idle) - 1; last >= 0 {
		w := n.idle[last]
		n.idle = n.idle[:last]
		w.wake <- struct{}{}
	}
	return nil
}

// maxSum bounds what one command adds, far below what a counter can hold: many
// commands at once, of all processes, must not make it overflow.
const maxSum = 1 << 52

// take gives those ops to w that one command is enough for. Those whose callers
// have left come to nothing.
func (n *node) take(w *worker, c *counter) {
	n.mu.Lock()
	defer n.mu.Unlock()
	w.run, w.left, w.sum = w.run[:0], w.left[:0], 0
	for o := c.first; o != nil; o = c.first {
		switch gone := o.call.Gone.Load(); {
		case gone:
			w.left = append(w.left, o)
		case len(w.run) > 0 && (o.verb != w.run[0].verb || w.sum+o.amount > maxSum):
			return
		default:
			w.run = append(w.run, o)
			w.sum += o.amount
		}
		c.first, o.next = o.next, nil
		n.waiting--
	}
}

// leave ends the work on c. What has come meanwhile has its turn later.
func (n *node) leave(c *counter) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if c.first == nil {
		delete(n.counters, c.key)
	} else {
		n.ready.push(c) // whoever leaves it takes the next
	}
}

// next is what w works on next, after waiting for it; nil when there is nothing
// more to come.
func (n *node) next(w *worker) *counter {
	for {
		n.mu.Lock()
		c := n.ready.pop()
		ended := n.closed != nil
		if c == nil && !ended {
			n.idle = append(n.idle, w)
		}
		n.mu.Unlock()
		if c != nil || ended {
			return c
		}
		select {
		case <-w.wake:
		case <-n.end:
		}
	}
}

// close takes no more ops; why is what those get that wait, or nil if they are to
// be worked on.
func (n *node) close(why error) {
	if why == nil {
		n.breaker.Retire(remote.ErrRetired)
	}
	n.mu.Lock()
	if n.closed == nil {
		close(n.end)
	}
	n.closed = errRetired
	var left []*op
	if why != nil {
		n.closed = why
		for c := n.ready.pop(); c != nil; c = n.ready.pop() {
			for o := c.first; o != nil; o = o.next {
				left = append(left, o)
			}
			c.first = nil
			delete(n.counters, c.key)
		}
		n.waiting -= len(left)
	}
	n.mu.Unlock()
	for _, o := range left {
		o.settle(0, why, &n.store.stats)
	}
}
