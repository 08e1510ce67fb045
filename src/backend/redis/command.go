package redis

import (
	"bufio"
	"fmt"
	"strconv"
	"strings"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend/remote"
)

// command is one command of a pipeline: an increment, a keyCommand, a script or an expireCommand.
type command interface {
	appendTo(b []byte) []byte
	// readReply reads the reply. An error reply is returned as an Error. Any other
	// error means that replies may belong to other commands.
	readReply(br *bufio.Reader) error
	// deliverResults sets the results of the command's hits. If err is not nil, it is their error.
	deliverResults(err error)
	replyState() *commandReply
}

// commandReply is embedded in each command. After the batch it says whether a reply came.
type commandReply struct {
	sendAsking bool // ASKING is sent before the command
	isAnswered bool
	errorReply error
}

func (r *commandReply) replyState() *commandReply { return r }

// commandPool keeps commands of one type, to reuse their memory in the next batch.
type commandPool[T any] struct {
	items     []*T
	usedCount int // how many of the first items are in use
}

// nextItem returns a zero value, which is valid until reset.
func (p *commandPool[T]) nextItem() *T {
	if p.usedCount == len(p.items) {
		p.items = append(p.items, new(T))
	}
	p.usedCount++
	return p.items[p.usedCount-1]
}

func (p *commandPool[T]) usedItems() []*T { return p.items[:p.usedCount] }

// reset takes all values back. It frees their memory if there are more than maxPooledCommands.
func (p *commandPool[T]) reset() {
	for _, item := range p.usedItems() {
		*item = *new(T)
	}
	if p.usedCount = 0; len(p.items) > maxPooledCommands {
		p.items = nil
	}
}

const maxPooledCommands = 16 << 10

// increment is INCRBY by the sum of all hits on a key, followed by EXPIRE if the key may have no time to live.
type increment struct {
	commandReply
	pipeline     *pipeline
	key          []byte
	keyHash      uint64
	sumOfAmounts uint64
	minTTL       int64 // the longest Hit.MinTTL of the hits, in seconds
	ttlSeconds   int64
	withExpire   bool  // EXPIRE follows INCRBY
	closedToHits bool  // No more hits may be added to an increment that is closedToHits.
	countAfter   int64 // the count that INCRBY returned
	// firstAddend and lastAddend are the indexes of its hits in pipeline.addends, or -1.
	firstAddend, lastAddend int32
}

// addend is a hit whose amount an increment adds to its sum. The addends of an increment are a linked list.
type addend struct {
	call       *remote.Call
	hitIndex   int
	nextAddend int32 // the index of the next addend in pipeline.addends, or -1
}

// maxIncrementSum is the largest sum of amounts in one INCRBY, far below its limit of 2^63.
const maxIncrementSum = 1 << 62

// askingCommand is ASKING, which lets the next command use a slot that is moving.
const askingCommand = "*1\r\n$6\r\nASKING\r\n"

func (c *increment) appendTo(b []byte) []byte {
	b = append(b, "*3\r\n$6\r\nINCRBY\r\n"...)
	b = appendBulk(b, c.key)
	b = appendBulkNumber(b, int64(c.sumOfAmounts))
	if !c.withExpire {
		return b
	}
	if c.sendAsking {
		b = append(b, askingCommand...)
	}
	return appendExpire(b, c.key, c.ttlSeconds)
}

func appendExpire(b, key []byte, ttl int64) []byte {
	b = append(b, "*3\r\n$6\r\nEXPIRE\r\n"...)
	b = appendBulk(b, key)
	return appendBulkNumber(b, ttl)
}

func (c *increment) readReply(br *bufio.Reader) (err error) {
	c.countAfter, err = readInteger(br)
	if !c.withExpire || err != nil && !isErrorReply(err) {
		return err
	}
	expireErr := c.readAsking(br)
	if expireErr == nil {
		_, expireErr = readInteger(br)
	}
	if expireErr == nil {
		return err
	}
	c.pipeline.expireCache.forgetKey(c.keyHash)
	// Without the right to EXPIRE, keys would stay for ever.
	if !isErrorReply(expireErr) || errorReplyWord(expireErr) == "NOPERM" {
		return expireErr
	}
	return err
}

// readAsking reads the reply to ASKING, if it was sent, and ignores it. The reply to the next
// command shows whether the node accepts the key.
func (r *commandReply) readAsking(br *bufio.Reader) error {
	if !r.sendAsking {
		return nil
	}
	line, err := readLine(br)
	if err == nil && line[0] != '+' && line[0] != '-' {
		err = unexpectedReply(line)
	}
	return err
}

