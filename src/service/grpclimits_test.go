package service

import (
	"io"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// dialFrames returns a client of the gRPC port that speaks HTTP/2 frame by frame.
func (s *service) dialFrames() *http2.Framer {
	s.t.Helper()
	conn := s.dial("grpc")
	f := http2.NewFramer(conn, conn)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		s.t.Fatal(err)
	}
	if err := f.WriteSettings(); err != nil {
		s.t.Fatal(err)
	}
	return f
}

// awaitFrame reads frames until one is what the test waits for; what names it.
func (s *service) awaitFrame(f *http2.Framer, what string, is func(http2.Frame) bool) {
	s.t.Helper()
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			s.t.Errorf("waiting for %s: %v", what, err)
			return
		}
		if is(frame) {
			return
		}
	}
}

func isGoAway(code http2.ErrCode) func(http2.Frame) bool {
	return func(frame http2.Frame) bool {
		g, ok := frame.(*http2.GoAwayFrame)
		return ok && g.ErrCode == code
	}
}

// TestGRPCSettings checks that the settings of the gRPC port reach each engine.
func TestGRPCSettings(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, engine string) {
		t.Parallel()
		s := launch(t, oneRule, engine, "GRPC_MAX_CONCURRENT_STREAMS=7", "GRPC_MAX_MESSAGE_BYTES=1000",
			"GRPC_KEEPALIVE_TIME=1s", "GRPC_KEEPALIVE_MIN_INTERVAL=1h", "GRPC_MAX_CONNECTION_AGE=3s",
			"GRPC_MAX_CONNECTION_AGE_GRACE=1s")
		s.until("ready", s.healthy)
		conn, err := grpc.NewClient(s.address("grpc"), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		for size, want := range map[int]codes.Code{900: codes.OK, 1000: codes.ResourceExhausted} {
			_, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request("d", strings.Repeat("x", size)))
			if status.Code(err) != want {
				t.Errorf("a key of %d bytes: %v, want %v", size, err, want)
			}
		}
		silent := s.dialFrames()
		s.awaitFrame(silent, "SETTINGS with 7 streams", func(frame http2.Frame) bool {
			settings, ok := frame.(*http2.SettingsFrame)
			if !ok {
				return false
			}
			n, _ := settings.Value(http2.SettingMaxConcurrentStreams)
			return n == 7
		})
		s.awaitFrame(silent, "a ping to a silent client", func(frame http2.Frame) bool {
			ping, ok := frame.(*http2.PingFrame)
			return ok && !ping.IsAck()
		})
		s.awaitFrame(silent, "the end of an old connection", isGoAway(http2.ErrCodeNo))
		hasty := s.dialFrames()
		for range 10 {
			if hasty.WritePing(false, [8]byte{}) != nil {
				break // The server has closed the connection.
			}
		}
		s.awaitFrame(hasty, "the end of a client that pings too often", isGoAway(http2.ErrCodeEnhanceYourCalm))
	})
}

// TestBufferedEviction checks that a client whose requests fill MAX_BUFFERED_BYTES loses its connection, and another
// client no call.
func TestBufferedEviction(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, engine string) {
		t.Parallel()
		s := launch(t, oneRule, engine, "MAX_BUFFERED_BYTES=1048576")
		s.until("ready", s.healthy)
		conn, err := grpc.NewClient(s.address("grpc"), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		neighbour := pb.NewRateLimitServiceClient(conn)
		call := func() {
			if _, err := neighbour.ShouldRateLimit(t.Context(), request("d", "other")); err != nil {
				t.Errorf("the neighbour: %v", err)
			}
		}
		call()
		var block strings.Builder
		enc := hpack.NewEncoder(&block)
		for _, h := range [][2]string{
			{":method", "POST"},
			{":scheme", "http"},
			{":path", pb.RateLimitService_ShouldRateLimit_FullMethodName},
			{":authority", "x"},
			{"content-type", "application/grpc"},
			{"te", "trailers"},
		} {
			// Sensitive fields need no table.
			if err := enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1], Sensitive: true}); err != nil {
				t.Fatal(err)
			}
		}
		f := s.dialFrames()
		go func() { // The server opens the windows as it reads.
			for err := error(nil); err == nil; _, err = f.ReadFrame() {
			}
		}()
		unfinished := append([]byte{0, 0, 0x10, 0, 0}, make([]byte, 16<<10-5)...) // The message has 1 MiB.
		for id := uint32(1); err == nil && id < 10_000; id += 2 {
			err = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte(block.String()), EndHeaders: true})
			if err == nil {
				err = f.WriteData(id, false, unfinished)
			}
			if id%64 == 1 {
				call()
			}
		}
		s.until("an eviction", func() bool { return s.figure("ratelimit.buffered.evicted") > 0 })
		call()
	})
}
