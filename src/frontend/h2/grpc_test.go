package h2

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

const (
	// maxTestMessage is the size of the largest message in these tests.
	maxTestMessage = 100_000
	// maxStreamMessage is that of the messages of the stream.
	maxStreamMessage = 80_000
	oddText          = "50 %41 of ümlauts\n\tare \x7f odd"
)

// decideText answers as the text of each message says.
func decideText(b *Batch) {
	for i := range b.Calls {
		var m wrapperspb.StringValue
		if err := proto.Unmarshal(b.Calls[i].Message, &m); err != nil {
			b.Fail(i, int(codes.InvalidArgument), err.Error())
			continue
		}
		switch m.Value {
		case "fail":
			b.Fail(i, int(codes.FailedPrecondition), oddText)
		case "panic":
			panic("decide")
		case "no answer":
		case "wait":
			<-b.Context().Done()
			b.Fail(i, int(codes.Aborted), "too late")
		default:
			answer, _ := proto.Marshal(wrapperspb.String("decided " + m.Value)) // A text can always be encoded.
			b.Reply(i, answer)
		}
	}
}

// newGRPC returns a gRPC server whose unary methods answer like decideText, and which has a stream that echoes.
func newGRPC() *grpc.Server {
	g := grpc.NewServer(grpc.MaxRecvMsgSize(maxTestMessage))
	unary := func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var m wrapperspb.StringValue
		if err := decode(&m); err != nil {
			return nil, err
		}
		switch m.Value {
		case "fail":
			return nil, status.Error(codes.FailedPrecondition, oddText)
		case "wait":
			<-ctx.Done()
			return nil, status.Error(codes.Aborted, "too late")
		}
		return wrapperspb.String("handled " + m.Value), nil
	}
	stream := func(_ any, s grpc.ServerStream) error {
		for {
			if n := AwaitMessage(s.Context(), maxStreamMessage); n > maxStreamMessage {
				return status.Errorf(codes.ResourceExhausted, "%d bytes are too many", n)
			}
			AcceptMessage(s.Context())
			var m wrapperspb.StringValue
			if err := s.RecvMsg(&m); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			if err := s.SendMsg(&m); err != nil {
				return err
			}
		}
	}
	g.RegisterService(&grpc.ServiceDesc{
		ServiceName: "test.Service",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Method", Handler: unary}, {MethodName: "Other", Handler: unary}},
		Streams:     []grpc.StreamDesc{{StreamName: "Stream", Handler: stream, ServerStreams: true, ClientStreams: true}},
	}, nil)
	return g
}

// grpcConfig returns a configuration with decideText and newGRPC.
func grpcConfig() Config {
	return Config{
		Decide: decideText, DecideWaits: true, Handler: newGRPC(),
		ConnConfig: ConnConfig{MaxMessageBytes: maxTestMessage, MaxStreams: 100},
	}
}

// dialGRPC returns a client of s.
func (s *testServer) dialGRPC(opts ...grpc.DialOption) *grpc.ClientConn {
	s.t.Helper()
	opts = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return s.dialRaw() }),
	}, opts...)
	cc, err := grpc.NewClient("passthrough:///localhost", opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = cc.Close() })
	return cc
}

// invoke calls a method with a text, and returns the text of the answer.
func invoke(ctx context.Context, cc *grpc.ClientConn, path, text string, opts ...grpc.CallOption) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var out wrapperspb.StringValue
	err := cc.Invoke(ctx, path, wrapperspb.String(text), &out, opts...)
	return out.Value, err
}

