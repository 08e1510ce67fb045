package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"strconv"
	"strings"

	"github.com/mediocregopher/radix/v4"
	"github.com/mediocregopher/radix/v4/resp"

	"ratelimit/src/algorithm"
)

// Error is an error reply of Redis. Its text may name a key: it is for logs,
// never for callers.
type Error string

func (e Error) Error() string { return "redis: " + string(e) }

// kind is what a command of a pipeline is.
type kind uint8

const (
	incr   kind = iota // INCRBY, with EXPIRE behind it when expire is set
	get                // GET
	script             // EVALSHA of groupScript
	eval               // EVAL of it
	expire             // EXPIRE alone
)

// command is one command of a pipeline and what came of it.
type command struct {
	kind   kind
	expire bool // incr: EXPIRE goes with it
	key    []byte
	hash   uint64
	sum    uint64 // incr: of all waiters' amounts
	ttl    int64
	closed bool  // incr: nothing more is added to it
	call   *call // script, get
	from   int   // the first of its hits
	first  int32 // incr: its waiters, linked; -1 ends
	last   int32

	answered bool
	value    int64 // incr, get
	err      error // an error reply
}

// waiter is a hit that an incr stands for.
type waiter struct {
	call *call
	hit  int
	next int32
}

// pipeline is a batch of commands for one connection, used again and again.
type pipeline struct {
	seed     maphash.Seed
	recent   recent
	commands []command
	waiters  []waiter
	table    []int32 // open hash table of the incr commands by key: index+1, 0 is free
	buf      []byte
}

// maxSum keeps sums of amounts in what INCRBY takes.
const maxSum = 1 << 62

// reset makes p ready for a batch of calls.
func (p *pipeline) reset(calls []*call) {
	clear(p.commands)
	clear(p.waiters)
	p.commands, p.waiters = p.commands[:0], p.waiters[:0]
	hits := 0
	for _, c := range calls {
		hits += len(c.hits)
	}
	size := 16
	for size < 2*hits {
		size *= 2
	}
	if cap(p.table) < size {
		p.table = make([]int32, size)
	}
	p.table = p.table[:size]
	clear(p.table)
}

// add appends what c asks for.
func (p *pipeline) add(c *call) {
	for i := 0; i < len(c.hits); {
		h := &c.hits[i]
		key := c.key(i)
		switch {
		case h.last > 0:
			for j := i; j < h.last; j++ {
				p.barrier(c.key(j))
			}
			p.commands = append(p.commands, command{kind: script, call: c, from: i, first: -1})
			i = h.last
			continue
		case h.op == algorithm.Look:
			p.barrier(key)
			p.commands = append(p.commands, command{kind: get, key: key, call: c, from: i, first: -1})
		default:
			p.incr(c, i, key)
		}
		i++
	}
}

// slot is where the table has key, or would have it.
func (p *pipeline) slot(hash uint64, key []byte) int {
	i := int(hash) & (len(p.table) - 1)
	for p.table[i] != 0 {
		if c := &p.commands[p.table[i]-1]; !c.closed && c.hash == hash && bytes.Equal(c.key, key) {
			return i
		}
		i = (i + 1) & (len(p.table) - 1)
	}
	return i
}

// barrier keeps later increments of key from being added to earlier ones, as
// there is something between them that must see only the earlier ones.
func (p *pipeline) barrier(key []byte) {
	hash := maphash.Bytes(p.seed, key)
	if n := p.table[p.slot(hash, key)]; n != 0 {
		p.commands[n-1].closed = true // the slot stays taken and matches nobody
	}
}

func (p *pipeline) incr(c *call, i int, key []byte) {
	h := &c.hits[i]
	hash := maphash.Bytes(p.seed, key)
	slot := p.slot(hash, key)
	n := int(p.table[slot]) - 1
	if n >= 0 && p.commands[n].sum+h.amount > maxSum {
		p.barrier(key)
		slot = p.slot(hash, key)
		n = -1
	}
	if n < 0 {
		n = len(p.commands)
		p.commands = append(p.commands, command{
			kind: incr, key: key, hash: hash, ttl: h.ttl, expire: !p.recent.add(hash), first: -1, last: -1,
		})
		p.table[slot] = int32(n + 1)
	}
	cmd := &p.commands[n]
	cmd.sum += h.amount
	p.waiters = append(p.waiters, waiter{c, i, -1})
	at := int32(len(p.waiters) - 1)
	if cmd.first < 0 {
		cmd.first = at
	} else {
		p.waiters[cmd.last].next = at
	}
	cmd.last = at
}

