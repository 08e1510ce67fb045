package memcached

import (
	"bufio"
	"context"
	"time"

	"ratelimit/src/backend/remote"
)

// exchange implements remote.Exchange in rounds. In each round, each counterClient that has
// unsent hits adds one command. The exchange sends all of them and reads all replies.
type exchange struct {
	counts  *Counts
	onBatch func(hits int, took time.Duration)

	counterClients []*counterClient // has one counter client for each counter that a batch may have
	// the number of counters in this batch. They have the first counter clients.
	usedClients          int
	clientOfKey          map[string]*counterClient // the counter clients of this batch by the key of their counter
	commands             []byte                    // the bytes to send in this round
	clientsAwaitingReply []*counterClient          // the counter clients that wait for a reply in this round, in order
	addr                 string
	batchError           error // why no more commands of this batch are sent
}

func newExchange(counters int, counts *Counts, onBatch func(int, time.Duration)) *exchange {
	x := &exchange{
		counts: counts, onBatch: onBatch, clientOfKey: make(map[string]*counterClient),
		counterClients: make([]*counterClient, counters),
	}
	for i := range x.counterClients {
		x.counterClients[i] = newCounterClient(x)
	}
	return x
}

func (x *exchange) Reset() {
	for _, t := range x.counterClients[:x.usedClients] {
		t.reset()
	}
	x.usedClients = 0
	clear(x.clientOfKey)
}

func (x *exchange) HasRoom(has, more int) bool {
	return min(has, x.usedClients)+more <= len(x.counterClients)
}

// AddHits gives a hit to the counter client of its counter. It reports whether the counter is new in this batch.
func (x *exchange) AddHits(c *remote.Call, hit, _ int) bool {
	t := x.clientOfKey[string(c.Key(hit))]
	isNew := t == nil
	if isNew {
		t = x.counterClients[x.usedClients]
		x.usedClients++
		t.key = string(c.Key(hit))
		x.clientOfKey[t.key] = t
	}
	t.hits = append(t.hits, hitRef{c, hit})
	return isNew
}

// Send makes rounds until all hits are counted. If a round fails, the rest gets its error.
func (x *exchange) Send(ctx context.Context, l *remote.Link) (remote.SentBatch, error) {
	x.addr, x.batchError = l.Addr, nil
	talking := x.counterClients[:x.usedClients]
	for {
		x.commands, x.clientsAwaitingReply = x.commands[:0], x.clientsAwaitingReply[:0]
		for _, t := range talking {
			t.resumeCoroutine()
		}
		if len(x.clientsAwaitingReply) == 0 {
			return remote.SentBatch{Commands: x.usedClients}, x.batchError
		}
		if err := l.Do(ctx, x.roundTrip); err != nil {
			x.batchError = err
		}
		talking = append(talking[:0:0], x.clientsAwaitingReply...)
	}
}

// roundTrip sends the commands of a round and reads the replies.
//
// A reply too many or too few would give all later commands the replies of others, and all of them are plain numbers.
// So each round ends with the command "version". The replies count only if that to "version" is the last:
//
//	sent      incr a 1 | incr b 1 | version
//	replies   7        | 3        | VERSION 1.6.18   in step: a is 7, b is 3
//	replies   7        | 9        | 3                out of step: a and b are unknown
func (x *exchange) roundTrip(c *remote.Conn) error {
	x.commands = append(x.commands, versionCommand...)
	if _, err := c.Write(x.commands); err != nil {
		return err
	}
	return x.readReplies(c.Replies)
}

func (x *exchange) readReplies(br *bufio.Reader) error {
	for _, t := range x.clientsAwaitingReply {
		line, err := readReply(br, false)
		if err != nil {
			return err
		}
		t.reply = append(t.reply[:0], line...)
	}
	return readVersion(br)
}

// recordCommand records a change or lookup of a counter in the figures.
func (x *exchange) recordCommand(hits int, took time.Duration, err error) {
	x.counts.counterCommands.Add(1)
	if err != nil {
		x.counts.failedCommands.Add(1)
	}
	if x.onBatch != nil {
		x.onBatch(hits, took)
	}
}

func (*exchange) Upkeep(context.Context, *remote.Link, bool) time.Duration { return 0 }

// Close ends the coroutines of the counter clients.
func (x *exchange) Close() {
	for _, t := range x.counterClients {
		t.stopCoroutine()
	}
}
