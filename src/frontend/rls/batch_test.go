package rls

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/src/frontend/h2"
	"ratelimit/src/limiter"
	"ratelimit/testbed/limitertest"
)

// batchClient is a client at the other end of a pipe. The server reads up to 1 KiB of what send writes at once, and
// decides the calls in it as one batch.
type batchClient struct {
	net      net.Conn
	unsent   bytes.Buffer
	frames   *http2.Framer // writes to unsent.
	block    bytes.Buffer
	headers  *hpack.Encoder // writes to block.
	nextID   uint32
	answered chan callAnswer
}

// callAnswer is the answer to a call, after a time from the call on.
type callAnswer struct {
	streamID uint32
	code     codes.Code
	text     string
	message  []byte
	after    time.Duration
}

// onePipe is a listener with one connection.
type onePipe struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (l *onePipe) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (*onePipe) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

func (l *onePipe) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// dialBatches serves s on a pipe until the test ends.
func dialBatches(t *testing.T, s *Service, cfg ServerConfig) *batchClient {
	t.Helper()
	client, server := net.Pipe()
	l := &onePipe{conns: make(chan net.Conn, 1), done: make(chan struct{})}
	l.conns <- server
	serve(t, s, cfg, l)
	c := newBatchClient(t, client)
	received := make(chan struct{})
	go func() {
		defer close(received)
		c.receive()
	}()
	t.Cleanup(func() {
		_ = client.Close()
		<-received
	})
	return c
}

// newBatchClient returns a client on conn, which has sent nothing yet.
func newBatchClient(t *testing.T, conn net.Conn) *batchClient {
	t.Helper()
	c := &batchClient{net: conn, nextID: 1, answered: make(chan callAnswer, 100)}
	c.frames, c.headers = http2.NewFramer(&c.unsent, nil), hpack.NewEncoder(&c.block)
	c.unsent.WriteString(http2.ClientPreface)
	if err := errors.Join(c.frames.WriteSettings(), c.frames.WriteWindowUpdate(0, 1<<30)); err != nil {
		t.Fatal(err)
	}
	return c
}

// receive reads answers until the connection ends.
func (c *batchClient) receive() {
	start, messages := time.Now(), make(map[uint32][]byte)
	frames := http2.NewFramer(nil, c.net)
	frames.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for {
		f, err := frames.ReadFrame()
		if err != nil {
			return
		}
		switch f := f.(type) {
		case *http2.DataFrame:
			messages[f.StreamID] = append(messages[f.StreamID], f.Data()...)
		case *http2.MetaHeadersFrame:
			if !f.StreamEnded() {
				continue
			}
			a := callAnswer{streamID: f.StreamID, code: 99, after: time.Since(start)}
			for _, field := range f.RegularFields() {
				switch field.Name {
				case "grpc-status":
					code, _ := strconv.Atoi(field.Value)
					a.code = codes.Code(code)
				case "grpc-message":
					a.text = field.Value
				}
			}
			if m := messages[f.StreamID]; len(m) > 5 {
				a.message = m[5:]
			}
			c.answered <- a
		}
	}
}

