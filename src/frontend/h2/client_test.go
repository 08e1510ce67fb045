package h2

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"ratelimit/testbed/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	// methodPath is the method that Decide answers in tests, otherPath one that Handler answers.
	methodPath = "/test.Service/Method"
	otherPath  = "/test.Service/Other"
	streamPath = "/test.Service/Stream"
	// patience bounds every wait of a test. Only tests that fail wait so long.
	patience = 10 * time.Second
)

// testServer is a Server with one listener. At the end of the test it must have released all memory.
type testServer struct {
	*Server
	t       testing.TB
	addr    string // empty for a server of startFakeServer.
	dialRaw func() (net.Conn, error)

	mu       sync.Mutex
	accounts []*testAccount // guarded by mu
	problems []error        // guarded by mu; problems are what OnProtocolError got.
}

// startServer starts a server. Without others in cfg, Decide answers with the message of the
// request, and Handler with the whole body.
func startServer(t testing.TB, cfg Config) *testServer {
	t.Helper()
	l := harness.Listen(t)
	return startServerOn(t, cfg, l)
}

func startServerOn(t testing.TB, cfg Config, l net.Listener) *testServer {
	t.Helper()
	s := &testServer{t: t, addr: l.Addr().String()}
	s.dialRaw = func() (net.Conn, error) { return net.Dial(l.Addr().Network(), s.addr) }
	switch cfg.Path {
	case "":
		cfg.Path = methodPath
	case handleAll:
		cfg.Path = ""
	}
	if cfg.Decide == nil {
		cfg.Decide = echo
	}
	if cfg.Handler == nil {
		cfg.Handler = http.HandlerFunc(echoBody)
	}
	if cfg.OpenAccount == nil {
		cfg.OpenAccount = func(func()) Account { return s.openAccount() }
	}
	if cfg.ConnContext == nil {
		cfg.ConnContext = func(ctx context.Context, _ Account) context.Context { return ctx }
	}
	if cfg.IsLarge == nil {
		cfg.IsLarge = func([]byte) bool { return false }
	}
	if cfg.KindOf == nil {
		cfg.KindOf = kindOf
	}
	if cfg.OnPanic == nil {
		cfg.OnPanic = func(value any, stack []byte) { t.Errorf("panic: %v\n%s", value, stack) }
	}
	cfg.OnProtocolError = func(_ net.Addr, err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.problems = append(s.problems, err)
	}
	s.Server = NewServer(cfg)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		s.Shutdown(ctx)
		if err := <-served; err != nil {
			t.Error("Serve:", err)
		}
		s.checkReleased()
	})
	return s
}

// kindOf returns the kind of the methods of tests.
func kindOf(path string) MethodKind {
	switch path {
	case methodPath, otherPath:
		return UnaryMethod
	case streamPath:
		return StreamMethod
	}
	return UnknownMethod
}

// echo answers every call with its message.
func echo(b *Batch) {
	for i := range b.Calls {
		b.Reply(i, b.Calls[i].Message)
	}
}

// echoBody answers every request with its whole body.
func echoBody(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // The client has reset the stream.
	}
	_, _ = w.Write(body) // The same.
}

// serverTLS returns a configuration with a certificate for 127.0.0.1.
func serverTLS(t testing.TB, certs *harness.Certificates) *tls.Config {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(certs.Server.Cert, certs.Server.Key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}}
}

