package memcached

import (
	"math"
	"sync/atomic"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
)

// call is one Take on its way. It holds copies of everything, because the
// caller may be gone before the workers get to it.
type call struct {
	remote.Call
	ops   []op
	parts []*part      // the ops by node
	keys  []byte       // of all ops, one after the other
	left  atomic.Int32 // ops
}

// verb is what is done to a counter.
type verb uint8

const (
	read verb = iota
	add
	sub // never below 0, never makes a counter
)

// op is what a hit does to one counter, and what came of it.
type op struct {
	call *call
	next *op // of those that wait for the same counter
	// Of the node that has it, whose mu guards them.
	part    *part
	sibling *op // the next of the part
	counter *counter
	taken   bool // a worker has it

	verb   verb
	amount uint64
	most   uint64        // where the counter stops growing
	life   time.Duration // of a counter that is added

	from, to int // of the key, in call.keys

	before uint64
	err    error
}

func (o *op) key() []byte { return o.call.keys[o.from:o.to] }

// slack is how much longer than its window a counter lives: Memcached's clock
// ticks once a second, and a counter that ends with a tick may have seen almost
// none of the first.
const slack = 2 * time.Second

// virtualLife is the least that counters of virtual time live, which goes at a
// pace of its own.
const virtualLife = time.Hour

// fill makes the ops of b. Counters live up to jitter longer than they must.
func (c *call) fill(b *backend.Batch, now int64, jitter time.Duration, tagged bool) {
	for i := range b.Hits {
		h := &b.Hits[i]
		o := op{call: c, amount: h.Amount, most: algorithm.MaxCount}
		o.life = h.Limit.Period + slack + time.Duration(remote.JitterSeconds(jitter))*time.Second
		sliding := h.Limit.Kind == algorithm.SlidingWindowCounter
		if sliding {
			o.life += h.Limit.Period
			o.most = algorithm.MaxCounted
		}
		if !b.Now.IsZero() {
			o.life = max(o.life, virtualLife)
		}
		switch {
		case h.Op == algorithm.Look, sliding && h.Amount == 0:
			o.verb = read
		case h.Op == algorithm.Refund:
			o.verb = sub
		default:
			o.verb = add
		}
		c.append(o, h, now, tagged, 0)
		if sliding {
			o.verb = read
			c.append(o, h, now, tagged, 1)
		}
	}
	c.left.Store(int32(len(c.ops)))
}

func (c *call) append(o op, h *backend.Hit, now int64, tagged bool, ago int64) {
	o.from = len(c.keys)
	c.keys = appendKey(c.keys, h, now, tagged, ago)
	o.to = len(c.keys)
	c.ops = append(c.ops, o)
}

// verdicts turns what came of the ops into b's verdicts.
func (c *call) verdicts(b *backend.Batch, now int64) {
	ops := c.ops
	for i := range b.Hits {
		h, v := &b.Hits[i], &b.Verdicts[i]
		count := &ops[0]
		ops = ops[1:]
		*v = backend.Verdict{Err: count.err}
		if h.Limit.Kind != algorithm.SlidingWindowCounter {
			if v.Err == nil {
				_, v.Outcome = algorithm.TakeFixed(h.Limit, count.before, now, h.Op, h.Amount)
			}
			continue
		}
		previous := &ops[0]
		ops = ops[1:]
		if v.Err == nil {
			v.Err = previous.err
		}
		if v.Err == nil {
			start, _ := algorithm.Window(now, h.Limit.Period)
			buckets := algorithm.Buckets{Start: start, Previous: previous.before, Current: count.before}
			_, v.Outcome = algorithm.TakeSlidingCounter(h.Limit, buckets, now, h.Op, h.Amount)
		}
	}
}

// part returns the part for n, a new one if there is none. Only give calls it, before
// it hands the parts out.
func (c *call) part(n *node) *part {
	for _, p := range c.parts {
		if p.node == n {
			return p
		}
	}
	i := len(c.parts)
	if i == cap(c.parts) || c.parts[:i+1][i] == nil {
		c.parts = append(c.parts, new(part))
	} else {
		c.parts = c.parts[:i+1] // of an earlier call that is over
	}
	p := c.parts[i]
	p.call, p.node, p.first, p.last, p.count = c, n, nil, nil, 0
	return p
}

// overloaded reports whether the servers have worked until now, and some ops of c stand
// in their queues all the same: behind the others of c, or behind other calls.
func (c *call) overloaded(now time.Time) bool {
	overtaken := 0
	for i := range c.parts {
		switch p := c.parts[i]; {
		case p.overtaken(now):
			overtaken++
		case p.untaken.Load() > 0:
			return false
		}
	}
	return overtaken > 0
}

// settle says what came of o, and wakes the caller if that was the last. Nobody
// may look at o any more.
func (o *op) settle(before uint64, err error, s *counters) {
	o.before, o.err = before, err
	c := o.call
	if c.left.Add(-1) == 0 {
		c.Done <- struct{}{}
		s.release(c)
	}
}

// The longest a counter may live in seconds from now, as Memcached takes larger
// numbers for dates.
const maxRelative = 30 * 24 * 60 * 60

// dateSlack is added to what lives until a date: the server's clock and ours may
// differ.
const dateSlack = 60 * 60

// expiry is how Memcached is told that a counter lives for so long. Its dates end
// in 2038; what would live longer has none and stays until its room is needed.
func expiry(now time.Time, life time.Duration) int32 {
	seconds := int64((life + time.Second - 1) / time.Second)
	if seconds <= maxRelative {
		return int32(seconds)
	}
	if date := now.Unix() + seconds + dateSlack; date <= math.MaxInt32 {
		return int32(date)
	}
	return 0
}
