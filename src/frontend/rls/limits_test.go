package rls

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	grpcmetadata "google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"ratelimit/src/frontend/h2"
)

// ended returns a context that has ended.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// listening serves until the test ends, and returns the address.
func listening(t *testing.T, cfg ServerConfig) string {
	t.Helper()
	_, addr := serving(t, cfg)
	return addr
}

// serving serves until the test ends, and returns the server and its address.
func serving(t *testing.T, cfg ServerConfig) (*Server, string) {
	t.Helper()
	l := listen(t, "tcp", "127.0.0.1:0")
	return serve(t, start(t, nil).Service, cfg, l), l.Addr().String()
}

func TestLargestMessage(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		cfg.MaxMessageBytes = 1000
		conn := connect(t, listening(t, cfg))
		for size, want := range map[int]codes.Code{900: codes.InvalidArgument, 1100: codes.ResourceExhausted} {
			_, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(),
				&pb.RateLimitRequest{Domain: strings.Repeat("d", size)})
			if status.Code(err) != want {
				t.Errorf("%d bytes: %v, want %v", size, err, want)
			}
		}
	})
}

// dialFrames speaks HTTP/2 by hand, and returns what the server allows.
func dialFrames(t *testing.T, addr string) (*http2.Framer, *http2.SettingsFrame) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	f := http2.NewFramer(conn, conn)
	if err := f.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	frame, err := f.ReadFrame()
	settings, ok := frame.(*http2.SettingsFrame)
	if err != nil || !ok {
		t.Fatalf("%v, %v", frame, err)
	}
	return f, settings
}

func TestMostCallsOfAConnection(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		cfg.MaxStreams = 77
		_, settings := dialFrames(t, listening(t, cfg))
		if n, ok := settings.Value(http2.SettingMaxConcurrentStreams); !ok || n != 77 {
			t.Errorf("%d calls at a time, want 77", n)
		}
	})
}

// A call may have headers, but not any number of them.
func TestLargestHeaders(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		addr := listening(t, cfg)
		conn := connect(t, addr)
		// Go's client goes by what the server says it takes; the one by hand does not.
		for size, want := range map[int]codes.Code{
			h2.MaxHeaderBytes / 2: codes.InvalidArgument,
			2 * h2.MaxHeaderBytes: codes.Internal,
		} {
			ctx := grpcmetadata.AppendToOutgoingContext(t.Context(), "x-long", strings.Repeat("x", size))
			_, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &pb.RateLimitRequest{})
			if status.Code(err) != want {
				t.Errorf("%d bytes: %v, want %v", size, err, want)
			}
		}
		f, settings := dialFrames(t, addr)
		if n, ok := settings.Value(http2.SettingMaxHeaderListSize); !ok || n != h2.MaxHeaderBytes {
			t.Errorf("headers may have %d bytes, want %d", n, h2.MaxHeaderBytes)
		}
		var block bytes.Buffer
		enc := hpack.NewEncoder(&block)
		for _, h := range [][2]string{
			{":method", "POST"},
			{":scheme", "http"},
			{":path", pb.RateLimitService_ShouldRateLimit_FullMethodName},
			{":authority", "x"},
			{"content-type", "application/grpc"},
			{"x-long", strings.Repeat("x", 2*h2.MaxHeaderBytes)},
		} {
			if err := enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}); err != nil {
				t.Fatal(err)
			}
		}
		const frameSize = 16 << 10
		for i, rest := 0, block.Bytes(); len(rest) > 0; i++ {
			part := rest[:min(frameSize, len(rest))]
			rest = rest[len(part):]
			var err error
			if i == 0 {
				err = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: part, EndHeaders: len(rest) == 0})
			} else {
				err = f.WriteContinuation(1, len(rest) == 0, part)
			}
			if err != nil {
				break // the server has enough
			}
		}
		for {
			frame, err := f.ReadFrame()
			if _, reset := frame.(*http2.RSTStreamFrame); reset {
				break
			}
			if err != nil { // or it ends the connection
				if errors.Is(err, os.ErrDeadlineExceeded) {
					t.Error("the server takes headers without end")
				}
				break
			}
		}
	})
}

// A client that pings too often is disconnected; one with rare pings is not, also without
// any call.
func TestPingFlood(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		for _, tt := range []struct {
			min  time.Duration
			gone bool
		}{{time.Hour, true}, {0, false}} {
			cfg.MinClientPingInterval = tt.min
			f, _ := dialFrames(t, listening(t, cfg))
			const pings = 10
			gone, answered := false, 0
			for range pings {
				if f.WritePing(false, [8]byte{}) != nil {
					break // closed already
				}
			}
			for !gone && answered < pings {
				frame, err := f.ReadFrame()
				if err != nil {
					t.Fatalf("distance %v: after %d answers: %v", tt.min, answered, err)
				}
				switch frame := frame.(type) {
				case *http2.GoAwayFrame:
					gone = frame.ErrCode == http2.ErrCodeEnhanceYourCalm
				case *http2.PingFrame:
					answered++
				}
			}
			if gone != tt.gone {
				t.Errorf("distance %v: told to go: %t, want %t", tt.min, gone, tt.gone)
			}
		}
	})
}

// The server pings a silent client.
func TestSilentClientsArePinged(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		cfg.MaxClientSilence = time.Second
		f, _ := dialFrames(t, listening(t, cfg))
		if err := f.WriteSettingsAck(); err != nil {
			t.Fatal(err)
		}
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				t.Fatalf("waiting for a ping of the server: %v", err)
			}
			if ping, ok := frame.(*http2.PingFrame); ok && !ping.IsAck() {
				return
			}
		}
	})
}
