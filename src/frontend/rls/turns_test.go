package rls

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"ratelimit/src/backend"
	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/testbed/harness"
)

// manyIPs are n descriptors of a request on the wire.
func manyIPs(n int) []byte {
	many := make([][]rules.Entry, n)
	for i := range many {
		many[i] = []rules.Entry{{Key: []byte("ip"), Value: fmt.Append(nil, i)}}
	}
	return wire("d", many...)
}

// ask returns what the gRPC port answers.
func (f *fixture) ask(ctx context.Context, data []byte) error {
	return f.askBuffer(ctx, mem.SliceBuffer(data))
}

func (s *Service) askBuffer(ctx context.Context, in mem.Buffer) error {
	c := s.smallCallPool.Get().(*callMemory)
	defer s.releaseCall(c)
	c.receivedMessage = in
	out, err := s.answerGRPC(ctx, c)
	if err == nil {
		out.Put(nil)
	}
	return err
}

// benchmark measures a call without its transport.
func (f *fixture) benchmark(b *testing.B, data []byte) {
	b.Helper()
	var in mem.Buffer = mem.SliceBuffer(data)
	b.ReportAllocs()
	for b.Loop() {
		if err := f.askBuffer(b.Context(), in); err != nil {
			b.Fatal(err)
		}
	}
}

func TestWireBytes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		data []byte
		want int64
	}{
		{"tiny", manyIPs(1), 0},
		{"some descriptors", manyIPs(100), 100<<11 + 4*int64(len(manyIPs(100)))},
		{
			"long text", wire("d", []rules.Entry{{Value: make([]byte, 1<<20)}}),
			1000<<11 + 4*int64(len(wire("d", []rules.Entry{{Value: make([]byte, 1<<20)}}))),
		},
		{"too many descriptors", bytes.Repeat([]byte{2<<3 | 2, 0}, 5000), 1000<<11 + 40_000},
	} {
		if got := estimateProtobufMemory(tt.data); got != tt.want {
			t.Errorf("%s: %d bytes, want %d", tt.name, got, tt.want)
		}
	}
}

// Large requests of both protocols wait for memory and for a core; small ones for
// neither. What waits in vain holds nothing afterwards.
func TestLargeRequestsTakeTurns(t *testing.T) {
	t.Parallel()
	small, large := manyIPs(10), manyIPs(1000)
	for name, occupy := range map[string]func(f *fixture) (release func()){
		"memory": func(f *fixture) func() {
			if err := f.largeRequests.memorySemaphore.Acquire(t.Context(), f.largeRequests.maxBytes); err != nil {
				t.Fatal(err)
			}
			return func() { f.largeRequests.memorySemaphore.Release(f.largeRequests.maxBytes) }
		},
		"cores": func(f *fixture) func() {
			for range cap(f.largeRequests.coreSlots) {
				f.largeRequests.coreSlots <- struct{}{}
			}
			return func() {
				for range cap(f.largeRequests.coreSlots) {
					<-f.largeRequests.coreSlots
				}
			}
		},
	} {
		f := start(t, nil)
		f.largeRequests = newLargeRequestCapacity(1 << 20)
		body := manyJSON(1000, 1)
		send := func(ctx context.Context, text string) int {
			w := httptest.NewRecorder()
			f.JSONHandler().ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, "/json", strings.NewReader(text)))
			return w.Code
		}
		release := occupy(f)
		if err := f.ask(t.Context(), small); err != nil {
			t.Errorf("%s: a small request: %v", name, err)
		}
		if code := send(t.Context(), oneIP); code != http.StatusOK {
			t.Errorf("%s: a small body: %d", name, code)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if err := f.ask(gone, large); status.Code(err) != codes.Canceled {
			t.Errorf("%s: a large request whose caller is gone: %v, want Canceled", name, err)
		}
		if code := send(gone, body); code != http.StatusServiceUnavailable {
			t.Errorf("%s: a large body whose caller is gone: %d, want 503", name, code)
		}
		release()
		if err := f.ask(t.Context(), large); err != nil {
			t.Errorf("%s: a large request in its turn: %v", name, err)
		}
		if code := send(t.Context(), body); code != http.StatusTooManyRequests {
			t.Errorf("%s: a large body in its turn: %d, want 429", name, code)
		}
		if n := len(f.largeRequests.coreSlots); n != 0 ||
			!f.largeRequests.memorySemaphore.TryAcquire(f.largeRequests.maxBytes) {
			t.Errorf("%s: %d cores or some memory are still taken", name, n)
		}
	}
}

