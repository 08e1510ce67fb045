package h2

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

// slowStore is a Decide that waits for calls whose message begins with "slow", until release, and for those with "5 ms"
// so long.
type slowStore struct {
	waiting atomic.Int32
	done    chan struct{}
}

// withSlowStore runs a test in fake time.
func withSlowStore(t *testing.T, test func(*testServer, *slowStore)) {
	t.Helper()
	store := new(slowStore)
	inFakeTime(t, Config{DecideWaits: true, Decide: store.decide}, func(_ *testing.T, s *testServer) {
		store.done = make(chan struct{}) // It belongs to the bubble.
		test(s, store)
	})
}

func (s *slowStore) decide(b *Batch) {
	for i := range b.Calls {
		if strings.HasPrefix(string(b.Calls[i].Message), "slow") {
			s.waiting.Add(1)
			select {
			case <-s.done:
			case <-b.Context().Done():
			}
			s.waiting.Add(-1)
			break
		}
		if string(b.Calls[i].Message) == "5 ms" {
			time.Sleep(5 * time.Millisecond)
		}
	}
	echo(b)
}

func (s *slowStore) release() { close(s.done) }

// makeSlow lets the average time of Decide on a connection grow, so that each batch is handed over at once.
func (c *conn) makeSlow() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.averageWait = time.Hour
}

// onlyConn returns the only connection of s.
func (s *testServer) onlyConn() *conn {
	conns := s.openConns(nil)
	if len(conns) != 1 {
		s.t.Fatalf("%d connections", len(conns))
	}
	return conns[0]
}

// TestHandOverLate decides a slow batch first. The checks of all connections find that it is late, so that later calls
// pass it.
func TestHandOverLate(t *testing.T) {
	withSlowStore(t, func(s *testServer, store *slowStore) {
		c := s.connect()
		slow := c.call("slow")
		c.flush()
		synctest.Wait()
		start := time.Now()
		c.expectAnswer(c.call("fast"), "fast")
		if passed := time.Since(start); passed == 0 || passed > 2*lateAfter+time.Millisecond {
			t.Errorf("the fast call took %v", passed)
		}
		if c.answers[slow] != nil {
			t.Error("the slow call has an answer")
		}
		store.release()
		c.expectAnswer(slow, "slow")
		c.expectAlive()
	})
}

// TestHandOverAverage decides batches that take 5 ms. After some of them, a call does not wait for the one before it.
func TestHandOverAverage(t *testing.T) {
	withSlowStore(t, func(s *testServer, store *slowStore) {
		c := s.connect()
		for range 5 {
			c.expectAnswer(c.call("5 ms"), "5 ms")
		}
		slow := c.call("slow")
		c.flush()
		synctest.Wait()
		start := time.Now()
		c.expectAnswer(c.call("fast"), "fast")
		if passed := time.Since(start); passed != 0 {
			t.Errorf("the fast call took %v", passed)
		}
		store.release()
		c.expectAnswer(slow, "slow")
		for range 50 { // The average falls again, so that the reader decides by itself.
			c.expectAnswer(c.call("fast"), "fast")
		}
		if k := s.onlyConn(); k.averageWait > handOverAfter {
			t.Errorf("Decide takes %v on average", k.averageWait)
		}
	})
}

// TestHandOverBound sends more slow batches than may be handed over. The last ones wait, and all get their answers.
func TestHandOverBound(t *testing.T) {
	withSlowStore(t, func(s *testServer, store *slowStore) {
		c := s.connect()
		c.expectAlive()
		k := s.onlyConn()
		k.makeSlow()
		ids := make(map[uint32]string)
		for i := range maxHandedOver + 10 {
			text := fmt.Sprint("slow ", i)
			ids[c.call(text)] = text
			if i <= maxHandedOver { // The reader waits for Decide then, and reads no more.
				c.flush()
			}
			synctest.Wait()
		}
		flushed := make(chan struct{})
		go func() {
			c.flush()
			close(flushed)
		}()
		time.Sleep(time.Second)
		if n := store.waiting.Load(); n != maxHandedOver+1 {
			t.Errorf("%d batches are decided at a time", n)
		}
		if held := s.account(0).held.Load(); held < maxHandedOver*smallBufferBytes {
			t.Errorf("the account holds %d bytes for %d buffers", held, maxHandedOver)
		}
		store.release()
		<-flushed
		for id, text := range ids {
			c.expectAnswer(id, text)
		}
		synctest.Wait()
		if held := s.account(0).held.Load(); held != 0 {
			t.Errorf("the account holds %d bytes after the answers", held)
		}
	})
}

