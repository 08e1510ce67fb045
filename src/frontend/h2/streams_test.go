package h2

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

// gate is a Decide and a Handler that wait until it is open. It counts the calls and requests in it.
type gate struct {
	opened               chan struct{}
	once                 sync.Once
	running, most, total atomic.Int64
}

func newGate() *gate { return &gate{opened: make(chan struct{})} }

func (g *gate) open() { g.once.Do(func() { close(g.opened) }) }

func (g *gate) pass(n int64) {
	running := g.running.Add(n)
	for most := g.most.Load(); running > most && !g.most.CompareAndSwap(most, running); most = g.most.Load() {
	}
	g.total.Add(n)
	<-g.opened
	g.running.Add(-n)
}

func (g *gate) decide(b *Batch) {
	g.pass(int64(len(b.Calls)))
	echo(b)
}

// ServeHTTP waits even if the client does not, and then answers with the body.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.pass(1)
	echoBody(w, r)
}

// noStream is the state of a stream that has no entry.
const noStream streamState = 99

// expectState checks the state of a stream of the only connection when all goroutines wait.
func (s *testServer) expectState(id uint32, want streamState) {
	s.t.Helper()
	synctest.Wait()
	c := s.openConns(nil)[0]
	c.mu.Lock()
	defer c.mu.Unlock()
	got := noStream
	if found := c.find(id); found != nil {
		got = found.state
	}
	if got != want {
		s.t.Errorf("stream %d: state %d, want %d", id, got, want)
	}
}

// expectActive checks how many streams count.
func (s *testServer) expectActive(want uint32) {
	s.t.Helper()
	synctest.Wait()
	c := s.openConns(nil)[0]
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.activeStreams != want {
		s.t.Errorf("%d active streams, want %d", c.activeStreams, want)
	}
}

// streamStep is a step of stream 1 from one state to another.
type streamStep struct {
	name string
	// to is what leads to the first state, and do what leads to the second one.
	to   func(*client)
	from streamState
	do   func(*client, *gate)
	want streamState
	// active is how many streams count then.
	active uint32
	// end checks the end of the stream after the gate is open. If it is nil, the answer is prefixed("x").
	end func(*client)
}

// Ways to a state of stream 1. With an initial window of 0, no answer is complete.
func toIdle(*client)         {}
func toCollecting(c *client) { c.open(); c.flush() }
func toDeciding(c *client)   { c.call("x"); c.flush() }
func toHandled(c *client)    { c.openOther(); c.flush() }

func toWaiting(c *client) {
	for range maxHandlersOfConn + 1 {
		c.openOther()
	}
	c.flush()
}

func toReplying(c *client) {
	c.frame(http2.FrameSettings, 0, 0, setting(http2.SettingInitialWindowSize, 0))
	c.call("x")
	c.flush()
}

func sends(f func(*client)) func(*client, *gate) {
	return func(c *client, _ *gate) { f(c); c.flush() }
}

func opens(_ *client, g *gate) { g.open() }

func noEnd(*client) {}

func resets(id uint32) func(*client, *gate) { return sends(func(c *client) { c.reset(id) }) }