// Properties tells radix what it needs to know.
func (p *pipeline) Properties() radix.ActionProperties {
	return radix.ActionProperties{CanRetry: false, CanShareConn: true}
}

// Perform writes the batch and reads all replies.
func (p *pipeline) Perform(ctx context.Context, conn radix.Conn) error {
	return conn.EncodeDecode(ctx, p, p)
}

// MarshalRESP writes the batch at once.
func (p *pipeline) MarshalRESP(w io.Writer, _ *resp.Opts) error {
	p.buf = p.buf[:0]
	for i := range p.commands {
		p.buf = p.commands[i].append(p.buf)
	}
	_, err := w.Write(p.buf)
	return err
}

func (c *command) append(b []byte) []byte {
	switch c.kind {
	case incr:
		b = append(b, "*3\r\n$6\r\nINCRBY\r\n"...)
		b = appendBulk(b, c.key)
		b = appendNumber(b, int64(c.sum))
		if c.expire {
			b = appendExpire(b, c.key, c.ttl)
		}
	case get:
		b = append(b, "*2\r\n$3\r\nGET\r\n"...)
		b = appendBulk(b, c.key)
	case expire:
		b = appendExpire(b, c.key, c.ttl)
	case script, eval:
		b = c.appendScript(b)
	}
	return b
}

func appendExpire(b, key []byte, ttl int64) []byte {
	b = append(b, "*3\r\n$6\r\nEXPIRE\r\n"...)
	b = appendBulk(b, key)
	return appendNumber(b, ttl)
}

func (c *command) appendScript(b []byte) []byte {
	hits := c.call.hits[c.from:c.call.hits[c.from].last]
	b = append(b, '*')
	b = strconv.AppendInt(b, int64(3+6*len(hits)), 10)
	b = append(b, "\r\n"...)
	if c.kind == script {
		b = append(b, "$7\r\nEVALSHA\r\n"...)
		b = appendBulk(b, groupSHA)
	} else {
		b = append(b, "$4\r\nEVAL\r\n"...)
		b = appendBulk(b, groupScript)
	}
	b = appendNumber(b, int64(len(hits)))
	for i := range hits {
		b = appendBulk(b, c.call.key(c.from+i))
	}
	for i := range hits {
		h := &hits[i]
		b = appendBulk(b, scriptOps[h.op])
		b = appendNumber(b, int64(h.amount))
		b = appendNumber(b, int64(h.max))
		b = appendNumber(b, int64(h.flags))
		b = appendNumber(b, h.ttl)
	}
	return b
}

// scriptOps are the operations as groupScript knows them.
var scriptOps = [...]string{algorithm.Charge: "c", algorithm.Look: "l", algorithm.Refund: "r", algorithm.Force: "f"}

func appendBulk[T string | []byte](b []byte, s T) []byte {
	b = append(b, '$')
	b = strconv.AppendInt(b, int64(len(s)), 10)
	b = append(b, "\r\n"...)
	b = append(b, s...)
	return append(b, "\r\n"...)
}

func appendNumber(b []byte, n int64) []byte {
	var digits [20]byte
	return appendBulk(b, strconv.AppendInt(digits[:0], n, 10))
}

// UnmarshalRESP reads the replies. An error reply is its command's alone: one
// that is returned would make radix close the connection.
func (p *pipeline) UnmarshalRESP(br resp.BufferedReader, _ *resp.Opts) error {
	for i := range p.commands {
		c := &p.commands[i]
		var err error
		switch c.kind {
		case incr, get:
			c.value, err = readNumber(br)
		case expire:
			_, err = readNumber(br)
		case script, eval:
			err = c.readScript(br)
		}
		if err != nil && !isReply(err) {
			return err
		}
		c.err, c.answered = err, true
		if c.kind == incr && c.expire {
			if _, err := readNumber(br); isReply(err) {
				p.recent.forget(c.hash)
			} else if err != nil {
				return err
			}
		}
	}
	return nil
}

func isReply(err error) bool { return errors.As(err, new(Error)) }

