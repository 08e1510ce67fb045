package redis

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
)

// call is one Take on its way. It holds copies of everything, because the
// caller may be gone before the writer gets to it.
type call struct {
	remote.Call
	hits    []hit
	keys    []byte // of all hits, one after the other
	results []result
	limits  []algorithm.Limit // of the hits that a script charges
	found   []found           // by a script
	of      []int32           // of a part: the index of each hit in the whole call
	ask     bool              // a node that does not have the keys yet is to take them
	again   bool              // some results say where to ask instead
	at      int64             // the time in µs since the Unix epoch; -1: that of Redis
	up      error             // set when the time of the caller passed; only the calling goroutine uses it

	due      time.Time      // when the caller leaves
	cost     time.Duration  // estimated time of the server for the hits that are not sent yet
	largest  time.Duration  // the same for the group that costs the most, which cannot be divided
	writer   *writer        // that has it; nil: none
	waiting  remote.Waiting // since the writer got it
	division division       // of this call into parts
	next     int            // the first hit that is not sent yet; the writer's
	sent     atomic.Bool    // it is in a batch that is under way, or was
	queued   atomic.Bool    // there was more to do than fits into one batch
	skipped  atomic.Bool    // the writer sends nothing of it, as there is not enough time
}

// hit is what the writer needs of one hit.
type hit struct {
	from, to int // of the key in keys
	op       algorithm.Op
	amount   uint64
	period   int64 // seconds that the key has to live
	ttl      int64 // the same and jitter
	// Of a hit that a script charges:
	flags int // of takeScript
	limit int // its index in limits
	last  int // the index behind the last hit of its group; of others 0
	divvy bool
}

// result is what Redis said of one hit.
type result struct {
	before int64 // the count
	script int   // 1 + index in found, which says more; 0: none
	err    error
}

// found is what a script said of one hit.
type found struct {
	state   [scriptState]int64 // before the hit
	over    bool
	refused bool               // the group was, and the hit not charged
	tried   [scriptState]int64 // then: the state if those before it had been
	now     int64              // µs
}

func (c *call) key(i int) []byte { return c.keys[c.hits[i].from:c.hits[i].to] }

// The estimated costs of hits, in time of a server that works at an ordinary pace.
// remote.Pace learns how far the server at hand is from it.
const (
	commandCost   = time.Microsecond // INCRBY, GET or EXPIRE
	scriptCost    = 8 * time.Microsecond
	evalCost      = 50 * time.Microsecond // more than scriptCost, when the text is sent
	scriptHitCost = 12 * time.Microsecond
	logHitCost    = 24 * time.Microsecond // of a sliding_window, which searches a log
	byteCost      = time.Nanosecond       // of a key
	scriptByte    = 10 * time.Nanosecond
)

// unit returns the end of what has to be sent together with hit i, its group or
// itself alone, and what that costs.
func (c *call) unit(i int) (end int, cost time.Duration) {
	h := &c.hits[i]
	if h.last == 0 {
		return i + 1, commandCost + time.Duration(h.to-h.from)*byteCost
	}
	cost = scriptCost
	for j := i; j < h.last; j++ {
		g := &c.hits[j]
		if c.limits[g.limit].Kind == algorithm.SlidingWindow {
			cost += logHitCost
		} else {
			cost += scriptHitCost
		}
		cost += time.Duration(g.to-g.from) * scriptByte
	}
	return h.last, cost
}

// estimate sets cost and largest.
func (c *call) estimate() {
	c.cost, c.largest = 0, 0
	for i := 0; i < len(c.hits); {
		end, cost := c.unit(i)
		c.cost += cost
		c.largest = max(c.largest, cost)
		i = end
	}
}

// spent takes the cost of the hits from c.next to end off c.cost, and moves on to
// end.
func (c *call) spent(end int, cost time.Duration) {
	c.next = end
	c.cost -= cost
}

// refuse makes err what became of the hits that are not sent yet.
func (c *call) refuse(err error) {
	for ; c.next < len(c.hits); c.next++ {
		c.settle(c.next, result{err: err})
	}
}

// late returns why c had no answer before its time passed, which is now: err, unless c
// waited for its turn while the server worked.
func (c *call) late(err error, now time.Time) error {
	timedOut := errors.Is(err, remote.ErrTimeout) || errors.Is(err, context.DeadlineExceeded)
	if !timedOut || !c.queued.Load() {
		return err
	}
	least := 2 // the first answer may be to a batch that was under way already
	if c.skipped.Load() {
		least = 1 // the estimate says that there is not enough time
	}
	if c.writer.progress.Worked(c.waiting, now, least) {
		return ErrOverload
	}
	return err
}

// lateSlice is how long a caller whose time has passed waits between two looks.
const lateSlice = time.Millisecond

// arrives waits for the reply to c if that is there and only this process is late: as
// long again as the timeout, or until the caller's deadline, and no longer than the reply
// is being read. It reports whether c has its answer.
func (c *call) arrives(ctx context.Context) bool {
	if c.writer == nil || !c.sent.Load() {
		return false
	}
	var tick *time.Timer
	end := time.Now().Add(c.writer.link.timeout)
	for answering := true; answering && time.Now().Before(end); {
		answering = c.writer.link.current.Load().answering()
		switch {
		case tick != nil:
			tick.Reset(lateSlice)
		case !answering:
			end = time.Time{}
			continue
		default:
			tick = time.NewTimer(lateSlice)
			defer tick.Stop()
		}
		select {
		case <-c.Done:
			return true
		case <-ctx.Done():
			end = time.Time{}
		case <-tick.C:
		}
	}
	select {
	case <-c.Done:
		return true
	default:
		return false
	}
}