// checkReleased checks that a stopped server has no connection, and that all accounts are closed and empty.
func (s *testServer) checkReleased() {
	if n := len(s.openConns(nil)); n != 0 {
		s.t.Errorf("%d connections are left", n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.accounts {
		if held := a.held.Load(); held != 0 || a.lowest.Load() < 0 || !a.closed.Load() {
			s.t.Errorf("an account holds %d bytes at the end, at least %d before, closed: %t", held, a.lowest.Load(),
				a.closed.Load())
		}
	}
}

// testAccount is an Account that remembers its extremes.
type testAccount struct {
	held, lowest, highest atomic.Int64
	closed                atomic.Bool
}

func (s *testServer) openAccount() *testAccount {
	a := new(testAccount)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accounts = append(s.accounts, a)
	return a
}

// account returns the account of the connection with this number.
func (s *testServer) account(i int) *testAccount {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accounts[i]
}

func (a *testAccount) HoldBytes(n int64) bool {
	held := a.held.Add(n)
	for old := a.highest.Load(); held > old && !a.highest.CompareAndSwap(old, held); old = a.highest.Load() {
	}
	return true
}

func (a *testAccount) ReleaseBytes(n int64) {
	held := a.held.Add(-n)
	for old := a.lowest.Load(); held < old && !a.lowest.CompareAndSwap(old, held); old = a.lowest.Load() {
	}
}

func (a *testAccount) Close() { a.closed.Store(true) }

// client is a client that may send anything. What it sends is buffered until it reads or flushes.
type client struct {
	*http2.Framer
	t       testing.TB
	net     net.Conn
	out     *bufio.Writer
	block   bytes.Buffer
	encoder *hpack.Encoder
	nextID  uint32
	answers map[uint32]*answer
	goAways []http2.GoAwayFrame
	// sentBytes counts DATA, with padding, and credit what the server has added to the window of the connection.
	sentBytes, credit int
	// patience is how long the client waits for a frame. Defaults to the constant.
	patience time.Duration
}

// answer is what the client has received on a stream.
type answer struct {
	fields  map[string]string // the headers and the trailers.
	blocks  int               // counts HEADERS frames.
	data    []byte
	isEnded bool // true if a frame had END_STREAM.
	isReset bool
	code    http2.ErrCode // of RST_STREAM.
	credit  int           // what the server has added to the window of the stream.
}

// dial connects to s and sends nothing.
func (s *testServer) dial() *client {
	s.t.Helper()
	raw, err := s.dialRaw()
	if err != nil {
		s.t.Fatal(err)
	}
	return newClient(s.t, raw)
}

// connect connects to s and sends the preface and empty SETTINGS.
func (s *testServer) connect() *client {
	s.t.Helper()
	c := s.dial()
	c.greet()
	return c
}

// connectTLS connects to s with TLS.
func (s *testServer) connectTLS(cfg *tls.Config) *client {
	s.t.Helper()
	cfg = cfg.Clone()
	cfg.ServerName, cfg.NextProtos = "localhost", []string{"h2"}
	raw, err := s.dialRaw()
	if err != nil {
		s.t.Fatal(err)
	}
	c := newClient(s.t, tls.Client(raw, cfg))
	c.greet()
	return c
}

func newClient(t testing.TB, raw net.Conn) *client {
	c := &client{
		t: t, net: raw, out: bufio.NewWriterSize(raw, 32<<10), nextID: 1, patience: patience,
		answers: make(map[uint32]*answer),
	}
	c.Framer = http2.NewFramer(c.out, bufio.NewReader(raw))
	c.AllowIllegalWrites = true
	c.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.encoder = hpack.NewEncoder(&c.block)
	t.Cleanup(func() { _ = raw.Close() })
	return c
}

// greet sends the preface and SETTINGS.
func (c *client) greet(settings ...http2.Setting) {
	c.write(http2.ClientPreface)
	c.must(c.WriteSettings(settings...))
}

// write sends bytes that need not be frames.
func (c *client) write(b string) {
	_, err := c.out.WriteString(b)
	c.must(err)
}

// frame sends a frame of any content.
func (c *client) frame(kind http2.FrameType, flags uint8, id uint32, payload string) {
	if kind == http2.FrameData {
		c.sentBytes += len(payload)
	}
	c.must(c.WriteRawFrame(http2.FrameType(kind), http2.Flags(flags), id, []byte(payload)))
}

func (c *client) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// flush sends what is buffered.
func (c *client) flush() {
	c.t.Helper()
	c.must(c.tryFlush())
}

func (c *client) tryFlush() error {
	_ = c.net.SetWriteDeadline(time.Now().Add(patience)) // If this fails, so does Flush.
	return c.out.Flush()
}

// encode returns a header block of names and values.
func (c *client) encode(fields ...string) string {
	c.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		c.must(c.encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}))
	}
	return c.block.String()
}