// TestStreamStates has a test for each step of a stream from a state to the next, as doc.go draws them.
func TestStreamStates(t *testing.T) {
	t.Parallel()
	x := prefixed("x")
	window := func(id uint32) func(*client, *gate) {
		return func(c *client, g *gate) { g.open(); c.frame(http2.FrameWindowUpdate, 0, id, number(100)); c.flush() }
	}
	for _, st := range []streamStep{
		{
			"idle to collecting", toIdle, noStream, sends(toCollecting), collecting, 1,
			func(c *client) { c.finishCall(1, "x"); c.expectAnswer(1, "x") },
		},
		{
			"idle to handled", toIdle, noStream, sends(toHandled), handled, 1,
			func(c *client) { c.finishCall(1, "x"); c.expectBody(1, x) },
		},
		{"idle to handled by content type", toIdle, noStream, sends(func(c *client) {
			c.frame(http2.FrameHeaders, flagEndHeaders, c.newID(),
				c.encode(":method", "POST", ":scheme", "http", ":path", methodPath, "content-type", "text/plain"))
		}), handled, 1, func(c *client) { c.finishCall(1, "x"); c.expectBody(1, x) }},
		{
			"idle to collecting for Handler", toIdle, noStream, sends(func(c *client) { c.openMethod(otherPath) }),
			collecting, 1,
			func(c *client) { c.finishCall(1, "x"); c.expectBody(1, x) },
		},
		{
			"idle to collecting for Handler by compression", toIdle, noStream,
			sends(func(c *client) { c.open("grpc-encoding", "gzip") }), collecting, 1,
			func(c *client) { c.finishCall(1, "x"); c.expectBody(1, x) },
		},
		{
			"collecting to handled: a message for Handler", func(c *client) { c.openMethod(otherPath); c.flush() }, collecting,
			sends(func(c *client) { c.frame(http2.FrameData, 0, 1, x) }), handled, 1, func(c *client) { c.expectBody(1, x) },
		},
		{
			"collecting to closed by a timeout of 0", toIdle, noStream, sends(func(c *client) { c.open("grpc-timeout", "0n") }),
			noStream, 0,
			func(c *client) { c.expectStatus(1, "4") },
		},
		{
			"idle to handled without a body", toIdle, noStream,
			sends(func(c *client) { sendHead(requestFields(methodPath)...)(c) }), handled, 1,
			func(c *client) { c.expectBody(1, "") },
		},
		{
			"collecting a part", toCollecting, collecting, sends(func(c *client) { c.frame(http2.FrameData, 0, 1, x[:3]) }),
			collecting, 1,
			func(c *client) { c.frame(http2.FrameData, flagEndStream, 1, x[3:]); c.expectAnswer(1, "x") },
		},
		{
			"collecting to deciding", toCollecting, collecting, sends(func(c *client) { c.finishCall(1, "x") }), noStream, 1,
			func(c *client) { c.expectAnswer(1, "x") },
		},
		{"collecting to deciding after parts", toCollecting, collecting, sends(func(c *client) {
			c.frame(http2.FrameData, 0, 1, x)
			c.frame(http2.FrameData, flagEndStream, 1, "")
		}), noStream, 1, func(c *client) { c.expectAnswer(1, "x") }},
		{
			"collecting to handled: compressed", toCollecting, collecting,
			sends(func(c *client) { c.frame(http2.FrameData, flagEndStream, 1, "\x01"+x[1:]) }),
			handled, 1, func(c *client) { c.expectBody(1, "\x01"+x[1:]) },
		},
		{
			"collecting to handled: two messages", toCollecting, collecting,
			sends(func(c *client) { c.frame(http2.FrameData, 0, 1, x+x) }),
			handled, 1, func(c *client) { c.expectBody(1, x) },
		},
		{
			"collecting to handled: half a message", toCollecting, collecting,
			sends(func(c *client) { c.frame(http2.FrameData, flagEndStream, 1, x[:5]) }),
			handled, 1, func(c *client) { c.expectBody(1, x[:5]) },
		},
		{
			"collecting to handled: no message", toCollecting, collecting,
			sends(func(c *client) { c.frame(http2.FrameData, flagEndStream, 1, "") }),
			handled, 1, func(c *client) { c.expectBody(1, "") },
		},
		{
			"collecting to handled: empty trailers", toCollecting, collecting,
			sends(func(c *client) { c.frame(http2.FrameHeaders, flagEndHeaders|flagEndStream, 1, "") }),
			handled, 1, func(c *client) { c.expectBody(1, "") },
		},
		{
			"collecting to handled: large", toCollecting, collecting, sends(func(c *client) { c.finishCall(1, "large") }),
			handled, 1, func(c *client) { c.expectBody(1, prefixed("large")) },
		},
		{
			"collecting to handled: too long, before its end", toCollecting, collecting,
			sends(func(c *client) { c.frame(http2.FrameData, 0, 1, "\x00\x00\x00\x03\xe9") }),
			handled, 1, func(c *client) {
				c.frame(http2.FrameData, flagEndStream, 1, "x")
				// The handler need not wait for the rest.
				if got := string(c.ended(1).data); got != "\x00\x00\x00\x03\xe9" && got != "\x00\x00\x00\x03\xe9x" {
					c.t.Errorf("the handler got %q", got)
				}
			},
		},
		{"collecting, reset", toCollecting, collecting, resets(1), noStream, 0, noEnd},
		{
			"collecting, reset by the server", toCollecting, collecting,
			sends(func(c *client) { c.frame(http2.FrameWindowUpdate, 0, 1, number(maxWindow)) }), noStream, 0,
			func(c *client) { c.expectReset(1, http2.ErrCodeFlowControl) },
		},
		{
			"collecting a part, reset", func(c *client) { toCollecting(c); c.frame(http2.FrameData, 0, 1, x[:3]); c.flush() },
			collecting, resets(1), noStream, 0, noEnd,
		},
		{"deciding to closed", toDeciding, noStream, opens, noStream, 0, func(c *client) { c.expectAnswer(1, "x") }},
		{"deciding, reset", toDeciding, noStream, resets(1), noStream, 1, noEnd},
		{
			"deciding to replying", toReplying, noStream, opens, replying, 1,
			func(c *client) { c.frame(http2.FrameWindowUpdate, 0, 1, number(6)); c.expectAnswer(1, "x") },
		},
		{"waiting to handled", toWaiting, waiting, nil, waiting, 101, nil},
		{"waiting, reset", toWaiting, waiting, resets(201), noStream, 100, nil},
		{
			"handled to closed", func(c *client) { toHandled(c); c.finishCall(1, "x"); c.flush() }, handled, opens, noStream, 0,
			func(c *client) { c.expectBody(1, x) },
		},
		{"handled, reset", toHandled, handled, resets(1), noStream, 1, noEnd},
		{"handled to replying", func(c *client) {
			c.frame(http2.FrameSettings, 0, 0, setting(http2.SettingInitialWindowSize, 0))
			toHandled(c)
			c.finishCall(1, "x")
			c.flush()
		}, handled, opens, replying, 1, func(c *client) {
			c.frame(http2.FrameWindowUpdate, 0, 1, number(6))
			c.expectBody(1, x)
		}},
		{"replying to closed", toReplying, noStream, window(1), noStream, 0, func(c *client) { c.expectAnswer(1, "x") }},
		{
			"replying, reset", toReplying, noStream,
			func(c *client, g *gate) { g.open(); synctest.Wait(); c.reset(1); c.flush() }, noStream, 0, noEnd,
		},
	} {
		t.Run(st.name, st.test)
	}
}

