package soak

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// attacks are what no good client does. Each gets a connection to a port, on which
// every call fails after a while, and does not care what becomes of it.
var attacks = []attack{
	{"grpc", silence},
	{"grpc", rubbish},
	{"grpc", rapidReset},
	{"grpc", halfAMessage},
	{"grpc", rubbishMessages},
	{"grpc", watchAndLeave},
	{"http", silence},
	{"http", rubbish},
	{"http", say("POST /json HTTP/1.1\r\nHost: a\r\nContent-Le")},
	{"http", say("POST /json HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{\"domain\":")},
	{"http", say("POST /json HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n")},
	{"http", say("POST /json HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 100<<10))},
	{"http", body(strings.Repeat(`{"descriptors":[`, 50_000))},
	{"http", body(strings.Repeat("a", 2<<20))},
	{"http", body(`{"domain":"soak","descriptors":[{"entries":[` + strings.Repeat(`{},`, 20_000) + `{}]}]}`)},
	{"http", say(strings.Repeat("GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n", 200))},
	{"divvy", silence},
	{"divvy", rubbish},
	{"divvy", say("HIT user=half")},
	{"divvy", say(strings.Repeat("HIT user=a\n", 2000))},
	{"divvy", say("HIT user=" + strings.Repeat("a", 2<<20))},
	{"divvy", say("HIT " + strings.Repeat("a=b ", 2000) + "\n")},
	{"divvy", say("GET / HTTP/1.1\r\n\r\n")},
	{"resp", silence},
	{"resp", rubbish},
	{"resp", say("*2\r\n$4\r\nECHO\r\n$1000000\r\n")},
	{"resp", say(strings.Repeat("RATELIMIT soak user a\r\n", 2000))},
	{"resp", say(strings.Repeat("COMMAND\r\n", 2000))},
	{"resp", say("*1\r\n$9223372036854775807\r\n")},
	{"debug", silence},
	{"debug", rubbish},
	{"debug", say("GET /stats HTTP/1.1\r\nHost: a\r\n\r\n")},
	{"debug", say("GET /explain?domain=soak" + strings.Repeat("&descriptors=a=b", 500) + " HTTP/1.1\r\nHost: a\r\n\r\n")},
	{"prometheus", say("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")},
	{"prometheus", rubbish},
}

type attack struct {
	port string
	do   func(net.Conn)
}

// assault has one attack after the other. Connections end in one of three ways:
// with a FIN, with a RST, or half.
func (s *service) assault(ctx context.Context) error {
	return forever(ctx, 15*time.Millisecond, func(n int) error {
		a := attacks[n%len(attacks)]
		raw, err := net.DialTimeout("tcp", s.Addrs[a.port], harnessCall)
		if err != nil {
			return err
		}
		defer func() { _ = raw.Close() }()
		if err := raw.SetDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		a.do(raw)
		tcp := raw.(*net.TCPConn)
		switch rand.IntN(3) {
		case 0:
			return tcp.SetLinger(0)
		case 1:
			// Reads some of what there is, and then no more.
			_, _ = io.CopyN(io.Discard, raw, int64(rand.IntN(4096)))
		case 2:
			_ = tcp.CloseWrite()
			if raw.SetReadDeadline(time.Now().Add(50*time.Millisecond)) == nil {
				_, _ = io.Copy(io.Discard, raw)
			}
		}
		return nil
	})
}

func silence(net.Conn) {}

func rubbish(c net.Conn) {
	noise := make([]byte, 1+rand.IntN(2000))
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	_, _ = c.Write(noise)
}

func say(text string) func(net.Conn) {
	return func(c net.Conn) { _, _ = io.WriteString(c, text) }
}

func body(text string) func(net.Conn) {
	return say(fmt.Sprintf("POST /json HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", len(text), text))
}

// frames says hello in HTTP/2.
func frames(c net.Conn) (*http2.Framer, error) {
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		return nil, err
	}
	f := http2.NewFramer(c, c)
	return f, f.WriteSettings()
}

// open begins a call of a method.
func open(f *http2.Framer, stream uint32, method string) error {
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, h := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", method},
		{":authority", "a"},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	} {
		if err := enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}); err != nil {
			return err
		}
	}
	return f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true})
}

const (
	shouldRateLimit = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
	watchHealth     = "/grpc.health.v1.Health/Watch"
)

// rapidReset opens calls and takes them back at once.
func rapidReset(c net.Conn) {
	f, err := frames(c)
	for i := uint32(1); i < 400 && err == nil; i += 2 {
		if err = open(f, i, shouldRateLimit); err == nil {
			err = f.WriteRSTStream(i, http2.ErrCodeCancel)
		}
	}
}

// halfAMessage says that a message has 4 GiB, or much less, and sends little of it.
func halfAMessage(c net.Conn) {
	f, err := frames(c)
	if err == nil {
		err = open(f, 1, shouldRateLimit)
	}
	for _, size := range [][]byte{{0, 0, 0, 1, 0, 'a', 'b'}, {0, 0xff, 0xff, 0xff, 0xff, 'a'}} {
		if err == nil {
			err = f.WriteData(1, false, size)
		}
	}
}

// rubbishMessages are whole, and nothing but noise.
func rubbishMessages(c net.Conn) {
	f, err := frames(c)
	for i := uint32(1); i < 40 && err == nil; i += 2 {
		if err = open(f, i, shouldRateLimit); err == nil {
			message := []byte{0, 0, 0, 0, 20}
			for range 20 {
				message = append(message, byte(rand.Uint32()))
			}
			err = f.WriteData(i, true, message)
		}
	}
}

// watchAndLeave asks to be told of health for ever, many times, and is gone.
func watchAndLeave(c net.Conn) {
	f, err := frames(c)
	for i := uint32(1); i < 40 && err == nil; i += 2 {
		if err = open(f, i, watchHealth); err == nil {
			err = f.WriteData(i, true, []byte{0, 0, 0, 0, 0})
		}
	}
	_, _ = io.CopyN(io.Discard, c, 100)
}
