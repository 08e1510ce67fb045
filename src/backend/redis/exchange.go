package redis

import (
	"bytes"
	"context"
	"time"

	"ratelimit/src/backend/remote"
)

// exchange is the pipeline of one connection, and the keys for which it must still send EXPIRE.
type exchange struct {
	pipeline
	cfg   *Config
	again pipeline // for scripts that Redis did not know, and expiries

	// endless are keys that may have no time to live. If they were not hit again they
	// would stay for good, so each gets an EXPIRE of its own.
	//
	// A batch that was held up in the network, and arrives after that, still leaves a
	// key without one if Redis lost the key meanwhile.
	endless map[string]*expiry
	next    time.Time // when to send them
}

const (
	// maxEndless bounds endless. A key without room gets its EXPIRE with its next hit.
	maxEndless = 4096
	// endlessPause is the time between two attempts while no batch is answered.
	endlessPause = 500 * time.Millisecond
	// evalCost is the estimated time of the server to read the text of a script.
	evalCost = 50 * time.Microsecond
)

// Room reports whether the PipelineLimit leaves room for so many hits more.
func (x *exchange) Room(has, more int) bool {
	return x.cfg.PipelineLimit <= 0 || has+more <= x.cfg.PipelineLimit
}

func (*exchange) Close() {}

// Send sends the pipeline. Scripts that Redis does not know are then sent again with their text.
func (x *exchange) Send(ctx context.Context, l *remote.Link) (remote.Sent, error) {
	sent := remote.Sent{Commands: len(x.commands)}
	if x.introduce() {
		sent.Extra = evalCost
	}
	started := time.Now()
	err := l.Perform(ctx, &x.pipeline)
	if err == nil && x.prepareAgain() {
		err = l.Do(ctx, &x.again)
	}
	if x.cfg.OnBatch != nil {
		x.cfg.OnBatch(x.hits, time.Since(started))
	}
	x.deliver(&sent, l.Addr, err)
	x.noteEndless()
	return sent, err
}

// prepareAgain fills x.again with the scripts that Redis does not know, in full, and
// reports whether there are any.
func (x *exchange) prepareAgain() bool {
	x.again.Reset(0)
	for _, s := range x.scripts.items[:x.scripts.used] {
		if !s.full && s.err != nil && replyWord(s.err) == "NOSCRIPT" {
			s.full, s.answered, s.err = true, false, nil
			x.again.commands = append(x.again.commands, s)
		}
	}
	return len(x.again.commands) > 0
}

// deliver sets the results of all hits and notes in sent what the error replies say of
// the server at addr. Failure is why commands without a reply have none. In a cluster,
// a hit that was redirected gets a remote.Redirect.
func (x *exchange) deliver(sent *remote.Sent, addr string, failure error) {
	for _, c := range x.commands {
		r := c.state()
		err := r.err
		if !r.answered {
			err = failure
		}
		if r.err != nil {
			switch word := replyWord(r.err); word {
			case "READONLY", "LOADING", "MASTERDOWN", "NOAUTH":
				sent.Leave, sent.Check = r.err, true
			case "CLUSTERDOWN":
				sent.Check = true
			case "MOVED", "ASK", "TRYAGAIN":
				if len(x.cfg.Cluster) > 0 {
					sent.Check = sent.Check || word == "MOVED"
					err = redirectOf(r.err, addr)
				}
			}
		}
		c.deliver(err)
	}
}

// noteEndless adds the keys of the pipeline that may have no time to live to endless.
func (x *exchange) noteEndless() {
	for _, c := range x.increments.items[:x.increments.used] {
		if !c.mayBeEndless(x.sent) {
			continue
		}
		if len(x.endless) >= maxEndless {
			x.recent.forget(c.hash)
			continue
		}
		if x.endless == nil {
			x.endless = make(map[string]*expiry)
		}
		key := bytes.Clone(c.key)
		x.endless[string(key)] = &expiry{reply: reply{ask: c.ask}, key: key, hash: c.hash, ttl: c.ttl}
		x.next = time.Now().Add(endlessPause)
	}
}

// Upkeep sends EXPIRE for endless keys. A key that is answered with an error, such as
// MOVED, waits for its next hit.
func (x *exchange) Upkeep(ctx context.Context, l *remote.Link, answers bool) (acted bool, wait time.Duration) {
	if len(x.endless) == 0 {
		return false, 0
	}
	if wait = time.Until(x.next); wait > 0 && !answers {
		return false, wait
	}
	x.next = time.Now().Add(endlessPause)
	x.again.Reset(0)
	for _, c := range x.endless {
		x.again.commands = append(x.again.commands, c)
	}
	_ = l.Do(ctx, &x.again) // the answers tell
	for key, c := range x.endless {
		if !c.answered {
			continue
		}
		x.recent.forget(c.hash)
		if c.err == nil && c.exists {
			x.recent.lives(c.hash, c.ttl, c.ttl)
		}
		delete(x.endless, key)
	}
	return true, 0
}
