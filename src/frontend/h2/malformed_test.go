package h2

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"golang.org/x/net/http2"
)

// malformed are header lists that RFC 9113 forbids, by section.
var malformed = map[string][]string{
	"8.2 upper case":                  requestFields(methodPath, "Some", "x"),
	"8.2 empty name":                  requestFields(methodPath, "", "x"),
	"8.2 blank in a name":             requestFields(methodPath, "a b", "x"),
	"8.2 colon in a name":             requestFields(methodPath, "a:b", "x"),
	"8.2 control character in a name": requestFields(methodPath, "a\x01", "x"),
	"8.2 DEL in a name":               requestFields(methodPath, "a\x7f", "x"),
	"8.2 high byte in a name":         requestFields(methodPath, "a\xff", "x"),
	"8.2.1 NUL":                       requestFields(methodPath, "some", "a\x00b"),
	"8.2.1 CR":                        requestFields(methodPath, "some", "a\rb"),
	"8.2.1 LF":                        requestFields(methodPath, "some", "a\nb"),
	"8.2.1 blank before a value":      requestFields(methodPath, "some", " a"),
	"8.2.1 blank after a value":       requestFields(methodPath, "some", "a "),
	"8.2.1 tab before a value":        requestFields(methodPath, "some", "\ta"),
	"8.2.1 tab after a value":         requestFields(methodPath, "some", "a\t"),
	"8.2.1 CR in a path":              requestFields("/a\r"),
	"8.2.2 connection":                requestFields(methodPath, "connection", "close"),
	"8.2.2 proxy-connection":          requestFields(methodPath, "proxy-connection", "close"),
	"8.2.2 keep-alive":                requestFields(methodPath, "keep-alive", "1"),
	"8.2.2 transfer-encoding":         requestFields(methodPath, "transfer-encoding", "chunked"),
	"8.2.2 upgrade":                   requestFields(methodPath, "upgrade", "h2c"),
	"8.2.2 te":                        requestFields(methodPath, "te", "gzip"),
	"8.2.2 te with more":              requestFields(methodPath, "te", "trailers, gzip"),
	"8.3 unknown":                     append([]string{":unknown", "x"}, requestFields(methodPath)...),
	"8.3 of responses":                append([]string{":status", "200"}, requestFields(methodPath)...),
	"8.3 nothing but a colon":         append([]string{":", "x"}, requestFields(methodPath)...),
	"8.3 after another field":         {":method", "POST", ":scheme", "http", "some", "x", ":path", methodPath},
	"8.3 after a field of gRPC": {
		":method", "POST", ":scheme", "http", "content-type", "application/grpc",
		":path", methodPath,
	},
	"8.3.1 no method":         {":scheme", "http", ":path", methodPath},
	"8.3.1 no scheme":         {":method", "POST", ":path", methodPath},
	"8.3.1 no path":           {":method", "POST", ":scheme", "http"},
	"8.3.1 nothing":           {},
	"8.3.1 two methods":       {":method", "POST", ":method", "POST", ":scheme", "http", ":path", methodPath},
	"8.3.1 two other methods": {":method", "POST", ":method", "GET", ":scheme", "http", ":path", methodPath},
	"8.3.1 two schemes":       {":method", "POST", ":scheme", "http", ":scheme", "https", ":path", methodPath},
	"8.3.1 two paths":         {":method", "POST", ":scheme", "http", ":path", methodPath, ":path", otherPath},
	"8.3.1 two authorities": {
		":method", "POST", ":scheme", "http", ":path", methodPath, ":authority", "a",
		":authority", "b",
	},
	"8.3.1 empty path":                   {":method", "POST", ":scheme", "http", ":path", ""},
	"8.5 CONNECT":                        {":method", "CONNECT", ":authority", "a:1"},
	"8.1.1 content-length -1":            requestFields(methodPath, "content-length", "-1"),
	"8.1.1 content-length +1":            requestFields(methodPath, "content-length", "+1"),
	"8.1.1 content-length of no digits":  requestFields(methodPath, "content-length", ""),
	"8.1.1 content-length of 65 bits":    requestFields(methodPath, "content-length", "18446744073709551617"),
	"8.1.1 content-length a list":        requestFields(methodPath, "content-length", "5, 5"),
	"8.1.1 two different content-length": requestFields(methodPath, "content-length", "5", "content-length", "6"),
	"8.1.1 content-length without DATA":  requestFields(methodPath, "content-length", "1"),
}

// TestMalformedRequests checks that a malformed request is reset before any code sees it, whether or not it has a
// body, and that the connection goes on.
func TestMalformedRequests(t *testing.T) {
	rules := []rule(nil)
	for name, fields := range malformed {
		rules = append(rules, rule{name, sendHead(fields...), reset(http2.ErrCodeProtocol)})
		if name != "8.1.1 content-length without DATA" {
			rules = append(rules, rule{name + ", DATA follows", func(c *client) {
				id := c.newID()
				c.frame(http2.FrameHeaders, flagEndHeaders, id, c.encode(fields...))
				c.finishCall(id, "x")
			}, reset(http2.ErrCodeProtocol)})
		}
	}
	run(t, (*testServer).connect, rules)
}