// requestFields returns the fields of a gRPC request.
func requestFields(path string, more ...string) []string {
	fields := []string{
		":method", "POST", ":scheme", "http", ":path", path, ":authority", "test", "content-type",
		"application/grpc", "te", "trailers",
	}
	return append(fields, more...)
}

// open sends the headers of a call. It returns the stream.
func (c *client) open(more ...string) uint32 {
	id := c.newID()
	c.frame(http2.FrameHeaders, flagEndHeaders, id, c.encode(requestFields(methodPath, more...)...))
	return id
}

// openOther sends the headers of a request that is not gRPC's, which Handler answers at once. It returns the stream.
func (c *client) openOther(more ...string) uint32 {
	id := c.newID()
	c.frame(http2.FrameHeaders, flagEndHeaders, id, c.encode(otherFields(more...)...))
	return id
}

// otherFields returns the fields of a request that is not gRPC's.
func otherFields(more ...string) []string {
	fields := []string{
		":method", "POST", ":scheme", "http", ":path", otherPath, ":authority", "test", "content-type",
		"text/plain",
	}
	return append(fields, more...)
}

// openMethod sends the headers of a gRPC call that Handler answers. It returns the stream.
func (c *client) openMethod(path string, more ...string) uint32 {
	id := c.newID()
	c.frame(http2.FrameHeaders, flagEndHeaders, id, c.encode(requestFields(path, more...)...))
	return id
}

func (c *client) newID() uint32 {
	id := c.nextID
	c.nextID += 2
	return id
}

// finishCall sends the message of a call that is open.
func (c *client) finishCall(id uint32, message string) {
	rest := prefixed(message)
	for ; len(rest) > maxFrameBytes; rest = rest[maxFrameBytes:] {
		c.frame(http2.FrameData, 0, id, rest[:maxFrameBytes])
	}
	c.frame(http2.FrameData, flagEndStream, id, rest)
}

// call sends a whole call. It returns the stream.
func (c *client) call(message string, more ...string) uint32 {
	id := c.open(more...)
	c.finishCall(id, message)
	return id
}

// reset sends RST_STREAM.
func (c *client) reset(id uint32) { c.must(c.WriteRSTStream(id, http2.ErrCodeCancel)) }

// prefixed returns message as gRPC sends it.
func prefixed(message string) string {
	return string(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))) + message
}

// number returns four bytes.
func number(n uint32) string { return string(binary.BigEndian.AppendUint32(nil, n)) }

// readFrame reads a frame and notes it in c.answers.
func (c *client) readFrame() (http2.Frame, error) {
	c.t.Helper()
	c.must(c.net.SetReadDeadline(time.Now().Add(c.patience)))
	f, err := c.ReadFrame()
	if err != nil {
		return nil, err
	}
	a := c.answers[f.Header().StreamID]
	if a == nil {
		a = &answer{fields: make(map[string]string)}
		c.answers[f.Header().StreamID] = a
	}
	switch f := f.(type) {
	case *http2.MetaHeadersFrame:
		a.blocks++
		for _, field := range f.Fields {
			a.fields[field.Name] = field.Value
		}
		a.isEnded = a.isEnded || f.StreamEnded()
	case *http2.DataFrame:
		a.data = append(a.data, f.Data()...)
		a.isEnded = a.isEnded || f.StreamEnded()
	case *http2.WindowUpdateFrame:
		a.credit += int(f.Increment)
		if f.StreamID == 0 {
			c.credit += int(f.Increment)
		}
	case *http2.RSTStreamFrame:
		a.isReset, a.code = true, f.ErrCode
	case *http2.GoAwayFrame:
		c.goAways = append(c.goAways, *f)
	}
	return f, nil
}

