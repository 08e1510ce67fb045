package rls

import (
	"net"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// listening serves until the test ends, and returns the address.
func listening(t *testing.T, cfg ServerConfig) string {
	t.Helper()
	srv := NewServer(start(t, nil).Service, cfg)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.grpc.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func TestLargestMessage(t *testing.T) {
	conn, err := grpc.NewClient(listening(t, ServerConfig{MaxMessage: 1000}), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	for size, want := range map[int]codes.Code{900: codes.InvalidArgument, 1100: codes.ResourceExhausted} {
		_, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: strings.Repeat("d", size)})
		if status.Code(err) != want {
			t.Errorf("%d bytes: %v, want %v", size, err, want)
		}
	}
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
	_, settings := dialFrames(t, listening(t, ServerConfig{MaxStreams: 77}))
	if n, ok := settings.Value(http2.SettingMaxConcurrentStreams); !ok || n != 77 {
		t.Errorf("%d calls at a time, want 77", n)
	}
}

// Who pings all the time is told to calm down; who does so seldom enough, also
// without any call, is not.
func TestPingFlood(t *testing.T) {
	for _, tt := range []struct {
		min  time.Duration
		gone bool
	}{{time.Hour, true}, {0, false}} {
		f, _ := dialFrames(t, listening(t, ServerConfig{KeepaliveMin: tt.min}))
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
}
