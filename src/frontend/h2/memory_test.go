package h2

import (
	"bytes"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"ratelimit/testbed/harness"
)

// isSmall reports whether the connection has no more memory than an idle one needs. The caller holds mu.
func (c *conn) isSmall() bool {
	return (c.socket != nil || len(c.buffer) == smallBufferBytes) && cap(c.out)+cap(c.spare) == 0 &&
		cap(c.head.fields) == 0 &&
		cap(c.decoder.texts) < 2*maxTableBytes && cap(c.decoder.dynamic) < 2*maxTableBytes/fieldOverhead
}

// TestShrink lets a connection become idle after different uses. It then has little memory, and works as before.
func TestShrink(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]func(c *client){
		"large calls": func(c *client) {
			c.must(c.WriteWindowUpdate(0, 1<<20))
			message := strings.Repeat("x", 10_000)
			for range 20 {
				c.expectAnswer(c.call(message), message)
			}
		},
		"many calls": func(c *client) {
			for range 300 {
				c.call("x")
			}
			c.expectAlive()
		},
		"many fields": func(c *client) {
			for i := range 1000 {
				c.expectAnswer(c.call("x", "x-request-id", fmt.Sprint("a text that is new in each call: ", i)), "x")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inFakeTime(t, Config{}, func(t *testing.T, s *testServer) {
				c := s.connect()
				use(c)
				time.Sleep(2 * shrinkAfter)
				synctest.Wait()
				k := s.onlyConn()
				k.mu.Lock()
				if !k.isSmall() || !k.isShrunk {
					t.Errorf("the idle connection has a buffer of %d bytes, output of %d and %d, texts of %d, %d fields, shrunk: %t",
						len(k.buffer),
						cap(k.out), cap(k.spare), cap(k.decoder.texts), cap(k.decoder.dynamic), k.isShrunk)
				}
				k.mu.Unlock()
				use(c)
			})
		})
	}
}

// TestShrinkMeetsInput lets input arrive after the read deadline is set that wakes up the reader of an idle connection.
func TestShrinkMeetsInput(t *testing.T) {
	inFakeTime(t, Config{}, func(t *testing.T, s *testServer) {
		c := s.connect()
		message := strings.Repeat("x", 10_000)
		c.expectAnswer(c.call(message), message)
		k := s.onlyConn()
		k.mu.Lock()
		if len(k.buffer) != largeBufferBytes {
			t.Errorf("the buffer has %d bytes", len(k.buffer))
		}
		_ = k.net.SetReadDeadline(time.Now()) // A pipe in fake time has deadlines.
		k.mu.Unlock()
		c.expectAlive()
	})
}

// endPing is the content of the last PING of a burst.
const endPing = "the end!"

// burst returns what a client sends that does calls in one write, and then a PING. Fresh calls have a text that is new
// in each.
func burst(t testing.TB, calls int, fresh bool) []byte {
	var sent recordingConn
	c := newClient(t, &sent)
	c.greet()
	for i := range calls {
		if !fresh {
			i = 0
		}
		c.call("a message", "x-request-id", fmt.Sprint("a text that is new in each call: ", i))
	}
	c.frame(http2.FramePing, 0, 0, endPing)
	c.must(c.out.Flush())
	return sent.Bytes()
}

// recordingConn is a connection of which only Write works.
type recordingConn struct {
	net.Conn
	bytes.Buffer
}

func (c *recordingConn) Write(b []byte) (int, error) { return c.Buffer.Write(b) }
func (c *recordingConn) Read(b []byte) (int, error)  { return c.Buffer.Read(b) }
func (c *recordingConn) Close() error                { return nil }