func (st *streamStep) test(t *testing.T) {
	g := newGate()
	cfg := Config{
		DecideWaits: true, ConnConfig: ConnConfig{MaxMessageBytes: 1000},
		IsLarge: func(message []byte) bool { return string(message) == "large" },
		Decide:  g.decide, Handler: g,
	}
	inFakeTime(t, cfg, func(t *testing.T, s *testServer) {
		g.opened = make(chan struct{}) // Channels of a test in fake time must be made in it.
		defer g.open()
		c := s.connect()
		st.to(c)
		id := c.nextID - 2
		if c.nextID == 1 {
			id = 1
		}
		s.expectState(id, st.from)
		if st.do != nil {
			st.do(c, g)
		}
		s.expectState(id, st.want)
		s.expectActive(st.active)
		g.open()
		if st.end != nil {
			st.end(c)
		} else {
			st.endWaiting(c)
		}
		c.frame(http2.FrameSettings, 0, 0, setting(http2.SettingInitialWindowSize, firstWindow))
		c.expectAlive()
		s.expectActive(0)
	})
}

// endWaiting ends the requests of toWaiting.
func (st *streamStep) endWaiting(c *client) {
	for id := uint32(1); id <= 201; id += 2 {
		if id == 201 && strings.Contains(st.name, "reset") {
			continue
		}
		c.finishCall(id, "x")
		c.expectBody(id, prefixed("x"))
	}
}