// call adds a call with a timeout as in grpc-timeout, or none, and returns the ID of its stream.
func (c *batchClient) call(t *testing.T, timeout string, message []byte) uint32 {
	t.Helper()
	id := c.nextID
	c.nextID += 2
	c.block.Reset()
	fields := [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", shouldRateLimit},
		{":authority", "x"},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	}
	if timeout != "" {
		fields = append(fields, [2]string{"grpc-timeout", timeout})
	}
	for _, f := range fields {
		if err := c.headers.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.frames.WriteHeaders(http2.HeadersFrameParam{
		StreamID: id, BlockFragment: c.block.Bytes(),
		EndHeaders: true,
	}); err != nil {
		t.Fatal(err)
	}
	n := len(message)
	body := append([]byte{0, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, message...)
	for isLast := false; !isLast; {
		part := body[:min(len(body), 16<<10)]
		body = body[len(part):]
		isLast = len(body) == 0
		if err := c.frames.WriteData(id, isLast, part); err != nil {
			t.Fatal(err)
		}
	}
	return id
}

// send sends all calls in one write, and returns the next n answers by their stream.
func (c *batchClient) send(t *testing.T, n int) map[uint32]callAnswer {
	t.Helper()
	if _, err := c.net.Write(c.unsent.Bytes()); err != nil {
		t.Fatal(err)
	}
	c.unsent.Reset()
	answers := make(map[uint32]callAnswer)
	for range n {
		a := <-c.answered
		if _, twice := answers[a.streamID]; twice {
			t.Errorf("stream %d is answered twice", a.streamID)
		}
		answers[a.streamID] = a
	}
	return answers
}

// batchStore is a store in memory that keeps the sizes of batches, and how long their deadlines are away.
type batchStore struct {
	backend.Backend
	delay time.Duration // how long an answer takes.

	mu       sync.Mutex
	hits     []int           // guarded by mu
	timeouts []time.Duration // guarded by mu; 0 for no deadline
}

func newBatchStore(t *testing.T) *batchStore {
	t.Helper()
	return &batchStore{Backend: limitertest.Store(t, memory.Config{})}
}

func (s *batchStore) Take(ctx context.Context, b *backend.Batch) error {
	timeout := time.Duration(0)
	if at, ok := ctx.Deadline(); ok {
		timeout = time.Until(at)
	}
	s.mu.Lock()
	s.hits, s.timeouts = append(s.hits, len(b.Hits)), append(s.timeouts, timeout)
	s.mu.Unlock()
	select {
	case <-time.After(s.delay):
		return s.Backend.Take(ctx, b)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// countCalls makes f count its calls, and returns how many there are so far.
func (f *fixture) countCalls() func() int {
	calls := 0
	f.cfg.OnCalls = func(protocol, method string, n int, _ time.Duration) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if protocol == "grpc" && method == "ShouldRateLimit" {
			calls += n
		}
	}
	return func() int {
		f.mu.Lock()
		defer f.mu.Unlock()
		return calls
	}
}

// TestBatchOfAllKinds checks that each call of a batch gets its own answer, that its calls share one call of the store,
// and that each call is counted once and each failure is reported once.
func TestBatchOfAllKinds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newBatchStore(t)
		f := startWith(t, testRules, limiter.Config{Backend: store, MaxDescriptors: 3})
		counted := f.countCalls()
		c := dialBatches(t, f.Service, ServerConfig{ConnConfig: h2.ConnConfig{MaxMessageBytes: 50_000}})
		ip, staff := descriptor("ip", "1"), descriptor("staff", "x")
		calls := []struct {
			name    string
			message []byte
			code    codes.Code
			text    string // the start of the error, or the overall code and what remains.
			id      uint32
		}{
			{name: "within the limit", message: encode(t, request(ip)), text: "OK 1"},
			{
				name: "no protobuf", message: []byte("GET /"), code: codes.InvalidArgument,
				text: "bad request: not a RateLimitRequest",
			},
			{name: "no domain", message: encode(t, &pb.RateLimitRequest{}), code: codes.InvalidArgument, text: "bad request: "},
			{name: "last of the limit", message: encode(t, request(ip)), text: "OK 0"},
			{
				name: "too many descriptors", message: encode(t, request(ip, ip, ip, ip)), code: codes.ResourceExhausted,
				text: "bad request: too large",
			},
			{name: "beyond the limit", message: encode(t, request(ip)), text: "OVER_LIMIT 0"},
			{name: "unlimited", message: encode(t, request(staff)), text: "OK 4294967295"},
			{name: "large", message: encode(t, request(descriptor("ip", strings.Repeat("x", 40_000)))), text: "OK 1"},
			{
				name: "longer than messages may be", message: make([]byte, 50_001), code: codes.ResourceExhausted,
				text: "grpc: received message larger",
			},
			{name: "small again", message: encode(t, request(ip)), text: "OVER_LIMIT 0"},
		}
		for i := range calls {
			calls[i].id = c.call(t, "", calls[i].message)
		}
		answers := c.send(t, len(calls))
		for _, call := range calls {
			a := answers[call.id]
			got := a.text
			if a.code == codes.OK {
				got = overallAnswer(t, a.message)
			}
			if a.code != call.code || !strings.HasPrefix(got, call.text) {
				t.Errorf("%s: %v %q, want %v %q", call.name, a.code, got, call.code, call.text)
			}
		}
		// grpc-go refuses the message that is too long, before the call reaches the service.
		if n := counted(); n != len(calls)-1 {
			t.Errorf("%d calls are counted, want %d", n, len(calls)-1)
		}
		if failed := f.failed(); len(failed) != 3 {
			t.Errorf("failures: %v, want 3", failed)
		}
		if store.hits[0] != 3 || len(store.hits) != 3 {
			t.Errorf("the store got batches of %v hits, want 3 in the first, and two others", store.hits)
		}
	})
}

// overallAnswer returns the overall code of an answer, and what remains of its first limit.
func overallAnswer(t *testing.T, message []byte) string {
	t.Helper()
	var r pb.RateLimitResponse
	if err := proto.Unmarshal(message, &r); err != nil || len(r.GetStatuses()) == 0 {
		t.Fatalf("%v: %v", &r, err)
	}
	return r.GetOverallCode().String() + " " + strconv.FormatUint(uint64(r.GetStatuses()[0].GetLimitRemaining()), 10)
}