// deliverResults computes the count before each hit, in order of arrival. A counter that would overflow counts as full.
func (c *increment) deliverResults(err error) {
	if !c.isAnswered {
		c.pipeline.expireCache.forgetKey(c.keyHash) // The EXPIRE may not have arrived.
	}
	before := c.countAfter - int64(c.sumOfAmounts)
	if err != nil && strings.Contains(err.Error(), "would overflow") {
		before, err = algorithm.MaxCount, nil
	}
	for at := c.firstAddend; at >= 0; at = c.pipeline.addends[at].nextAddend {
		a := &c.pipeline.addends[at]
		a.call.SetResult(a.hitIndex, remote.Result{CountBefore: before, Err: err})
		if before < algorithm.MaxCount {
			before += int64(a.call.Hits[a.hitIndex].Amount)
		}
	}
}

// mayLackTTL reports whether the key may have no time to live. That is so if Redis created
// the key and EXPIRE was left out, or if the batch was not answered.
func (c *increment) mayLackTTL() bool {
	created := c.errorReply == nil && c.countAfter == int64(c.sumOfAmounts)
	return !c.isAnswered || created && !c.withExpire
}

// keyCommand is GET, for a hit that charges nothing, or DEL, for a counter that an operator resets.
type keyCommand struct {
	commandReply
	call     *remote.Call
	hitIndex int
	deletes  bool
	count    int64 // the reply to GET
}

func (c *keyCommand) appendTo(b []byte) []byte {
	if c.deletes {
		b = append(b, "*2\r\n$3\r\nDEL\r\n"...)
	} else {
		b = append(b, "*2\r\n$3\r\nGET\r\n"...)
	}
	return appendBulk(b, c.call.Key(c.hitIndex))
}

func (c *keyCommand) readReply(br *bufio.Reader) (err error) {
	if c.deletes {
		_, err = readInteger(br)
	} else {
		c.count, err = readCounter(br)
	}
	return err
}

func (c *keyCommand) deliverResults(err error) {
	c.call.SetResult(c.hitIndex, remote.Result{CountBefore: c.count, Err: err})
}

// expireCommand is an EXPIRE without INCRBY, for a key that may have no time to live.
type expireCommand struct {
	commandReply
	key        []byte
	keyHash    uint64
	ttlSeconds int64
	keyExists  bool
}

func (c *expireCommand) appendTo(b []byte) []byte { return appendExpire(b, c.key, c.ttlSeconds) }

func (c *expireCommand) readReply(br *bufio.Reader) error {
	n, err := readInteger(br)
	c.keyExists = n == 1
	return err
}

func (*expireCommand) deliverResults(error) {}

// script is an EVALSHA or EVAL of takeScript for a group of hits.
type script struct {
	commandReply
	call             *remote.Call
	firstHit, endHit int
	withText         bool // EVAL is sent, with the text of the script
	replyNumbers     [2 + 2*(replyNumbersPerState+replyNumbersOfHolds)]int64
}

func (c *script) appendTo(b []byte) []byte {
	keys, args := c.endHit-c.firstHit, 1+scriptArgsPerHit*(c.endHit-c.firstHit)
	for i := c.firstHit; i < c.endHit; i++ {
		if h := &c.call.Hits[i]; h.Limit.Hold > 0 {
			args += scriptArgsOfHolds
			keys += min(h.HoldsKeyBytes, 1)
		}
	}
	b = append(b, '*')
	b = strconv.AppendInt(b, int64(3+keys+args), 10)
	b = append(b, "\r\n"...)
	if c.withText {
		b = append(b, "$4\r\nEVAL\r\n"...)
		b = appendBulk(b, takeScript)
	} else {
		b = append(b, "$7\r\nEVALSHA\r\n"...)
		b = appendBulk(b, takeScriptSHA)
	}
	b = appendBulkNumber(b, int64(keys))
	for i := c.firstHit; i < c.endHit; i++ {
		b = appendBulk(b, c.call.Key(i))
		if c.call.Hits[i].HoldsKeyBytes > 0 {
			b = appendBulk(b, c.call.HoldsKey(i))
		}
	}
	b = appendBulkNumber(b, c.call.UnixMicros)
	for i := c.firstHit; i < c.endHit; i++ {
		b = appendScriptArgs(b, &c.call.Hits[i])
	}
	return b
}

