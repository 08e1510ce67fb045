package redis

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/mediocregopher/radix/v4/resp"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend/remote"
)

// command is one command of a pipeline: an increment, a lookup, a script or an expiry.
type command interface {
	// appendTo appends the bytes of the command in RESP.
	appendTo(b []byte) []byte
	// readReply reads the reply. An error reply is returned as an Error. Any other
	// error means that replies may belong to other commands.
	readReply(br resp.BufferedReader) error
	// deliver sets the results of the command's hits. A non-nil err is why there is no reply.
	deliver(err error)
	state() *reply
}

// reply is the state of a command after its batch: its error, and whether a reply came.
type reply struct {
	ask      bool // ASKING goes before the command
	answered bool
	err      error // an error reply
}

func (r *reply) state() *reply { return r }

// pool keeps values of one type, to reuse their memory in the next batch.
type pool[T any] struct {
	items []*T
	used  int
}

// next returns a zero value, which is valid until reset.
func (p *pool[T]) next() *T {
	if p.used == len(p.items) {
		p.items = append(p.items, new(T))
	}
	t := p.items[p.used]
	p.used++
	*t = *new(T)
	return t
}

// reset makes the values free for the next batch. After an unusually large batch it drops most
// of the memory.
func (p *pool[T]) reset() {
	for _, t := range p.items[:p.used] {
		*t = *new(T)
	}
	if p.used = 0; len(p.items) > maxPool {
		p.items = nil
	}
}

const maxPool = 16 << 10

// increment is INCRBY by the sum of all hits on a key, with EXPIRE behind it if the key
// may have no time to live.
type increment struct {
	reply
	pipeline *pipeline
	key      []byte
	hash     uint64
	sum      uint64
	ttl      int64 // seconds
	expire   bool  // EXPIRE goes with it
	closed   bool  // no more hits are added to it
	after    int64 // the count
	// first and last are its waiters in pipeline.waiters; -1: none.
	first, last int32
}

// waiter is one of the hits whose amounts an increment adds up.
type waiter struct {
	call *remote.Call
	hit  int
	next int32 // in pipeline.waiters; -1: none
}

// maxSum is the largest sum of amounts in one INCRBY, far below its limit of 2^63.
const maxSum = 1 << 62

const asking = "*1\r\n$6\r\nASKING\r\n"

func (c *increment) appendTo(b []byte) []byte {
	b = append(b, "*3\r\n$6\r\nINCRBY\r\n"...)
	b = appendBulk(b, c.key)
	b = appendNumber(b, int64(c.sum))
	if !c.expire {
		return b
	}
	if c.ask {
		b = append(b, asking...)
	}
	return appendExpire(b, c.key, c.ttl)
}

func appendExpire(b, key []byte, ttl int64) []byte {
	b = append(b, "*3\r\n$6\r\nEXPIRE\r\n"...)
	b = appendBulk(b, key)
	return appendNumber(b, ttl)
}

func (c *increment) readReply(br resp.BufferedReader) (err error) {
	c.after, err = readInteger(br)
	if !c.expire || err != nil && !isReply(err) {
		return err
	}
	expireErr := c.readAsking(br)
	if expireErr == nil {
		_, expireErr = readInteger(br)
	}
	if expireErr == nil {
		return err
	}
	c.pipeline.recent.forget(c.hash)
	if !isReply(expireErr) || replyWord(expireErr) == "NOPERM" { // else keys would stay for good without a word
		return expireErr
	}
	return err
}

// readAsking reads the reply to ASKING and ignores it: whether the node accepts the key is in the
// reply to the command behind it.
func (r *reply) readAsking(br resp.BufferedReader) error {
	if !r.ask {
		return nil
	}
	line, err := readLine(br)
	if err == nil && line[0] != '+' && line[0] != '-' {
		err = unexpected(line)
	}
	return err
}

// deliver splits the sum among the hits, in order of arrival. A counter that would
// overflow is full, not broken.
func (c *increment) deliver(err error) {
	if !c.answered {
		c.pipeline.recent.forget(c.hash) // its EXPIRE may not have arrived
	}
	before := c.after - int64(c.sum)
	if err != nil && strings.Contains(err.Error(), "would overflow") {
		before, err = algorithm.MaxCount, nil
	}
	for at := c.first; at >= 0; at = c.pipeline.waiters[at].next {
		w := &c.pipeline.waiters[at]
		w.call.SetResult(w.hit, remote.Result{Before: before, Err: err})
		if before < algorithm.MaxCount {
			before += int64(w.call.Hits[w.hit].Amount)
		}
	}
}

// mayBeEndless reports whether the key may have no time to live: Redis had lost it, so
// that EXPIRE was left out and should not have been, or sent says that it is not known
// what arrived.
func (c *increment) mayBeEndless(sent bool) bool {
	created := c.answered && c.err == nil && c.after == int64(c.sum)
	return created && !c.expire || sent && !c.answered
}

// lookup is the command GET, for a hit that only looks.
type lookup struct {
	reply
	call  *remote.Call
	hit   int
	value int64
}