// waiting is a store whose answers wait until release.
type waiting struct{ arrived, release chan struct{} }

func newWaiting() *waiting {
	return &waiting{arrived: make(chan struct{}, 1000), release: make(chan struct{})}
}

func (w *waiting) Take(context.Context, *backend.Batch) error {
	w.arrived <- struct{}{}
	<-w.release
	return nil
}

// arrive waits until the store has been asked once more.
func (w *waiting) arrive(t *testing.T) {
	t.Helper()
	select {
	case <-w.arrived:
	case <-time.After(10 * time.Second):
		t.Fatal("the store is not asked")
	}
}

// Requests that wait for a server have no core meanwhile.
func TestWaitingForAServerTakesNoCore(t *testing.T) {
	t.Parallel()
	store := newWaiting()
	f := start(t, store)
	f.cfg.StoreIsRemote = true
	n := 2*cap(f.largeRequests.coreSlots) + 1
	done := make(chan error)
	for range n {
		go func() { done <- f.ask(t.Context(), manyIPs(1000)) }()
	}
	for range n {
		store.arrive(t)
	}
	if cores := len(f.largeRequests.coreSlots); cores != 0 {
		t.Errorf("%d cores are taken, want none", cores)
	}
	close(store.release)
	for range n {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if cores := len(f.largeRequests.coreSlots); cores != 0 {
		t.Errorf("%d cores are still taken", cores)
	}
}

// What the messages of a large body take is charged until it is answered.
func TestDecodingIsCharged(t *testing.T) {
	t.Parallel()
	store := newWaiting()
	f := start(t, store)
	held := connlimit.NewMemoryBudget(64 << 20)
	url := serveHTTP(t, held, f.JSONHandler())
	body := manyJSON(1000, 1)
	answered := make(chan error, 1)
	go func() {
		resp, err := http.Post(url, "application/json", strings.NewReader(body))
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		answered <- err
	}()
	store.arrive(t)
	if least := f.estimateJSONMemory([]byte(body)); held.HeldBytes() < least {
		t.Errorf("%d bytes are held during the decision, want %d or more", held.HeldBytes(), least)
	}
	close(store.release)
	if err := <-answered; err != nil {
		t.Error(err)
	}
	harness.Until(t, "no bytes are held after the answer", func() bool { return held.HeldBytes() == 0 })
}

// serveHTTP serves h until the test ends, and charges connections to a budget. It returns the address.
func serveHTTP(t *testing.T, budget *connlimit.MemoryBudget, h http.Handler) (url string) {
	t.Helper()
	l := listen(t, "tcp", "127.0.0.1:0")
	srv, served := &http.Server{Handler: h}, make(chan error, 1)
	connlimit.TrackHTTPServer(srv)
	go func() {
		served <- srv.Serve(connlimit.New(l, connlimit.Config{MaxConnections: 10, MemoryBudget: budget}))
	}()
	t.Cleanup(func() {
		_ = srv.Close() // Serve says how it ended.
		if err := <-served; err != http.ErrServerClosed {
			t.Error(err)
		}
	})
	return "http://" + l.Addr().String()
}

// A body whose connection has been closed for the budget is not decoded.
func TestNoRoomToDecode(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	held := connlimit.NewMemoryBudget(1 << 20) // less than the messages take
	handled := make(chan error, 1)
	url := serveHTTP(t, held, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _, err := f.answerJSON(r.Context(), http.Header{}, []byte(manyJSON(limiter.MaxDescriptors, 16)))
		handled <- err
	}))
	if resp, err := http.Get(url); err == nil {
		_ = resp.Body.Close()
		t.Error("the connection is still open")
	}
	if err := <-handled; err == nil || !strings.Contains(err.Error(), "MAX_BUFFERED_BYTES") {
		t.Errorf("decoded with %v, want an error that names the setting", err)
	}
	if n := held.EvictedAccounts(); n == 0 {
		t.Error("no connection was evicted")
	}
}

