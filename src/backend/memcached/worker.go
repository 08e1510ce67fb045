package memcached

import (
	"errors"
	"strconv"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

// worker works on one counter of a node at a time.
type worker struct {
	node *node
	wire *wire
	link *link
	wake chan struct{}

	counter   *counter // the one it works on
	run, left []*op    // those that are worked on, and those whose callers left
	sum       uint64   // of the amounts of run
}

func (n *node) work(w *worker) {
	for n.next(w) {
		err := n.breaker.Refusal() // it opened while they waited
		if err == nil && len(w.run) > 0 {
			err = w.ready()
		}
		for _, o := range w.left {
			o.settle(0, ErrTimeout, &n.store.stats)
		}
		switch {
		case len(w.run) == 0:
		case err != nil:
			for _, o := range w.run {
				o.settle(0, err, &n.store.stats)
			}
		default:
			w.commit(w.counter.key)
		}
		n.leave(w)
	}
}

// ready connects if there is no connection. Ops whose callers left meanwhile move to
// w.left.
func (w *worker) ready() error {
	if w.wire.pipe.Load() != nil {
		return nil
	}
	if _, err := w.wire.open(); err != nil {
		return err
	}
	kept := w.run[:0]
	w.sum = 0
	for _, o := range w.run {
		if o.call.Gone.Load() {
			w.left = append(w.left, o)
			continue
		}
		kept = append(kept, o)
		w.sum += o.amount
	}
	w.run = kept
	return nil
}

// commit does to a counter what the ops of w.run ask for together.
func (w *worker) commit(key string) {
	begun := time.Now()
	verb := w.run[0].verb
	var before uint64
	var err error
	switch verb {
	case read:
		before, err = w.read(key)
	case add:
		before, err = w.add(key)
	case sub:
		before, err = w.sub(key)
	}
	w.node.store.sent(len(w.run), time.Since(begun), err)
	if err == nil {
		w.node.progress.Answered(time.Now())
	}
	for _, o := range w.run {
		amount, most := o.amount, o.most // o is another's once it is settled
		o.settle(before, err, &w.node.store.stats)
		switch verb {
		case add:
			before = min(before+amount, most)
		case sub:
			before -= min(before, amount)
		}
	}
}

// read is the count; 0 if there is none. An increment by nothing costs the server
// what a get does, and has a reply of one line.
func (w *worker) read(key string) (uint64, error) {
	s := &w.node.store.stats
	n, err := w.incr(key, 0)
	s.keysRequested.Add(1)
	switch {
	case err == nil:
		s.keysFound.Add(1)
	case errors.Is(err, memcache.ErrCacheMiss):
		n = 0
	default:
		s.reads[failed].Add(1)
		return 0, err
	}
	s.reads[done].Add(1)
	return min(n, w.run[0].most), nil
}

// contests is how often a counter may be there for add and not for incr, or the
// other way round, in one commit: each time it has to expire, or be thrown out,
// in between.
const contests = 10

// add adds the sum and is the count before. A counter that has more than it may is
// set back, as at 2^64 it would begin anew.
func (w *worker) add(key string) (uint64, error) {
	o, s := w.run[0], &w.node.store.stats
	for range contests {
		n, err := w.incr(key, w.sum)
		switch {
		case err == nil:
			s.increments[done].Add(1)
			return w.before(key, n, o.most), nil
		case !errors.Is(err, memcache.ErrCacheMiss):
			s.increments[failed].Add(1)
			return 0, err
		}
		s.increments[missed].Add(1)
		item := memcache.Item{Key: key, Value: strconv.AppendUint(nil, w.sum, 10), Expiration: expiry(time.Now(), o.life)}
		err = w.link.Do(func(c *memcache.Client) error { return c.Add(&item) })
		switch {
		case err == nil:
			s.adds[done].Add(1)
			return 0, nil
		case !errors.Is(err, memcache.ErrNotStored):
			s.adds[failed].Add(1)
			return 0, err
		}
		s.adds[missed].Add(1) // somebody was faster
	}
	return 0, errContest
}

// before is the count before an increment by the sum made it n.
func (w *worker) before(key string, n, most uint64) uint64 {
	switch {
	case n < w.sum: // it began anew
		_, _ = w.incr(key, most-n) // else it is tried with the next hit
		return most
	case n > most:
		_ = w.link.Do(func(c *memcache.Client) error {
			_, err := c.Decrement(key, n-most)
			return err
		})
	}
	return min(n-w.sum, most)
}

// sub takes the sum away, as far as it goes, and is the count before. Memcached
// says only what is left, so where that is nothing the count has to be known from
// a moment before.
func (w *worker) sub(key string) (uint64, error) {
	was, err := w.read(key)
	if err != nil || was == 0 || w.sum == 0 {
		return was, err
	}
	var n uint64
	err = w.link.Do(func(c *memcache.Client) (err error) {
		n, err = c.Decrement(key, w.sum)
		return err
	})
	switch {
	case errors.Is(err, memcache.ErrCacheMiss):
		return 0, nil
	case err != nil:
		return 0, err
	case n > 0:
		return min(n+w.sum, w.run[0].most), nil
	}
	return min(was, w.sum), nil
}

func (w *worker) incr(key string, by uint64) (n uint64, err error) {
	err = w.link.Do(func(c *memcache.Client) error {
		n, err = c.Increment(key, by)
		return err
	})
	return n, err
}