// TestWaitingRequests checks that requests above maxHandlersOfConn wait, that those above maxHandlers of all
// connections take turns, and that a request which waits too long is refused.
func TestWaitingRequests(t *testing.T) {
	const conns, calls = 10, maxHandlersOfConn + 20
	g := newGate()
	inFakeTime(t, Config{Handler: g}, func(t *testing.T, s *testServer) {
		g.opened = make(chan struct{})
		defer g.open()
		var clients []*client
		for i := range conns {
			c := s.connect()
			clients = append(clients, c)
			for range calls {
				c.finishCall(c.openMethod(otherPath, "grpc-timeout", "1H"), "x")
			}
			c.finishCall(c.openMethod(otherPath, "grpc-timeout", "1S"), "x")
			c.sync()
			synctest.Wait()
			if n, want := g.running.Load(), min(int64(i+1)*maxHandlersOfConn, maxHandlers); n != want {
				t.Errorf("%d handlers run for %d connections, want %d", n, i+1, want)
			}
		}
		for _, c := range clients {
			c.reset(2*calls - 1) // It waits, and never starts.
			c.sync()
		}
		time.Sleep(2 * time.Second)
		g.open()
		for _, c := range clients {
			for id := uint32(1); id < 2*calls-1; id += 2 {
				c.expectBody(id, prefixed("x"))
			}
			c.expectStatus(2*calls+1, strconv.Itoa(grpcDeadlineExceeded))
		}
		synctest.Wait()
		if n := g.total.Load(); n != conns*(calls-1) {
			t.Errorf("%d handlers ran, want %d", n, conns*(calls-1))
		}
		if s.slots.used != 0 || len(s.slots.waiting) != 0 {
			t.Errorf("%d handlers are left, and %d connections wait", s.slots.used, len(s.slots.waiting))
		}
	})
}

// TestHandlersStartWithAMessage: a request takes no handler before its message is complete.
func TestHandlersStartWithAMessage(t *testing.T) {
	g := newGate()
	inFakeTime(t, Config{Handler: g}, func(t *testing.T, s *testServer) {
		g.opened = make(chan struct{})
		defer g.open()
		c := s.connect()
		for range maxHandlersOfConn {
			c.frame(http2.FrameData, 0, c.openMethod(otherPath), prefixed("message")[:8])
		}
		c.sync()
		synctest.Wait()
		if n := g.running.Load(); n != 0 {
			t.Fatalf("%d handlers run", n)
		}
		for id := uint32(1); id < 2*maxHandlersOfConn; id += 2 {
			c.frame(http2.FrameData, 0, id, prefixed("message")[8:])
		}
		c.sync()
		synctest.Wait()
		if n := g.running.Load(); n != maxHandlersOfConn {
			t.Fatalf("%d handlers run", n)
		}
		g.open()
		c.expectBody(1, prefixed("message"))
	})
}

