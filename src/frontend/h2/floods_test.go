package h2

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/net/http2"
)

// flood is an attack that repeats something cheap.
type flood struct {
	name   string
	before func(*client)    // before, if set, is sent once.
	round  func(*client)    // repeated.
	waste  int              // how much one round counts.
	after  func(*client)    // after, if set, makes calls possible again after a few rounds.
	check  func(*gate) bool // check, if set, reports whether the work was bounded.
}

const (
	floodStreams = 50
	// slack is more than the waste of flood.before and flood.after.
	slack = 2*floodStreams + 20
)

// TestFloods checks that each flood ends its connection once it has maxWaste, and not before; that it does not concern
// another connection; and that what the connection holds and runs is bounded. Time does not pass, so that no waste is
// forgotten.
func TestFloods(t *testing.T) {
	t.Parallel()
	openOne := func(c *client) { c.open() }
	openOtherOne := func(c *client) { c.openOther() }
	answerOne := func(c *client) { c.expectAnswer(c.call("x"), "x") }
	openAll := func(c *client) {
		for range floodStreams {
			c.open()
		}
	}
	resetAll := func(c *client) {
		for id := uint32(1); id < 2*floodStreams; id += 2 {
			c.reset(id)
		}
	}
	one := func(kind http2.FrameType, flags uint8, id uint32, payload string) func(*client) {
		return send(kind, flags, id, payload)
	}
	onNew := func(kind http2.FrameType, flags uint8, payload string, more ...string) func(*client) {
		return func(c *client) { c.frame(kind, flags, c.open(more...), payload) }
	}
	runsFew := func(g *gate) bool { return g.most.Load() <= 2*floodStreams } // Two connections do it.
	const windowSize = http2.SettingInitialWindowSize
	swing := strings.Repeat(setting(windowSize, 0)+setting(windowSize, maxWindow), 20)
	for _, f := range []flood{
		{name: "rapid reset", round: onNew(http2.FrameRSTStream, 0, "1234"), waste: 2},
		{
			name: "rapid reset of requests to Handler", round: func(c *client) { c.reset(c.openOther()) }, waste: 2,
			check: runsFew,
		},
		{name: "rapid reset with a body", round: func(c *client) {
			id := c.openOther()
			c.finishCall(id, "x")
			c.reset(id)
		}, waste: 3, check: runsFew},
		{name: "resets of a closed stream", before: answerOne, round: one(http2.FrameRSTStream, 0, 1, "1234"), waste: 1},
		{name: "refused streams", before: openAll, round: openOne, waste: 2, after: resetAll},
		{name: "malformed requests", round: sendHead(":method", "GET"), waste: 1},
		{name: "long header lists", round: func(c *client) {
			c.frame(http2.FrameHeaders, flagEndHeaders|flagEndStream, c.newID(), "\x82\x86\x84"+strings.Repeat("\x90", 1100))
		}, waste: 1},
		{name: "made you reset: window of a stream", round: onNew(http2.FrameWindowUpdate, 0, number(maxWindow)), waste: 2},
		{
			name: "made you reset: content-length", round: onNew(http2.FrameData, 0, prefixed("x"), "content-length", "1"),
			waste: 2,
		},
		{
			name:  "made you reset: content-length at the end",
			round: onNew(http2.FrameData, flagEndStream, prefixed("x"), "content-length", "9"), waste: 1,
		},
		{name: "made you reset: trailers without an end", round: onNew(http2.FrameHeaders, flagEndHeaders, ""), waste: 2},
		{
			name: "made you reset: trailers with a path", round: onNew(http2.FrameHeaders, flagEndHeaders|flagEndStream, "\x84"),
			waste: 2,
		},
		{
			name: "DATA after a reset", before: func(c *client) { onNew(http2.FrameWindowUpdate, 0, number(maxWindow))(c) },
			round: one(http2.FrameData, 0, 1, strings.Repeat("x", 100)), waste: 1,
		},
		{
			name: "trailers after a reset", before: func(c *client) { onNew(http2.FrameWindowUpdate, 0, number(maxWindow))(c) },
			round: one(http2.FrameHeaders, flagEndHeaders|flagEndStream, 1, ""), waste: 2,
		},
		{name: "PING", round: one(http2.FramePing, 0, 0, "12345678"), waste: 1},
		{name: "answers to no PING", round: one(http2.FramePing, flagAck, 0, "12345678"), waste: 1},
		{name: "SETTINGS", round: one(http2.FrameSettings, 0, 0, ""), waste: 1},
		{
			name:  "SETTINGS with settings",
			round: one(http2.FrameSettings, 0, 0, setting(http2.SettingEnablePush, 0)+setting(0x99, 1)),
			waste: 3,
		},
		{name: "acknowledgements of SETTINGS", round: one(http2.FrameSettings, flagAck, 0, ""), waste: 1},
		{
			name: "swings of the window", before: openAll, round: one(http2.FrameSettings, 0, 0, swing), waste: 41,
			after: resetAll,
		},
		{
			name: "PRIORITY of an open stream", before: openOne, round: one(http2.FramePriority, 0, 1, number(0)+"\x10"),
			waste: 1,
		},
		{
			name:  "PRIORITY of idle streams",
			round: func(c *client) { c.frame(http2.FramePriority, 0, c.newID()+1<<30, number(5)+"\x10") }, waste: 1,
		},
		{name: "unknown frames", round: one(0x0a, 0, 0, ""), waste: 1},
		{name: "large unknown frames", round: one(0x10, 0, 99, strings.Repeat("x", maxFrameBytes)), waste: 1},
		{name: "WINDOW_UPDATE of the connection", round: one(http2.FrameWindowUpdate, 0, 0, number(1)), waste: 1},
		{
			name: "WINDOW_UPDATE of an open stream", before: openOne, round: one(http2.FrameWindowUpdate, 0, 1, number(1)),
			waste: 1,
		},
		{
			name: "WINDOW_UPDATE of a closed stream", before: answerOne, round: one(http2.FrameWindowUpdate, 0, 1, number(1)),
			waste: 1,
		},
		{name: "GOAWAY", round: one(http2.FrameGoAway, 0, 0, number(0)+number(0)+strings.Repeat("x", 1000)), waste: 1},
		{name: "empty DATA of a call", before: openOne, round: one(http2.FrameData, 0, 1, ""), waste: 1},
		{name: "empty DATA for Handler", before: openOtherOne, round: one(http2.FrameData, 0, 1, ""), waste: 1},
		{name: "DATA of one byte", before: openOtherOne, round: one(http2.FrameData, 0, 1, "x"), waste: 1},
		{
			name: "DATA of padding", before: openOne,
			round: one(http2.FrameData, flagPadded, 1, "\x1f"+strings.Repeat("\x00", 31)),
			waste: 1,
		},
		{
			name: "one long header block", before: func(c *client) { c.frame(http2.FrameHeaders, 0, c.newID(), "") },
			round: one(http2.FrameContinuation, 0, 1, strings.Repeat("x", maxFrameBytes)), waste: maxWaste / 4,
		},
		{
			name: "empty CONTINUATION", before: func(c *client) { c.frame(http2.FrameHeaders, 0, c.newID(), "") },
			round: one(http2.FrameContinuation, 0, 1, ""), waste: maxWaste / maxContinuations,
		},
	} {
		t.Run(f.name, f.test)
	}
}