// TestMalformedBodies checks content-length and trailers (RFC 9113 sections 8.1 and 8.1.1).
func TestMalformedBodies(t *testing.T) {
	t.Parallel()
	for _, path := range []string{methodPath, otherPath} {
		trailers := func(flags uint8, fields ...string) func(*client) {
			return func(c *client) {
				id := c.newID()
				c.frame(http2.FrameHeaders, flagEndHeaders, id, c.encode(requestFields(path)...))
				c.frame(http2.FrameData, 0, id, prefixed("x"))
				c.frame(http2.FrameHeaders, flags, id, c.encode(fields...))
			}
		}
		body := func(length string, parts ...string) func(*client) {
			return func(c *client) {
				id := c.newID()
				c.frame(http2.FrameHeaders, flagEndHeaders, id, c.encode(requestFields(path, "content-length", length)...))
				for i, part := range parts {
					flags := uint8(0)
					if i == len(parts)-1 {
						flags = flagEndStream
					}
					c.frame(http2.FrameData, flags, id, part)
				}
			}
		}
		last := uint8(flagEndHeaders | flagEndStream)
		ok := func(c *client) {
			if a := c.ended(c.nextID - 2); string(a.data) != prefixed("x") || a.isReset {
				c.t.Errorf("%+v", a)
			}
			c.expectAlive()
		}
		t.Run(path, func(t *testing.T) {
			run(t, (*testServer).connect, []rule{
				{"8.1 trailers", trailers(last, "some", "x"), ok},
				{"8.1 empty trailers", trailers(last), ok},
				{"8.1 trailers do not end the stream", trailers(flagEndHeaders, "some", "x"), reset(http2.ErrCodeProtocol)},
				{"8.1 pseudo-header field", trailers(last, ":path", "/"), reset(http2.ErrCodeProtocol)},
				{"8.1 pseudo-header field of the last request", trailers(last, ":path", methodPath), reset(http2.ErrCodeProtocol)},
				{"8.2 upper case in trailers", trailers(last, "Some", "x"), reset(http2.ErrCodeProtocol)},
				{"8.2.1 NUL in trailers", trailers(last, "some", "\x00"), reset(http2.ErrCodeProtocol)},
				{"8.2.2 connection in trailers", trailers(last, "connection", "x"), reset(http2.ErrCodeProtocol)},
				{"8.1.1 exact", body("6", prefixed("x")), ok},
				{"8.1.1 exact in parts", body("6", prefixed("x")[:2], "", prefixed("x")[2:], ""), ok},
				{"8.1.1 twice the same", body("6", prefixed("x")), ok},
				{"8.1.1 too little", body("7", prefixed("x")), reset(http2.ErrCodeProtocol)},
				{"8.1.1 too little in parts", body("7", prefixed("x")[:2], prefixed("x")[2:], ""), reset(http2.ErrCodeProtocol)},
				{"8.1.1 too much", body("5", prefixed("x")), reset(http2.ErrCodeProtocol)},
				{"8.1.1 too much in parts", body("5", prefixed("x")[:5], "x", "y"), reset(http2.ErrCodeProtocol)},
				{"8.1.1 no overflow of 32 bits", body("4294967302", prefixed("x")), reset(http2.ErrCodeProtocol)},
			})
		})
	}
}

// TestRequestsOutOfTheOrdinary checks requests that RFC 9113 allows, but no client of gRPC sends.
func TestRequestsOutOfTheOrdinary(t *testing.T) {
	call := func(fields ...string) func(*client) {
		return func(c *client) {
			id := c.newID()
			c.frame(http2.FrameHeaders, flagEndHeaders, id, c.encode(fields...))
			c.finishCall(id, "x")
		}
	}
	grpcFields := []string{"content-type", "application/grpc", "te", "trailers"}
	run(t, (*testServer).connect, []rule{
		{
			"no authority", call(append([]string{":method", "POST", ":scheme", "http", ":path", methodPath}, grpcFields...)...),
			func(c *client) { c.expectStatus(1, "13") },
		},
		{"no authority but a host", call(append([]string{
			":method", "POST", ":scheme", "http", ":path", methodPath, "host",
			"a",
		}, grpcFields...)...), answered("x")},
		{
			"two hosts", call(requestFields(methodPath, "host", "a", "host", "b")...),
			func(c *client) { c.expectStatus(1, "13") },
		},
		{
			"timeout of 0", call(requestFields(methodPath, "grpc-timeout", "0n")...),
			func(c *client) { c.expectStatus(1, "4") },
		},
		{
			"empty timeout", call(requestFields(methodPath, "grpc-timeout", "")...),
			func(c *client) { c.expectStatus(1, "13") },
		},
		{"empty authority", call(append([]string{":method", "POST", ":scheme", "http", ":authority", "", ":path", methodPath},
			grpcFields...)...), answered("x")},
		{"another order", call(append([]string{":path", methodPath, ":authority", "a", ":scheme", "http", ":method", "POST"},
			grpcFields...)...), answered("x")},
		{"host that differs", call(requestFields(methodPath, "host", "other")...), answered("x")},
		{
			"crumbs of cookies", call(requestFields(methodPath, slices.Repeat([]string{"cookie", "a=b"}, maxFields-6)...)...),
			answered("x"),
		},
		{"empty value", call(requestFields(methodPath, "some", "")...), answered("x")},
		{
			"content-length twice", call(requestFields(methodPath, "content-length", "6", "content-length", "6")...),
			answered("x"),
		},
		{"blank within a value", call(requestFields(methodPath, "some", "a b")...), answered("x")},
		{"high bytes in a value", call(requestFields(methodPath, "some", "\x80\xff")...), answered("x")},
	})
}

