package memcached

import (
	"context"
	"time"

	"ratelimit/src/backend/remote"
)

// exchange is the commands for one connection: one conversation for each counter that
// its hits are about. It goes in rounds: each round sends one command of each
// conversation that is not over, and reads all replies.
type exchange struct {
	counts  *Counts
	onBatch func(hits int, took time.Duration)

	talkers []*talker // one for each counter that a batch may have
	used    int       // the first of them have a counter
	byKey   map[string]*talker
	out     []byte    // the commands of this round
	asked   []*talker // that sent them, in order
	addr    string    // of the server
	failed  error     // why no command is sent any more
}

func newExchange(counters int, counts *Counts, onBatch func(int, time.Duration)) *exchange {
	x := &exchange{counts: counts, onBatch: onBatch, byKey: make(map[string]*talker), talkers: make([]*talker, counters)}
	for i := range x.talkers {
		x.talkers[i] = newTalker(x)
	}
	return x
}

func (x *exchange) Reset(int) {
	for _, t := range x.talkers[:x.used] {
		t.reset()
	}
	x.used = 0
	clear(x.byKey)
}

func (x *exchange) Room(has, more int) bool { return min(has, x.used)+more <= len(x.talkers) }

// Add adds a hit to its counter, and reports whether the counter is a new one.
func (x *exchange) Add(c *remote.Call, hit, _ int) bool {
	t := x.byKey[string(c.Key(hit))]
	isNew := t == nil
	if isNew {
		t = x.talkers[x.used]
		x.used++
		t.key = string(c.Key(hit))
		x.byKey[t.key] = t
	}
	t.hits = append(t.hits, hitOf{c, hit})
	return isNew
}

// Send makes rounds until all conversations are over. An error of a round is that of
// all conversations that are not.
func (x *exchange) Send(ctx context.Context, l *remote.Link) (remote.Sent, error) {
	x.addr, x.failed = l.Addr, nil
	talking := x.talkers[:x.used]
	for round := l.Perform; ; round = l.Do {
		x.out, x.asked = x.out[:0], x.asked[:0]
		for _, t := range talking {
			t.resume()
		}
		if len(x.asked) == 0 {
			return remote.Sent{Commands: x.used}, x.failed
		}
		if err := round(ctx, x); err != nil {
			x.failed = err
		}
		talking = append(talking[:0:0], x.asked...)
	}
}

// Trip sends the commands of a round and reads the replies.
//
// One reply too many or too few would give every later command the reply of another,
// and all of them are plain numbers. So each round ends with the command "version", and
// its replies count if that to "version" stands where it must:
//
//	sent      incr a 1 | incr b 1 | version
//	replies   7        | 3        | VERSION 1.6.18   in step: a is 7, b is 3
//	replies   7        | 9        | 3                out of step: a and b are unknown
func (x *exchange) Trip(_ context.Context, s remote.Session) error {
	conn := s.(*session)
	x.out = append(x.out, version...)
	if _, err := conn.Write(x.out); err != nil {
		return err
	}
	for _, t := range x.asked {
		line, err := conn.readReply(false)
		if err != nil {
			return err
		}
		t.reply = append(t.reply[:0], line...)
	}
	return conn.readVersion()
}

func (*exchange) Upkeep(context.Context, *remote.Link, bool) (acted bool, wait time.Duration) {
	return false, 0
}

// Close ends the goroutines of the talkers.
func (x *exchange) Close() {
	for _, t := range x.talkers {
		t.stop()
	}
}