func TestGRPCCalls(t *testing.T) {
	t.Parallel()
	panics := make(chan any, 10)
	cfg := grpcConfig()
	cfg.OnPanic = func(value any, _ []byte) { panics <- value }
	s := startServer(t, cfg)
	cc := s.dialGRPC()
	large, tooLarge := strings.Repeat("x", maxTestMessage/2), strings.Repeat("x", maxTestMessage)
	for _, row := range []struct {
		name, path, text string
		opts             []grpc.CallOption
		want             string // the answer, or the text of the error.
		code             codes.Code
		panics           any
	}{
		{name: "decided", path: methodPath, text: "x", want: "decided x"},
		{name: "decided, empty message", path: methodPath, text: "", want: "decided "},
		{
			name: "decided, failed", path: methodPath, text: "fail", want: strings.ToValidUTF8(oddText, ""),
			code: codes.FailedPrecondition,
		},
		{
			name: "decided, without an answer", path: methodPath, text: "no answer", want: "internal error",
			code: codes.Internal,
		},
		{
			name: "decided, panic", path: methodPath, text: "panic", want: "internal error", code: codes.Internal,
			panics: "decide",
		},
		{name: "handled", path: otherPath, text: "x", want: "handled x"},
		{
			name: "handled, failed", path: otherPath, text: "fail", want: strings.ToValidUTF8(oddText, ""),
			code: codes.FailedPrecondition,
		},
		{name: "large", path: methodPath, text: large, want: "decided " + large},
		{
			name: "too large", path: methodPath, text: tooLarge,
			want: "grpc: received message larger than max (100004 vs. 100000)", code: codes.ResourceExhausted,
		},
		{
			name: "compressed", path: methodPath, text: "x", opts: []grpc.CallOption{grpc.UseCompressor(gzip.Name)},
			want: "handled x",
		},
		{
			name: "another content type", path: methodPath, text: "x", opts: []grpc.CallOption{grpc.CallContentSubtype("proto")},
			want: "decided x",
		},
		{
			name: "unknown method", path: "/test.Service/Unknown", text: "x",
			want: "unknown method Unknown for service test.Service", code: codes.Unimplemented,
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := invoke(t.Context(), cc, row.path, row.text, row.opts...)
			if err != nil {
				got = status.Convert(err).Message()
			}
			if got != row.want || status.Code(err) != row.code {
				t.Errorf("%.100q, %v, want %.100q, %v", got, status.Code(err), row.want, row.code)
			}
			if row.panics != nil {
				if p := <-panics; p != row.panics {
					t.Errorf("panic with %v, want %v", p, row.panics)
				}
			}
		})
	}
	if len(panics) != 0 {
		t.Errorf("%d more panics", len(panics))
	}
}

func TestGRPCDeadlines(t *testing.T) {
	t.Parallel()
	s := startServer(t, grpcConfig())
	cc := s.dialGRPC()
	for _, path := range []string{methodPath, otherPath} {
		ctx, cancel := context.WithTimeout(t.Context(), 600*time.Millisecond)
		_, err := invoke(ctx, cc, path, "wait")
		if code := status.Code(err); code != codes.DeadlineExceeded && code != codes.Aborted { // Both ends have a timer.
			t.Errorf("%s: %v", path, err)
		}
		cancel()
	}
	// The server knows the deadline: without it, these calls would last.
	c := s.connect()
	message, err := proto.Marshal(wrapperspb.String("wait"))
	c.must(err)
	c.expectStatus(c.call(string(message), "grpc-timeout", "600m"), "10")
	id := c.openMethod(otherPath, "grpc-timeout", "600m")
	c.finishCall(id, string(message))
	c.expectStatus(id, "10")
	id = c.open("grpc-timeout", "600m")
	c.frame(http2.FrameData, flagEndStream, id, prefixed(string(message))+"\x00") // More than a message: Handler answers.
	if a := c.ended(id); a.fields["grpc-status"] == "0" {
		t.Errorf("%+v", a)
	}
}

// TestGRPCCancel checks that Decide's context outlives a cancelled call, and that a handler's does not.
func TestGRPCCancel(t *testing.T) {
	t.Parallel()
	s := startServer(t, grpcConfig())
	cc := s.dialGRPC()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := invoke(ctx, cc, otherPath, "wait")
		done <- err
	}()
	harness.Until(t, "handler runs", func() bool {
		conns := s.openConns(nil)
		if len(conns) == 0 {
			return false
		}
		conns[0].mu.Lock()
		defer conns[0].mu.Unlock()
		return conns[0].runningHandlers == 1
	})
	cancel()
	if err := <-done; status.Code(err) != codes.Canceled {
		t.Error(err)
	}
	harness.Until(t, "handler has ended", func() bool {
		c := s.openConns(nil)[0]
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.runningHandlers == 0 && c.activeStreams == 0
	})
}

