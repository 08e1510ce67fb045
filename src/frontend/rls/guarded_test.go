package rls

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // as some libraries do
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	grpcmetadata "google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/rules"
	"ratelimit/testbed/harness"
)

// unpacked counts what noisy unpacks.
var unpacked atomic.Int64

// noisy is a compressor that any library could register.
type noisy struct{}

func (noisy) Name() string { return "noisy" }

func (noisy) Compress(w io.Writer) (io.WriteCloser, error) { return nopCloser{w}, nil }

func (noisy) Decompress(r io.Reader) (io.Reader, error) {
	unpacked.Add(1)
	return r, nil
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func init() { encoding.RegisterCompressor(noisy{}) }

// compressedCalls makes a call with a short message to each service.
func compressedCalls(t *testing.T, conn *grpc.ClientConn) map[string]func(header *grpcmetadata.MD, name string) error {
	health := healthpb.NewHealthClient(conn)
	return map[string]func(*grpcmetadata.MD, string) error{
		"ShouldRateLimit": func(header *grpcmetadata.MD, name string) error {
			answer, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request(descriptor("ip", "1")),
				grpc.UseCompressor(name), grpc.Header(header))
			if err == nil && answer.GetOverallCode() != pb.RateLimitResponse_OK {
				err = fmt.Errorf("answer %v", answer)
			}
			return err
		},
		"Check": func(header *grpcmetadata.MD, name string) error {
			_, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: HealthServiceName},
				grpc.UseCompressor(name), grpc.Header(header))
			return err
		},
		"Watch": func(header *grpcmetadata.MD, name string) error {
			stream, err := health.Watch(t.Context(), &healthpb.HealthCheckRequest{Service: HealthServiceName},
				grpc.UseCompressor(name))
			if err != nil {
				return err
			}
			_, err = stream.Recv()
			*header, _ = stream.Header() // err says more.
			return err
		},
	}
}

// Every service takes messages that gzip has compressed. Other encodings are refused before a message is unpacked,
// whatever compressors are registered.
func TestCompressedCalls(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		_, conn := dial(t, start(t, nil), cfg)
		for what, call := range compressedCalls(t, conn) {
			for _, name := range []string{"gzip", "identity"} {
				var header grpcmetadata.MD
				if err := call(&header, name); err != nil {
					t.Errorf("%s with %s: %v", what, name, err)
				}
				if got := header.Get("grpc-encoding"); len(got) > 0 && got[0] != "identity" {
					t.Errorf("%s with %s: the answer has the encoding %q", what, name, got)
				}
			}
			var header grpcmetadata.MD
			if err := call(&header, "noisy"); status.Code(err) != codes.Unimplemented {
				t.Errorf("%s with noisy: %v, want Unimplemented", what, err)
			}
			if got := header.Get("grpc-accept-encoding"); len(got) != 1 || got[0] != "identity,gzip" {
				t.Errorf("%s with noisy: grpc-accept-encoding is %q, want identity,gzip", what, got)
			}
		}
		if n := unpacked.Load(); n > 0 {
			t.Errorf("%d messages were unpacked", n)
		}
	})
}

// A compressed message may have 16 times its length, or 8 KiB, and is charged to its connection until its call ends.
func TestExpansion(t *testing.T) {
	random := func(n int) string {
		b := make([]byte, n)
		for i, r := 0, rand.New(rand.NewPCG(1, 2)); i < n; i++ {
			b[i] = 'a' + byte(r.IntN(26))
		}
		return string(b)
	}
	equal := make([]*common.RateLimitDescriptor, 300) // 6 KiB, which gzip makes to 70 bytes.
	for i := range equal {
		equal[i] = descriptor("nothing", "1234567")
	}
	tests := []struct {
		name string
		req  *pb.RateLimitRequest
		want codes.Code
	}{
		{"a long value", request(descriptor("ip", random(1<<20))), codes.OK},
		{"many equal descriptors", request(equal...), codes.OK},
		{"a bomb", request(descriptor("ip", strings.Repeat("x", 3<<20))), codes.Internal},
		{"a small bomb", request(descriptor("ip", strings.Repeat("x", 10<<10))), codes.Internal},
		{"a message that is too long", request(descriptor("ip", random(5<<20))), codes.ResourceExhausted},
	}
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		for _, tt := range tests {
			cfg.MemoryBudget = connlimit.NewMemoryBudget(64 << 20)
			_, conn := dial(t, start(t, nil), cfg)
			_, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), tt.req, grpc.UseCompressor("gzip"))
			if status.Code(err) != tt.want {
				t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
			harness.Until(t, "nothing is charged", func() bool { return cfg.MemoryBudget.HeldBytes() == 0 })
		}
	})
}