// readScript reads what groupScript returns into the call's results.
func (c *command) readScript(br resp.BufferedReader) error {
	line, err := readLine(br)
	if err != nil {
		return err
	}
	hits := c.call.hits[c.from:c.call.hits[c.from].last]
	switch {
	case line[0] == '-':
		return Error(line[1:])
	case line[0] != '*' || string(line[1:]) != strconv.Itoa(1+2*len(hits)):
		return fmt.Errorf("redis: unexpected reply %.40q to a script", line)
	}
	refused, err := readNumber(br)
	if err != nil {
		return err
	}
	for i := range hits {
		r := &c.call.results[c.from+i]
		r.refused = refused == 1
		if r.before, err = readNumber(br); err != nil {
			return err
		}
		over, err := readNumber(br)
		if err != nil {
			return err
		}
		r.over = over == 1
	}
	return nil
}

// readNumber reads an integer, or a text that is one; nothing at all is 0. An
// error reply is an Error.
func readNumber(br resp.BufferedReader) (int64, error) {
	line, err := readLine(br)
	if err != nil {
		return 0, err
	}
	switch line[0] {
	case ':':
		return strconv.ParseInt(string(line[1:]), 10, 64)
	case '-':
		return 0, Error(line[1:])
	case '$':
		if string(line[1:]) == "-1" {
			return 0, nil
		}
		size, err := strconv.Atoi(string(line[1:]))
		if err != nil || size < 0 || size > 1<<20 {
			return 0, fmt.Errorf("redis: unexpected reply %.40q", line)
		}
		text, err := readText(br, size)
		if err != nil {
			return 0, err
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, Error("a counter holds something else than a number")
		}
		return n, nil
	}
	return 0, fmt.Errorf("redis: unexpected reply %.40q", line)
}

// readText reads a bulk string of that size and the line end behind it.
func readText(br resp.BufferedReader, size int) (string, error) {
	b := make([]byte, size+2)
	if _, err := io.ReadFull(br, b); err != nil {
		return "", err
	}
	return string(b[:size]), nil
}

// readLine reads a line without its end. It is never empty.
func readLine(br resp.BufferedReader) ([]byte, error) {
	line, err := br.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	line = bytes.TrimSuffix(line, []byte("\r\n"))
	if len(line) == 0 {
		return nil, errors.New("redis: an empty reply")
	}
	return line, nil
}

// reply is the first word of an error reply; empty when there was none.
func (c *command) reply() string {
	text, isReply := c.err.(Error) //nolint:errorlint // set above, never wrapped
	if !isReply {
		return ""
	}
	word, _, _ := strings.Cut(string(text), " ")
	return word
}

// elsewhere reports whether the server said that it is not the one to ask, or
// not now: a new connection may lead to one that is.
func (p *pipeline) elsewhere() bool {
	for i := range p.commands {
		switch p.commands[i].reply() {
		case "READONLY", "LOADING", "MASTERDOWN", "NOAUTH":
			return true
		}
	}
	return false
}

// settle hands each hit its result. failure is why commands without an answer
// have none.
func (p *pipeline) settle(failure error) {
	for i := range p.commands {
		c := &p.commands[i]
		err := c.err
		if !c.answered {
			err = failure
			if c.kind == incr {
				p.recent.forget(c.hash) // its EXPIRE may not have arrived
			}
		}
		switch c.kind {
		case incr:
			p.settleIncr(c, err)
		case get:
			c.call.results[c.from] = result{before: c.value, err: err}
		case script, eval:
			if err != nil {
				for j := c.from; j < c.call.hits[c.from].last; j++ {
					c.call.results[j] = result{err: err}
				}
			}
		case expire:
		}
	}
}

// settleIncr splits one increment among those it was for, in order of arrival.
// A counter that would overflow is full, not broken.
func (p *pipeline) settleIncr(c *command, err error) {
	before := c.value - int64(c.sum)
	if err != nil && strings.Contains(err.Error(), "would overflow") {
		before, err = algorithm.MaxCount, nil
	}
	for at := c.first; at >= 0; at = p.waiters[at].next {
		w := &p.waiters[at]
		w.call.results[w.hit] = result{before: before, err: err}
		if before < algorithm.MaxCount {
			before += int64(w.call.hits[w.hit].amount)
		}
	}
}
