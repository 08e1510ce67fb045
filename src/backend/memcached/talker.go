package memcached

import (
	"context"
	"errors"
	"io"
	"iter"
	"net"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend/remote"
)

// talker talks with the server about one counter at a time, through gomemcache, which
// writes a command and waits for its reply. What gomemcache takes for its connection is
// the talker itself: Write adds the command to those of the round, and Read pauses the
// conversation until the round has the replies. The conversation is a coroutine, so
// only one of them runs at a time, on the goroutine of the writer.
type talker struct {
	net.Conn // nil: gomemcache calls only the methods below
	exchange *exchange
	client   *memcache.Client
	resume   func() (struct{}, bool)
	stop     func()
	pause    func(struct{}) bool

	key  string
	hits []hitOf // on the counter, in order
	rest []hitOf // of hits: no command was sent for them yet
	run  []hitOf // the hits that the current command is for
	sum  uint64  // of their amounts

	reply   []byte // to the last command; gomemcache has read the first readTo bytes
	readTo  int
	refusal error // what the server said instead of doing it
}

// hitOf refers to the hit with the index hit in call.
type hitOf struct {
	call *remote.Call
	hit  int
}

func (h hitOf) get() *remote.Hit { return &h.call.Hits[h.hit] }

// most returns the highest count of the counter.
func (h hitOf) most() uint64 {
	if h.get().Limit.Kind == algorithm.SlidingWindowCounter {
		return algorithm.MaxScriptCount
	}
	return algorithm.MaxCount
}

func newTalker(x *exchange) *talker {
	t := &talker{exchange: x, client: memcache.NewFromSelector(address("server"))}
	t.client.MaxIdleConns = 1
	t.client.DialContext = func(context.Context, string, string) (net.Conn, error) { return t, nil }
	t.resume, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		t.pause = yield
		for {
			for t.rest = t.hits; len(t.rest) > 0; {
				t.commit()
			}
			if !yield(struct{}{}) {
				return
			}
		}
	})
	return t
}

func (t *talker) reset() {
	clear(t.hits)
	t.hits, t.rest, t.run = t.hits[:0], nil, nil
}

// maxSum is the most that one command adds. It is far below the range of a counter, so that
// simultaneous commands of many processes cannot overflow it.
const maxSum = 1 << 52

// commit applies the first hits to the counter, as many as one command can express, and sets
// their results.
func (t *talker) commit() {
	first, n := t.rest[0].get().Op, 1
	t.sum = t.rest[0].get().Amount
	for ; n < len(t.rest); n++ {
		h := t.rest[n].get()
		if isAdd(h.Op) != isAdd(first) || !isAdd(first) && h.Op != first || t.sum+h.Amount > maxSum {
			break
		}
		t.sum += h.Amount
	}
	t.run, t.rest = t.rest[:n], t.rest[n:]
	var before uint64
	var err error
	started := time.Now()
	switch {
	case first == algorithm.Look:
		before, err = t.read()
	case first == algorithm.Refund:
		before, err = t.sub()
	default:
		before, err = t.add()
	}
	t.exchange.count(n, time.Since(started), err)
	for _, h := range t.run {
		hit := h.get()
		h.call.SetResult(h.hit, remote.Result{Before: int64(before), Err: err})
		switch {
		case first == algorithm.Refund:
			before -= min(before, hit.Amount)
		case isAdd(first):
			before = min(before+hit.Amount, h.most())
		}
	}
}

// isAdd reports whether op increases a counter.
func isAdd(op algorithm.Op) bool { return op == algorithm.Charge || op == algorithm.Force }

// count counts a change or lookup of a counter.
func (x *exchange) count(hits int, took time.Duration, err error) {
	x.counts.commands.Add(1)
	if err != nil {
		x.counts.failed.Add(1)
	}
	if x.onBatch != nil {
		x.onBatch(hits, took)
	}
}

// read returns the count; 0 if there is none. An increment by nothing costs the server
// what a get does, and has a reply of one line.
func (t *talker) read() (uint64, error) {
	n, err := t.incr(0)
	counts := t.exchange.counts
	counts.KeysRequested.Add(1)
	if errors.Is(err, memcache.ErrCacheMiss) {
		n, err = 0, nil
	} else if err == nil {
		counts.KeysFound.Add(1)
	}
	counts.Reads.count(err, nil)
	return min(n, t.run[0].most()), err
}

// contests is how often a counter may be there for add and not for incr, or the other
// way round, in one commit: each time it has to expire, or be evicted, in between.
const contests = 10