func (f *flood) test(t *testing.T) {
	g := newGate()
	cfg := Config{DecideWaits: true, Handler: g, ConnConfig: ConnConfig{MaxStreams: floodStreams}}
	inFakeTime(t, cfg, func(t *testing.T, s *testServer) {
		g.opened = make(chan struct{})
		defer g.open()
		other := s.connect()
		other.expectAlive()
		for _, rounds := range []int{(maxWaste - slack) / f.waste, 2 * maxWaste / f.waste} {
			isFew := rounds < maxWaste/f.waste
			c := s.connect()
			if f.before != nil {
				f.before(c)
			}
			for range rounds {
				f.round(c)
				if c.tryFlush() != nil {
					break
				}
			}
			switch {
			case isFew && c.isInBlock(f):
				_ = c.net.Close()
			case isFew:
				if f.after != nil {
					f.after(c)
				}
				c.sync()
				_ = c.net.Close()
			default:
				c.expectGoAway(http2.ErrCodeEnhanceYourCalm)
			}
			synctest.Wait()
			other.expectAlive()
		}
		if s.Flooding.Load() != 1 || s.Invalid.Load() != 0 || s.Stalled.Load() != 0 {
			t.Errorf("%d flooding connections, %d invalid, %d stalled", s.Flooding.Load(), s.Invalid.Load(), s.Stalled.Load())
		}
		for i := range 3 {
			if highest := s.account(i).highest.Load(); highest > 1<<20 {
				t.Errorf("connection %d held %d bytes", i, highest)
			}
		}
		if f.check != nil && !f.check(g) {
			t.Errorf("%d requests at a time", g.most.Load())
		}
	})
}