// The unpacked message is charged while its call is decided: it does not fit beside a smaller budget.
func TestExpansionIsCharged(t *testing.T) {
	budget := connlimit.NewMemoryBudget(1 << 10)
	account := budget.OpenAccount(func(int64) {})
	small := &healthpb.HealthCheckRequest{Service: strings.Repeat("x", 100)}
	if held, err := holdExpanded(account, small); err != nil || held != int64(proto.Size(small)) ||
		account.HeldBytes() != held {
		t.Errorf("%v, %d bytes are charged", err, account.HeldBytes())
	}
	large := &healthpb.HealthCheckRequest{Service: strings.Repeat("x", 2<<10)}
	if _, err := holdExpanded(account, large); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %v", err)
	}
}

func TestFewLongCalls(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		srv, conn := dial(t, start(t, nil), cfg)
		health := healthpb.NewHealthClient(conn)
		refused := 0
		for range 20 {
			stream, err := health.Watch(t.Context(), &healthpb.HealthCheckRequest{Service: HealthServiceName})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); status.Code(err) == codes.ResourceExhausted {
				refused++
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if refused != 12 || srv.Stats().RefusedLongCalls != 12 {
			t.Errorf("%d of 20 watches were refused, counted %d, want 12", refused, srv.Stats().RefusedLongCalls)
		}
		stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("reflection beside 8 watches: %v, want ResourceExhausted", err)
		}
		if _, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
			t.Errorf("calls that end by themselves go on: %v", err)
		}
	})
}

// The long calls of all connections may hold a quarter of the budget.
func TestLongCallBound(t *testing.T) {
	t.Parallel()
	budget := connlimit.NewMemoryBudget(4 * (MaxLongCalls + 2) * longCallMemoryBytes)
	b := longCallBound{budget: budget}
	one, other := new(callerConn), &callerConn{account: budget.OpenAccount(func(int64) {})}
	for i := range MaxLongCalls {
		if !b.open(one) {
			t.Fatalf("call %d was refused", i+1)
		}
	}
	if b.open(one) || !b.open(other) || !b.open(other) || b.open(other) {
		t.Error("want no more calls of the first connection, and 2 of the other")
	}
	if other.account.HeldBytes() != 2*longCallMemoryBytes {
		t.Errorf("%d bytes are charged", other.account.HeldBytes())
	}
	if b.close(other); other.account.HeldBytes() != longCallMemoryBytes || b.open(one) || !b.open(other) {
		t.Error("the end of a call makes room for another one")
	}
	if n := b.refused.Load(); n != 3 {
		t.Errorf("%d calls were refused, want 3", n)
	}
}

// Reflection repeats the request in its reply, so requests must be short.
func TestReflectionOfLongNames(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		_, conn := dial(t, start(t, nil), cfg)
		stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ask := &reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_FileByFilename{
			FileByFilename: strings.Repeat("x", 1<<20),
		}}
		if err := stream.Send(ask); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a name of 1 MiB: %v, want ResourceExhausted", err)
		}
	})
}

func TestReflectionIsOff(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		conn := connect(t, listening(t, cfg))
		stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); status.Code(err) != codes.Unimplemented {
			t.Errorf("got %v, want Unimplemented", err)
		}
	})
}

// attacker speaks HTTP/2 by hand and reads nothing.
type attacker struct {
	*http2.Framer
	conn    net.Conn
	headers []byte
	stream  uint32
}