func appendScriptArgs(b []byte, h *remote.Hit) []byte {
	l := &h.Limit
	var increment, tolerance int64
	if l.Kind == algorithm.GCRA {
		increment, tolerance = l.RefillTime(h.Amount), l.BurstTolerance()
		if l.Hold > 0 { // The script multiplies it by amounts that depend on the holds.
			increment = l.EmissionInterval()
		}
	}
	intervalOrWindow := l.MinInterval.Microseconds()
	if h.Window != 0 {
		intervalOrWindow = windowMicros(h.Window)
	}
	kind := scriptKinds[l.Kind]
	switch {
	case h.CountDown:
		kind = "d"
	case l.KeepsDebt:
		kind = "k"
	}
	b = appendBulk(b, kind)
	b = appendBulk(b, scriptOps[h.Op])
	for _, n := range [...]int64{
		int64(h.Amount), int64(l.Max), scriptFlags(h), h.TTL, l.Period.Microseconds(), intervalOrWindow,
		increment / 1000, increment % 1000, tolerance / 1000, tolerance % 1000,
	} {
		b = appendBulkNumber(b, n)
	}
	if l.Hold == 0 {
		return b
	}
	id := h.HoldID[:]
	if h.HoldID == (algorithm.HoldID{}) {
		id = nil
	}
	b = appendBulk(b, id)
	b = appendBulkNumber(b, l.Hold.Microseconds())
	b = appendBulkNumber(b, expiredHoldLife(l).Microseconds())
	b = appendBulkNumber(b, h.WindowStart)
	return appendBulkNumber(b, h.WindowEnd)
}

// windowMicros returns the end of a window in µs since the Unix epoch, or an end that no window has, for one that the
// clock of Redis cannot have had.
func windowMicros(end int64) int64 {
	if end%int64(time.Microsecond) != 0 {
		return -1
	}
	return end / int64(time.Microsecond)
}

// expiredHoldLife returns how long a hold that expired is kept: at least as long as it may still be charged. See
// algorithm.HeldState.
func expiredHoldLife(l *algorithm.Limit) time.Duration {
	switch {
	case l.ReleasesExpired():
		return l.Hold
	case l.Kind == algorithm.GCRA:
		return max(l.Hold, time.Duration(l.BurstTolerance()))
	case l.Kind == algorithm.SlidingWindowCounter:
		return max(l.Hold, 2*l.Period)
	}
	// Calendar windows may be longer than Period: 31 days instead of 30, 25 hours instead of 24.
	return max(l.Hold, l.Period+l.Period/16)
}

func scriptFlags(h *remote.Hit) (f int64) {
	for i, set := range [...]bool{
		h.Limit.CountBlocked, h.Atomic, h.NoVeto,
		h.Limit.Hold > 0, h.Limit.Hold > 0 && h.Limit.ReleasesExpired(),
	} {
		if set {
			f |= 1 << i
		}
	}
	return f
}

// The names of the algorithms and operations in takeScript.
var (
	scriptKinds = [...]string{
		algorithm.FixedWindow: "w", algorithm.FirstHitWindow: "f", algorithm.SlidingWindow: "l",
		algorithm.SlidingWindowCounter: "c", algorithm.GCRA: "g", algorithm.Concurrency: "n",
	}
	scriptOps = [...]string{algorithm.Charge: "c", algorithm.Look: "l", algorithm.Refund: "r", algorithm.Force: "f"}
)

// readReply reads the reply of takeScript into the ScriptReply of each hit: the time, 1 if the hit
// is over the limit, and the state. If the group was refused, an Atomic hit has a second state.
func (c *script) readReply(br *bufio.Reader) error {
	line, err := readLineOfType(br, '*')
	if err != nil {
		return err
	}
	left, err := strconv.Atoi(string(line[1:]))
	if err != nil {
		return unexpectedReply(line)
	}
	next := func() (n int64) {
		if left--; err == nil && left >= 0 {
			n, err = readInteger(br)
		}
		return n
	}
	refused, now := next() == 1, next()
	for i := c.firstHit; i < c.endHit; i++ {
		h := &c.call.Hits[i]
		states := 1
		if refused && h.Atomic {
			states = 2
		}
		numbers := append(c.replyNumbers[:0], now, next())
		for range states {
			for range stateNumbers(&h.Limit) {
				numbers = append(numbers, next())
			}
			if h.Limit.Hold > 0 {
				holds := max(numbers[len(numbers)-replyNumbersOfHolds+holdsInReply], 0)
				for range replyNumbersPerHold * min(holds, int64(left)) {
					numbers = append(numbers, next())
				}
			}
		}
		c.call.SetResult(i, remote.Result{ScriptReply: numbers})
	}
	if err == nil && left != 0 {
		err = fmt.Errorf("redis: a reply to a script with %d numbers too many", left)
	}
	return err
}

func (c *script) deliverResults(err error) {
	for i := c.firstHit; i < c.endHit && err != nil; i++ {
		c.call.SetResult(i, remote.Result{Err: err})
	}
}
