package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

// owner is a caller with a counter of its own, which no other comes near.
type owner struct {
	key   string
	start uint64
	// hits that are counted for certain, and all: the network may deliver those without an answer later
	least, most uint64
}

// count counts one hit and says what is wrong with the answer; failed: there was none.
func (o *owner) count(s *Store) (failed bool, wrong error) {
	b := backend.Batch{
		Hits:     []backend.Hit{{Key: []byte(o.key), Limit: window(1<<40, time.Hour), Amount: 1}},
		Verdicts: make([]backend.Verdict, 1), Now: epoch,
	}
	if err := s.Take(context.Background(), &b); err != nil {
		return true, err
	}
	before, least, most := b.Verdicts[0].Before, o.start+o.least, o.start+o.most
	o.most++
	if b.Verdicts[0].Err != nil {
		return true, nil
	}
	if before < least || before > most {
		return false, fmt.Errorf("%s was told %d, and has %d to %d", o.key, before, least, most)
	}
	o.least = before - o.start + 1
	return false, nil
}

// A reply without a command closes its connection, wherever it comes: no caller is
// told the count of another.
func TestUnaskedReplies(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	for _, tt := range []struct {
		name   string
		insert func(reply, extra []byte) (now, later []byte)
		pause  time.Duration
	}{
		{"before", func(reply, extra []byte) (now, later []byte) { return slices.Concat(extra, reply), nil }, 0},
		{"between", func(reply, extra []byte) (now, later []byte) {
			return slices.Insert(reply, bytes.IndexByte(reply, '\n')+1, extra...), nil // after the first line
		}, 0},
		{"in the same packet", func(reply, extra []byte) (now, later []byte) {
			return slices.Concat(reply, extra),
				nil
		}, 0},
		{"in the next packet", func(reply, extra []byte) (now, later []byte) { return reply, extra }, 0},
		{"a moment later", func(reply, extra []byte) (now, later []byte) { return reply, extra }, time.Millisecond},
	} {
		for _, extra := range []string{
			":7000003\r\n", "+PONG\r\n", ":1\r\n", "-ERR no\r\n", "$1\r\n5\r\n", "+OK\r\n",
			":7000003\r\n+PONG\r\n:4\r\n",
		} {
			t.Run(tt.name+"/"+extra, func(t *testing.T) {
				t.Parallel()
				insertReplies(t, server, tt.pause, func(reply []byte) (now, later []byte) {
					return tt.insert(reply, []byte(extra))
				})
			})
		}
	}
}

func insertReplies(t *testing.T, server *redistest.Server, pause time.Duration,
	insert func(reply []byte) (now, later []byte),
) {
	t.Helper()
	proxy := harness.StartProxy(t, server.Addr)
	s := open(t, Config{Addr: proxy.Addr, Config: remote.Config{BreakerFailures: -1}})
	var owners []*owner
	for i := range 8 {
		o := &owner{key: fmt.Sprintf("%s%d_", proxy.Addr, i), start: uint64(i+1) * 1_000_000}
		server.Do(t, "SET", o.key+"1767225600", fmt.Sprint(o.start))
		owners = append(owners, o)
	}
	calls := func(n int) {
		var all sync.WaitGroup
		for _, o := range owners {
			all.Go(func() {
				pace := time.Tick(time.Millisecond)
				for range n {
					failed, wrong := o.count(s)
					if wrong != nil {
						t.Error(wrong)
						return
					}
					if failed {
						<-pace // the connection is dialed again meanwhile
					}
				}
			})
		}
		all.Wait()
	}
	calls(10)
	for range 2 {
		dials := s.Stats().Dials
		proxy.EditReply(pause, insert)
		calls(100)
		harness.Await(t, 20*time.Second, "another connection", func() error {
			calls(1)
			if s.Stats().Dials == dials {
				return errors.New("none yet")
			}
			return nil
		})
	}
}

// Bytes that come while nothing is under way close the connection before the next
// batch is written, so no call is lost.
func TestUnaskedWhileIdle(t *testing.T) {
	t.Parallel()
	certs := harness.NewCertificates(t)
	for _, tt := range []struct {
		name    string
		options redistest.Options
		config  Config
		reply   string
	}{
		{"tcp", redistest.Options{}, Config{}, ":5\r\n"},
		{
			"TLS",
			redistest.Options{TLS: certs},
			Config{Config: remote.Config{TLS: clientTLS(t, certs)}},
			"\x17\x03\x03\x00\x01x",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := redistest.Start(t, tt.options)
			proxy := harness.StartProxy(t, server.Addr)
			tt.config.Addr, tt.config.Connections = proxy.Addr, 1
			s := open(t, tt.config)
			for n := range 5 {
				if v := send(t, s, hot(0)); v.Err != nil || v.Before != uint64(2*n) {
					t.Fatalf("call %d: %+v", n, v)
				}
				proxy.SendToClients(tt.reply)
				if v := send(t, s, hot(0)); v.Err != nil || v.Before != uint64(2*n+1) {
					t.Fatalf("call %d, behind a reply too many: %+v", n, v)
				}
			}
			if st := s.Stats(); st.Dials != 6 || st.ErrorsByCause[remote.CauseConnectionBroke] != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// A reply of a kind that its command does not have closes the connection.
func TestRepliesOfAnotherKind(t *testing.T) {
	t.Parallel()
	count, look := hot(0), hot(0)
	look.Op = algorithm.Look
	script := hot(0)
	script.Limit = &algorithm.Limit{Kind: algorithm.GCRA, Max: 5, Period: time.Hour}
	for _, tt := range []struct {
		hit   backend.Hit
		reply string
	}{
		{count, "+OK\r\n"},
		{count, "$1\r\n5\r\n"},
		{count, "$-1\r\n"},
		{count, "*1\r\n:5\r\n"},
		{look, ":5\r\n"},
		{look, "+5\r\n"},
		{look, "*-1\r\n"},
		{script, ":5\r\n"},
		{script, "*0\r\n"},
		{script, "*8\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n$1\r\n0\r\n:0\r\n:0\r\n"},
	} {
		s := open(t, Config{
			Addr:   parrot(t, func([]string) string { return tt.reply }),
			Config: remote.Config{Connections: 1, BreakerFailures: -1},
		})
		v := send(t, s, tt.hit)
		if causeOf(v.Err) != remote.CauseConnectionBroke {
			t.Errorf("%q to %v: %+v", tt.reply, tt.hit.Op, v)
		}
		if n := s.Stats().OpenConnections; n != 0 {
			t.Errorf("%q: %d connections are open", tt.reply, n)
		}
	}
}
