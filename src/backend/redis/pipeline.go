package redis

import (
	"bytes"
	"context"
	"fmt"
	"hash/maphash"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/mediocregopher/radix/v4"
	"github.com/mediocregopher/radix/v4/resp"

	"ratelimit/src/algorithm"
)

// kind is what a command of a pipeline is.
type kind uint8

const (
	incr   kind = iota // INCRBY, with EXPIRE behind it when expire is set
	get                // GET
	script             // EVALSHA of takeScript
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
	ask    bool  // ASKING goes before it
	call   *call // script, get
	from   int   // the first of its hits
	first  int32 // incr: its waiters, linked; -1 ends
	last   int32

	answered bool
	value    int64 // incr, get, expire
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
	hits     int           // in them
	cost     time.Duration // of them, estimated
	sent     bool          // some of it may have arrived
	waiters  []waiter
	table    []int32 // open hash table of the last incr command of each key: index+1, 0 is free
	buf      []byte
}

// maxSum keeps sums of amounts in what INCRBY takes.
const maxSum = 1 << 62

// maxBuf is how much memory a writer keeps for the next batch.
const maxBuf = 1 << 20

// reset empties p. It will get no more than that many commands.
func (p *pipeline) reset(commands int) {
	clear(p.commands)
	clear(p.waiters)
	p.commands, p.waiters, p.hits, p.cost = p.commands[:0], p.waiters[:0], 0, 0
	p.sent = false
	size := 16
	for size < 2*commands {
		size *= 2
	}
	if cap(p.table) < size {
		p.table = make([]int32, size)
	}
	p.table = p.table[:size]
	clear(p.table)
}

// add appends the hits of c from c.next on, until p has work for most, or so many
// hits; 0: no limit. It reports whether that was all of c. An empty pipeline takes
// at least one group.
func (p *pipeline) add(c *call, most time.Duration, limit int) bool {
	for c.next < len(c.hits) {
		end, cost := c.unit(c.next)
		if !p.fits(end-c.next, cost, most, limit) {
			return false
		}
		before := len(p.commands)
		p.append(c, c.next)
		if len(p.commands) > before { // else it was added to a command that is there
			p.cost += cost
		}
		p.hits += end - c.next
		c.spent(end, cost)
	}
	return true
}

// fits reports whether p takes so many hits more that have to be sent together.
func (p *pipeline) fits(hits int, cost, most time.Duration, limit int) bool {
	return p.hits == 0 || p.cost+cost <= most && (limit <= 0 || p.hits+hits <= limit)
}

// append appends what hit i of c asks for, with its group.
func (p *pipeline) append(c *call, i int) {
	h, key := &c.hits[i], c.key(i)
	switch {
	case h.last > 0:
		for j := i; j < h.last; j++ {
			p.barrier(c.key(j))
		}
		p.commands = append(p.commands, command{kind: script, call: c, from: i, first: -1, ask: c.ask})
	case h.op == algorithm.Look:
		p.barrier(key)
		p.commands = append(p.commands, command{kind: get, key: key, call: c, from: i, first: -1, ask: c.ask})
	default:
		p.incr(c, i, key)
	}
}

// introduce has the first script of several commands sent in full: a server that
// does not know it would otherwise be sent it after what stands behind it, and
// hits of one call on one key have their order.
func (p *pipeline) introduce() {
	if len(p.commands) == 1 {
		return
	}
	for i := range p.commands {
		if c := &p.commands[i]; c.kind == script {
			c.kind = eval
			p.cost += evalCost
			return
		}
	}
}