// isInBlock reports whether the client is within a header block, so that no other frame may follow.
func (c *client) isInBlock(f *flood) bool {
	return strings.Contains(f.name, "CONTINUATION") || strings.Contains(f.name, "block")
}

// twins are what busy clients may do as often as they like, because calls are answered between.
var twins = map[string]func(*client){
	"PING per call":                      func(c *client) { c.frame(http2.FramePing, 0, 0, "12345678") },
	"WINDOW_UPDATE of the connection":    func(c *client) { c.frame(http2.FrameWindowUpdate, 0, 0, number(6)) },
	"WINDOW_UPDATE of the answered call": func(c *client) { c.frame(http2.FrameWindowUpdate, 0, c.nextID-2, number(6)) },
	"RST_STREAM of the answered call":    func(c *client) { c.reset(c.nextID - 2) },
	"another call that is cancelled":     func(c *client) { c.reset(c.open()) },
	"another request that is cancelled": func(c *client) {
		c.reset(c.openOther())
		synctest.Wait() // The handler counts as a stream until it has ended.
	},
	"SETTINGS per call": func(c *client) { c.must(c.WriteSettings()) },
	"PRIORITY per call": func(c *client) { c.frame(http2.FramePriority, 0, c.nextID, number(0)+"\x10") },
	"empty DATA at the end": func(c *client) {
		c.frame(http2.FrameData, 0, c.open(), prefixed("x"))
		c.frame(http2.FrameData, flagEndStream, c.nextID-2, "")
	},
	"several CONTINUATION": continued,
	"everything that grpc-go does a call": func(c *client) {
		c.frame(http2.FramePing, 0, 0, "12345678")
		c.frame(http2.FrameWindowUpdate, 0, 0, number(6))
		c.frame(http2.FrameWindowUpdate, 0, c.nextID-2, number(6))
	},
}

// continued sends a call whose headers are in several frames.
func continued(c *client) {
	id, block := c.newID(), c.encode(requestFields(methodPath)...)
	c.frame(http2.FrameHeaders, 0, id, block[:3])
	c.frame(http2.FrameContinuation, flagEndHeaders, id, block[3:])
	c.finishCall(id, "x")
}

// TestFloodTwins checks that clients with calls may send many other frames.
func TestFloodTwins(t *testing.T) {
	t.Parallel()
	for name, extra := range twins {
		t.Run(name, func(t *testing.T) {
			inFakeTime(t, Config{ConnConfig: ConnConfig{MaxStreams: floodStreams}}, func(t *testing.T, s *testServer) {
				c := s.connect()
				for range 2 * maxWaste {
					c.expectAnswer(c.call("x"), "x")
					clear(c.answers)
					extra(c)
				}
				c.sync()
				if n := s.Flooding.Load() + s.Invalid.Load(); n != 0 {
					t.Errorf("%d connections were ended", n)
				}
			})
		})
	}
}

// TestLargeAnswersAreNoFlood checks that a client may acknowledge each DATA frame of large answers with two
// WINDOW_UPDATE.
func TestLargeAnswersAreNoFlood(t *testing.T) {
	const frames = 4
	large := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, frames*maxFrameBytes)) }
	inFakeTime(t, Config{Handler: http.HandlerFunc(large)}, func(t *testing.T, s *testServer) {
		c := s.connect()
		c.frame(http2.FrameWindowUpdate, 0, 0, number(1<<20))
		c.must(c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}))
		for range maxWaste {
			id := c.openOther()
			c.frame(http2.FrameData, flagEndStream, id, "")
			for range frames {
				c.frame(http2.FrameWindowUpdate, 0, 0, number(maxFrameBytes))
				c.frame(http2.FrameWindowUpdate, 0, id, number(maxFrameBytes))
			}
			c.ended(id)
			clear(c.answers)
		}
		c.sync()
		if n := s.Flooding.Load() + s.Invalid.Load(); n != 0 {
			t.Errorf("%d connections were ended", n)
		}
	})
}

// TestWasteIsForgotten checks that waste counts for a time only.
func TestWasteIsForgotten(t *testing.T) {
	inFakeTime(t, Config{}, func(t *testing.T, s *testServer) {
		c := s.connect()
		for range 20 {
			for range maxWaste/2 - 1 {
				c.reset(c.openOther())
			}
			c.flush()
			wait(maxWaste*1e9/wastePerSecond)(c, s)
		}
		c.expectAlive()
	})
}