// TestBatchWithTroubleOfTheStore checks that each call is counted once and fails once if the store has no answer for
// the batch.
func TestBatchWithTroubleOfTheStore(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answer func(*backend.Batch) error
		code   codes.Code
		text   string
	}{
		"overload":  {overloaded, codes.ResourceExhausted, backend.ErrOverload.Error()},
		"no answer": {unanswered, codes.Unavailable, limiter.ErrStoreFailed.Error()},
		"a failure": {func(*backend.Batch) error { return errSecret }, codes.Internal, internalErrorText},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := start(t, broken{tt.answer})
				counted := f.countCalls()
				c := dialBatches(t, f.Service, ServerConfig{})
				const n = 5
				for range n {
					c.call(t, "", encode(t, request(descriptor("ip", "1"))))
				}
				c.call(t, "", encode(t, request(descriptor("nobody", "1")))) // It needs no store.
				for id, a := range c.send(t, n+1) {
					if isNeedless := id == 2*n+1; isNeedless && a.code != codes.OK ||
						!isNeedless && (a.code != tt.code || a.text != tt.text) {
						t.Errorf("stream %d: %v %s", id, a.code, a.text)
					}
				}
				if counted() != n+1 || len(f.failed()) != n {
					t.Errorf("%d calls and %d failures are counted, want %d and %d", counted(), len(f.failed()), n+1, n)
				}
			})
		})
	}
}

// TestBatchTimeouts checks that calls with different timeouts neither shorten each other's time nor wait for each
// other, with a store that takes 300 ms.
func TestBatchTimeouts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newBatchStore(t)
		store.delay = 300 * time.Millisecond
		f := start(t, store)
		f.cfg.StoreIsRemote = true
		c := dialBatches(t, f.Service, ServerConfig{})
		calls := []struct {
			timeout string
			code    codes.Code
			latest  time.Duration // when the answer must be there, in milliseconds.
			id      uint32
		}{
			{timeout: "10S", latest: 300},
			{timeout: "100m", code: codes.DeadlineExceeded, latest: 100},
			{timeout: "", latest: 300},
			{timeout: "95m", code: codes.DeadlineExceeded, latest: 100},
			{timeout: "310m", latest: 300},
			{timeout: "9900m", latest: 300},
		}
		for i := range calls {
			calls[i].id = c.call(t, calls[i].timeout, encode(t, request(descriptor("ip", strconv.Itoa(i)))))
		}
		answers := c.send(t, len(calls))
		for _, call := range calls {
			if a := answers[call.id]; a.code != call.code || a.after > call.latest*time.Millisecond {
				t.Errorf("timeout %q: %v %s after %v, want %v within %d ms", call.timeout, a.code, a.text, a.after, call.code,
					call.latest)
			}
		}
		hits := make(map[time.Duration]int) // by timeout
		for i, n := range store.hits {
			hits[store.timeouts[i]] += n
		}
		const ms = time.Millisecond
		if want := map[time.Duration]int{100 * ms: 2, 310 * ms: 1, 10_000 * ms: 2, 0: 1}; !maps.Equal(hits, want) ||
			len(store.hits) != len(want) {
			t.Errorf("batches of %v hits within %v, want %v", store.hits, store.timeouts, want)
		}
	})
}

// panicking is a recorder that panics for calls on one key.
type panicking struct{ key string }

func (p panicking) Record(r *limiter.Request, _ *limiter.Answer) {
	if string(r.Descriptors[0].Entries[0].Key) == p.key {
		panic("recorder of " + p.key)
	}
}

// TestBatchPanics checks that a panic fails the calls of its batch only, and is reported once with its stack.
func TestBatchPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := startWith(t, testRules, limiter.Config{
			Backend: newBatchStore(t), Recorders: []limiter.Recorder{panicking{"staff"}},
		})
		counted := f.countCalls()
		c := dialBatches(t, f.Service, ServerConfig{})
		for i, keys := range [][]string{{"ip", "nobody"}, {"ip", "staff", "pay"}, {"pay", "ip"}} {
			for _, key := range keys {
				c.call(t, "", encode(t, request(descriptor(key, "1"))))
			}
			want := codes.OK
			if i == 1 {
				want = codes.Internal
			}
			for id, a := range c.send(t, len(keys)) {
				if a.code != want || want == codes.Internal && a.text != internalErrorText {
					t.Errorf("batch %d, stream %d: %v %s, want %v", i, id, a.code, a.text, want)
				}
			}
		}
		failed := f.failed()
		if len(failed) != 1 {
			t.Fatalf("failures: %v, want one", failed)
		}
		var p *PanicError
		if !errors.As(failed[0], &p) || p.Value != "recorder of staff" || !bytes.Contains(p.Stack, []byte("panicking")) {
			t.Errorf("the failure is %v", failed[0])
		}
		if counted() != 7 {
			t.Errorf("%d calls are counted, want 7", counted())
		}
	})
}
