package h2

import (
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// rule is a rule of RFC 9113: what happens after the client has sent something.
type rule struct {
	name string // begins with the section.
	send func(*client)
	want func(*client)
}

// goAway returns the check that the connection ends with a GOAWAY.
func goAway(code http2.ErrCode) func(*client) {
	return func(c *client) { c.t.Helper(); c.expectGoAway(code) }
}

// reset returns the check that the server resets the last stream, and that the connection goes on.
func reset(code http2.ErrCode) func(*client) {
	return func(c *client) { c.t.Helper(); c.expectReset(c.nextID-2, code); c.expectAlive() }
}

// alive checks that the connection goes on.
func alive(c *client) { c.t.Helper(); c.expectAlive() }

// answered returns the check that the last call is answered, and that the connection goes on.
func answered(message string) func(*client) {
	return func(c *client) { c.t.Helper(); c.expectAnswer(c.nextID-2, message); c.expectAlive() }
}

// send returns the sending of one frame.
func send(kind http2.FrameType, flags uint8, id uint32, payload string) func(*client) {
	return func(c *client) { c.frame(kind, flags, id, payload) }
}

// sendOn returns the sending of a frame on a call that is open.
func sendOn(kind http2.FrameType, flags uint8, payload string) func(*client) {
	return func(c *client) { c.frame(kind, flags, c.open(), payload) }
}

// sendAfter returns the sending of a frame on a call that is answered.
func sendAfter(kind http2.FrameType, flags uint8, payload string) func(*client) {
	return func(c *client) {
		id := c.call("x")
		c.expectAnswer(id, "x")
		c.frame(kind, flags, id, payload)
	}
}

// sendHead returns the sending of a request with these fields, without a body.
func sendHead(fields ...string) func(*client) {
	return func(c *client) {
		c.frame(http2.FrameHeaders, flagEndHeaders|flagEndStream, c.newID(), c.encode(fields...))
	}
}

// run checks rules, each with a server of its own.
func run(t *testing.T, connect func(*testServer) *client, rules []rule) {
	t.Parallel()
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, Config{ConnConfig: ConnConfig{MaxStreams: 100}})
			c := connect(s)
			r.send(c)
			r.want(c)
			c.expectCounted(s)
		})
	}
}

