package redis

import (
	"math/rand/v2"
	"sync/atomic"
	"time"

	"ratelimit/src/algorithm"
)

// call is one Take on its way. It holds copies of everything, because the
// caller may be gone before the writer gets to it.
type call struct {
	hits    []hit
	keys    []byte // of all hits, one after the other
	results []result
	ask     bool          // a node that does not have the keys yet is to take them
	again   bool          // some results say where to ask instead
	done    chan struct{} // one send, when all results are there
	// holders is 2 while both the caller and the writer may look at the call;
	// who leaves last puts it away.
	holders atomic.Int32
	gone    atomic.Bool // the caller left: what has not been sent need not be

	// What follows belongs to the caller.
	timer *time.Timer // the time it has
	up    error       // its time is up
}

// hit is what the writer needs of one hit.
type hit struct {
	from, to int // of the key in keys
	op       algorithm.Op
	amount   uint64
	max      uint64
	ttl      int64 // seconds
	flags    int   // of groupScript
	last     int   // of a group that a script charges: the index behind its last hit; else 0
}

// result is what Redis said of one hit.
type result struct {
	before  int64
	over    bool // of a script
	refused bool // of a script: the group was
	err     error
}

func (c *call) key(i int) []byte { return c.keys[c.hits[i].from:c.hits[i].to] }

// The flags of groupScript.
const (
	flagCountBlocked = 1
	flagAtomic       = 2
	flagNoVeto       = 4
)

// add appends a hit and its key.
func (c *call) add(h hit, key []byte) {
	h.from = len(c.keys)
	c.keys = append(c.keys, key...)
	h.to = len(c.keys)
	c.hits = append(c.hits, h)
	c.results = append(c.results, result{})
}

// fail makes err what became of each hit.
func (c *call) fail(err error) {
	for i := range c.results {
		c.results[i] = result{err: err}
	}
}

// settle makes r what became of hit i.
func (c *call) settle(i int, r result) {
	c.results[i] = r
	c.again = c.again || c.elsewhere(i) != nil
}

// fill copies b into c. Keys live up to jitter longer than their window, and
// are those of appendKey.
func (c *call) fill(b *algorithm.Batch, now int64, jitter time.Duration, tagged bool) {
	for i := 0; i < len(b.Hits); {
		end := b.GroupEnd(i)
		atomicGroup := algorithm.AnyAtomic(b.Hits[i:end])
		for ; i < end; i++ {
			h := &b.Hits[i]
			from := len(c.keys)
			c.keys = appendKey(c.keys, h, now, tagged)
			out := hit{
				from: from, to: len(c.keys), op: h.Op, amount: h.Amount, max: h.Limit.Max,
				ttl: int64(h.Limit.Period/time.Second) + jitterSeconds(jitter),
			}
			if h.Limit.CountBlocked {
				out.flags |= flagCountBlocked
			}
			if h.Atomic {
				out.flags |= flagAtomic
			}
			if h.NoVeto {
				out.flags |= flagNoVeto
			}
			switch {
			case atomicGroup:
				out.last = end
			case h.Op == algorithm.Refund, h.Op == algorithm.Charge && !h.Limit.CountBlocked:
				out.last = i + 1
			}
			c.hits = append(c.hits, out)
			c.results = append(c.results, result{})
		}
	}
}

// verdict turns what Redis said of hit i into a verdict.
func (c *call) verdict(h *algorithm.Hit, i int, now int64) algorithm.Verdict {
	r := &c.results[i]
	if r.err != nil {
		return algorithm.Verdict{Err: r.err}
	}
	before := uint64(max(r.before, 0))
	if r.refused && h.Atomic {
		_, look := algorithm.TakeFixed(h.Limit, before, now, algorithm.Look, h.AsLook().Amount)
		tried := algorithm.Verdict{Over: r.over, RetryAfter: look.ResetAfter} // the window's end, whatever fills it
		return algorithm.Uncharged(look, tried)
	}
	_, v := algorithm.TakeFixed(h.Limit, before, now, h.Op, h.Amount)
	return v
}

// jitterSeconds is a random number of seconds below jitter, so that keys of one
// window do not all expire at once.
func jitterSeconds(jitter time.Duration) int64 {
	if most := int64(jitter / time.Second); most > 0 {
		return rand.Int64N(most)
	}
	return 0
}
