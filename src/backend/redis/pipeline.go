package redis

import (
	"bytes"
	"context"
	"hash/maphash"
	"io"

	"github.com/mediocregopher/radix/v4/resp"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend/remote"
)

// pipeline is a batch of commands for one connection. The next batch reuses its memory.
type pipeline struct {
	seed       maphash.Seed
	recent     recent
	commands   []command
	increments pool[increment]
	lookups    pool[lookup]
	scripts    pool[script]
	hits       int  // that they are for
	sent       bool // some of it may have arrived
	waiters    []waiter
	table      []int32 // open hash table of the last increment of each key: index+1, 0 is free
	buf        []byte
}

// maxBuf bounds the memory that is kept for the next batch.
const maxBuf = 1 << 20

// Reset empties p. It will get no more than that many increments.
func (p *pipeline) Reset(increments int) {
	clear(p.commands)
	clear(p.waiters)
	p.commands, p.waiters, p.hits, p.sent = p.commands[:0], p.waiters[:0], 0, false
	p.increments.reset()
	p.lookups.reset()
	p.scripts.reset()
	size := 16
	for size < 2*increments {
		size *= 2
	}
	if cap(p.table) < size {
		p.table = make([]int32, size)
	}
	p.table = p.table[:size]
	clear(p.table)
}

// Add adds the hits of c from begin to end, and reports whether that takes a command
// more.
func (p *pipeline) Add(c *remote.Call, begin, end int) bool {
	p.hits += end - begin
	h, before := &c.Hits[begin], len(p.commands)
	switch {
	case h.GroupEnd > 0:
		for j := begin; j < end; j++ {
			p.separate(c.Key(j))
		}
		s := p.scripts.next()
		s.ask, s.call, s.begin, s.end = c.Ask, c, begin, end
		p.commands = append(p.commands, s)
	case h.Op == algorithm.Look:
		p.separate(c.Key(begin))
		l := p.lookups.next()
		l.ask, l.call, l.hit = c.Ask, c, begin
		p.commands = append(p.commands, l)
	default:
		p.increment(c, begin)
	}
	return len(p.commands) > before
}

// introduce has the first script of several commands sent in full, and reports
// whether there is one: a server that does not know it would otherwise be sent it
// after what stands behind it, and hits of one call on one key have their order.
func (p *pipeline) introduce() bool {
	if p.scripts.used == 0 || len(p.commands) == 1 {
		return false
	}
	p.scripts.items[0].full = true
	return true
}

// slot returns the index of key in the table, or the free index where it belongs.
func (p *pipeline) slot(hash uint64, key []byte) int {
	i := int(hash) & (len(p.table) - 1)
	for p.table[i] != 0 {
		if c := p.increments.items[p.table[i]-1]; c.hash == hash && bytes.Equal(c.key, key) {
			return i
		}
		i = (i + 1) & (len(p.table) - 1)
	}
	return i
}

// separate ends the increment of key: later hits get another one, because a command between the two
// must see only the earlier hits.
func (p *pipeline) separate(key []byte) {
	if n := p.table[p.slot(maphash.Bytes(p.seed, key), key)]; n != 0 {
		p.increments.items[n-1].closed = true
	}
}

// increment adds hit i of c to the increment of its key, or makes one.
func (p *pipeline) increment(c *remote.Call, i int) {
	h, key := &c.Hits[i], c.Key(i)
	hash := maphash.Bytes(p.seed, key)
	slot := p.slot(hash, key)
	var cmd *increment
	if n := p.table[slot]; n > 0 {
		cmd = p.increments.items[n-1]
	}
	if cmd == nil || cmd.closed || cmd.sum+h.Amount > maxSum {
		cmd = p.increments.next()
		cmd.pipeline, cmd.key, cmd.hash, cmd.ttl, cmd.first, cmd.last = p, key, hash, h.TTL, -1, -1
		p.commands = append(p.commands, cmd)
		p.table[slot] = int32(p.increments.used)
	}
	if !p.recent.lives(hash, h.Least, h.TTL) {
		cmd.expire, cmd.ttl = true, max(cmd.ttl, h.TTL)
	}
	cmd.sum += h.Amount
	cmd.ask = cmd.ask || c.Ask
	p.waiters = append(p.waiters, waiter{c, i, -1})
	at := int32(len(p.waiters) - 1)
	if cmd.first < 0 {
		cmd.first = at
	} else {
		p.waiters[cmd.last].next = at
	}
	cmd.last = at
}

// Trip writes the batch and reads all replies.
func (p *pipeline) Trip(ctx context.Context, s remote.Session) error {
	return exchangeOn(ctx, s, p)
}

// ping ends each batch. No other reply looks like its own, so the batch is known to
// have the replies that belong to it.
const (
	ping = "*1\r\n$4\r\nPING\r\n"
	pong = "+PONG"
)

// MarshalRESP writes the batch at once.
func (p *pipeline) MarshalRESP(w io.Writer, _ *resp.Opts) error {
	if cap(p.buf) > maxBuf { // of a batch as there is hardly another
		p.buf = nil
	}
	p.buf = p.buf[:0]
	for _, c := range p.commands {
		if c.state().ask {
			p.buf = append(p.buf, asking...)
		}
		p.buf = c.appendTo(p.buf)
	}
	p.buf = append(p.buf, ping...)
	p.sent = true
	_, err := w.Write(p.buf)
	return err
}

// UnmarshalRESP reads the replies. If one is missing, is too much or is none that its
// command has, no reply of the batch counts: each may be another's.
func (p *pipeline) UnmarshalRESP(br resp.BufferedReader, _ *resp.Opts) error {
	err := p.read(br)
	if err == nil {
		err = p.readPong(br)
	}
	if err != nil {
		for _, c := range p.commands {
			r := c.state()
			r.answered, r.err = false, nil
		}
	}
	return err
}

// read reads the replies to the commands. An error reply is its command's alone: one
// that is returned would make radix close the connection.
func (p *pipeline) read(br resp.BufferedReader) error {
	for _, c := range p.commands {
		r := c.state()
		if err := r.readAsking(br); err != nil {
			return err
		}
		err := c.readReply(br)
		if err != nil && !isReply(err) {
			return err
		}
		r.err, r.answered = err, true
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
	for _, c := range p.commands {
		if c.state().err == nil {
			return errUnasked
		}
	}
	if line[0] != '-' {
		return errUnasked
	}
	return nil
}