// expectCounted checks that Stats has the violation of the only connection, if there was one.
func (c *client) expectCounted(s *testServer) {
	c.t.Helper()
	want := [2]int64{}
	for _, g := range c.goAways {
		switch g.ErrCode {
		case http2.ErrCodeNo:
		case http2.ErrCodeEnhanceYourCalm:
			want[0]++
		default:
			want[1]++
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if got := [2]int64{s.Flooding.Load(), s.Invalid.Load()}; got != want || int64(len(s.problems)) != want[0]+want[1] {
		c.t.Errorf("flooding and invalid connections: %v, want %v; problems: %v", got, want, s.problems)
	}
}

const emptySettings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"

func TestRFC9113Preface(t *testing.T) {
	run(t, (*testServer).dial, []rule{
		{"3.4 preface and SETTINGS", func(c *client) { c.write(http2.ClientPreface + emptySettings) }, alive},
		{"3.4 byte by byte", func(c *client) {
			for _, b := range []byte(http2.ClientPreface + emptySettings) {
				c.write(string(b))
				c.flush()
			}
		}, alive},
		{"3.4 the server begins with SETTINGS", func(c *client) {
			if f, err := c.readFrame(); err != nil || f.Header().Type != http2.FrameSettings || f.Header().Flags != 0 {
				c.t.Errorf("%v, %v", f, err)
			}
			c.greet()
		}, alive},
		{
			"3.4 a wrong byte", func(c *client) { c.write(strings.Replace(http2.ClientPreface, "2.0", "2.1", 1)) },
			goAway(http2.ErrCodeProtocol),
		},
		{"3.4 the first byte is wrong", func(c *client) { c.write("X") }, goAway(http2.ErrCodeProtocol)},
		{"3.4 HTTP/1.1", func(c *client) { c.write("GET / HTTP/1.1\r\nHost: x\r\n\r\n") }, goAway(http2.ErrCodeProtocol)},
		{
			"3.4 PING before SETTINGS",
			func(c *client) { c.write(http2.ClientPreface); c.frame(http2.FramePing, 0, 0, "12345678") },
			goAway(http2.ErrCodeProtocol),
		},
		{
			"3.4 HEADERS before SETTINGS", func(c *client) { c.write(http2.ClientPreface); c.open() },
			goAway(http2.ErrCodeProtocol),
		},
		{
			"3.4 unknown frame before SETTINGS", func(c *client) { c.write(http2.ClientPreface); c.frame(99, 0, 0, "") },
			goAway(http2.ErrCodeProtocol),
		},
		{
			"3.4 ACK before SETTINGS",
			func(c *client) { c.write(http2.ClientPreface); c.frame(http2.FrameSettings, flagAck, 0, "") },
			goAway(http2.ErrCodeProtocol),
		},
		{
			"3.4 wrong SETTINGS", func(c *client) { c.write(http2.ClientPreface); c.frame(http2.FrameSettings, 0, 0, "12345") },
			goAway(http2.ErrCodeFrameSize),
		},
	})
}

func TestRFC9113Frames(t *testing.T) {
	run(t, (*testServer).connect, []rule{
		{"4.1 unknown type on the connection", send(99, 0xff, 0, "whatever"), alive},
		{"4.1 unknown type on an idle stream", send(0xa, 0, 77, "whatever"), alive},
		{"4.1 unknown type within a call", func(c *client) {
			id := c.open()
			c.frame(0x10, 0xff, id, "whatever")
			c.finishCall(id, "x")
		}, answered("x")},
		{"4.1 unknown flags", func(c *client) {
			id := c.newID()
			c.frame(http2.FrameHeaders, flagEndHeaders|0x82, id, c.encode(requestFields(methodPath)...))
			c.frame(http2.FrameData, flagEndStream|0xf6, id, prefixed("x"))
		}, answered("x")},
		{"4.1 reserved bit", func(c *client) {
			id := c.open()
			c.frame(http2.FrameData, flagEndStream, id|1<<31, prefixed("x"))
		}, answered("x")},
		{
			"4.2 the largest frame", func(c *client) { c.finishCall(c.open(), strings.Repeat("x", maxFrameBytes-5)) },
			answered(strings.Repeat("x", maxFrameBytes-5)),
		},
		{
			"4.2 larger by a byte", func(c *client) { c.write("\x00\x40\x01\x00\x00\x00\x00\x00\x01") },
			goAway(http2.ErrCodeFrameSize),
		},
		{
			"4.2 the largest length", func(c *client) { c.write("\xff\xff\xff\xaa\x00\x00\x00\x00\x00") },
			goAway(http2.ErrCodeFrameSize),
		},
		{"4.3 invalid index", send(http2.FrameHeaders, flagEndHeaders, 1, "\x80"), goAway(http2.ErrCodeCompression)},
		{
			"4.3 invalid text", send(http2.FrameHeaders, flagEndHeaders, 1, "\x00\x7f\xff\xff\xff\xff\x0f"),
			goAway(http2.ErrCodeCompression),
		},
		{
			"4.3 size update after a field", send(http2.FrameHeaders, flagEndHeaders, 1, "\x82\x20"),
			goAway(http2.ErrCodeCompression),
		},
		{
			"4.3 size update above the setting", send(http2.FrameHeaders, flagEndHeaders, 1, "\x3f\xe2\x1f\x82"),
			goAway(http2.ErrCodeCompression),
		},
		{
			"4.3 invalid trailers", sendOn(http2.FrameHeaders, flagEndHeaders|flagEndStream, "\x80"),
			goAway(http2.ErrCodeCompression),
		},
		{"4.3 invalid index on a refused stream", func(c *client) {
			for range 101 {
				c.openOther()
			}
			c.frame(http2.FrameHeaders, flagEndHeaders, c.newID(), "\x80")
		}, goAway(http2.ErrCodeCompression)},
	})
}

func TestRFC9113StreamStates(t *testing.T) {
	valid := prefixed("x")
	run(t, (*testServer).connect, []rule{
		{"5.1 idle: DATA", send(http2.FrameData, 0, 1, valid), goAway(http2.ErrCodeProtocol)},
		{"5.1 idle: RST_STREAM", send(http2.FrameRSTStream, 0, 1, "1234"), goAway(http2.ErrCodeProtocol)},
		{"5.1 idle: WINDOW_UPDATE", send(http2.FrameWindowUpdate, 0, 1, number(1)), goAway(http2.ErrCodeProtocol)},
		{"5.1 idle: CONTINUATION", send(http2.FrameContinuation, flagEndHeaders, 1, ""), goAway(http2.ErrCodeProtocol)},
		{"5.1 idle: PRIORITY", send(http2.FramePriority, 0, 1, number(0)+"\x10"), alive},
		{
			"5.1 half closed: DATA", func(c *client) { c.frame(http2.FrameData, 0, c.call("x"), valid) },
			goAway(http2.ErrCodeStreamClosed),
		},
		{"5.1 half closed: HEADERS", func(c *client) {
			id := c.openOther()
			c.frame(http2.FrameData, flagEndStream, id, "x")
			c.frame(http2.FrameHeaders, flagEndHeaders|flagEndStream, id, c.encode("x", "y"))
		}, goAway(http2.ErrCodeStreamClosed)},
		{
			"5.1 half closed: CONTINUATION",
			func(c *client) { c.frame(http2.FrameContinuation, flagEndHeaders, c.call("x"), "") },
			goAway(http2.ErrCodeProtocol),
		},
		{"5.1 closed: DATA", sendAfter(http2.FrameData, 0, valid), goAway(http2.ErrCodeStreamClosed)},
		{
			"5.1 closed: HEADERS", sendAfter(http2.FrameHeaders, flagEndHeaders|flagEndStream, "\x82\x86\x84"),
			goAway(http2.ErrCodeStreamClosed),
		},
		{"5.1 closed: CONTINUATION", sendAfter(http2.FrameContinuation, flagEndHeaders, ""), goAway(http2.ErrCodeProtocol)},
		{"5.1 closed: RST_STREAM", sendAfter(http2.FrameRSTStream, 0, "1234"), alive},
		{"5.1 closed: WINDOW_UPDATE", sendAfter(http2.FrameWindowUpdate, 0, number(1)), alive},
		{"5.1 closed: PRIORITY", sendAfter(http2.FramePriority, 0, number(0)+"\x10"), alive},
		{"5.1 closed: unknown", sendAfter(99, 0, "x"), alive},
		{"5.1 reset by the client: DATA", func(c *client) {
			id := c.open()
			c.reset(id)
			c.frame(http2.FrameData, 0, id, valid)
		}, goAway(http2.ErrCodeStreamClosed)},
		{"5.1 reset by the client: HEADERS", func(c *client) {
			id := c.open()
			c.reset(id)
			c.frame(http2.FrameHeaders, flagEndHeaders|flagEndStream, id, c.encode("x", "y"))
		}, goAway(http2.ErrCodeStreamClosed)},
		{"5.1 reset by the server: what was under way is ignored", func(c *client) {
			id := c.open("content-length", "1")
			for range 3 {
				c.frame(http2.FrameData, 0, id, valid)
			}
			c.frame(http2.FrameWindowUpdate, 0, id, number(1))
			c.frame(http2.FrameHeaders, flagEndHeaders|flagEndStream, id, c.encode("x", "y"))
			c.frame(http2.FrameRSTStream, 0, id, number(8))
		}, reset(http2.ErrCodeProtocol)},
		{"5.1 reset by both", func(c *client) {
			id := c.open("content-length", "1")
			c.frame(http2.FrameData, 0, id, valid)
			c.reset(id)
			c.frame(http2.FrameData, 0, id, valid)
		}, goAway(http2.ErrCodeStreamClosed)},
		{
			"5.1.1 even number", send(http2.FrameHeaders, flagEndHeaders|flagEndStream, 2, "\x82\x86\x84"),
			goAway(http2.ErrCodeProtocol),
		},
		{"5.1.1 lower number", func(c *client) {
			c.nextID = 7
			c.expectAlive()
			c.nextID = 5
			c.call("x")
		}, goAway(http2.ErrCodeStreamClosed)},
		{"5.1.1 numbers may be skipped", func(c *client) { c.nextID = 1<<31 - 101; c.call("x") }, answered("x")},
		{"5.1.1 the last number", func(c *client) {
			c.nextID = 1<<31 - 1
			c.expectAnswer(c.call("x"), "x")
			c.nextID = 1
			c.call("x")
		}, goAway(http2.ErrCodeStreamClosed)},
		{"5.1.1 a malformed request uses its number", func(c *client) {
			c.nextID = 5
			sendHead(":method", "GET")(c)
			c.frame(http2.FrameHeaders, flagEndHeaders, 3, c.encode(requestFields(methodPath)...))
			c.nextID = 7
		}, func(c *client) {
			c.expectReset(5, http2.ErrCodeProtocol)
			c.expectReset(3, http2.ErrCodeProtocol)
			c.expectAlive()
		}},
		{"5.1.2 too many streams", func(c *client) {
			for range 101 {
				c.open()
			}
		}, func(c *client) {
			c.expectReset(c.nextID-2, http2.ErrCodeRefusedStream)
			for id := uint32(1); id < c.nextID-2; id += 2 {
				c.finishCall(id, "x")
			}
			c.expectAnswer(1, "x")
			c.expectAnswer(c.nextID-4, "x")
			c.expectAlive()
		}},
	})
}

func TestRFC9113FrameRules(t *testing.T) {
	run(t, (*testServer).connect, []rule{
		{"6.1 DATA on stream 0", send(http2.FrameData, 0, 0, "x"), goAway(http2.ErrCodeProtocol)},
		{"6.1 padding", func(c *client) {
			c.frame(http2.FrameData, flagEndStream|flagPadded, c.open(), "\x03"+prefixed("x")+"\x00\x00\x00")
		}, answered("x")},
		{"6.1 all is padding", func(c *client) {
			id := c.open()
			c.frame(http2.FrameData, flagPadded, id, "\x02\x00\x00")
			c.finishCall(id, "x")
		}, answered("x")},
		{"6.1 padding too long", sendOn(http2.FrameData, flagPadded, "\x03\x00\x00"), goAway(http2.ErrCodeProtocol)},
		{"6.1 no length of the padding", sendOn(http2.FrameData, flagPadded, ""), goAway(http2.ErrCodeProtocol)},
		{"6.2 HEADERS on stream 0", send(http2.FrameHeaders, flagEndHeaders, 0, "\x82"), goAway(http2.ErrCodeProtocol)},
		{"6.2 padding and priority", func(c *client) {
			id := c.newID()
			c.frame(http2.FrameHeaders, flagEndHeaders|flagPadded|flagPriority, id,
				"\x02"+number(0)+"\x10"+c.encode(requestFields(methodPath)...)+"\x00\x00")
			c.finishCall(id, "x")
		}, answered("x")},
		{
			"6.2 padding too long", send(http2.FrameHeaders, flagEndHeaders|flagPadded, 1, "\x02\x82"),
			goAway(http2.ErrCodeProtocol),
		},
		{
			"6.2 too short for its priority", send(http2.FrameHeaders, flagEndHeaders|flagPriority, 1, number(0)),
			goAway(http2.ErrCodeFrameSize),
		},
		{
			"6.2 depends on itself", send(http2.FrameHeaders, flagEndHeaders|flagPriority, 1, number(1)+"\x10\x82"),
			goAway(http2.ErrCodeProtocol),
		},
		{"6.3 PRIORITY on stream 0", send(http2.FramePriority, 0, 0, number(1)+"\x10"), goAway(http2.ErrCodeProtocol)},
		{"6.3 too short", send(http2.FramePriority, 0, 1, number(0)), goAway(http2.ErrCodeFrameSize)},
		{"6.3 too long", send(http2.FramePriority, 0, 1, number(0)+"\x10\x10"), goAway(http2.ErrCodeFrameSize)},
		{"6.3 depends on itself", send(http2.FramePriority, 0, 1, number(1<<31|1)+"\x10"), goAway(http2.ErrCodeProtocol)},
		{"6.4 RST_STREAM on stream 0", send(http2.FrameRSTStream, 0, 0, "1234"), goAway(http2.ErrCodeProtocol)},
		{"6.4 too short", sendOn(http2.FrameRSTStream, 0, "123"), goAway(http2.ErrCodeFrameSize)},
		{"6.4 too long", sendOn(http2.FrameRSTStream, 0, "12345"), goAway(http2.ErrCodeFrameSize)},
		{"6.4 a call ends", sendOn(http2.FrameRSTStream, 0, "1234"), alive},
		{"6.6 PUSH_PROMISE", sendOn(http2.FramePushPromise, flagEndHeaders, number(2)+"\x82"), goAway(http2.ErrCodeProtocol)},
		{"6.7 PING on a stream", send(http2.FramePing, 0, 1, "12345678"), goAway(http2.ErrCodeProtocol)},
		{"6.7 too short", send(http2.FramePing, 0, 0, "1234567"), goAway(http2.ErrCodeFrameSize)},
		{"6.7 too long", send(http2.FramePing, 0, 0, "123456789"), goAway(http2.ErrCodeFrameSize)},
		{"6.7 answers in order", func(c *client) {
			for _, text := range []string{"12345678", "abcdefgh"} {
				c.frame(http2.FramePing, 0, 0, text)
			}
		}, func(c *client) {
			c.expectPingAnswer("12345678")
			c.expectPingAnswer("abcdefgh")
		}},
		{"6.7 no answer to an answer", func(c *client) {
			c.frame(http2.FramePing, flagAck, 0, "12345678")
			c.frame(http2.FramePing, 0, 0, "abcdefgh")
		}, func(c *client) { c.expectPingAnswer("abcdefgh") }},
		{"6.8 GOAWAY on a stream", send(http2.FrameGoAway, 0, 1, number(0)+number(0)), goAway(http2.ErrCodeProtocol)},
		{"6.8 too short", send(http2.FrameGoAway, 0, 0, number(0)+"123"), goAway(http2.ErrCodeFrameSize)},
		{"6.8 calls go on", send(http2.FrameGoAway, 0, 0, number(0)+number(0)+"why"), alive},
		{
			"6.10 CONTINUATION without HEADERS", send(http2.FrameContinuation, flagEndHeaders, 1, "\x82"),
			goAway(http2.ErrCodeProtocol),
		},
		{"6.10 on stream 0", send(http2.FrameContinuation, flagEndHeaders, 0, ""), goAway(http2.ErrCodeProtocol)},
		{
			"6.10 after the end of the block", sendOn(http2.FrameContinuation, flagEndHeaders, "\x82"),
			goAway(http2.ErrCodeProtocol),
		},
		{"6.10 a block in pieces", func(c *client) {
			id, block := c.newID(), c.encode(requestFields(methodPath)...)
			c.frame(http2.FrameHeaders, 0, id, block[:1])
			c.frame(http2.FrameContinuation, 0, id, "")
			c.frame(http2.FrameContinuation, 0, id, block[1:10])
			c.frame(http2.FrameContinuation, flagEndHeaders, id, block[10:])
			c.finishCall(id, "x")
		}, answered("x")},
		{"6.10 trailers in pieces", func(c *client) {
			id, block := c.open(), c.encode("some", "trailer")
			c.frame(http2.FrameData, 0, id, prefixed("x"))
			c.frame(http2.FrameHeaders, flagEndStream, id, block[:2])
			c.frame(http2.FrameContinuation, flagEndHeaders, id, block[2:])
		}, answered("x")},
	})
}

// expectPingAnswer waits for the next answer to a PING.
func (c *client) expectPingAnswer(text string) {
	c.t.Helper()
	f := c.await("answer to PING", func(f http2.Frame) bool { return f.Header().Type == http2.FramePing })
	if p := f.(*http2.PingFrame); !p.IsAck() || string(p.Data[:]) != text {
		c.t.Fatalf("%v, want the answer to %q", p, text)
	}
}

// sync waits until the server has handled all that was sent.
func (c *client) sync() {
	c.t.Helper()
	c.frame(http2.FramePing, 0, 0, "syncsync")
	c.await("answer to PING", func(f http2.Frame) bool {
		p, ok := f.(*http2.PingFrame)
		return ok && p.IsAck() && string(p.Data[:]) == "syncsync"
	})
}

func TestRFC9113BlocksAreNotInterrupted(t *testing.T) {
	rules := []rule(nil)
	for _, kind := range []http2.FrameType{
		http2.FrameData, http2.FrameHeaders, http2.FramePriority, http2.FrameRSTStream, http2.FrameSettings,
		http2.FramePushPromise, http2.FramePing, http2.FrameGoAway, http2.FrameWindowUpdate, 99,
	} {
		for _, id := range []uint32{0, 1, 3} {
			rules = append(rules, rule{http2.FrameType(kind).String() + " on stream " + string('0'+rune(id)), func(c *client) {
				c.frame(http2.FrameHeaders, 0, 1, "\x82")
				c.frame(kind, flagEndHeaders, id, "")
			}, goAway(http2.ErrCodeProtocol)})
		}
	}
	run(t, (*testServer).connect, append(rules, rule{"CONTINUATION on stream 3", func(c *client) {
		c.frame(http2.FrameHeaders, 0, 1, "\x82")
		c.frame(http2.FrameContinuation, flagEndHeaders, 3, "")
	}, goAway(http2.ErrCodeProtocol)}))
}

// setting returns the payload of SETTINGS.
func setting(id http2.SettingID, value uint32) string {
	return string([]byte{0, byte(id)}) + number(value)
}

func TestRFC9113Settings(t *testing.T) {
	settings := func(payload string) func(*client) { return send(http2.FrameSettings, 0, 0, payload) }
	run(t, (*testServer).connect, []rule{
		{"6.5 on a stream", send(http2.FrameSettings, 0, 1, ""), goAway(http2.ErrCodeProtocol)},
		{"6.5 ACK with settings", send(http2.FrameSettings, flagAck, 0, setting(1, 1)), goAway(http2.ErrCodeFrameSize)},
		{"6.5 incomplete setting", settings("12345"), goAway(http2.ErrCodeFrameSize)},
		{"6.5.2 unknown setting", settings(setting(0x99, 1<<32-1)), alive},
		{
			"6.5.2 ENABLE_PUSH 0 and 1", settings(setting(http2.SettingEnablePush, 0) + setting(http2.SettingEnablePush, 1)),
			alive,
		},
		{"6.5.2 ENABLE_PUSH 2", settings(setting(http2.SettingEnablePush, 2)), goAway(http2.ErrCodeProtocol)},
		{"6.5.2 INITIAL_WINDOW_SIZE", settings(setting(http2.SettingInitialWindowSize, maxWindow)), alive},
		{
			"6.5.2 INITIAL_WINDOW_SIZE too large", settings(setting(http2.SettingInitialWindowSize, maxWindow+1)),
			goAway(http2.ErrCodeFlowControl),
		},
		{"6.5.2 MAX_FRAME_SIZE 0", settings(setting(http2.SettingMaxFrameSize, 0)), goAway(http2.ErrCodeProtocol)},
		{
			"6.5.2 MAX_FRAME_SIZE too small", settings(setting(http2.SettingMaxFrameSize, 1<<14-1)),
			goAway(http2.ErrCodeProtocol),
		},
		{
			"6.5.2 MAX_FRAME_SIZE too large", settings(setting(http2.SettingMaxFrameSize, 1<<24)), goAway(http2.ErrCodeProtocol),
		},
		{"6.5.2 MAX_FRAME_SIZE", settings(setting(http2.SettingMaxFrameSize, 1<<14) + setting(http2.SettingMaxFrameSize,
			1<<24-1)), alive},
		{
			"6.5.2 no room for header lists",
			settings(setting(http2.SettingMaxHeaderListSize, 0) + setting(1, 1<<32-1) + setting(1, 0)), alive,
		},
		{"6.5.3 each is acknowledged", func(c *client) {
			c.must(c.WriteSettings())
			c.must(c.WriteSettings())
		}, func(c *client) {
			for range 3 {
				c.await("ACK", func(f http2.Frame) bool {
					return f.Header().Type == http2.FrameSettings && f.Header().Flags == http2.FlagSettingsAck
				})
			}
		}},
		{"6.5.3 the last value counts", func(c *client) {
			settings(setting(http2.SettingInitialWindowSize, 1) + setting(http2.SettingInitialWindowSize, 100))(c)
			c.call("x")
		}, answered("x")},
	})
}

func TestRFC9113FlowControl(t *testing.T) {
	window := func(id, n uint32) func(*client) { return send(http2.FrameWindowUpdate, 0, id, number(n)) }
	full := strings.Repeat("x", maxFrameBytes)
	run(t, (*testServer).connect, []rule{
		{"6.9 too short", send(http2.FrameWindowUpdate, 0, 0, "123"), goAway(http2.ErrCodeFrameSize)},
		{"6.9 too long", sendOn(http2.FrameWindowUpdate, 0, "12345"), goAway(http2.ErrCodeFrameSize)},
		{"6.9 by 0 on the connection", window(0, 0), goAway(http2.ErrCodeProtocol)},
		{"6.9 by 0 on a stream", sendOn(http2.FrameWindowUpdate, 0, number(0)), goAway(http2.ErrCodeProtocol)},
		{"6.9 reserved bit", window(0, 1<<31|5), alive},
		{"6.9.1 the connection's window is too large", window(0, maxWindow), goAway(http2.ErrCodeFlowControl)},
		{"6.9.1 the largest window of the connection", window(0, maxWindow-firstWindow), alive},
		{
			"6.9.1 a stream's window is too large", sendOn(http2.FrameWindowUpdate, 0, number(maxWindow)),
			reset(http2.ErrCodeFlowControl),
		},
		{"6.9.1 the largest window of a stream", func(c *client) {
			id := c.open()
			window(id, maxWindow-firstWindow)(c)
			c.finishCall(id, "x")
		}, answered("x")},
		{"6.9.1 DATA exceeds the window of its stream", func(c *client) {
			id := c.openMethod(streamPath) // Handler wants no second message.
			c.frame(http2.FrameData, 0, id, prefixed("x"))
			for range 100 {
				c.frame(http2.FrameData, 0, id, full)
			}
		}, goAway(http2.ErrCodeFlowControl)},
		{"6.9.2 the first window is that of SETTINGS", func(c *client) {
			c.frame(http2.FrameSettings, 0, 0, setting(http2.SettingInitialWindowSize, 0))
			id := c.call("0123456789")
			c.sync()
			c.sync() // The answer follows that to the first PING.
			if a := c.answers[id]; a == nil || a.blocks != 1 || len(a.data) != 0 {
				c.t.Errorf("%+v, want headers only", a)
			}
			for range len(prefixed("0123456789")) {
				window(id, 1)(c)
			}
		}, func(c *client) { c.expectAnswer(1, "0123456789") }},
		{"6.9.2 all at once", func(c *client) {
			c.frame(http2.FrameSettings, 0, 0, setting(http2.SettingInitialWindowSize, 0))
			window(c.call("0123456789"), 15)(c)
		}, func(c *client) { c.expectAnswer(1, "0123456789") }},
		{"6.9.2 the windows of open streams grow", func(c *client) {
			c.frame(http2.FrameSettings, 0, 0, setting(http2.SettingInitialWindowSize, 3))
			c.call("0123456789")
			c.frame(http2.FrameSettings, 0, 0, setting(http2.SettingInitialWindowSize, 1000))
		}, answered("0123456789")},
		{"6.9.2 a window becomes negative", func(c *client) {
			c.frame(http2.FrameSettings, 0, 0, setting(http2.SettingInitialWindowSize, 10))
			id := c.call("0123456789") // 5 bytes are left after the window.
			c.sync()
			c.sync()
			c.frame(http2.FrameSettings, 0, 0, setting(http2.SettingInitialWindowSize, 0))
			window(id, 10)(c)
			c.sync()
			if n := len(c.answers[id].data); n != 10 {
				c.t.Errorf("%d bytes with a window of 0, want 10", n)
			}
			window(id, 5)(c)
		}, func(c *client) {
			c.expectAnswer(c.nextID-2, "0123456789")
			c.frame(http2.FrameSettings, 0, 0, setting(http2.SettingInitialWindowSize, 100))
			c.expectAlive()
		}},
		{"6.9.2 the window of a call that has ended does not count", func(c *client) {
			id := c.open()
			window(id, maxWindow-firstWindow)(c)
			c.finishCall(id, "x")
			c.expectAnswer(id, "x")
			c.frame(http2.FrameSettings, 0, 0, setting(http2.SettingInitialWindowSize, firstWindow+1))
		}, alive},
		{"6.9.2 SETTINGS make a window too large", func(c *client) {
			id := c.open()
			window(id, 1<<30)(c)
			c.frame(http2.FrameSettings, 0, 0, setting(http2.SettingInitialWindowSize, maxWindow))
			c.finishCall(id, "x")
		}, goAway(http2.ErrCodeFlowControl)},
		{"6.9.2 SETTINGS make the window of a call too large", func(c *client) {
			window(c.call("x"), 1<<30)(c)
			c.frame(http2.FrameSettings, 0, 0, setting(http2.SettingInitialWindowSize, maxWindow))
		}, goAway(http2.ErrCodeFlowControl)},
		{"6.9.2 SETTINGS make the window of a stream that waits too large", func(c *client) {
			window(c.openOther(), 1<<30)(c)
			c.frame(http2.FrameSettings, 0, 0, setting(http2.SettingInitialWindowSize, maxWindow))
		}, goAway(http2.ErrCodeFlowControl)},
	})
}

// TestRFC9113ConnectionWindow checks that streams wait for the window of the connection, and go on in their order.
func TestRFC9113ConnectionWindow(t *testing.T) {
	t.Parallel()
	c := startServer(t, Config{}).connect()
	c.frame(http2.FrameSettings, 0, 0, setting(http2.SettingInitialWindowSize, maxWindow))
	message := strings.Repeat("m", 30_000)
	ids := []uint32{c.call(message), c.call(message), c.call(message), c.call(message)}
	c.sync()
	sum := 0
	for _, id := range ids {
		if a := c.answers[id]; a != nil {
			sum += len(a.data)
		}
	}
	if sum != firstWindow {
		t.Errorf("%d bytes of DATA, want the window of %d", sum, firstWindow)
	}
	for range 2 {
		c.frame(http2.FrameWindowUpdate, 0, 0, number(30_000))
	}
	for _, id := range ids {
		c.expectAnswer(id, message)
	}
}

// TestRFC9113ReceiveWindow checks that DATA beyond the connection's window ends the connection, and DATA within it does
// not.
func TestRFC9113ReceiveWindow(t *testing.T) {
	t.Parallel()
	block := make(chan struct{})
	defer close(block)
	s := startServer(t, Config{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-block })})
	c := s.connect()
	window := firstWindow
	c.await("WINDOW_UPDATE", func(f http2.Frame) bool {
		u, ok := f.(*http2.WindowUpdateFrame)
		if ok {
			window += int(u.Increment)
		}
		return ok
	})
	if window != connWindow {
		t.Errorf("the window is %d, want %d", window, connWindow)
	}
	full := strings.Repeat("x", maxFrameBytes)
	for range 40 { // More than twice the window, on streams whose own windows have room.
		id := c.openOther()
		for range 3 {
			c.frame(http2.FrameData, 0, id, full)
		}
	}
	c.sync()
	for _, a := range c.answers {
		if a.isReset {
			t.Errorf("a stream was reset with %v", a.code)
		}
	}
}