// TestLongHeaderLists checks the bound of header lists, and that what a rejected block has added to the dynamic table
// counts.
func TestLongHeaderLists(t *testing.T) {
	huge := strings.Repeat("y", 4000)
	big := []string{":method", "POST", ":scheme", "http", ":path", methodPath, "some", "secret"}
	for range 17 {
		big = append(big, "big", huge)
	}
	tableIsInStep := func(code http2.ErrCode) func(*client) {
		return func(c *client) {
			c.expectReset(c.nextID-2, code)
			id := c.newID()
			block := c.encode(requestFields(methodPath, "some", "secret", "big", huge)...)
			c.frame(http2.FrameHeaders, flagEndHeaders, id, block)
			c.finishCall(id, "x")
			c.expectAnswer(id, "x")
			c.expectAlive()
		}
	}
	run(t, (*testServer).connect, []rule{
		{"many references to one large field", func(c *client) {
			block := c.encode(append(requestFields(methodPath), "a", huge)...) + strings.Repeat("\xbe", 12_000)
			c.frame(http2.FrameHeaders, flagEndHeaders|flagEndStream, c.newID(), block)
		}, tableIsInStep(http2.ErrCodeEnhanceYourCalm)},
		{"many references to a tiny field", func(c *client) {
			block := c.encode(append(requestFields(methodPath), "a", "")...) + strings.Repeat("\xbe", 12_000)
			c.frame(http2.FrameHeaders, flagEndHeaders|flagEndStream, c.newID(), block)
		}, tableIsInStep(http2.ErrCodeEnhanceYourCalm)},
		{
			"one field too many", sendHead(requestFields(methodPath,
				append([]string{"some", "secret", "big", huge}, slices.Repeat([]string{"a", "b"}, maxFields-7)...)...)...),
			tableIsInStep(http2.ErrCodeEnhanceYourCalm),
		},
		{"many large fields", sendHead(big...), tableIsInStep(http2.ErrCodeEnhanceYourCalm)},
		{
			"malformed", sendHead(":method", "POST", ":path", "", "some", "secret", "big", huge),
			tableIsInStep(http2.ErrCodeProtocol),
		},
		{"too many streams", func(c *client) {
			for range 101 {
				c.open("some", "secret")
			}
			for id := uint32(1); id <= 199; id += 2 {
				c.finishCall(id, "x")
			}
			c.expectAnswer(199, "x")
		}, tableIsInStep(http2.ErrCodeRefusedStream)},
		{"a call just below the bound", func(c *client) {
			c.call("x", slices.Repeat([]string{"some", strings.Repeat("z", 1000)}, 62)...)
		}, answered("x")},
	})
}

// TestLongBlocksWait lets other long header blocks take all turns. A call with a short block is then answered, and one
// with a long block when a turn is free.
func TestLongBlocksWait(t *testing.T) {
	var batches atomic.Int64
	countAndEcho := func(b *Batch) { batches.Add(1); echo(b) }
	inFakeTime(t, Config{Decide: countAndEcho}, func(t *testing.T, s *testServer) {
		short, long := s.connect(), s.connect()
		for range cap(s.longBlocks) {
			s.longBlocks <- struct{}{}
		}
		id := long.call("long", "a", strings.Repeat("~", maxShortBlock)) // HPACK does not shorten a tilde.
		long.flush()
		short.expectAnswer(short.call("short"), "short")
		synctest.Wait()
		if n := batches.Load(); n != 1 {
			t.Errorf("%d calls are decided, want 1", n)
		}
		<-s.longBlocks
		long.expectAnswer(id, "long")
		if n := len(s.longBlocks); n != cap(s.longBlocks)-1 {
			t.Errorf("%d turns are taken, want all but one", n)
		}
	})
}
