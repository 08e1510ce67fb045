package memcached

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
)

// However replies are cut into pieces, and whenever the connection breaks, no hit
// gets another's.
func TestRepliesAreTheirs(t *testing.T) {
	t.Parallel()
	addr := liar(t, func(line string, to net.Conn) {
		var n uint64
		if _, err := fmt.Sscanf(line, "incr k%d_1767225600 1", &n); err != nil {
			t.Errorf("asked %q", line)
		}
		reply := fmt.Sprintf("%d\r\n", n+1)
		cut := rand.IntN(len(reply))
		_, _ = io.WriteString(to, reply[:cut])
		if rand.IntN(500) == 0 {
			_ = to.Close()
		}
		_, _ = io.WriteString(to, reply[cut:])
	})
	s := open(t, Config{Servers: []string{addr}, MaxInFlight: 50})
	var good, bad int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for c := range 100 {
		wg.Go(func() {
			for i := range 50 {
				n := c*50 + i
				v := send(t, s, backend.Hit{
					Key: fmt.Appendf(nil, "k%d_", n), Limit: window(1<<40, time.Hour),
					Amount: 1,
				})
				mu.Lock()
				if v.Err != nil {
					bad++
				} else if good++; v.Before != uint64(n) {
					t.Errorf("k%d was told %d", n, v.Before)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if good == 0 || bad == 0 {
		t.Errorf("%d answers, %d errors", good, bad)
	}
}

// A reply too many or too few is noticed before a caller is told the count of
// another.
func TestRepliesOutOfStep(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(reply string, to net.Conn){
		"one before":      func(reply string, to net.Conn) { _, _ = io.WriteString(to, "5\r\n"+reply) },
		"one after":       func(reply string, to net.Conn) { _, _ = io.WriteString(to, reply+"5\r\n") },
		"the same twice":  func(reply string, to net.Conn) { _, _ = io.WriteString(to, reply+reply) },
		"one check more":  func(reply string, to net.Conn) { _, _ = io.WriteString(to, reply+"VERSION 1\r\n") },
		"one check early": func(reply string, to net.Conn) { _, _ = io.WriteString(to, "VERSION 1\r\n"+reply) },
		"none":            func(string, net.Conn) {},
		"in its own packet": func(reply string, to net.Conn) {
			_, _ = io.WriteString(to, reply)
			_, _ = io.WriteString(to, "5\r\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			addr := liar(t, func(line string, to net.Conn) {
				var n uint64
				if _, err := fmt.Sscanf(line, "incr k%d_1767225600 1", &n); err != nil {
					t.Errorf("asked %q", line)
				}
				reply := fmt.Sprintf("%d\r\n", n+1)
				if asked.Add(1)%100 == 50 {
					fault(reply, to)
				} else {
					_, _ = io.WriteString(to, reply)
				}
			})
			s := open(t, Config{Servers: []string{addr}, Config: remote.Config{Connections: 1, BreakerFailures: -1}})
			var good, bad atomic.Int64
			var callers sync.WaitGroup
			for c := range 20 {
				callers.Go(func() {
					for i := range 50 {
						n := 1000 + c*50 + i
						v := send(t, s, backend.Hit{
							Key: fmt.Appendf(nil, "k%d_", n), Limit: window(1<<40, time.Hour),
							Amount: 1,
						})
						switch {
						case v.Err != nil:
							bad.Add(1)
						case v.Before != uint64(n):
							t.Errorf("k%d was told %d", n, v.Before)
						default:
							good.Add(1)
						}
					}
				})
			}
			callers.Wait()
			if good.Load() == 0 || bad.Load() == 0 {
				t.Errorf("%d answers, %d errors, want some of each", good.Load(), bad.Load())
			}
		})
	}
}

// replies are all that Memcached says to incr, decr and add.
var replies = regexp.MustCompile("^(?:[0-9]+|STORED|NOT_STORED|NOT_FOUND|(?:SERVER|CLIENT)_ERROR [^\n]*)\r\n$")

// FuzzReply has a server say anything to one command.
func FuzzReply(f *testing.F) {
	for _, reply := range []string{
		"1\r\n", "\n", "\r\n", "1\r\n2\r\n", "ERROR\r\n", "SERVER_ERROR out of memory\r\n",
		"CLIENT_ERROR \r\n", "VERSION 1.6\r\n", "NOT_STORED\r\n", "12 apples\r\n", "12", strings.Repeat("1",
			2000) + "\r\n",
	} {
		f.Add([]byte(reply))
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		said = said[:min(len(said), 4000)]
		var n uint64
		x := newExchange(1, new(Counts), nil)
		defer x.Close()
		c := remote.NewCall()
		c.Keys = append(c.Keys, 'k')
		c.AddHit(remote.NewHit(&backend.Hit{Limit: window(1<<40, time.Hour), Op: algorithm.Look, Amount: 1}))
		x.AddHits(c, 0, 1)
		t1 := x.counterClients[0]
		t1.resumeCoroutine() // until it has sent incr
		if got := string(x.commands); got != "incr k 0\r\n" {
			t.Fatalf("sent %q", got)
		}
		err := x.readReplies(bufio.NewReaderSize(bytes.NewReader(append(said, "VERSION 1\r\n"...)), 16<<10))
		end := bytes.IndexByte(said, '\n')
		whole := end == len(said)-1 && len(said) <= maxReplyBytes && replies.Match(said)
		if whole != (err == nil) {
			t.Fatalf("%q: %v", said, err)
		}
		if !whole {
			return
		}
		t1.resumeCoroutine()
		r := c.Hits[0].Result
		switch reply, isError := errors.AsType[Error](r.Err); {
		case isErrorReply(said):
			if !isError || !bytes.HasPrefix(said, []byte(reply)) {
				t.Errorf("%q is %v", said, r.Err)
			}
		case string(said) == "NOT_FOUND\r\n":
			if r.CountBefore != 0 || r.Err != nil {
				t.Errorf("%q is %d, %v", said, r.CountBefore, r.Err)
			}
		default:
			_, err := fmt.Sscan(string(said), &n)
			if (err == nil) != (r.Err == nil) || err == nil && r.CountBefore != int64(min(n, algorithm.MaxCount)) {
				t.Errorf("%q is %d, %v", said, r.CountBefore, r.Err)
			}
		}
	})
}

// Calls on one key become one command.
func TestOneCommandForAKey(t *testing.T) {
	t.Parallel()
	x := newExchange(4, new(Counts), nil)
	defer x.Close()
	for _, keys := range []string{"akb", "k", "kc"} {
		c := remote.NewCall()
		for i, key := range []byte(keys) {
			c.Keys = append(c.Keys, key)
			c.AddHit(remote.NewHit(&backend.Hit{Limit: window(1<<40, time.Hour), Amount: 1}))
			if x.HasRoom(0, 5) || !x.HasRoom(x.usedClients, 0) {
				t.Error("there is room for five counters, or none at all")
			}
			x.AddHits(c, i, i+1)
		}
	}
	for _, client := range x.counterClients {
		client.resumeCoroutine()
	}
	if got, want := string(x.commands), "incr a 1\r\nincr k 3\r\nincr b 1\r\nincr c 1\r\n"; got != want {
		t.Errorf("sent %q, want %q", got, want)
	}
}