// memoryInUse returns the bytes of the heap and of stacks after garbage collection.
func memoryInUse() int64 {
	for range 3 { // Pools keep their content for a cycle. Stacks become half as large in each.
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// idleMemory returns how many bytes a connection needs that is idle after a burst of calls: the average of so many
// connections. The client's sockets are a part of it.
func idleMemory(t testing.TB, conns int, fresh bool) int64 {
	s := startServer(t, Config{})
	sent, answer := burst(t, 50, fresh), make([]byte, 64<<10)
	clients := make([]net.Conn, conns)
	before := memoryInUse()
	for i := range clients {
		raw, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		clients[i] = raw
		if _, err := raw.Write(sent); err != nil {
			t.Fatal(err)
		}
		for received := 0; !bytes.Contains(answer[:received], []byte(endPing)); {
			n, err := raw.Read(answer[received:])
			if err != nil {
				t.Fatal(err)
			}
			received += n
		}
	}
	harness.Until(t, "all connections are small", func() bool {
		for _, c := range s.openConns(nil) {
			c.mu.Lock()
			isSmall := c.isSmall()
			c.mu.Unlock()
			if !isSmall {
				return false
			}
		}
		return true
	})
	perConn := (memoryInUse() - before) / int64(conns)
	for _, raw := range clients {
		_ = raw.Close()
	}
	return perConn
}

// TestChargedMemory opens connections that leave as much behind as they can, and compares the memory in use with what
// the accounts hold. It is not parallel, so that other tests do not change the memory.
func TestChargedMemory(t *testing.T) {
	const conns, slack = 300, 28 << 10 // slack includes the client's socket, and what the race detector adds.
	for name, attack := range map[string]func(c *client){
		"a list of references": func(c *client) {
			block := c.encode(append(requestFields(methodPath), "a",
				strings.Repeat("y", 1000))...) + strings.Repeat("\xbe", 1900)
			c.frame(http2.FrameHeaders, flagEndHeaders|flagEndStream, c.newID(), block)
		},
		"a list of references that comes again": func(c *client) {
			c.call("x", "a", strings.Repeat("y", 3000))
			for range 2 {
				c.frame(http2.FrameHeaders, flagEndHeaders|flagEndStream, c.newID(), strings.Repeat("\xbe", maxHeadBlock))
			}
		},
		"a long text": func(c *client) {
			c.frame(http2.FrameHeaders, flagEndHeaders, c.newID(), c.encode("a", strings.Repeat("a", 16<<10)))
		},
		"half a frame": func(c *client) { c.write("\x00\x3f\xff\x00\x00\x00\x00\x00\x01" + strings.Repeat("x", 10<<10)) },
		"half a block": func(c *client) { c.frame(http2.FrameHeaders, 0, c.newID(), strings.Repeat("\x90", 10<<10)) },
		"requests with many fields": func(c *client) {
			for range 20 {
				c.openMethod(otherPath, slices.Repeat([]string{"a", "b"}, 90)...)
			}
		},
		"requests with long fields": func(c *client) {
			for range 20 {
				c.openMethod(otherPath, slices.Repeat([]string{"a", strings.Repeat("y", 100)}, 90)...)
			}
		},
		"requests without a message": func(c *client) {
			for range 100 {
				c.openMethod(otherPath)
			}
		},
		"half a message": func(c *client) {
			c.frame(http2.FrameData, 0, c.open(), prefixed(strings.Repeat("x", 12<<10))[:10<<10])
		},
		"many open calls": func(c *client) {
			for range 500 {
				c.open()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := startServer(t, Config{})
			var sent recordingConn
			attacker := newClient(t, &sent)
			attacker.greet()
			attacker.frame(http2.FramePing, 0, 0, endPing)
			attack(attacker)
			attacker.must(attacker.out.Flush())
			before := memoryInUse()
			for range conns {
				raw, err := net.Dial("tcp", s.addr)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = raw.Close() })
				if _, err := raw.Write(sent.Bytes()); err != nil {
					t.Fatal(err)
				}
			}
			harness.AwaitQuiet(t, 200*time.Millisecond, "all has been read", func() (reads int64) {
				for _, c := range s.openConns(nil) {
					c.mu.Lock()
					reads += int64(c.lastRead.Nanosecond())
					c.mu.Unlock()
				}
				return reads
			})
			inUse, charged := (memoryInUse()-before)/conns, int64(0)
			for i := range conns {
				charged += s.account(i).held.Load() / conns
			}
			if inUse > charged*13/10+slack {
				t.Errorf("each connection uses %d bytes, and is charged %d", inUse, charged)
			}
		})
	}
}

// TestHandlerMemory compares the memory of handlers of grpc-go that wait with what the account holds for them. It is
// not parallel.
func TestHandlerMemory(t *testing.T) {
	const conns = maxHandlers / maxHandlersOfConn
	for _, path := range []string{otherPath, streamPath} {
		s := startServer(t, grpcConfig())
		message, _ := proto.Marshal(wrapperspb.String("wait")) // A text can always be encoded.
		before := memoryInUse()
		for i := range conns {
			c := s.connect()
			for range maxHandlersOfConn {
				c.frame(http2.FrameData, 0, c.openMethod(path), prefixed(string(message)))
			}
			c.flush()
			harness.Until(t, "handlers run", func() bool {
				return len(s.openConns(nil)) == i+1 && s.account(i).held.Load() > maxHandlersOfConn*handlerBytes
			})
		}
		time.Sleep(100 * time.Millisecond) // Handlers reach the place where they wait.
		inUse, charged := memoryInUse()-before, int64(0)
		for i := range conns {
			charged += s.account(i).held.Load()
		}
		t.Logf("%s: %d bytes for each handler, charged %d", path, inUse/maxHandlers, charged/maxHandlers)
		if inUse > charged*13/10+conns*(100<<10) {
			t.Errorf("%s: %d handlers use %d bytes, and are charged %d", path, maxHandlers, inUse, charged)
		}
	}
}

// TestIdleMemory is not parallel, so that other tests do not change the memory.
func TestIdleMemory(t *testing.T) {
	if n := idleMemory(t, 300, true); n > 20<<10 {
		t.Errorf("an idle connection with a full dynamic table needs %d bytes", n)
	}
}

// BenchmarkIdleMemory reports the memory of an idle connection.
func BenchmarkIdleMemory(b *testing.B) {
	for _, fresh := range []bool{false, true} {
		b.Run(fmt.Sprint("fresh=", fresh), func(b *testing.B) {
			var perConn int64
			for b.Loop() {
				perConn = idleMemory(b, 2000, fresh)
			}
			b.ReportMetric(float64(perConn), "B/conn")
		})
	}
}
