package h2

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"ratelimit/testbed/harness"
)

// FuzzAgainstGRPCGo plays the same calls to this package and to grpc-go's own server, and compares the answers.
func FuzzAgainstGRPCGo(f *testing.F) {
	for i := range byte(60) {
		f.Add([]byte{i, i * 7, i * 13, i * 29, i * 31, i * 37, i, i * 3, i * 5, i * 11, i * 17, i * 19, i * 23, i * 41})
	}
	cfg := grpcConfig()
	cfg.Decide, cfg.Handler = decideAsHandler, OnlyGRPC(cfg.Handler)
	own := startServer(f, cfg)
	theirs := newGRPC()
	l := harness.Listen(f)
	served := make(chan error, 1)
	go func() { served <- theirs.Serve(l) }()
	f.Cleanup(func() {
		theirs.Stop()
		if err := <-served; err != nil {
			f.Error(err)
		}
	})
	f.Fuzz(func(t *testing.T, data []byte) {
		var clients [2]*client
		for i, addr := range []string{own.addr, l.Addr().String()} {
			raw, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			clients[i] = newClient(t, raw)
			clients[i].greet()
		}
		calls := script{data: data}
		for len(calls.data) > 0 {
			call := calls.randomCall()
			var got [2]string
			for i, c := range clients {
				got[i] = call.play(c)
			}
			if got[0] != got[1] {
				t.Fatalf("%+v:\nthis package: %s\ngrpc-go:      %s", call, got[0], got[1])
			}
		}
	})
}

// decideAsHandler answers as the methods of newGRPC.
func decideAsHandler(b *Batch) {
	for i := range b.Calls {
		var m wrapperspb.StringValue
		switch err := proto.Unmarshal(b.Calls[i].Message, &m); {
		case err != nil:
			b.Fail(i, int(codes.Internal), err.Error())
		case m.Value == "fail":
			b.Fail(i, int(codes.FailedPrecondition), oddText)
		default:
			answer, _ := proto.Marshal(wrapperspb.String("handled " + m.Value)) // A text can always be encoded.
			b.Reply(i, answer)
		}
	}
}

// oneCall is what a client sends on a stream.
type oneCall struct {
	path   string
	more   []string // the fields after the path and the authority.
	verb   string
	body   string
	pieces int  // the size of DATA frames.
	apart  bool // true if END_STREAM comes in a frame of its own.
	isBare bool // true if the HEADERS end the stream.
}

// randomCall returns a call that both servers end by themselves.
func (s *script) randomCall() oneCall {
	pick := func(texts ...string) string { return texts[s.byte()%len(texts)] }
	// A text can always be encoded.
	message, _ := proto.Marshal(wrapperspb.String(pick("", "x", "fail", strings.Repeat("y", 500),
		strings.Repeat("z", 20_000))))
	one := prefixed(string(message))
	c := oneCall{
		path: pick(methodPath, methodPath, methodPath, otherPath, otherPath, streamPath, "/test.Service/Unknown",
			"/unknown.Service/Method", "/", "x", methodPath+"?x=1",
			strings.Replace(methodPath, "M", "%4d", 1), "http://test"+methodPath, methodPath+"/", "/test.Service/"),
		verb:   pick("POST", "POST", "POST", "POST", "POST", "GET", "PUT"),
		pieces: min(1+s.byte()*300, maxFrameBytes),
		apart:  s.byte()%2 == 0,
		isBare: s.byte()%16 == 0,
	}
	c.more = append(c.more, "content-type",
		pick("application/grpc", "application/grpc", "application/grpc", "application/grpc+proto", "application/grpc;x",
			"application/grpcx", "text/plain", ""))
	if c.more[1] == "" {
		c.more = nil
	}
	switch s.byte() % 12 {
	case 0:
		c.more = append(c.more, "grpc-timeout", pick("0n", "0S", "1H", "", "x", "1x", "-1S", "123456789S", "99999999H"))
	case 1:
		c.more = append(c.more, "grpc-encoding", pick("identity", "unknown", "deflate"))
	case 2:
		c.more = append(c.more, "host", "a")
	case 3:
		c.more = append(c.more, "host", "a", "host", "b")
	case 4:
		c.more = append(c.more, "some-bin", pick("", "AAEC", "!", "AA", "AA=="))
	case 5:
		c.more = append(c.more, "x-some", pick("", "a", "a b"), "x-some", "b")
	case 6:
		c.more = append(c.more, "content-type", pick("application/grpc", "text/plain"))
	}
	switch s.byte() % 8 {
	case 0:
		c.body = ""
	case 1:
		c.body = one[:len(one)-1]
	case 2:
		c.body = one[:s.byte()%5]
	case 3:
		c.body = "\x01" + one[1:]
	case 4:
		c.body = "\x00\xff\xff\xff\xff" + one
	default:
		c.body = one
	}
	return c
}

// play sends the call, waits for its end, and tells the answer. Texts of errors may differ.
func (o oneCall) play(c *client) string {
	id, flags := c.newID(), uint8(flagEndHeaders)
	if o.isBare {
		flags |= flagEndStream
	}
	c.frame(http2.FrameHeaders, flags, id,
		c.encode(append([]string{":method", o.verb, ":scheme", "http", ":path", o.path, ":authority", "test"}, o.more...)...))
	if !o.isBare {
		rest := o.body
		o.pieces = max(o.pieces, len(rest)/200) // Many tiny frames are a flood.
		for len(rest) > o.pieces || o.apart && rest != "" {
			n := min(len(rest), o.pieces)
			c.frame(http2.FrameData, 0, id, rest[:n])
			rest = rest[n:]
		}
		c.frame(http2.FrameData, flagEndStream, id, rest)
	}
	a := c.ended(id)
	switch {
	case a.isReset && !a.isEnded:
		return fmt.Sprint("reset with ", a.code)
	case a.fields["grpc-status"] == "0":
		return fmt.Sprintf("%s OK %q", a.fields[":status"], a.data)
	}
	return fmt.Sprintf("%s status %s, %d blocks, gRPC %t", a.fields[":status"], a.fields["grpc-status"], a.blocks,
		isGRPC(a.fields["content-type"]))
}
