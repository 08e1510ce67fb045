package redis

import (
	"bytes"
	"context"
	"time"
)

// endless are keys that may have no time to live: Redis lost them, so that EXPIRE
// was left out and should not have been, or it is not known what arrived of a batch. If
// they were not hit again they would stay for good, so they get an EXPIRE of their own.
//
// A batch that was held up in the network, and arrives after that, still leaves a key
// without one if Redis lost the key meanwhile.
type endless struct {
	keys map[string]command
	next time.Time // when to see to them
}

const (
	// mostEndless bounds them. What finds no room gets its EXPIRE with its next hit.
	mostEndless = 4096
	// endlessPause is between two attempts where no batch is answered that would
	// take them along.
	endlessPause = 500 * time.Millisecond
)

// note remembers the keys of p that may have none; their memory is their calls'.
func (e *endless) note(p *pipeline) {
	for i := range p.commands {
		c := &p.commands[i]
		if c.kind != incr {
			continue
		}
		made := c.answered && c.err == nil && c.value == int64(c.sum)
		if !(made && !c.expire) && !(p.sent && !c.answered) {
			continue
		}
		if len(e.keys) >= mostEndless {
			p.recent.forget(c.hash)
			continue
		}
		if e.keys == nil {
			e.keys = make(map[string]command)
		}
		key := bytes.Clone(c.key)
		e.keys[string(key)] = command{kind: expire, key: key, hash: c.hash, ttl: c.ttl, ask: c.ask}
		e.next = time.Now().Add(endlessPause)
	}
}

// due reports whether it is time to see to them, and if not how long until it is;
// 0: there are none.
func (e *endless) due(now time.Time) (due bool, wait time.Duration) {
	if len(e.keys) == 0 {
		return false, 0
	}
	return !now.Before(e.next), e.next.Sub(now)
}

// expire gives them a time to live. What is answered with an error, such as MOVED,
// waits for the next hit on the key.
func (w *writer) expire(ctx context.Context) {
	w.endless.next = time.Now().Add(endlessPause)
	w.again.reset(0)
	for _, c := range w.endless.keys {
		w.again.commands = append(w.again.commands, c)
	}
	_ = w.link.Do(ctx, &w.again) // the answers tell
	for i := range w.again.commands {
		c := &w.again.commands[i]
		if !c.answered {
			continue
		}
		w.pipeline.recent.forget(c.hash)
		if c.err == nil && c.value == 1 { // the key is there
			w.pipeline.recent.lives(c.hash, c.ttl, c.ttl)
		}
		delete(w.endless.keys, string(c.key))
	}
}