// TestBodies checks the body of a request to Handler: what Read returns while the client sends, after a reset, and
// after Close.
func TestBodies(t *testing.T) {
	results := make(chan string, 10)
	handler := func(_ http.ResponseWriter, r *http.Request) {
		b := make([]byte, 4)
		for {
			n, err := r.Body.Read(b)
			if err != nil {
				results <- err.Error()
				<-r.Context().Done()
				results <- r.Context().Err().Error()
				return
			}
			results <- string(b[:n])
			if string(b[:n]) == "stop" {
				_ = r.Body.Close()
			}
		}
	}
	read := func(t *testing.T, want string) {
		t.Helper()
		if got := <-results; got != want {
			t.Fatalf("%q, want %q", got, want)
		}
	}
	t.Parallel()
	s := startServer(t, Config{Handler: http.HandlerFunc(handler)})
	for end, want := range map[string]string{
		"stop": errStreamEnded.Error(), "end": io.EOF.Error(),
		"reset": errStreamEnded.Error(),
	} {
		c := s.connect()
		id := c.openOther()
		c.frame(http2.FrameData, 0, id, "123456")
		c.flush()
		read(t, "1234")
		read(t, "56")
		switch end {
		case "stop":
			c.frame(http2.FrameData, 0, id, "stop")
			c.flush()
			read(t, "stop")
		case "end":
			c.frame(http2.FrameData, flagEndStream, id, "last")
			c.flush()
			read(t, "last")
		case "reset":
			c.reset(id)
			c.flush()
		}
		read(t, want)
		c.reset(id)
		c.flush()
		read(t, "context canceled")
	}
}

// TestTimeoutOfCollected checks that a call that is collected first and then handled keeps its timeout.
func TestTimeoutOfCollected(t *testing.T) {
	handler := func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Header.Get("grpc-timeout")) }
	inFakeTime(t, Config{Handler: http.HandlerFunc(handler)}, func(_ *testing.T, s *testServer) {
		c := s.connect()
		for timeout, want := range map[string]string{
			"": "", "1n": "1n", "20m": "20000u", "1H": "3600000m",
			"99999999H": "86400000m",
		} {
			var more []string
			if timeout != "" {
				more = []string{"grpc-timeout", timeout}
			}
			id := c.open(more...)
			c.frame(http2.FrameData, flagEndStream, id, "\x01"+prefixed("compressed")[1:])
			c.expectBody(id, want)
		}
	})
}

// TestHandlerMissesNothing checks that a handler learns of input that arrives while it writes to a client that is slow.
func TestHandlerMissesNothing(t *testing.T) {
	handler := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "hello ") // Errors show in the client.
		echoBody(w, r)
	}
	inFakeTime(t, Config{Handler: http.HandlerFunc(handler)}, func(_ *testing.T, s *testServer) {
		c := s.connect()
		c.sync()
		c.net.(*pipe).pause(true)
		c.frame(http2.FramePing, 0, 0, "12345678") // The answer is the last input that the client takes.
		c.flush()
		synctest.Wait()
		id := c.openOther()
		c.flush()
		synctest.Wait()
		c.frame(http2.FrameData, flagEndStream, id, "world")
		c.flush()
		synctest.Wait()
		c.net.(*pipe).pause(false)
		c.expectBody(id, "hello world")
	})
}

// TestHandlerOutputIsBounded checks that a handler waits for a slow client, whatever the windows are.
func TestHandlerOutputIsBounded(t *testing.T) {
	const pieces, size = 5000, 1000
	handler := func(w http.ResponseWriter, _ *http.Request) {
		for range pieces {
			_, _ = w.Write(make([]byte, size)) // Errors show in the client.
		}
	}
	inFakeTime(t, Config{Handler: http.HandlerFunc(handler)}, func(t *testing.T, s *testServer) {
		c := s.connect()
		c.frame(http2.FrameSettings, 0, 0, setting(http2.SettingInitialWindowSize, maxWindow))
		c.frame(http2.FrameWindowUpdate, 0, 0, number(1<<30))
		c.sync()
		c.net.(*pipe).pause(true)
		ids := []uint32{c.openOther(), c.openOther(), c.openOther()}
		c.flush()
		synctest.Wait()
		conn := s.openConns(nil)[0]
		conn.mu.Lock()
		if n := len(conn.out); n > maxQueuedBytes+3*2*size {
			t.Errorf("%d bytes are queued", n)
		}
		conn.mu.Unlock()
		c.net.(*pipe).pause(false)
		for _, id := range ids {
			if a := c.ended(id); len(a.data) != pieces*size {
				t.Errorf("stream %d: %d bytes", id, len(a.data))
			}
		}
	})
}