// TestHandOverReset resets a call while it is decided, and changes the windows of others.
func TestHandOverReset(t *testing.T) {
	withSlowStore(t, func(s *testServer, store *slowStore) {
		c := s.dial()
		c.greet(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		short, reset, updated := c.call("slow short"), c.call("slow reset", "grpc-timeout", "9S"),
			c.call("slow updated", "grpc-timeout", "1H")
		c.flush()
		time.Sleep(time.Second) // The batch is handed over.
		c.reset(reset)
		c.frame(http2.FrameWindowUpdate, 0, updated, number(100))
		c.frame(http2.FrameWindowUpdate, 0, short, number(3))
		c.flush()
		synctest.Wait()
		store.release()
		c.expectAnswer(updated, "slow updated")
		synctest.Wait()
		c.frame(http2.FramePing, 0, 0, "12345678")
		c.await("PING", func(f http2.Frame) bool { return f.Header().Type == http2.FramePing })
		if c.answers[reset] != nil {
			t.Error("the call that was reset has an answer")
		}
		if a := c.answers[short]; len(a.data) != 3 || a.isEnded {
			t.Errorf("the answer with a window of 3 bytes is %q", a.data)
		}
		c.frame(http2.FrameWindowUpdate, 0, short, number(100))
		c.expectAnswer(short, "slow short")
		if k := s.onlyConn(); k.activeStreams != 0 || len(k.streams) != 0 {
			t.Errorf("%d streams are left", k.activeStreams)
		}
	})
}

// TestHandOverClose closes a connection while one batch is handed over and the reader decides another.
func TestHandOverClose(t *testing.T) {
	withSlowStore(t, func(s *testServer, store *slowStore) {
		c := s.connect()
		c.expectAlive()
		k := s.onlyConn()
		k.makeSlow()
		c.call("slow")
		c.flush()
		synctest.Wait()
		c.call("slow, too")
		c.open() // Its message never comes.
		c.flush()
		synctest.Wait()
		if n := store.waiting.Load(); n != 2 {
			t.Fatalf("%d batches are decided", n)
		}
		_ = c.net.Close()
		synctest.Wait() // The readers learn of it, and the contexts of the batches end.
		if n := store.waiting.Load(); n != 0 {
			t.Errorf("%d batches are decided after the close", n)
		}
		k.checkEnded(t)
	})
}

// TestCloseWhileWriting closes a connection whose client does not read, while answers wait for a write of others.
func TestCloseWhileWriting(t *testing.T) {
	withSlowStore(t, func(s *testServer, _ *slowStore) {
		c := s.connect()
		c.expectAlive()
		k := s.onlyConn()
		k.makeSlow()
		c.net.(*pipe).pause(true)
		for range 4 {
			c.call("fast")
			c.flush()
			synctest.Wait()
		}
		if held := s.account(0).held.Load(); held == 0 {
			t.Error("the answers do not wait")
		}
		k.close()
		synctest.Wait()
		k.checkEnded(t)
	})
}

// TestAnswersStress runs connections whose clients send calls of all sizes at once, reset some and change windows,
// while Decide takes any time. Each call gets its own answer.
func TestAnswersStress(t *testing.T) {
	t.Parallel()
	for _, waits := range []bool{false, true} {
		t.Run(fmt.Sprint("waits=", waits), func(t *testing.T) {
			t.Parallel()
			echoSlowly := slowEcho(t)
			s := startServer(t, Config{DecideWaits: waits, Decide: func(b *Batch) {
				if rand.N(4) == 0 && waits {
					<-time.After(rand.N(20 * time.Millisecond))
				}
				echoSlowly(b)
			}})
			var clients sync.WaitGroup
			for i := range 8 {
				clients.Go(func() { stress(s, i) })
			}
			clients.Wait()
		})
	}
}

func stress(s *testServer, number int) {
	c := s.dial()
	c.greet(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	c.must(c.WriteWindowUpdate(0, 1<<30))
	random := rand.New(rand.NewPCG(uint64(number), 1))
	calls := make(map[uint32]string)
	const texts = "answers to other calls differ in each byte; "
	for round := range 40 {
		for call := range random.IntN(20) {
			size := random.IntN(200)
			if random.IntN(20) == 0 {
				size = random.IntN(100_000)
			}
			message := strings.Repeat(fmt.Sprint("\x01", number, ".", round, ".", call, texts), size/50+1)
			id := c.open("grpc-timeout", fmt.Sprint(1+random.IntN(1000), "S"))
			for body := prefixed(message); body != ""; {
				n := min(len(body), maxFrameBytes)
				flags := uint8(0)
				if n == len(body) {
					flags = flagEndStream
				}
				c.frame(http2.FrameData, flags, id, body[:n])
				body = body[n:]
			}
			calls[id] = message
			if random.IntN(10) == 0 {
				c.reset(id)
				delete(calls, id)
			}
		}
		if random.IntN(3) == 0 {
			c.must(c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<18 + random.Uint32N(1<<20)}))
		}
		c.flush()
		for id, message := range calls {
			if random.IntN(2) == 0 {
				c.expectAnswer(id, message)
				delete(calls, id)
			}
		}
	}
	for id, message := range calls {
		c.expectAnswer(id, message)
	}
}

// TestUpdateAfterEnd enlarges the window of a stream that has ended. A client may not know yet that it has, so this has
// no effect, whatever the size of the windows.
func TestUpdateAfterEnd(t *testing.T) {
	t.Parallel()
	c := startServer(t, Config{}).dial()
	c.greet(http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow})
	id := c.call("x")
	c.expectAnswer(id, "x")
	c.frame(http2.FrameWindowUpdate, 0, id, number(6))
	c.expectAlive()
	if c.answers[id].isReset {
		t.Error("the server reset the stream")
	}
}
