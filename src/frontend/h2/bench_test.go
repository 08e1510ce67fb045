package h2

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"runtime"
	"testing"

	"golang.org/x/net/http2"
)

// repeatedCalls is a client that sends the same calls again and again, with new stream IDs. It allocates nothing.
type repeatedCalls struct {
	net         net.Conn
	sent        []byte
	ids         []int // where stream IDs are in sent.
	answerBytes int   // the length of the answers to sent.
	received    []byte
	nextID      uint32
}

// newRepeatedCalls connects a client for so many calls at a time. Fresh calls have two literals that do not enter the
// dynamic table.
func (s *testServer) newRepeatedCalls(calls int, fresh bool) *repeatedCalls {
	c := s.dial()
	c.greet()
	c.must(c.WriteWindowUpdate(0, 1<<31-1-firstWindow))
	more := []string{"user-agent", "benchmark", "x-envoy-internal", "true"}
	c.expectAnswer(c.call(shortAnswer, more...), shortAnswer) // The fields are in the dynamic table then.
	r := &repeatedCalls{net: c.net, nextID: c.nextID}
	literals := ""
	if fresh {
		literals = string(appendField(nil, "traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")) +
			string(appendField(nil, "x-request-id", "1b4e28ba-2fa1-11d2-883f-0016d3cca427"))
	}
	block := c.encode(requestFields(methodPath, more...)...) + literals
	const message = "a message as long as that of a request with a descriptor of two entries, about"
	for range calls {
		r.ids = append(r.ids, len(r.sent)+5)
		r.sent = append(appendFrameHeader(r.sent, len(block), http2.FrameHeaders, flagEndHeaders, 0), block...)
		r.ids = append(r.ids, len(r.sent)+5)
		body := prefixed(message)
		r.sent = append(appendFrameHeader(r.sent, len(body), http2.FrameData, flagEndStream, 0), body...)
	}
	perAnswer := 3*frameHeaderBytes + len(grpcHeaders) + len(prefixed(shortAnswer)) + len(okTrailers)
	r.answerBytes, r.received = calls*perAnswer, make([]byte, calls*perAnswer)
	return r
}

// shortAnswer is the answer to each call of repeatedCalls.
const shortAnswer = "\x08\x01\x12\x04\x08\x01\x18\x09"

// do sends the calls and reads their answers.
func (r *repeatedCalls) do(t testing.TB) {
	for i, at := range r.ids {
		id := r.nextID + 2*uint32(i/2)
		r.sent[at], r.sent[at+1], r.sent[at+2], r.sent[at+3] = byte(id>>24), byte(id>>16), byte(id>>8), byte(id)
	}
	r.nextID += uint32(len(r.ids))
	if _, err := r.net.Write(r.sent); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r.net, r.received); err != nil {
		t.Fatal(err)
	}
}

// answerShortly is a Decide without work.
func answerShortly(b *Batch) {
	answer := []byte(shortAnswer)
	for i := range b.Calls {
		b.Reply(i, answer)
	}
}

// BenchmarkCalls measures a call over a socket of loopback, without a decision. The client is a part of it: two
// system calls for all calls that it has at a time.
func BenchmarkCalls(b *testing.B) {
	for _, calls := range []int{1, 32, 256} {
		for _, fresh := range []bool{false, true} {
			b.Run(fmt.Sprintf("calls=%d/fresh=%t", calls, fresh), func(b *testing.B) {
				s := startServer(b, Config{Decide: answerShortly})
				r := s.newRepeatedCalls(calls, fresh)
				r.do(b)
				if n := bytes.Count(r.received, []byte(shortAnswer)); n != calls {
					b.Fatalf("%d answers", n)
				}
				b.ReportAllocs()
				for b.Loop() {
					r.do(b)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*calls), "ns/call")
			})
		}
	}
}

// TestCallsAllocateNothing is not parallel, so that other tests do not allocate.
func TestCallsAllocateNothing(t *testing.T) {
	for _, fresh := range []bool{false, true} {
		s := startServer(t, Config{Decide: answerShortly})
		r := s.newRepeatedCalls(32, fresh)
		var before, after runtime.MemStats

		for range 100 {
			r.do(t)
		}
		const rounds = 500
		runtime.ReadMemStats(&before)
		for range rounds {
			r.do(t)
		}
		runtime.ReadMemStats(&after)
		// With the race detector, pools forget some batches.
		if n := float64(after.Mallocs-before.Mallocs) / (32 * rounds); n > 0.2 {
			t.Errorf("fresh fields: %t: %.3f allocations per call", fresh, n)
		}
	}
}
