package memcached

import (
	"context"
	"errors"
	"io"
	"iter"
	"net"
	"strconv"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend/remote"
)

// counterClient counts the hits on one counter through gomemcache, which writes a command to its connection and waits
// for the reply. That connection is the counterClient itself: Write adds the command to the round of the exchange, and
// Read pauses until the round has the reply. The counterClient is a coroutine, so it runs only while the exchange
// resumes it. So the commands of all counters leave together, through a few connections.
type counterClient struct {
	net.Conn        // The embedded Conn is nil, because gomemcache calls only the methods below.
	exchange        *exchange
	gomemcache      *memcache.Client
	resumeCoroutine func() (struct{}, bool)
	stopCoroutine   func()
	yieldCoroutine  func(struct{}) bool

	key          string
	hits         []hitRef // the hits on the counter, in order
	unsentHits   []hitRef // the hits for which no command was sent yet
	currentHits  []hitRef // the hits that the current command counts
	sumOfAmounts uint64   // the sum of the amounts of currentHits

	reply       []byte
	replyOffset int   // how many bytes of reply gomemcache has read
	errorReply  error // the last reply, if it is SERVER_ERROR or CLIENT_ERROR
}

type hitRef struct {
	call  *remote.Call
	index int
}

func (r hitRef) hit() *remote.Hit { return &r.call.Hits[r.index] }

func (r hitRef) maxCount() uint64 {
	if r.hit().Limit.Kind == algorithm.SlidingWindowCounter {
		return algorithm.MaxScriptCount
	}
	return algorithm.MaxCount
}

func newCounterClient(x *exchange) *counterClient {
	t := &counterClient{exchange: x, gomemcache: memcache.New("/unused")}
	t.gomemcache.DialContext = func(context.Context, string, string) (net.Conn, error) { return t, nil }
	t.resumeCoroutine, t.stopCoroutine = iter.Pull(func(yield func(struct{}) bool) {
		t.yieldCoroutine = yield
		for {
			for t.unsentHits = t.hits; len(t.unsentHits) > 0; {
				t.countNextHits()
			}
			if !yield(struct{}{}) {
				return
			}
		}
	})
	return t
}

func (t *counterClient) reset() {
	clear(t.hits)
	t.hits, t.unsentHits, t.currentHits = t.hits[:0], nil, nil
}

// maxIncrementSum is the most that one command adds. It is so far below the range of a counter that
// commands of many processes at the same time do not overflow it.
const maxIncrementSum = 1 << 52

// countNextHits counts the first unsent hits, as many as one command can count, and sets their results.
func (t *counterClient) countNextHits() {
	if t.unsentHits[0].hit().Delete {
		t.deleteCounter()
		return
	}
	first, n := t.unsentHits[0].hit().Op, 1
	t.sumOfAmounts = t.unsentHits[0].hit().Amount
	for ; n < len(t.unsentHits); n++ {
		h := t.unsentHits[n].hit()
		if h.Delete || addsToCounter(h.Op) != addsToCounter(first) || !addsToCounter(first) && h.Op != first ||
			t.sumOfAmounts+h.Amount > maxIncrementSum {
			break
		}
		t.sumOfAmounts += h.Amount
	}
	t.currentHits, t.unsentHits = t.unsentHits[:n], t.unsentHits[n:]
	var before uint64
	var err error
	started := time.Now()
	switch {
	case first == algorithm.Look:
		before, err = t.readCount()
	case first == algorithm.Refund:
		before, err = t.subtractSum()
	default:
		before, err = t.addSum()
	}
	t.exchange.recordCommand(n, time.Since(started), err)
	for _, r := range t.currentHits {
		amount := r.hit().Amount
		r.call.SetResult(r.index, remote.Result{CountBefore: int64(before), Err: err})
		switch {
		case first == algorithm.Refund:
			before -= min(before, amount)
		case addsToCounter(first):
			before = min(before+amount, r.maxCount())
		}
	}
}

// deleteCounter deletes the counter for the first unsent hit, and sets its result.
func (t *counterClient) deleteCounter() {
	t.currentHits, t.unsentHits = t.unsentHits[:1], t.unsentHits[1:]
	started := time.Now()
	err := t.replyError(t.gomemcache.Delete(t.key))
	if errors.Is(err, memcache.ErrCacheMiss) { // There is no such counter.
		err = nil
	}
	t.exchange.recordCommand(1, time.Since(started), err)
	deletion := t.currentHits[0]
	deletion.call.SetResult(deletion.index, remote.Result{Err: err})
}

func addsToCounter(op algorithm.Op) bool { return op == algorithm.Charge || op == algorithm.Force }

// readCount returns the count, which is 0 if there is no counter. It increments by 0, because
// that costs the server as much as a get, and the reply has only one line.
func (t *counterClient) readCount() (uint64, error) {
	n, err := t.increment(0)
	counts := t.exchange.counts
	counts.KeysRequested.Add(1)
	if errors.Is(err, memcache.ErrCacheMiss) {
		n, err = 0, nil
	} else if err == nil {
		counts.KeysFound.Add(1)
	}
	counts.Reads.countOutcome(err, nil)
	return min(n, t.currentHits[0].maxCount()), err
}

