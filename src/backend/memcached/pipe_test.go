package memcached

import (
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

	"ratelimit/src/backend"
)

// However replies are cut into pieces, and whenever the connection breaks, nobody
// gets another's.
func TestRepliesAreTheirs(t *testing.T) {
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
	s := open(t, Config{Servers: []string{addr}, InFlight: 50})
	var good, bad int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for c := range 100 {
		wg.Go(func() {
			for i := range 100 {
				n := c*100 + i
				v := take(t, s, backend.Hit{Key: fmt.Appendf(nil, "k%d_", n), Limit: window(1<<40, time.Hour), Amount: 1})
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
			s := open(t, Config{Servers: []string{addr}, Connections: 1, BreakerFailures: -1})
			var good, bad atomic.Int64
			var callers sync.WaitGroup
			for c := range 20 {
				callers.Go(func() {
					for i := range 50 {
						n := 1000 + c*50 + i
						v := take(t, s, backend.Hit{Key: fmt.Appendf(nil, "k%d_", n), Limit: window(1<<40, time.Hour), Amount: 1})
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

// slowToClose is a connection whose Close takes until it is let go, as that of TLS
// may while the other end takes nothing.
type slowToClose struct {
	net.Conn
	closing, letGo chan struct{}
}

func (c *slowToClose) Close() error {
	close(c.closing)
	<-c.letGo
	return c.Conn.Close()
}

// A pipe that broke is out of the way before its connection is closed: who waited
// on it knows, and who comes next gets another.
func TestSlowClose(t *testing.T) {
	here, there := net.Pipe()
	conn := &slowToClose{here, make(chan struct{}), make(chan struct{})}
	out := make(chan struct{})
	p := &pipe{conn: conn, timeout: time.Minute, answered: func() {}, ended: func(error, bool) { close(out) }}
	var all sync.WaitGroup
	defer all.Wait()
	defer close(conn.letGo)
	all.Go(p.receive)
	g := newGuard(func() (*pipe, error) { return p, nil })
	all.Go(func() {
		_, _ = io.ReadFull(there, make([]byte, len("version\r\nversion\r\n"))) // the second is the check
		_ = there.Close()
	})
	if _, err := g.Write([]byte("version\r\n")); err != nil {
		t.Fatal(err)
	}
	<-conn.closing
	deadline := time.After(10 * time.Second)
	select {
	case <-out:
	case <-deadline:
		t.Fatal("the next would get the broken pipe, over and over")
	}
	select {
	case <-g.done:
	case <-deadline:
		t.Error("who waits for a reply is not told")
	}
}

// replies are all that Memcached says to incr, decr and add.
var replies = regexp.MustCompile("^(?:[0-9]+|STORED|NOT_STORED|NOT_FOUND|(?:SERVER|CLIENT)_ERROR [^\n]*)\r\n$")

// FuzzReply has a server say anything to one command.
func FuzzReply(f *testing.F) {
	for _, reply := range []string{"1\r\n", "\n", "\r\n", "1\r\n2\r\n", "ERROR\r\n", "SERVER_ERROR out of memory\r\n", "CLIENT_ERROR \r\n", "VERSION 1.6\r\n", "NOT_STORED\r\n", "12 apples\r\n", "12", strings.Repeat("1", 2000) + "\r\n"} {
		f.Add([]byte(reply))
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		said = said[:min(len(said), 4000)]
		here, there := net.Pipe()
		broken := make(chan error, 1)
		p := &pipe{conn: here, timeout: time.Minute, proved: func() {}, answered: func() {}, ended: func(err error, _ bool) { broken <- err }}
		var reading sync.WaitGroup
		reading.Go(p.receive)
		g := newGuard(func() (*pipe, error) { return p, nil })
		var asking sync.WaitGroup
		asking.Go(func() {
			_, _ = io.ReadFull(there, make([]byte, len("incr k 1\r\nversion\r\n")))
			_, _ = there.Write(append(said, "VERSION 1\r\n"...))
			_ = there.Close()
		})
		if _, err := g.Write([]byte("incr k 1\r\n")); err != nil {
			t.Fatal(err)
		}
		buffer := make([]byte, 4096)
		n, err := g.Read(buffer)
		asking.Wait()
		reading.Wait()
		if <-broken == nil {
			t.Error("it ended without a reason")
		}
		end := bytes.IndexByte(said, '\n')
		whole := end == len(said)-1 && len(said) <= maxReply && replies.Match(said)
		switch {
		case whole != (err == nil):
			t.Errorf("%q: %q, %v", said, buffer[:n], err)
		case !whole:
		case g.refused != nil:
			if reply, ok := errors.AsType[Error](g.refused); !ok || !bytes.HasPrefix(said, []byte(reply)) || string(buffer[:n]) != "NOT_FOUND\r\n" {
				t.Errorf("%q is %v, and gomemcache is told %q", said, g.refused, buffer[:n])
			}
		case !bytes.Equal(buffer[:n], said):
			t.Errorf("%q became %q", said, buffer[:n])
		}
	})
}