func (c *lookup) appendTo(b []byte) []byte {
	b = append(b, "*2\r\n$3\r\nGET\r\n"...)
	return appendBulk(b, c.call.Key(c.hit))
}

func (c *lookup) readReply(br resp.BufferedReader) (err error) {
	c.value, err = readCounter(br)
	return err
}

func (c *lookup) deliver(err error) {
	c.call.SetResult(c.hit, remote.Result{Before: c.value, Err: err})
}

// expiry is the command EXPIRE on its own, for a key without a time to live.
type expiry struct {
	reply
	key    []byte
	hash   uint64
	ttl    int64 // seconds
	exists bool
}

func (c *expiry) appendTo(b []byte) []byte { return appendExpire(b, c.key, c.ttl) }

func (c *expiry) readReply(br resp.BufferedReader) error {
	n, err := readInteger(br)
	c.exists = n == 1
	return err
}

func (*expiry) deliver(error) {}

// script is an EVALSHA or EVAL of takeScript for a group of hits.
type script struct {
	reply
	call       *remote.Call
	begin, end int
	full       bool // EVAL, with the text
	numbers    [1 + scriptReply + scriptState]int64
}

func (c *script) appendTo(b []byte) []byte {
	n := c.end - c.begin
	b = append(b, '*')
	b = strconv.AppendInt(b, int64(4+(1+scriptArgs)*n), 10)
	b = append(b, "\r\n"...)
	if c.full {
		b = append(b, "$4\r\nEVAL\r\n"...)
		b = appendBulk(b, takeScript)
	} else {
		b = append(b, "$7\r\nEVALSHA\r\n"...)
		b = appendBulk(b, takeSHA)
	}
	b = appendNumber(b, int64(n))
	for i := c.begin; i < c.end; i++ {
		b = appendBulk(b, c.call.Key(i))
	}
	b = appendNumber(b, c.call.At)
	for i := c.begin; i < c.end; i++ {
		b = appendArgs(b, &c.call.Hits[i])
	}
	return b
}

// appendArgs appends the scriptArgs arguments of takeScript for a hit.
func appendArgs(b []byte, h *remote.Hit) []byte {
	l := &h.Limit
	var increment, tolerance int64
	if l.Kind == algorithm.GCRA {
		increment, tolerance = l.Increment(h.Amount), l.Tolerance()
	}
	kind := scriptKinds[l.Kind]
	if h.CountDown {
		kind = "d"
	}
	b = appendBulk(b, kind)
	b = appendBulk(b, scriptOps[h.Op])
	for _, n := range [...]int64{
		int64(h.Amount), int64(l.Max), flags(h), h.TTL, l.Period.Microseconds(), l.MinInterval.Microseconds(),
		increment / 1000, increment % 1000, tolerance / 1000, tolerance % 1000,
	} {
		b = appendNumber(b, n)
	}
	return b
}

// flags returns the flags of takeScript.
func flags(h *remote.Hit) (f int64) {
	for i, set := range [...]bool{h.Limit.CountBlocked, h.Atomic, h.NoVeto} {
		if set {
			f |= 1 << i
		}
	}
	return f
}

// The algorithms and operations as takeScript knows them.
var (
	scriptKinds = [...]string{
		algorithm.FixedWindow: "w", algorithm.FirstHitWindow: "f", algorithm.SlidingWindow: "l",
		algorithm.SlidingWindowCounter: "c", algorithm.GCRA: "g",
	}
	scriptOps = [...]string{algorithm.Charge: "c", algorithm.Look: "l", algorithm.Refund: "r", algorithm.Force: "f"}
)

// readReply reads what takeScript returns into the numbers of each hit: the time, 1 if
// it is over, and the state. If the group was refused, those of an Atomic hit have
// another state behind it.
func (c *script) readReply(br resp.BufferedReader) error {
	line, err := readLine(br)
	if err != nil {
		return err
	}
	left, err := strconv.Atoi(string(line[1:]))
	switch {
	case line[0] == '-':
		return errorReply(line)
	case line[0] != '*' || err != nil:
		return unexpected(line)
	}
	next := func() (n int64) {
		if left--; err == nil && left >= 0 {
			n, err = readInteger(br)
		}
		return n
	}
	refused, now := next() == 1, next()
	for i := c.begin; i < c.end; i++ {
		numbers := append(c.numbers[:0], now)
		for range scriptReply {
			numbers = append(numbers, next())
		}
		if refused && c.call.Hits[i].Atomic {
			for range scriptState {
				numbers = append(numbers, next())
			}
		}
		c.call.SetResult(i, remote.Result{Numbers: numbers})
	}
	if err == nil && left != 0 {
		err = fmt.Errorf("redis: a reply to a script with %d numbers too many", left)
	}
	return err
}

func (c *script) deliver(err error) {
	for i := c.begin; i < c.end && err != nil; i++ {
		c.call.SetResult(i, remote.Result{Err: err})
	}
}