// The flags of takeScript.
const (
	flagCountBlocked = 1
	flagAtomic       = 2
	flagNoVeto       = 4
)

// add appends hit i of another call.
func (c *call) add(from *call, i int) {
	h, key := from.hits[i], from.key(i)
	if h.last > 0 {
		h.limit = len(c.limits)
		c.limits = append(c.limits, from.limits[from.hits[i].limit])
	}
	h.from = len(c.keys)
	c.keys = append(c.keys, key...)
	h.to = len(c.keys)
	c.hits = append(c.hits, h)
	c.results = append(c.results, result{})
}

// take makes what from says of its hit j what became of hit i.
func (c *call) take(i int, from *call, j int) {
	r := from.results[j]
	if r.script > 0 {
		c.found = append(c.found, from.found[r.script-1])
		r.script = len(c.found)
	}
	c.results[i] = r
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
	c.again = c.again || c.redirected(i) != nil
}

// fill copies b into c. Keys live up to jitter longer than their window, and
// are those of remote.AppendKey.
func (c *call) fill(b *backend.Batch, now int64, jitter time.Duration, tagged bool) {
	c.at = -1
	if !b.Now.IsZero() {
		c.at = now / int64(time.Microsecond)
	}
	for i := 0; i < len(b.Hits); {
		end := b.GroupEnd(i)
		atomicGroup := backend.AnyAtomic(b.Hits[i:end])
		for ; i < end; i++ {
			h := &b.Hits[i]
			from := len(c.keys)
			c.keys = remote.AppendKey(c.keys, h, now, tagged)
			out := hit{from: from, to: len(c.keys), op: h.Op, amount: h.Amount, period: int64(h.Limit.Period / time.Second)}
			if c.at >= 0 {
				out.period = max(out.period, 3600) // virtual time goes at a pace of its own
			}
			out.ttl = out.period + remote.JitterSeconds(jitter)
			switch {
			case atomicGroup:
				out.last = end
			case needsScript(h):
				out.last = i + 1
			}
			if out.last > 0 {
				out.flags, out.limit, out.divvy = flags(h), len(c.limits), h.CountDown && c.at < 0
				c.limits = append(c.limits, *h.Limit)
			}
			c.hits = append(c.hits, out)
			c.results = append(c.results, result{})
		}
	}
}

func flags(h *backend.Hit) (f int) {
	if h.Limit.CountBlocked {
		f |= flagCountBlocked
	}
	if h.Atomic {
		f |= flagAtomic
	}
	if h.NoVeto {
		f |= flagNoVeto
	}
	return f
}

// needsScript reports whether a command is not enough for a hit that stands
// alone.
func needsScript(h *backend.Hit) bool {
	return h.CountDown || h.Limit.Kind != algorithm.FixedWindow || h.Op == algorithm.Refund || h.Op == algorithm.Charge && !h.Limit.CountBlocked
}

// verdict turns what Redis said of hit i into a verdict.
func (c *call) verdict(h *backend.Hit, i int, now int64) backend.Verdict {
	if err := c.results[i].err; err != nil {
		return backend.Verdict{Err: err}
	}
	return backend.Verdict{Outcome: c.outcome(h, i, now)}
}

func (c *call) outcome(h *backend.Hit, i int, now int64) algorithm.Outcome {
	r := &c.results[i]
	if r.script == 0 {
		return judge(h.Limit, &[scriptState]int64{r.before}, now, h.Op, h.Amount)
	}
	f := &c.found[r.script-1]
	if h.Limit.Kind != algorithm.FixedWindow {
		now = f.now * int64(time.Microsecond)
	}
	if !f.refused {
		return judge(h.Limit, &f.state, now, h.Op, h.Amount)
	}
	look := h.AsLook()
	tried := judge(h.Limit, &f.tried, now, h.Op, h.Amount)
	tried.Over = f.over // also when hits before it made it so
	return algorithm.Uncharged(h.Limit, judge(h.Limit, &f.state, now, look.Op, look.Amount), tried)
}

// judge is the verdict of package algorithm on the state that Redis found.
func judge(l *algorithm.Limit, s *[scriptState]int64, now int64, op algorithm.Op, amount uint64) (v algorithm.Outcome) {
	count := func(n int64) uint64 { return uint64(max(n, 0)) }
	instant := func(us int64) int64 { return max(us, 0) * int64(time.Microsecond) } // -1: none
	switch l.Kind {
	case algorithm.FixedWindow:
		_, v = algorithm.TakeFixed(l, count(s[0]), now, op, amount)
	case algorithm.FirstHitWindow:
		_, v = algorithm.TakeFirstHit(l, algorithm.FirstHit{Count: count(s[0]), End: instant(s[1])}, now, op, amount)
	case algorithm.SlidingWindow:
		now = max(now, instant(s[1]))
		ago := func(us int64) time.Duration {
			if us < 0 {
				return -1
			}
			return time.Duration(now - instant(us))
		}
		leaves := func(us int64) time.Duration {
			if us < 0 {
				return 0
			}
			return l.Period - ago(us)
		}
		state := algorithm.SlidingState{
			Now: now, Used: count(s[0]), Newest: ago(s[1]), NewestAfter: ago(s[2]),
			Leaves: leaves(s[3]), OneLeaves: leaves(s[4]),
		}
		v = state.Outcome(l, op, amount)
	case algorithm.SlidingWindowCounter:
		buckets := algorithm.Buckets{Start: instant(s[0]), Previous: count(s[1]), Current: count(s[2])}
		_, v = algorithm.TakeSlidingCounter(l, buckets, now, op, amount)
	case algorithm.GCRA:
		_, v = algorithm.TakeGCRA(l, algorithm.Arrival{TAT: instant(s[0]) + s[1], Last: instant(s[2])}, now, op, amount)
	}
	return v
}
