package h2

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

// phase waits until all goroutines of a test in fake time wait. It returns the phase of the only connection, or closed.
func (s *testServer) phase() phase {
	synctest.Wait()
	conns := s.openConns(nil)
	if len(conns) == 0 {
		return closed
	}
	conns[0].mu.Lock()
	defer conns[0].mu.Unlock()
	return conns[0].phase
}

func (s *testServer) expectPhase(want phase) {
	s.t.Helper()
	if got := s.phase(); got != want {
		s.t.Errorf("phase %d, want %d", got, want)
	}
}

// step is a step of a connection from one phase to another.
type step struct {
	name string
	// to is what the client sends to get to the first phase, and do what leads to the second one.
	to   func(*client)
	from phase
	do   func(*client, *testServer)
	want phase
}

const (
	// minAge and maxAge are the bounds of Config.MaxConnectionAge ± 10 %, and of the time until the next check.
	minAge, age, maxAge = 54 * time.Minute, time.Hour, 66*time.Minute + time.Second
)

// Ways to a phase.
func toPreface(*client)    {}
func toSettings(c *client) { c.write(http2.ClientPreface); c.flush() }
func toOpen(c *client)     { c.greet(); c.flush() }

// toLeaving and toLastCalls leave a call open.
func toLeaving(c *client) {
	c.greet()
	c.open()
	c.patience = maxAge
	c.awaitGoAway(maxWindow)
	c.patience = patience
}

func toLastCalls(c *client) {
	toLeaving(c)
	c.frame(http2.FramePing, flagAck, 0, string(goAwayPing))
	c.awaitGoAway(1)
}

// awaitGoAway waits for a GOAWAY without an error.
func (c *client) awaitGoAway(last uint32) {
	c.t.Helper()
	f := c.await("GOAWAY", func(f http2.Frame) bool { return f.Header().Type == http2.FrameGoAway })
	if g := f.(*http2.GoAwayFrame); g.LastStreamID != last || g.ErrCode != http2.ErrCodeNo {
		c.t.Fatalf("%v, want one for stream %d without an error", g, last)
	}
}

func clientLeaves(c *client, _ *testServer) { _ = c.net.Close() }

func violates(c *client, _ *testServer) {
	c.frame(http2.FrameData, 0, 0, "")
	c.expectGoAway(http2.ErrCodeProtocol)
}

func wait(d time.Duration) func(*client, *testServer) {
	return func(*client, *testServer) { time.Sleep(d) }
}

// shutdown begins a shutdown that would take an hour.
func shutdown(_ *client, s *testServer) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	s.t.Cleanup(cancel)
	go s.Shutdown(ctx)
}