// TestPingStrikes checks MinClientPingInterval: two pings may come too early. Calls between them make up for it,
// and so does DATA of one long answer: gRPC clients measure the bandwidth with a PING after DATA.
func TestPingStrikes(t *testing.T) {
	const interval = 10e9
	inFakeTime(t, Config{ConnConfig: ConnConfig{MinClientPingInterval: interval}}, func(t *testing.T, s *testServer) {
		c := s.connect()
		for range 100 {
			c.sync() // In time.
			wait(interval)(c, s)
		}
		for range 100 {
			c.sync()
			c.expectAlive()
			c.sync()
			c.expectAlive()
		}
		c.frame(http2.FrameSettings, 0, 0, setting(http2.SettingInitialWindowSize, 0))
		id := c.call(strings.Repeat("x", 1000))
		for range 10 {
			c.frame(http2.FrameWindowUpdate, 0, id, number(100))
			c.sync()
			c.sync()
		}
		c.frame(http2.FrameWindowUpdate, 0, id, number(100))
		c.expectAnswer(id, strings.Repeat("x", 1000))
		c.sync()
		c.sync()
		c.frame(http2.FramePing, 0, 0, "12345678")
		if reason := c.expectGoAway(http2.ErrCodeEnhanceYourCalm); reason != "too_many_pings" {
			t.Errorf("the reason is %q", reason)
		}
	})
}

// TestUnreadAnswers checks that a client that reads nothing is closed, whatever it provokes, and that what the server
// holds for it is bounded.
func TestUnreadAnswers(t *testing.T) {
	t.Parallel()
	provocations := map[string]func(*client){
		"answers to PING":     func(c *client) { c.frame(http2.FramePing, 0, 0, "12345678"); c.call("x") },
		"answers to SETTINGS": func(c *client) { c.frame(http2.FrameSettings, 0, 0, ""); c.call("x") },
		"resets":              func(c *client) { sendHead(":method", "GET")(c); c.call("x") },
		"answers":             func(c *client) { c.call(strings.Repeat("x", 1000)) },
	}
	for name, provoke := range provocations {
		t.Run(name, func(t *testing.T) {
			inFakeTime(t, Config{}, func(t *testing.T, s *testServer) {
				c := s.connect()
				c.frame(http2.FrameSettings, 0, 0, setting(http2.SettingInitialWindowSize, maxWindow))
				c.frame(http2.FrameWindowUpdate, 0, 0, number(1<<30))
				c.sync()
				c.net.(*pipe).pause(true)
				for range 10_000 {
					provoke(c)
					if c.tryFlush() != nil {
						break // The server has stopped reading.
					}
				}
				wait(2*maxStallTime)(c, s)
				s.expectPhase(closed)
				if s.Stalled.Load() != 1 {
					t.Errorf("%d stalled connections", s.Stalled.Load())
				}
				if highest := s.account(0).highest.Load(); highest > 1<<20 {
					t.Errorf("the connection held %d bytes", highest)
				}
			})
		})
	}
}

// TestSmallWindows checks that a client that never takes an answer, or takes some bytes of it at a time, is closed, and
// that its answers count towards MaxStreams.
func TestSmallWindows(t *testing.T) {
	t.Parallel()
	for _, path := range []string{methodPath, otherPath} {
		for _, step := range []uint32{0, 1, 2} {
			t.Run(fmt.Sprintf("%s by %d", path, step), func(t *testing.T) {
				inFakeTime(t, Config{ConnConfig: ConnConfig{MaxStreams: floodStreams}}, func(t *testing.T, s *testServer) {
					c := s.connect()
					c.frame(http2.FrameSettings, 0, 0, setting(http2.SettingInitialWindowSize, 0))
					for range 2 * floodStreams {
						id := c.newID()
						c.frame(http2.FrameHeaders, flagEndHeaders, id, c.encode(requestFields(path)...))
						c.finishCall(id, strings.Repeat("x", 10_000))
						c.sync()
					}
					c.expectReset(c.nextID-2, http2.ErrCodeRefusedStream)
					synctest.Wait() // until all handlers have answered.
					if held := s.account(0).held.Load(); held < floodStreams*10_000 || held > floodStreams*13_000 {
						t.Errorf("the answers hold %d bytes", held)
					}
					for range 60 {
						for id := uint32(1); step > 0 && id < 2*floodStreams; id += 2 {
							c.frame(http2.FrameWindowUpdate, 0, id, number(step))
						}
						if c.tryFlush() != nil {
							break // The connection has ended.
						}
						wait(1e9)(c, s)
					}
					s.expectPhase(closed)
					if s.Stalled.Load() != 1 {
						t.Errorf("%d stalled connections", s.Stalled.Load())
					}
				})
			})
		}
	}
}