func TestGRPCStreams(t *testing.T) {
	t.Parallel()
	cc := startServer(t, grpcConfig()).dialGRPC()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, streamPath)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200 { // More than all windows.
		text := strings.Repeat("x", 100*i)
		if err := stream.SendMsg(wrapperspb.String(text)); err != nil {
			t.Fatal(err)
		}
		var m wrapperspb.StringValue
		if err := stream.RecvMsg(&m); err != nil || m.Value != text {
			t.Fatal(len(m.Value), err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(new(wrapperspb.StringValue)); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// A message of a stream that is longer than Handler allows is refused before it has arrived. Others are complete when
// Handler learns their length, and it reads none that it has not accepted.
func TestLongMessagesOfStreams(t *testing.T) {
	t.Parallel()
	s := startServer(t, grpcConfig())
	c := s.connect()
	id := c.openMethod(streamPath)
	c.frame(http2.FrameData, 0, id, "\x00"+string(binary.BigEndian.AppendUint32(nil, maxStreamMessage+1)))
	if text := c.expectStatus(id, "8"); text != fmt.Sprint(maxStreamMessage+1, " bytes are too many") {
		t.Errorf("%q", text)
	}
	if held := s.account(0).highest.Load(); held > 64<<10 {
		t.Errorf("%d bytes were held for it", held)
	}
	id = c.openMethod(streamPath)
	c.frame(http2.FrameData, flagEndStream, id, "\x00\x00\x00\x00\x09short")
	c.expectStatus(id, "13") // The message ends too early.
}

func TestGRPCMetadata(t *testing.T) {
	t.Parallel()
	cc := startServer(t, grpcConfig()).dialGRPC()
	for _, path := range []string{methodPath, otherPath} {
		for size, code := range map[int]codes.Code{60_000: codes.OK, 70_000: codes.Internal} {
			ctx := metadata.AppendToOutgoingContext(t.Context(), "some-bin", strings.Repeat("x", size*3/4))
			if _, err := invoke(ctx, cc, path, "x"); status.Code(err) != code {
				t.Errorf("%s with %d bytes: %v", path, size, err)
			}
		}
	}
}

// TestGRPCRefusals checks what Handler answers to requests that are not for Decide.
func TestGRPCRefusals(t *testing.T) {
	t.Parallel()
	c := startServer(t, grpcConfig()).connect()
	id := c.call("x", "grpc-encoding", "unknown")
	if text := c.expectStatus(id, "12"); !strings.Contains(text, "unknown") {
		t.Errorf("%q", text)
	}
	id = c.newID()
	c.frame(http2.FrameHeaders, flagEndHeaders, id,
		c.encode(":method", "POST", ":scheme", "http", ":path", methodPath, "content-type", "text/plain"))
	c.finishCall(id, "x")
	if a := c.ended(id); a.fields[":status"] != "415" {
		t.Errorf("%+v", a)
	}
	id = c.newID()
	c.frame(http2.FrameHeaders, flagEndHeaders|flagEndStream, id,
		c.encode(":method", "GET", ":scheme", "http", ":authority", "a", ":path", methodPath, "content-type",
			"application/grpc"))
	if a := c.ended(id); a.fields[":status"] != "405" || a.fields["grpc-status"] != "13" || a.blocks != 1 {
		t.Errorf("%+v", a)
	}
	for _, path := range []string{
		methodPath[1:], "/test.Service/%4dethod", methodPath + "?x=1",
		"http://evil" + methodPath,
	} {
		id := c.openMethod(path)
		c.finishCall(id, "x")
		if c.expectStatus(id, "12"); c.answers[id].blocks != 1 || c.answers[id].fields["trailer"] != "" {
			t.Errorf("%s: %+v", path, c.answers[id])
		}
	}
	id = c.open()
	c.frame(http2.FrameData, flagEndStream, id, "\x01\x00\x00\x00\x01x") // Compressed, but the headers do not say how.
	c.expectStatus(id, "13")
}

func TestGRPCWithTLS(t *testing.T) {
	t.Parallel()
	certs := harness.NewCertificates(t)
	pem := testfiles.Read(t, certs.CA)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	cfg := grpcConfig()
	cfg.TLS = serverTLS(t, certs)
	cfg.TLS.ClientAuth, cfg.TLS.ClientCAs = tls.RequireAndVerifyClientCert, roots
	names := make(chan string, 1)
	handler := cfg.Handler
	cfg.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		names <- r.TLS.PeerCertificates[0].Subject.CommonName
		handler.ServeHTTP(w, r)
	})
	s := startServer(t, cfg)
	good := certs.ClientConfig(t)
	cc := s.dialGRPC(grpc.WithTransportCredentials(credentials.NewTLS(good)))
	for path, want := range map[string]string{methodPath: "decided x", otherPath: "handled x"} {
		if got, err := invoke(t.Context(), cc, path, "x"); got != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	if name := <-names; name != "client" {
		t.Errorf("the client is %q", name)
	}
	noCert := good.Clone()
	noCert.Certificates = nil
	cc = s.dialGRPC(grpc.WithTransportCredentials(credentials.NewTLS(noCert)))
	if _, err := invoke(t.Context(), cc, methodPath, "x"); status.Code(err) != codes.Unavailable {
		t.Error("without a certificate:", err)
	}
	c := s.connectTLS(good)
	c.finishCall(c.open(), "")
	c.expectStatus(1, "0")
	for _, protocols := range [][]string{nil, {"http/1.1"}} {
		other := good.Clone()
		other.ServerName, other.NextProtos = "localhost", protocols
		raw, err := tls.Dial("tcp", s.addr, other)
		if err != nil {
			continue // The server has refused during the handshake.
		}
		_ = raw.SetDeadline(time.Now().Add(patience))
		if n, err := raw.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%v: %d bytes, %v", protocols, n, err)
		}
		_ = raw.Close()
	}
}

// handleAll is the path of a test's Config for a server that has no path.
const handleAll = "handle all"

func TestHandleAll(t *testing.T) {
	t.Parallel()
	cfg := grpcConfig()
	cfg.Path = handleAll
	s := startServer(t, cfg)
	cc := s.dialGRPC()
	if got, err := invoke(t.Context(), cc, methodPath, "x"); got != "handled x" {
		t.Errorf("%q, %v", got, err)
	}
	c := s.connect()
	id := c.newID()
	c.frame(http2.FrameHeaders, flagEndHeaders, id, c.encode(requestFields("")...))
	c.finishCall(id, "x")
	c.expectReset(id, http2.ErrCodeProtocol)
}

// TestReconnectsLoseNoCall checks that no call fails while clients are asked to reconnect again and again.
func TestReconnectsLoseNoCall(t *testing.T) {
	t.Parallel()
	cfg := grpcConfig()
	cfg.MaxConnectionAge = time.Millisecond
	s := startServer(t, cfg)
	cc := s.dialGRPC()
	var calls atomic.Int64
	var wg sync.WaitGroup
	connections := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.accounts)
	}
	for i := range 8 {
		wg.Go(func() {
			path, want := methodPath, "decided x"
			if i%2 == 0 {
				path, want = otherPath, "handled x"
			}
			for connections() < 6 {
				if got, err := invoke(t.Context(), cc, path, "x"); got != want {
					t.Errorf("%q, %v", got, err)
				}
				calls.Add(1)
			}
		})
	}
	wg.Wait()
	if calls.Load() < 100 {
		t.Errorf("%d calls", calls.Load())
	}
}

// TestShutdownLosesNoCall checks that a call which the server has begun is answered, and that later ones fail before
// they begin.
func TestShutdownLosesNoCall(t *testing.T) {
	t.Parallel()
	g := newGate()
	defer g.open()
	s := startServer(t, Config{Decide: g.decide, DecideWaits: true, Handler: g})
	clients := []*client{s.connect(), s.connect(), s.connect()}
	for _, c := range clients {
		c.call("x")
		c.finishCall(c.openOther(), "y")
		c.flush()
	}
	harness.Until(t, "all calls run", func() bool { return g.running.Load() == int64(2*len(clients)) })
	done := make(chan struct{})
	go func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		s.Shutdown(ctx)
	}()
	for _, c := range clients {
		c.awaitGoAway(maxWindow)
		c.frame(http2.FramePing, flagAck, 0, string(goAwayPing))
		c.awaitGoAway(3)
	}
	g.open()
	for _, c := range clients {
		c.expectAnswer(1, "x")
		c.expectBody(3, prefixed("y"))
		c.expectEnd()
	}
	<-done
}