// TestPhases has a test for each step of a connection from a phase to the next, as doc.go draws them.
func TestPhases(t *testing.T) {
	t.Parallel()
	for _, st := range []step{
		{
			"awaitingPreface to awaitingSettings", toPreface, awaitingPreface, func(c *client, _ *testServer) { toSettings(c) },
			awaitingSettings,
		},
		{"awaitingPreface ends in time", toPreface, awaitingPreface, wait(HandshakeTimeout + time.Second), closed},
		{"awaitingPreface, slow client", toPreface, awaitingPreface, slowly(http2.ClientPreface), closed},
		{
			"awaitingPreface, wrong byte", toPreface, awaitingPreface,
			func(c *client, _ *testServer) { c.write("x"); c.expectGoAway(http2.ErrCodeProtocol) }, closed,
		},
		{"awaitingPreface, client leaves", toPreface, awaitingPreface, clientLeaves, closed},
		{"awaitingPreface, shutdown", toPreface, awaitingPreface, shutdown, closed},
		{
			"awaitingSettings to open", toSettings, awaitingSettings,
			func(c *client, _ *testServer) { c.must(c.WriteSettings()); c.expectAlive() }, open,
		},
		{"awaitingSettings ends in time", toSettings, awaitingSettings, wait(HandshakeTimeout + time.Second), closed},
		{"awaitingSettings, slow client", toSettings, awaitingSettings, slowly(emptySettings), closed},
		{"awaitingSettings, another frame", toSettings, awaitingSettings, violates, closed},
		{"awaitingSettings, client leaves", toSettings, awaitingSettings, clientLeaves, closed},
		{"awaitingSettings, shutdown", toSettings, awaitingSettings, shutdown, closed},
		{"open lasts", toOpen, open, wait(minAge - time.Second), open},
		{
			"open to leaving by age", toOpen, open,
			func(c *client, _ *testServer) { c.patience = maxAge; c.awaitGoAway(maxWindow) }, leaving,
		},
		{
			"open to leaving by shutdown", toOpen, open,
			func(c *client, s *testServer) { shutdown(c, s); c.awaitGoAway(maxWindow) }, leaving,
		},
		{"open, violation", toOpen, open, violates, closed},
		{"open, client leaves", toOpen, open, clientLeaves, closed},
		{"leaving answers calls", toLeaving, leaving, func(c *client, _ *testServer) { c.expectAlive() }, leaving},
		{
			"leaving, another ACK", toLeaving, leaving,
			func(c *client, _ *testServer) { c.frame(http2.FramePing, flagAck, 0, "go away?"); c.flush() }, leaving,
		},
		{"leaving to lastCalls", toLeaving, leaving, func(c *client, _ *testServer) {
			c.frame(http2.FramePing, flagAck, 0, string(goAwayPing))
			c.awaitGoAway(1)
		}, lastCalls},
		{
			"leaving to lastCalls without an answer", toLeaving, leaving, func(c *client, _ *testServer) { c.awaitGoAway(1) },
			lastCalls,
		},
		{"leaving, violation", toLeaving, leaving, violates, closed},
		{"leaving, client leaves", toLeaving, leaving, clientLeaves, closed},
		{"leaving, shutdown", toLeaving, leaving, shutdown, leaving},
		{"lastCalls ignores streams", toLastCalls, lastCalls, func(c *client, _ *testServer) {
			later := c.call("later")
			c.sync()
			c.sync() // An answer would follow that to the first PING.
			if a := c.answers[later]; a != nil {
				c.t.Errorf("a stream after the last GOAWAY has %+v", a)
			}
		}, lastCalls},
		{"lastCalls to closed", toLastCalls, lastCalls, func(c *client, _ *testServer) {
			c.finishCall(1, "x")
			c.expectAnswer(1, "x")
			c.expectEnd()
		}, closed},
		{
			"lastCalls, last call is reset", toLastCalls, lastCalls,
			func(c *client, _ *testServer) { c.reset(1); c.expectEnd() }, closed,
		},
		{"lastCalls ends after the grace", toLastCalls, lastCalls, wait(10 * time.Minute), closed},
		{"lastCalls, violation", toLastCalls, lastCalls, violates, closed},
		{"lastCalls, client leaves", toLastCalls, lastCalls, clientLeaves, closed},
	} {
		t.Run(st.name, func(t *testing.T) {
			cfg := Config{ConnConfig: ConnConfig{MaxConnectionAge: age, MaxConnectionAgeGrace: 9 * time.Minute}}
			inFakeTime(t, cfg, func(t *testing.T, s *testServer) {
				c := s.dial()
				st.to(c)
				s.expectPhase(st.from)
				st.do(c, s)
				s.expectPhase(st.want)
			})
		})
	}
}

// slowly returns the sending of a byte per second, until the connection ends.
func slowly(b string) func(*client, *testServer) {
	return func(c *client, _ *testServer) {
		for i := range len(b) {
			if _, err := c.net.Write([]byte(b[i : i+1])); err != nil {
				return
			}
			time.Sleep(time.Second)
		}
		c.t.Error("the connection did not end")
	}
}

