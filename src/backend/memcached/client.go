package memcached

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend/remote"
)

// counterClient counts the hits on one counter. It is a coroutine, which sends one command at a time: roundTrip adds
// the command to the round of the exchange, and pauses until the exchange has the reply and resumes it.
type counterClient struct {
	exchange        *exchange
	resumeCoroutine func() (struct{}, bool)
	stopCoroutine   func()
	yieldCoroutine  func(struct{}) bool

	key          string
	hits         []hitRef // the hits on the counter, in order
	unsentHits   []hitRef // the hits for which no command was sent yet
	currentHits  []hitRef // the hits that the current command counts
	sumOfAmounts uint64   // the sum of the amounts of currentHits
	reply        []byte   // the whole line of the last reply
}

// hitRef refers to one hit of a call.
type hitRef struct {
	call  *remote.Call
	index int
}

func (r hitRef) hit() *remote.Hit { return &r.call.Hits[r.index] }

// maxCount returns the highest count of the counter.
func (r hitRef) maxCount() uint64 {
	if r.hit().Limit.Kind == algorithm.SlidingWindowCounter {
		return algorithm.MaxScriptCount
	}
	return algorithm.MaxCount
}

func newCounterClient(x *exchange) *counterClient {
	t := &counterClient{exchange: x}
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
	reply, err := t.roundTrip("delete %s\r\n", t.key)
	if err == nil && reply != deletedReply && reply != notFoundReply {
		err = t.unexpectedReply("delete")
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
	if errors.Is(err, errNotFound) {
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

// addSum adds the sum to the counter and returns the count before.
func (t *counterClient) addSum() (uint64, error) {
	for range maxAttempts {
		n, err := t.increment(t.sumOfAmounts)
		t.exchange.counts.Increments.countOutcome(err, errNotFound)
		switch {
		case err == nil:
			return t.countBefore(n), nil
		case !errors.Is(err, errNotFound):
			return 0, err
		}
		err = t.createCounter()
		t.exchange.counts.Adds.countOutcome(err, errNotStored)
		if !errors.Is(err, errNotStored) { // After errNotStored, another client has created the counter.
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
	case errors.Is(err, errNotFound):
		return 0, nil
	case err != nil:
		return 0, err
	case n > 0:
		return min(n+t.sumOfAmounts, t.currentHits[0].maxCount()), nil
	}
	return min(before, t.sumOfAmounts), nil
}

func (t *counterClient) increment(by uint64) (uint64, error) { return t.changeCount("incr", by) }

func (t *counterClient) decrement(by uint64) (uint64, error) { return t.changeCount("decr", by) }

// changeCount sends incr or decr, and returns the new count. It returns errNotFound if there is no counter.
func (t *counterClient) changeCount(command string, by uint64) (uint64, error) {
	reply, err := t.roundTrip("%s %s %d\r\n", command, t.key, by)
	switch {
	case err != nil:
		return 0, err
	case reply == notFoundReply:
		return 0, errNotFound
	}
	n, err := strconv.ParseUint(reply, 10, 64)
	if err != nil {
		return 0, t.unexpectedReply(command)
	}
	return n, nil
}

// createCounter adds the counter with the sum. It returns errNotStored if the counter exists.
func (t *counterClient) createCounter() error {
	value := strconv.FormatUint(t.sumOfAmounts, 10)
	reply, err := t.roundTrip("add %s 0 %d %d\r\n%s\r\n", t.key, expiration(time.Now(), t.currentHits[0].hit().TTL),
		len(value), value)
	switch {
	case err != nil:
		return err
	case reply == notStoredReply:
		return errNotStored
	case reply != storedReply:
		return t.unexpectedReply("add")
	}
	return nil
}

// unexpectedReply returns the error of a reply that Memcached never sends to command.
func (t *counterClient) unexpectedReply(command string) error {
	return &remote.LinkError{
		Store: storeName, Addr: t.exchange.addr, Err: fmt.Errorf("unexpected reply %.40q to %s", t.reply, command),
	}
}

// roundTrip adds a command to the round, and returns its reply without the end of the line. It returns an error reply
// as an Error. After the end of the batch or of the exchange it sends nothing.
func (t *counterClient) roundTrip(format string, words ...any) (reply string, err error) {
	x := t.exchange
	if x.batchError != nil {
		return "", x.batchError
	}
	x.commands = fmt.Appendf(x.commands, format, words...)
	x.clientsAwaitingReply = append(x.clientsAwaitingReply, t)
	if !t.yieldCoroutine(struct{}{}) {
		return "", remote.ErrClosed
	}
	switch {
	case x.batchError != nil:
		return "", x.batchError
	case isErrorReply(t.reply):
		return "", errorReply(t.reply)
	}
	return string(bytes.TrimRight(t.reply, "\r\n")), nil
}