func attack(t *testing.T, addr string, settings ...http2.Setting) *attacker {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, h := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", pb.RateLimitService_ShouldRateLimit_FullMethodName},
		{":authority", "x"},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	} {
		// not indexed, so that it can be sent again
		if err := enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1], Sensitive: true}); err != nil {
			t.Fatal(err)
		}
	}
	a := &attacker{Framer: http2.NewFramer(conn, conn), conn: conn, headers: block.Bytes()}
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := a.WriteSettings(settings...); err != nil {
		t.Fatal(err)
	}
	return a
}

// call opens a stream and sends the first bytes of a message of size.
func (a *attacker) call(size int, message []byte) error {
	a.stream += 2
	id := a.stream - 1
	err := a.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: a.headers, EndHeaders: true})
	data := append([]byte{0, byte(size >> 24), byte(size >> 16), byte(size >> 8), byte(size)}, message...)
	for len(data) > 0 && err == nil {
		n := min(len(data), 16<<10)
		last := n == len(data) && len(message) == size
		err = a.WriteData(id, last, data[:n])
		data = data[n:]
	}
	return err
}

// What callers do not read, or do not finish, is bounded for all together; it costs
// those their connections that hold the most, and their neighbours nothing. Package h2
// closes some of them earlier, for the frames they waste.
func TestCallersShareABudget(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		many := make([][]rules.Entry, 1000)
		for i := range many {
			many[i] = []rules.Entry{{Key: []byte("ip"), Value: fmt.Append(nil, i)}}
		}
		large := wire("d", many...)
		for name, do := range map[string]func(a *attacker) error{
			"replies beyond the window": func(a *attacker) error { return a.call(len(large), large) },
			"messages without an end":   func(a *attacker) error { return a.call(4<<20, make([]byte, 60<<10)) },
			"calls without a message":   func(a *attacker) error { return a.call(100, nil) },
			"data byte by byte": func(a *attacker) error {
				err := a.call(4<<20, nil)
				for i := 0; i < 20_000 && err == nil; i++ {
					err = a.WriteData(a.stream-1, false, []byte{1})
				}
				return err
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				const most = 1 << 19
				shared, cfg := connlimit.NewMemoryBudget(most), cfg
				cfg.MemoryBudget = shared
				srv, addr := serving(t, cfg)
				isClosed := func() bool { return shared.EvictedAccounts()+srv.Stats().FloodingConnections > 0 }
				neighbour := pb.NewRateLimitServiceClient(connect(t, addr))
				a := attack(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
				go func() { _, _ = io.Copy(io.Discard, a.conn) }() // only its window is closed
				for i := 0; !isClosed(); i++ {
					if err := do(a); err != nil {
						break
					}
					if i > 100_000 {
						t.Fatal("the attacker may go on")
					}
					if held := shared.HeldBytes(); held > most+most/4 {
						t.Fatalf("%d bytes are held", held)
					}
					if _, err := neighbour.ShouldRateLimit(t.Context(), request(descriptor("staff", "1"))); err != nil {
						t.Fatalf("the neighbour: %v", err)
					}
				}
				harness.Until(t, "a connection is closed", isClosed)
				if _, err := neighbour.ShouldRateLimit(t.Context(), request(descriptor("staff", "1"))); err != nil {
					t.Errorf("the neighbour: %v", err)
				}
			})
		}
	})
}

// A client that resets the streams it opens is slowed, so that it cannot fill the process
// with goroutines.
func TestRapidResetsAreSlowed(t *testing.T) {
	srv, addr := serving(t, ServerConfig{UseGRPCGo: true, MemoryBudget: connlimit.NewMemoryBudget(64 << 20)})
	a := attack(t, addr)
	go func() { _, _ = io.Copy(io.Discard, a.conn) }()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for range 100_000 {
			if a.call(100, nil) != nil || a.WriteRSTStream(a.stream-1, http2.ErrCodeCancel) != nil {
				return
			}
		}
	}()
	harness.Until(t, "the client is slowed", func() bool { return srv.Stats().SlowedReads > 0 })
	if n := runtime.NumGoroutine(); n > 5000 {
		t.Errorf("%d goroutines", n)
	}
	srv.Shutdown(ended()) // Shutdown ends the pause, too.
	<-sent
}
