package remote

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeProtocol counts nothing and connects nowhere.
type fakeProtocol struct {
	EditProtocol // EditProtocol is nil: no test of this package changes counters.
	room         int
}

func (fakeProtocol) FillCall(c *Call, b *backend.Batch, _ int64) error {
	for i := range b.Hits {
		c.Keys = append(c.Keys, b.Hits[i].Key...)
		c.AddHit(NewHit(&b.Hits[i]))
	}
	return nil
}

func (fakeProtocol) Verdicts(c *Call, b *backend.Batch, _ int64) {
	for i := range b.Verdicts {
		b.Verdicts[i].Err = c.Hits[i].Err
	}
}

func (p fakeProtocol) NewExchanges(int) []Exchange { return []Exchange{&fakeExchange{room: p.room}} }

func (fakeProtocol) Network(string) string { return "tcp" }

func (fakeProtocol) Open(context.Context, *Conn) error { return errors.New("there is no server") }

func (fakeProtocol) Renew(*Conn) error { return nil }

func (fakeProtocol) Ping(*Conn) error { return errors.New("there is no server") }

func (fakeProtocol) IsServerReply(error) bool { return false }

func (fakeProtocol) FindServers(context.Context, *Store) {}

func (fakeProtocol) CauseOf(err error) string { return CauseOf(err) }

// fakeExchange notes the keys that are added to it.
type fakeExchange struct {
	room int
	keys []string
	used int
}

func (x *fakeExchange) Reset()                     { x.used = 0 }
func (x *fakeExchange) HasRoom(has, more int) bool { return has+more <= x.room }
func (*fakeExchange) Close()                       {}

func (x *fakeExchange) AddHits(c *Call, begin, end int) bool {
	for i := begin; i < end; i++ {
		x.keys = append(x.keys, string(c.Key(i)))
	}
	x.used++
	return true
}

func (x *fakeExchange) Send(context.Context, *Link) (SentBatch, error) {
	return SentBatch{Commands: x.used}, nil
}
func (*fakeExchange) Upkeep(context.Context, *Link, bool) time.Duration { return 0 }

// fakeStore returns a store whose batches have so many hits at most.
func fakeStore(room int) *Store {
	return New("fake", Config{Timeout: time.Minute}, fakeProtocol{room: room}, nil)
}

func fakeWriter(s *Store) *writer {
	return newWriter(&Link{Access: &s.Access, gate: new(Gate), breaker: new(Breaker)}, s, s.protocol.NewExchanges(1)[0])
}

// callOf returns a call for the keys, each at that cost; together: they are one group.
func callOf(cost time.Duration, together bool, keys ...string) *Call {
	c := NewCall()
	for _, key := range keys {
		c.Keys = append(c.Keys, key...)
		h := NewHit(&backend.Hit{Limit: &algorithm.Limit{}})
		if h.Cost = cost; together {
			h.GroupEnd = len(keys)
		}
		c.AddHit(h)
	}
	c.estimateCost()
	c.deadline = time.Now().Add(time.Hour)
	return c
}

// numbered returns n keys with a prefix.
func numbered(prefix string, n int) (keys []string) {
	for i := range n {
		keys = append(keys, prefix+strconv.Itoa(i))
	}
	return keys
}

// slotOf returns the number in the braces that a key starts with.
func slotOf(key []byte) int {
	tag, _, _ := strings.Cut(strings.TrimPrefix(string(key), "{"), "}")
	var n int
	_, _ = fmt.Sscan(tag, &n)
	return n
}

// clusterOf returns a store with so many servers, without any connection, that have
// 20 slots in turn.
func clusterOf(nodes int) *Store {
	s := fakeStore(1 << 20)
	list := make([]*Node, nodes)
	for i := range list {
		list[i] = &Node{store: s}
	}
	t := &Table{Layout: Layout{SlotOfKey: slotOf}, nodeOfSlot: make([]*Node, 20), replacedSignal: make(chan struct{})}
	for slot := range t.nodeOfSlot {
		t.nodeOfSlot[slot] = list[slot%nodes]
	}
	s.table.Store(t)
	return s
}