// TestHeldBytes checks that the account has all that a connection makes the server keep, in proportion to what was
// sent.
func TestHeldBytes(t *testing.T) {
	t.Parallel()
	many := []string{"a", strings.Repeat("y", 3000)}
	for range 15 {
		many = append(many, many[:2]...)
	}
	for _, row := range []struct {
		name        string
		send        func(*client)
		least, most int64
	}{
		{"an incomplete header block", func(c *client) {
			c.frame(http2.FrameHeaders, 0, c.newID(),
				strings.Repeat("\x90", 10_000))
		}, 10_000, 11_000},
		{"a continued header block", func(c *client) {
			c.frame(http2.FrameHeaders, 0, c.newID(), strings.Repeat("\x90", 10_000))
			c.frame(http2.FrameContinuation, 0, 1, strings.Repeat("\x90", 10_000))
		}, 20_000, 21_000},
		{"header lists of requests to Handler", func(c *client) {
			for range 300 {
				c.openOther(many...)
			}
		}, 300*48_000 + maxHandlersOfConn*handlerBytes, 300*70_000 + maxHandlersOfConn*handlerBytes},
		{"header lists of calls", func(c *client) {
			for range 300 {
				c.open(many...)
			}
		}, 300, 300 * 1000},
		{"bodies of calls", func(c *client) {
			for range 50 {
				c.frame(http2.FrameData, 0, c.open(), prefixed(strings.Repeat("x", 10_000))[:9000])
			}
		}, 50 * 9000, 50 * 10_000},
		{"a claim of a length", func(c *client) { c.frame(http2.FrameData, 0, c.open(), "\x00\x00\x3f\xff\xff") }, 5, 1000},
		{"bodies for Handler", func(c *client) {
			for range 50 {
				c.frame(http2.FrameData, 0, c.openOther(), strings.Repeat("x", 10_000))
			}
		}, 50 * (10_000 + handlerBytes), 50 * (13_000 + handlerBytes)},
	} {
		t.Run(row.name, func(t *testing.T) {
			g := newGate()
			inFakeTime(t, Config{Handler: g}, func(t *testing.T, s *testServer) {
				g.opened = make(chan struct{})
				defer g.open()
				c := s.connect()
				row.send(c)
				c.flush()
				synctest.Wait()
				k := s.onlyConn()
				k.mu.Lock()
				defer k.mu.Unlock()
				if held := s.account(0).held.Load() - k.chargedBytes; held < row.least || held > row.most {
					t.Errorf("the connection holds %d bytes, want %d to %d", held, row.least, row.most)
				}
			})
		})
	}
}

// TestFramesAfterGoAway checks that nothing is decided after a violation, and that the connection ends although the
// client goes on.
func TestFramesAfterGoAway(t *testing.T) {
	g := newGate()
	g.open()
	inFakeTime(t, Config{Decide: g.decide, Handler: g}, func(t *testing.T, s *testServer) {
		c := s.connect()
		c.expectAlive()
		c.frame(http2.FrameData, 0, 0, "")
		for range 100 {
			c.call("x")
			c.reset(c.openOther())
			c.write("\xff\xff\xff\x01garbage")
		}
		c.expectGoAway(http2.ErrCodeProtocol)
		for range 10 {
			_ = c.tryFlush() // The server may have closed.
			wait(lingerTime/5)(c, s)
		}
		s.expectPhase(closed)
		if n := g.total.Load(); n != 1 {
			t.Errorf("%d calls were handled, want 1", n)
		}
	})
}

// TestManyCallsLeaveNothing checks that ended streams leave nothing behind.
func TestManyCallsLeaveNothing(t *testing.T) {
	inFakeTime(t, Config{}, func(t *testing.T, s *testServer) {
		c := s.connect()
		for i := range 5000 {
			id := c.call("x")
			if i%5 == 0 {
				c.reset(c.open())
				other := c.openOther()
				c.finishCall(other, "y")
				c.expectBody(other, prefixed("y"))
			}
			c.expectAnswer(id, "x")
			clear(c.answers)
		}
		s.expectActive(0)
		conn := s.openConns(nil)[0]
		if n, held := len(conn.streams), s.account(0).held.Load(); n != 0 || held != 0 {
			t.Errorf("%d streams and %d bytes are left", n, held)
		}
	})
}
