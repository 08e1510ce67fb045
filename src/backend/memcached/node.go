package memcached

import (
	"sync"
	"sync/atomic"
	"time"

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

	progress remote.Progress // commands that had a reply
	most     int             // ops that wait
	end      chan struct{}   // closed when no more come

	mu       sync.Mutex          // guards what follows
	counters map[string]*counter // those that ops wait for, or that are worked on
	queue    remote.Queue[*part] // parts with ops that no worker has come to
	again    list                // counters that got more ops while they were worked on
	waiting  int                 // ops
	idle     []*worker           // the one that worked last is at the end
	closed   error               // no more ops are taken
}

// counter is one key, with the ops that wait for it in order of arrival.
type counter struct {
	key         string
	first, last *op
	busy        bool     // a worker has it, or it is in node.again
	next        *counter // in node.again
}

// list is counters in the order in which they were pushed.
type list struct{ first, last *counter }

func (l *list) push(c *counter) {
	if l.first == nil {
		l.first = c
	} else {
		l.last.next = c
	}
	l.last = c
}

func (l *list) pop() *counter {
	c := l.first
	if c != nil {
		l.first, c.next = c.next, nil
	}
	return c
}

// part is what one call asks of one node.
type part struct {
	call        *call
	node        *node
	first, last *op // in order, linked by op.sibling; in a queue: those no worker has come to
	count       int
	untaken     atomic.Int32 // ops that no worker has
	waiting     remote.Waiting
}

// overtaken reports whether p has ops that no worker took, though the server worked on
// others until now.
func (p *part) overtaken(now time.Time) bool {
	return p.untaken.Load() > 0 && p.node.progress.Worked(p.waiting, now, 1)
}

func (p *part) push(o *op) {
	o.sibling = nil
	if p.first == nil {
		p.first = o
	} else {
		p.last.sibling = o
	}
	p.last = o
	p.count++
}

func (p *part) pop() *op {
	o := p.first
	p.first = o.sibling
	p.count--
	return o
}

// unit is the cost of one op in node.queue, where only proportions matter.
const unit = time.Microsecond

// put queues the ops of p, if the server answers and there is room. An error leaves p
// as it was. Callers that leave do not take their ops with them, so a server that
// cannot be reached must not make the queue grow.
func (n *node) put(p *part) error {
	if err := n.breaker.Allow(); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.closed != nil:
		return n.closed
	case n.waiting > 0 && n.waiting+p.count > n.most:
		return ErrBusy
	}
	n.waiting += p.count
	cost := time.Duration(p.count) * unit
	p.untaken.Store(int32(p.count))
	p.waiting = n.progress.Mark(time.Now())
	next, created := p.first, 0
	p.first, p.last, p.count = nil, nil, 0
	for next != nil {
		o := next
		next, o.part = o.sibling, p
		c := n.counters[string(o.key())]
		if c == nil {
			c = &counter{key: string(o.key())}
			n.counters[c.key] = c
			created++
		}
		if c.first == nil {
			c.first = o
		} else {
			c.last.next = o
		}
		c.last = o
		o.counter = c
		if !c.busy { // else its worker comes to o
			p.push(o)
		}
	}
	if p.count == 0 {
		return nil
	}
	p.call.Hold() // the queue
	n.queue.Add(p, cost)
	for last := len(n.idle) - 1; created > 0 && last >= 0; last-- {
		w := n.idle[last]
		n.idle = n.idle[:last]
		w.wake <- struct{}{}
		created--
	}
	return nil
}

// maxSum bounds what one command adds, far below what a counter can hold: many
// commands at once, of all processes, must not make it overflow.
const maxSum = 1 << 52

// next fills w.run with ops of one counter that one command is enough for, and
// w.left with those whose callers left. It waits for them; false: no more come.
func (n *node) next(w *worker) bool {
	for {
		n.mu.Lock()
		c := n.ready()
		ended := n.closed != nil
		switch {
		case c != nil:
			n.take(w, c)
		case !ended:
			n.idle = append(n.idle, w)
		}
		n.mu.Unlock()
		if c != nil || ended {
			return c != nil
		}
		select {
		case <-w.wake:
		case <-n.end:
		}
	}
}

// ready returns the counter to work on next; nil: none. The caller holds mu.
func (n *node) ready() *counter {
	if c := n.again.pop(); c != nil {
		return c
	}
	for n.queue.Len() > 0 {
		p := n.queue.Head()
		var c *counter
		for c == nil && p.count > 0 {
			if o := p.pop(); !o.taken && !o.counter.busy {
				c = o.counter
			}
		}
		if c != nil {
			n.queue.Serve(unit)
		}
		n.queue.Pop()
		if p.count > 0 {
			n.queue.Return(p, time.Duration(p.count)*unit)
		} else {
			n.store.stats.release(p.call)
		}
		if c != nil {
			return c
		}
	}
	return nil
}

// take gives c to w with those ops that one command is enough for. The caller
// holds mu.
func (n *node) take(w *worker, c *counter) {
	c.busy = true
	w.counter, w.run, w.left, w.sum = c, w.run[:0], w.left[:0], 0
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
		o.taken = true
		o.part.untaken.Add(-1)
		c.first, o.next = o.next, nil
		n.waiting--
	}
}

// leave ends w's work on its counter. What has come meanwhile has its turn next.
func (n *node) leave(w *worker) {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := w.counter
	if c.first == nil {
		delete(n.counters, c.key)
		return
	}
	n.again.push(c) // a worker that leaves a counter takes the next
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
		for _, c := range n.counters {
			for o := c.first; o != nil; o = o.next {
				o.taken = true
				o.part.untaken.Add(-1)
				left = append(left, o)
			}
			c.first = nil
			if !c.busy {
				delete(n.counters, c.key)
			}
		}
		n.waiting -= len(left)
		for n.queue.Len() > 0 {
			n.store.stats.release(n.queue.Pop().call)
		}
	}
	n.mu.Unlock()
	for _, o := range left {
		o.settle(0, why, &n.store.stats)
	}
}