// add adds the sum and returns the count before.
func (t *talker) add() (uint64, error) {
	for range contests {
		n, err := t.incr(t.sum)
		t.exchange.counts.Increments.count(err, memcache.ErrCacheMiss)
		switch {
		case err == nil:
			return t.countBefore(n), nil
		case !errors.Is(err, memcache.ErrCacheMiss):
			return 0, err
		}
		err = t.create()
		t.exchange.counts.Adds.count(err, memcache.ErrNotStored)
		if !errors.Is(err, memcache.ErrNotStored) { // else another client was faster
			return 0, err
		}
	}
	return 0, errContest
}

// countBefore returns the count before an increment by the sum made it n. A counter above its
// highest count is set back, because Memcached wraps to 0 at 2^64.
func (t *talker) countBefore(n uint64) uint64 {
	most := t.run[0].most()
	switch {
	case n < t.sum: // it started anew
		_, _ = t.incr(most - n) // else it is tried with the next hit
		return most
	case n > most:
		_, _ = t.decr(n - most)
	}
	return min(n-t.sum, most)
}

// sub takes the sum away, as far as it goes, and returns the count before. Memcached
// says only what is left, so if that is nothing the count has to be known from a moment
// before.
func (t *talker) sub() (uint64, error) {
	was, err := t.read()
	if err != nil || was == 0 || t.sum == 0 {
		return was, err
	}
	n, err := t.decr(t.sum)
	switch {
	case errors.Is(err, memcache.ErrCacheMiss):
		return 0, nil
	case err != nil:
		return 0, err
	case n > 0:
		return min(n+t.sum, t.run[0].most()), nil
	}
	return min(was, t.sum), nil
}

func (t *talker) incr(by uint64) (uint64, error) {
	n, err := t.client.Increment(t.key, by)
	return n, t.check(err)
}

func (t *talker) decr(by uint64) (uint64, error) {
	n, err := t.client.Decrement(t.key, by)
	return n, t.check(err)
}

// create adds the counter with the sum.
func (t *talker) create() error {
	item := memcache.Item{Key: t.key, Value: decimal(t.sum), Expiration: expiry(time.Now(), t.run[0].get().TTL)}
	return t.check(t.client.Add(&item))
}

// check returns the error of a command for which gomemcache returned err.
func (t *talker) check(err error) error {
	switch {
	case t.refusal != nil:
		return t.refusal
	case err == nil, t.exchange.failed != nil, errors.Is(err, memcache.ErrCacheMiss), errors.Is(err, memcache.ErrNotStored):
		return err
	}
	return &remote.LinkError{Store: name, Addr: t.exchange.addr, Err: err}
}

// Write adds a command to the round. gomemcache writes each at once.
func (t *talker) Write(command []byte) (int, error) {
	t.refusal, t.reply, t.readTo = nil, t.reply[:0], 0
	if t.exchange.failed != nil {
		return 0, t.exchange.failed
	}
	t.exchange.out = append(t.exchange.out, command...)
	t.exchange.asked = append(t.exchange.asked, t)
	return len(command), nil
}

// Read returns the reply: one whole line, or an error, as gomemcache counts on lines
// that end as they should.
//
// gomemcache closes a connection whose server says that it cannot do something, which
// one without memory says all the time. So it is told NOT_FOUND, which is nothing to
// it, and the reply is in refusal.
func (t *talker) Read(b []byte) (int, error) {
	if t.readTo == len(t.reply) {
		if !t.pause(struct{}{}) {
			return 0, io.EOF // the exchange is closed
		}
		if t.exchange.failed != nil {
			return 0, t.exchange.failed
		}
		if isRefusal(t.reply) {
			t.refusal = replyError(t.reply)
			t.reply = append(t.reply[:0], notFound...)
		}
	}
	n := copy(b, t.reply[t.readTo:])
	t.readTo += n
	return n, nil
}

// Close does nothing: the connection belongs to the exchange.
func (*talker) Close() error { return nil }

// SetDeadline does nothing: the exchange has deadlines of its own.
func (*talker) SetDeadline(time.Time) error { return nil }

// address is the net.Addr of a server, which gomemcache asks for.
type address string

func (a address) Network() string { return network(string(a)) }
func (a address) String() string  { return string(a) }

// PickServer and Each are gomemcache's ServerSelector of one server.
func (a address) PickServer(string) (net.Addr, error)  { return a, nil }
func (a address) Each(each func(net.Addr) error) error { return each(a) }