// slot is where the table has key, or would have it.
func (p *pipeline) slot(hash uint64, key []byte) int {
	i := int(hash) & (len(p.table) - 1)
	for p.table[i] != 0 {
		if c := &p.commands[p.table[i]-1]; c.hash == hash && bytes.Equal(c.key, key) {
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
		p.commands[n-1].closed = true
	}
}

func (p *pipeline) incr(c *call, i int, key []byte) {
	h := &c.hits[i]
	hash := maphash.Bytes(p.seed, key)
	slot := p.slot(hash, key)
	n := int(p.table[slot]) - 1
	if n < 0 || p.commands[n].closed || p.commands[n].sum+h.amount > maxSum {
		n = len(p.commands)
		p.commands = append(p.commands, command{
			kind: incr, key: key, hash: hash, ttl: h.ttl, first: -1, last: -1,
		})
		p.table[slot] = int32(n + 1)
	}
	cmd := &p.commands[n]
	if !p.recent.lives(hash, h.period, h.ttl) {
		cmd.expire, cmd.ttl = true, max(cmd.ttl, h.ttl)
	}
	cmd.sum += h.amount
	cmd.ask = cmd.ask || c.ask
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
	if cap(p.buf) > maxBuf { // of a batch as there is hardly another
		p.buf = nil
	}
	p.buf = p.buf[:0]
	for i := range p.commands {
		p.buf = p.commands[i].append(p.buf)
	}
	p.buf = append(p.buf, ping...)
	p.sent = true
	_, err := w.Write(p.buf)
	return err
}

const (
	asking = "*1\r\n$6\r\nASKING\r\n"
	// ping ends each batch. No other reply looks like its own, so the batch is known to
	// have the replies that belong to it.
	ping = "*1\r\n$4\r\nPING\r\n"
	pong = "+PONG"
)

func (c *command) append(b []byte) []byte {
	if c.ask {
		b = append(b, asking...)
	}
	switch c.kind {
	case incr:
		b = append(b, "*3\r\n$6\r\nINCRBY\r\n"...)
		b = appendBulk(b, c.key)
		b = appendNumber(b, int64(c.sum))
		if c.expire {
			if c.ask {
				b = append(b, asking...)
			}
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
	b = strconv.AppendInt(b, int64(4+(1+scriptArgs)*len(hits)), 10)
	b = append(b, "\r\n"...)
	if c.kind == script {
		b = append(b, "$7\r\nEVALSHA\r\n"...)
		b = appendBulk(b, takeSHA)
	} else {
		b = append(b, "$4\r\nEVAL\r\n"...)
		b = appendBulk(b, takeScript)
	}
	b = appendNumber(b, int64(len(hits)))
	for i := range hits {
		b = appendBulk(b, c.call.key(c.from+i))
	}
	b = appendNumber(b, c.call.at)
	for i := range hits {
		b = hits[i].appendArgs(b, &c.call.limits[hits[i].limit])
	}
	return b
}

// appendArgs appends what takeScript wants to know of a hit.
func (h *hit) appendArgs(b []byte, l *algorithm.Limit) []byte {
	var increment, tolerance int64
	if l.Kind == algorithm.GCRA {
		increment, tolerance = l.Increment(h.amount), l.Tolerance()
	}
	kind := scriptKinds[l.Kind]
	if h.divvy {
		kind = "d"
	}
	b = appendBulk(b, kind)
	b = appendBulk(b, scriptOps[h.op])
	b = appendNumber(b, int64(h.amount))
	b = appendNumber(b, int64(l.Max))
	b = appendNumber(b, int64(h.flags))
	b = appendNumber(b, h.ttl)
	b = appendNumber(b, l.Period.Microseconds())
	b = appendNumber(b, l.MinInterval.Microseconds())
	b = appendNumber(b, increment/1000)
	b = appendNumber(b, increment%1000)
	b = appendNumber(b, tolerance/1000)
	return appendNumber(b, tolerance%1000)
}

// The algorithms and operations as takeScript knows them.
var (
	scriptKinds = [...]string{
		algorithm.FixedWindow: "w", algorithm.FirstHitWindow: "f", algorithm.SlidingWindow: "l",
		algorithm.SlidingWindowCounter: "c", algorithm.GCRA: "g",
	}
	scriptOps = [...]string{algorithm.Charge: "c", algorithm.Look: "l", algorithm.Refund: "r", algorithm.Force: "f"}
)

// UnmarshalRESP reads the replies. Where one is missing, is too much or is none that
// its command has, no reply of the batch counts: each may be another's.
func (p *pipeline) UnmarshalRESP(br resp.BufferedReader, _ *resp.Opts) error {
	err := p.read(br)
	if err == nil {
		err = p.readPong(br)
	}
	if err != nil {
		for i := range p.commands {
			p.commands[i].answered, p.commands[i].err = false, nil
		}
	}
	return err
}

// read reads the replies to the commands. An error reply is its command's alone: one
// that is returned would make radix close the connection.
func (p *pipeline) read(br resp.BufferedReader) error {
	for i := range p.commands {
		c := &p.commands[i]
		if err := c.readAsking(br); err != nil {
			return err
		}
		var err error
		switch c.kind {
		case incr, expire:
			c.value, err = readInteger(br)
		case get:
			c.value, err = readCounter(br)
		case script, eval:
			err = c.readScript(br)
		}
		if err != nil && !isReply(err) {
			return err
		}
		c.err, c.answered = err, true
		if c.kind == incr && c.expire {
			if err := c.readExpire(br); err != nil {
				p.recent.forget(c.hash)
				switch {
				case !isReply(err):
					return err
				case replyWord(err) == "NOPERM": // else keys would stay for good without a word
					c.err = err
				}
			}
		}
	}
	return nil
}

// readPong reads the reply to the PING that ends the batch, behind which there is
// nothing. It may be an error if all others were, as from a server that still loads.
func (p *pipeline) readPong(br resp.BufferedReader) error {
	line, err := readLine(br)
	switch {
	case err != nil:
		return err
	case br.Buffered() > 0:
		return errUnasked
	case string(line) == pong:
		return nil
	}
	for i := range p.commands {
		if p.commands[i].err == nil {
			return errUnasked
		}
	}
	if line[0] != '-' {
		return errUnasked
	}
	return nil
}

// readExpire reads the reply to the EXPIRE that went with an INCRBY.
func (c *command) readExpire(br resp.BufferedReader) error {
	if err := c.readAsking(br); err != nil {
		return err
	}
	_, err := readInteger(br)
	return err
}

// readAsking reads the reply to ASKING, which says nothing: whether the node
// takes the key is in the reply behind it.
func (c *command) readAsking(br resp.BufferedReader) error {
	if !c.ask {
		return nil
	}
	line, err := readLine(br)
	if err == nil && line[0] != '+' && line[0] != '-' {
		err = unexpected(line)
	}
	return err
}

// readScript reads what takeScript returns into the call's results.
func (c *command) readScript(br resp.BufferedReader) error {
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
	for i := c.from; i < c.call.hits[c.from].last; i++ {
		f := found{now: now, over: next() == 1, refused: refused && c.call.hits[i].flags&flagAtomic != 0}
		for j := range f.state {
			f.state[j] = next()
		}
		if f.refused {
			for j := range f.tried {
				f.tried[j] = next()
			}
		}
		c.call.found = append(c.call.found, f)
		c.call.results[i] = result{script: len(c.call.found)}
	}
	if err == nil && left != 0 {
		err = fmt.Errorf("redis: a reply to a script with %d numbers too many", left)
	}
	return err
}

// advice is what the replies to a batch say of the server.
type advice struct {
	leave error // it is not the one to ask, or not now: a new connection may lead to one that is
	look  bool  // the layout has changed
}

// advice reads the replies. In a cluster, a hit that was sent on gets that as
// its error; addr is the node that said so.
func (p *pipeline) advice(addr string, cluster bool) advice {
	var a advice
	for i := range p.commands {
		c := &p.commands[i]
		if c.err == nil {
			continue
		}
		switch word := replyWord(c.err); word {
		case "READONLY", "LOADING", "MASTERDOWN", "NOAUTH":
			a.leave, a.look = c.err, true
		case "CLUSTERDOWN":
			a.look = true
		case "MOVED", "ASK", "TRYAGAIN":
			if cluster {
				a.look = a.look || word == "MOVED"
				c.err = redirectOf(c.err, addr)
			}
		}
	}
	return a
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
			c.call.settle(c.from, result{before: c.value, err: err})
		case script, eval:
			if err != nil {
				for j := c.from; j < c.call.hits[c.from].last; j++ {
					c.call.settle(j, result{err: err})
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
		w.call.settle(w.hit, result{before: before, err: err})
		if before < algorithm.MaxCount {
			before += int64(w.call.hits[w.hit].amount)
		}
	}
}