// await flushes and reads until a frame satisfies done, and returns that frame. No frame may follow the end of the
// connection.
func (c *client) await(what string, done func(http2.Frame) bool) http2.Frame {
	c.t.Helper()
	c.flush()
	for {
		f, err := c.readFrame()
		if err != nil {
			c.t.Fatalf("no %s but: %v; GOAWAYs: %v", what, err, c.goAways)
		}
		if done(f) {
			return f
		}
	}
}

// ended waits for the end of the answer on a stream.
func (c *client) ended(id uint32) *answer {
	c.t.Helper()
	if a := c.answers[id]; a == nil || !a.isEnded && !a.isReset {
		c.await("answer", func(f http2.Frame) bool {
			a := c.answers[id]
			return f.Header().StreamID == id && (a.isEnded || a.isReset)
		})
	}
	return c.answers[id]
}

// expectAnswer waits for the answer OK with a message.
func (c *client) expectAnswer(id uint32, message string) {
	c.t.Helper()
	a := c.ended(id)
	if string(a.data) != prefixed(message) || a.fields["grpc-status"] != "0" || a.isReset {
		c.t.Fatalf("stream %d: answer %q with %v, reset: %t with %v", id, a.data, a.fields, a.isReset, a.code)
	}
}

// expectStatus waits for an answer with a status of gRPC, and returns its text.
func (c *client) expectStatus(id uint32, grpcStatus string) string {
	c.t.Helper()
	a := c.ended(id)
	if a.fields["grpc-status"] != grpcStatus || a.isReset {
		c.t.Fatalf("stream %d: answer %q with %v, reset: %t with %v", id, a.data, a.fields, a.isReset, a.code)
	}
	return a.fields["grpc-message"]
}

// expectBody waits for an answer of Handler.
func (c *client) expectBody(id uint32, body string) {
	c.t.Helper()
	if a := c.ended(id); string(a.data) != body || a.fields[":status"] != "200" || a.isReset {
		c.t.Fatalf("stream %d: answer %q with %v, reset: %t with %v", id, a.data, a.fields, a.isReset, a.code)
	}
}

// expectReset waits for a reset of the stream.
func (c *client) expectReset(id uint32, code http2.ErrCode) {
	c.t.Helper()
	if a := c.ended(id); !a.isReset || a.code != http2.ErrCode(code) {
		c.t.Fatalf("stream %d: answer %q with %v, reset: %t with %v, not %v", id, a.data, a.fields, a.isReset, a.code,
			http2.ErrCode(code))
	}
}

// expectGoAway waits for the end of the connection after a GOAWAY with this code. It returns the reason.
func (c *client) expectGoAway(code http2.ErrCode) string {
	c.t.Helper()
	_ = c.tryFlush() // The connection may have ended already.
	reason, got := "", []http2.ErrCode(nil)
	for {
		f, err := c.readFrame()
		if err != nil {
			if !errors.Is(err, io.EOF) || len(got) == 0 || got[len(got)-1] != http2.ErrCode(code) {
				c.t.Fatalf("the connection ended with %v and GOAWAYs %v, not with %v", err, got, http2.ErrCode(code))
			}
			return reason
		}
		if g, ok := f.(*http2.GoAwayFrame); ok {
			got = append(got, g.ErrCode)
			reason = string(g.DebugData())
		}
	}
}

// expectEnd waits for the end of the connection, with or without a GOAWAY.
func (c *client) expectEnd() {
	c.t.Helper()
	_ = c.tryFlush() // The connection may have ended already.
	for {
		if _, err := c.readFrame(); err != nil {
			if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
				c.t.Fatal("the connection did not end")
			}
			return
		}
	}
}

// expectAlive checks that the connection still answers calls.
func (c *client) expectAlive() {
	c.t.Helper()
	c.expectAnswer(c.call("alive"), "alive")
}
