package h2

import (
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"ratelimit/testbed/harness"
)

// TestWindowCredit checks that the server gives back the window of the connection for all DATA, once: for calls, for
// requests whose body Handler reads or not, and for streams that either side has reset.
func TestWindowCredit(t *testing.T) {
	t.Parallel()
	full := strings.Repeat("x", 16_000)
	for name, round := range map[string]func(c *client){
		"calls": func(c *client) { c.expectAnswer(c.call(full), full) },
		"requests": func(c *client) {
			id := c.openOther()
			c.finishCall(id, full)
			c.expectBody(id, prefixed(full))
		},
		"padding": func(c *client) {
			id := c.openOther()
			c.frame(http2.FrameData, flagEndStream|flagPadded, id, "\xff"+strings.Repeat("x", 1000)+strings.Repeat("\x00", 255))
			c.expectBody(id, strings.Repeat("x", 1000))
		},
		"much padding on one stream": func(c *client) {
			id := c.openOther()
			for range 400 {
				c.frame(http2.FrameData, flagPadded, id, "\xff"+strings.Repeat("x", 64)+strings.Repeat("\x00", 255))
				c.sync()
				wait(time.Millisecond)(c, nil)
			}
			c.frame(http2.FrameData, flagEndStream, id, "")
			c.expectBody(id, strings.Repeat("x", 400*64))
		},
		"cancelled calls": func(c *client) {
			id := c.open()
			c.frame(http2.FrameData, 0, id, full)
			c.reset(id)
			c.sync()
		},
		"cancelled requests": func(c *client) {
			id := c.openOther()
			for range 3 {
				c.frame(http2.FrameData, 0, id, full)
			}
			c.sync() // The handler has read.
			c.reset(id)
			c.sync()
		},
		"streams that the server has reset": func(c *client) {
			id := c.open("content-length", "1")
			c.frame(http2.FrameData, 0, id, full)
			c.frame(http2.FrameData, 0, id, full)
			c.expectReset(id, http2.ErrCodeProtocol)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inFakeTime(t, Config{}, func(t *testing.T, s *testServer) {
				c := s.connect()
				c.frame(http2.FrameWindowUpdate, 0, 0, number(1<<30))
				for range 150 {
					round(c)
					wait(10*time.Millisecond)(c, s) // So many cancelled calls at once would be a flood.
				}
				c.sync()
				if missing := c.sentBytes - c.credit + connWindow - firstWindow; missing < 0 || missing > connWindow/2 {
					t.Errorf("%d bytes of %d are missing in the window", missing, c.sentBytes)
				}
			})
		})
	}
}

// TestStreamCredit checks that the window of a stream is given back once for a body that is collected first and then
// handled.
func TestStreamCredit(t *testing.T) {
	t.Parallel()
	c := startServer(t, Config{}).connect()
	body := "\x01" + prefixed(strings.Repeat("x", 60_000))[1:]
	id := c.open()
	for rest := body; rest != ""; rest = rest[min(len(rest), 10_000):] {
		c.frame(http2.FrameData, 0, id, rest[:min(len(rest), 10_000)])
		c.sync()
	}
	c.frame(http2.FrameData, flagEndStream, id, "")
	c.expectBody(id, body)
	if got := c.answers[id].credit; got == 0 || got > len(body) {
		t.Errorf("the server has given back %d bytes of %d", got, len(body))
	}
}

// TestStalledHandshakes checks that a TLS handshake is bounded in time as a whole, and does not delay other clients.
func TestStalledHandshakes(t *testing.T) {
	t.Parallel()
	hello := "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" // The start of a ClientHello.
	for name, send := range map[string]func(*client, *testServer){
		"nothing":            func(*client, *testServer) {},
		"half a ClientHello": func(c *client, _ *testServer) { c.write(hello); c.flush() },
		"a byte a second":    slowly(hello),
		"no TLS":             func(c *client, _ *testServer) { c.greet(); _ = c.tryFlush() },
	} {
		t.Run(name, func(t *testing.T) {
			certs, now := harness.NewCertificates(t), time.Now()
			inFakeTime(t, Config{ConnConfig: ConnConfig{TLS: serverTLS(t, certs)}},
				func(t *testing.T, s *testServer) {
					c := s.dial()
					send(c, s)
					cfg := certs.ClientConfig(t)
					cfg.Time = func() time.Time { return now } // Fake time begins before the certificates are valid.
					other := s.connectTLS(cfg)
					other.expectAlive()
					_ = other.net.(interface{ NetConn() net.Conn }).NetConn().Close()
					wait(HandshakeTimeout)(c, s)
					s.expectPhase(closed)
				})
		})
	}
}

// TestAbruptEnds checks that nothing is left of a client that vanishes at the worst time.
func TestAbruptEnds(t *testing.T) {
	t.Parallel()
	for name, send := range map[string]func(*client){
		"in a frame header": func(c *client) { c.write("\x00\x00") },
		"in DATA":           func(c *client) { c.open(); c.write("\x00\x10\x00\x00\x00\x00\x00\x00\x01some") },
		"in a header block": func(c *client) { c.frame(http2.FrameHeaders, 0, 1, "\x82") },
		"in a body":         func(c *client) { c.frame(http2.FrameData, 0, c.openOther(), "some") },
		"in Decide":         func(c *client) { c.call("x") },
		"in Handler":        func(c *client) { c.finishCall(c.openOther(), "x") },
		"while requests wait": func(c *client) {
			for range 2 * maxHandlers {
				c.openOther()
			}
		},
		"while an answer waits": func(c *client) {
			c.frame(http2.FrameSettings, 0, 0, setting(http2.SettingInitialWindowSize, 1))
			c.call("answer at once")
			c.openOther("answer", "at once")
		},
		"after a violation": func(c *client) { c.frame(http2.FrameData, 0, 0, ""); c.call("x") },
	} {
		for _, isLate := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				g := newGate()
				cfg := Config{
					DecideWaits: true, Decide: g.decide,
					Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if r.Header.Get("Answer") != "" {
							_, _ = w.Write(make([]byte, 1<<20)) // The client vanishes.
							return
						}
						g.ServeHTTP(w, r)
					}),
				}
				inFakeTime(t, cfg, func(t *testing.T, s *testServer) {
					g.opened = make(chan struct{})
					defer g.open()
					c := s.connect()
					send(c)
					c.flush()
					if isLate {
						synctest.Wait()
					}
					if strings.Contains(name, "answer") {
						g.open()
					}
					_ = c.net.Close()
					synctest.Wait()
					if g.running.Load() == 0 {
						s.expectPhase(closed)
					}
					g.open()
					s.expectPhase(closed)
					if held := s.account(0).held.Load(); held != 0 {
						t.Errorf("%d bytes are held", held)
					}
				})
			})
		}
	}
}