// TestShutdownWaits checks that Shutdown returns when the last call is answered, and that no call is lost.
func TestShutdownWaits(t *testing.T) {
	inFakeTime(t, Config{}, func(t *testing.T, s *testServer) {
		c := s.connect()
		id := c.open()
		c.sync()
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.Shutdown(t.Context())
		}()
		c.awaitGoAway(maxWindow)
		c.frame(http2.FramePing, flagAck, 0, string(goAwayPing))
		c.awaitGoAway(id)
		time.Sleep(time.Hour)
		select {
		case <-done:
			t.Fatal("Shutdown did not wait")
		default:
		}
		c.finishCall(id, "x")
		c.expectAnswer(id, "x")
		c.expectEnd()
		<-done
	})
}

// TestShutdownIsBounded checks that Shutdown closes connections at the end of its context, and does not wait long
// for Decide and Handler.
func TestShutdownIsBounded(t *testing.T) {
	t.Parallel()
	for name, send := range map[string]func(*client){
		"Decide":  func(c *client) { c.call("x") },
		"Handler": func(c *client) { c.openOther() },
		"client":  func(c *client) { c.open() },
	} {
		t.Run(name, func(t *testing.T) {
			g := newGate()
			inFakeTime(t, Config{Decide: g.decide, Handler: g}, func(t *testing.T, s *testServer) {
				g.opened = make(chan struct{})
				defer g.open()
				c := s.connect()
				c.sync()
				send(c)
				c.flush()
				synctest.Wait()
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				s.Shutdown(ctx)
				if d := time.Since(start); d < time.Minute || d > time.Minute+shutdownPatience {
					t.Errorf("Shutdown took %v", d)
				}
				c.expectEnd()
			})
		})
	}
}

// TestSilentClients checks that a silent client is pinged, and closed if it does not answer. Any answer will do.
func TestSilentClients(t *testing.T) {
	const silence = time.Minute
	inFakeTime(t, Config{ConnConfig: ConnConfig{MaxClientSilence: silence}}, func(t *testing.T, s *testServer) {
		c := s.connect()
		c.sync()
		c.patience = 2 * silence
		for range 5 {
			start := time.Now()
			f := c.await("PING", func(f http2.Frame) bool { return f.Header().Type == http2.FramePing }).(*http2.PingFrame)
			if d := time.Since(start); f.IsAck() || d < silence || d > silence+2*tickInterval {
				t.Errorf("%v after %v", f, d)
			}
			c.frame(http2.FramePing, flagAck, 0, string(f.Data[:]))
			c.flush()
		}
		start := time.Now()
		c.expectEnd()
		if d := time.Since(start) - silence - maxPingAnswerTime; d < 0 || d > 4*tickInterval {
			t.Errorf("the connection ended %v too late", d)
		}
	})
}

// TestPanics checks that a panic concerns its own batch or request only.
func TestPanics(t *testing.T) {
	t.Parallel()
	values := make(chan any, 10)
	s := startServer(t, Config{
		Decide: func(b *Batch) {
			b.Reply(0, b.Calls[0].Message)
			if len(b.Calls) > 1 {
				panic("decide")
			}
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.Header.Get("how") {
			case "abort":
				panic(http.ErrAbortHandler)
			case "late":
				_, _ = w.Write([]byte("begun")) // The client does not leave.
			}
			panic("handle")
		}),
		OnPanic: func(value any, stack []byte) {
			if len(stack) == 0 {
				t.Error("no stack")
			}
			values <- value
		},
	})
	c := s.connect()
	c.sync()
	first, second := c.call("x"), c.call("y")
	c.expectAnswer(first, "x")
	if text := c.expectStatus(second, "13"); text != "internal error" {
		t.Errorf("%q", text)
	}
	c.expectReset(c.openOther(), http2.ErrCodeInternal)
	c.expectReset(c.openOther("how", "late"), http2.ErrCodeInternal)
	c.expectReset(c.openOther("how", "abort"), http2.ErrCodeInternal)
	c.expectAlive()
	for _, want := range []any{"decide", "handle", "handle"} {
		if got := <-values; got != want {
			t.Errorf("panic with %v, want %v", got, want)
		}
	}
	if len(values) != 0 {
		t.Error("OnPanic was told of http.ErrAbortHandler")
	}
}