// maxAttempts is how often addSum tries to increment or create a counter. An attempt fails only
// if the counter appears or disappears between the two commands.
const maxAttempts = 10

func (t *counterClient) addSum() (uint64, error) {
	for range maxAttempts {
		n, err := t.increment(t.sumOfAmounts)
		t.exchange.counts.Increments.countOutcome(err, memcache.ErrCacheMiss)
		switch {
		case err == nil:
			return t.countBefore(n), nil
		case !errors.Is(err, memcache.ErrCacheMiss):
			return 0, err
		}
		err = t.createCounter()
		t.exchange.counts.Adds.countOutcome(err, memcache.ErrNotStored)
		if !errors.Is(err, memcache.ErrNotStored) { // After ErrNotStored, another client has created the counter.
			return 0, err
		}
	}
	return 0, errCounterContest
}

// countBefore returns the count before an increment by the sum made it n. It sets a counter
// above its highest count back, because Memcached wraps to 0 at 2^64.
func (t *counterClient) countBefore(n uint64) uint64 {
	most := t.currentHits[0].maxCount()
	switch {
	case n < t.sumOfAmounts: // The counter has wrapped at 2^64.
		_, _ = t.increment(most - n) // After an error, the next hit tries again.
		return most
	case n > most:
		_, _ = t.decrement(n - most)
	}
	return min(n-t.sumOfAmounts, most)
}

// subtractSum takes the sum from the counter, down to 0 at most, and returns the count before.
// Memcached returns only the rest. If that is 0, the count is the one that was read before.
func (t *counterClient) subtractSum() (uint64, error) {
	before, err := t.readCount()
	if err != nil || before == 0 || t.sumOfAmounts == 0 {
		return before, err
	}
	n, err := t.decrement(t.sumOfAmounts)
	switch {
	case errors.Is(err, memcache.ErrCacheMiss):
		return 0, nil
	case err != nil:
		return 0, err
	case n > 0:
		return min(n+t.sumOfAmounts, t.currentHits[0].maxCount()), nil
	}
	return min(before, t.sumOfAmounts), nil
}

func (t *counterClient) increment(by uint64) (uint64, error) {
	n, err := t.gomemcache.Increment(t.key, by)
	return n, t.replyError(err)
}

func (t *counterClient) decrement(by uint64) (uint64, error) {
	n, err := t.gomemcache.Decrement(t.key, by)
	return n, t.replyError(err)
}

// createCounter adds the counter with the sum, if it does not exist.
func (t *counterClient) createCounter() error {
	return t.replyError(t.gomemcache.Add(&memcache.Item{
		Key: t.key, Value: strconv.AppendUint(nil, t.sumOfAmounts, 10),
		Expiration: expiration(time.Now(), t.currentHits[0].hit().TTL),
	}))
}

// replyError returns the error of a command for which gomemcache returned err.
func (t *counterClient) replyError(err error) error {
	switch {
	case t.errorReply != nil:
		return t.errorReply
	case err == nil, t.exchange.batchError != nil, errors.Is(err, memcache.ErrCacheMiss),
		errors.Is(err, memcache.ErrNotStored):
		return err
	}
	return &remote.LinkError{Store: storeName, Addr: t.exchange.addr, Err: err}
}

// Write adds a command to the round. gomemcache writes each command with one Write.
func (t *counterClient) Write(command []byte) (int, error) {
	t.errorReply, t.reply, t.replyOffset = nil, t.reply[:0], 0
	if t.exchange.batchError != nil {
		return 0, t.exchange.batchError
	}
	t.exchange.commands = append(t.exchange.commands, command...)
	t.exchange.clientsAwaitingReply = append(t.exchange.clientsAwaitingReply, t)
	return len(command), nil
}

// Read returns a reply, which is one whole line, because gomemcache expects that.
//
// gomemcache would close its connection after SERVER_ERROR, which a server without memory
// sends all the time. So it gets NOT_FOUND instead, and the reply is kept in errorReply.
func (t *counterClient) Read(b []byte) (int, error) {
	if t.replyOffset == len(t.reply) {
		if !t.yieldCoroutine(struct{}{}) {
			return 0, io.EOF // The exchange is closed.
		}
		if t.exchange.batchError != nil {
			return 0, t.exchange.batchError
		}
		if isErrorReply(t.reply) {
			t.errorReply = errorReply(t.reply)
			t.reply = append(t.reply[:0], notFoundReply...)
		}
	}
	n := copy(b, t.reply[t.replyOffset:])
	t.replyOffset += n
	return n, nil
}

// Close does nothing, because the connection belongs to the exchange.
func (*counterClient) Close() error { return nil }

// SetDeadline does nothing, because the exchange has its own deadlines.
func (*counterClient) SetDeadline(time.Time) error { return nil }