// rawStream is a streaming service that receives messages as a RawMessage of up to 64 KiB.
type rawStream struct {
	held     chan int64 // gets what is charged for each message when it is read.
	received chan int   // gets the length of each message.
}

func (r *rawStream) register(server grpc.ServiceRegistrar) {
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "test.Raw", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName: "Stream", ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error {
				for in := (RawMessage{MaxBytes: 64 << 10}); ; {
					if err := stream.RecvMsg(&in); err != nil {
						return err
					}
					r.held <- stream.(*longCall).heldBytes
					r.received <- len(in.Bytes)
				}
			},
		}},
	}, r)
}

// Long messages of streams are charged and wait for their turn. Those that are too long are refused.
func TestLongMessagesTakeTurns(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		f := start(t, nil)
		r := &rawStream{held: make(chan int64, 1), received: make(chan int, 1)}
		cfg.Register, cfg.MemoryBudget = r.register, connlimit.NewMemoryBudget(64<<20)
		_, conn := dial(t, f, cfg)
		open := func(opts ...grpc.CallOption) grpc.ClientStream {
			stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, "/test.Raw/Stream", opts...)
			if err != nil {
				t.Fatal(err)
			}
			return stream
		}
		text := make([]byte, 100<<10) // hard to compress.
		for i, random := 0, rand.New(rand.NewPCG(1, 2)); i < len(text); i++ {
			text[i] = 'a' + byte(random.IntN(26))
		}
		send := func(stream grpc.ClientStream, size int) {
			if err := stream.SendMsg(&healthpb.HealthCheckRequest{Service: string(text[:size-4])}); err != nil {
				t.Fatal(err)
			}
		}
		expect := func(size int, charged int64) {
			t.Helper()
			if held, n := <-r.held, <-r.received; n != size || held != charged {
				t.Errorf("%d bytes were received, and %d charged, want %d and %d", n, held, size, charged)
			}
		}
		stream := open()
		send(stream, 60<<10)
		expect(60<<10, 60<<10)
		for range cap(f.largeRequests.coreSlots) {
			f.largeRequests.coreSlots <- struct{}{}
		}
		send(stream, 50<<10)
		short := open()
		send(short, 1000)
		expect(1000-1, 0)
		select {
		case n := <-r.received:
			t.Errorf("a message of %d bytes is read before its turn", n)
		case <-time.After(50 * time.Millisecond):
		}
		for range cap(f.largeRequests.coreSlots) {
			<-f.largeRequests.coreSlots
		}
		expect(50<<10, 50<<10)
		send(stream, 70<<10)
		for _, opts := range [][]grpc.CallOption{nil, {grpc.UseCompressor("gzip")}} {
			if err := stream.RecvMsg(new(healthpb.HealthCheckResponse)); status.Code(err) != codes.ResourceExhausted ||
				!strings.Contains(err.Error(), "at most 65536 are allowed") {
				t.Errorf("a message of 70 KiB, %v: %v", opts, err)
			}
			stream = open(grpc.UseCompressor("gzip"))
			send(stream, 70<<10)
		}
		_ = conn.Close()
		harness.Until(t, "nothing is charged", func() bool { return cfg.MemoryBudget.HeldBytes() == 0 })
	})
}

// TestLongMessageTakesItsLength checks that a message that came in pieces takes little more memory than its length,
// which is charged.
func TestLongMessageTakesItsLength(t *testing.T) {
	t.Parallel()
	for _, length := range []int{1 << 10, 33 << 10, 100 << 10} {
		half := mem.SliceBuffer(make([]byte, length/2))
		c := new(callMemory)
		if err := newCodec().Unmarshal(mem.BufferSlice{half, half}, c); err != nil {
			t.Fatal(err)
		}
		if b := c.receivedMessage.ReadOnlyData(); len(b) != length || cap(b) > 4*length {
			t.Errorf("a message of %d bytes has %d, and takes %d", length, len(b), cap(b))
		}
		c.receivedMessage.Free()
	}
}
