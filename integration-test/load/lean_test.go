package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"

	"ratelimit/src/tools/bench"
	"ratelimit/testbed/harness"
)

func listener(t *testing.T) net.Listener {
	t.Helper()
	return harness.Listen(t)
}

// script is what a scripted HTTP/2 server does.
type script struct {
	settings []http2.Setting
	dripping bool // servers write each byte on its own.
	// frame is called for each frame. Nil: nothing.
	frame func(*scriptedConn, http2.Frame)
	// call is called when call n of the server, from 1, is complete. Nil: answer.
	call func(s *scriptedConn, n int, id uint32)
}

// scriptedConn is a connection to a scripted server.
type scriptedConn struct {
	*http2.Framer
	t       *testing.T
	conn    net.Conn
	encoder *hpack.Encoder
	block   bytes.Buffer
	message map[uint32][]byte            // the DATA of each open stream.
	header  map[uint32]map[string]string // of each open stream.
}

// scripted starts a server and returns its address. Each connection has all calls of the server in one goroutine.
func scripted(t *testing.T, sc script) string {
	t.Helper()
	l := listener(t)
	var goroutines sync.WaitGroup
	var mu sync.Mutex // guards calls, and the script against calls of several connections.
	calls := 0
	goroutines.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s := newScriptedConn(t, conn, sc.dripping)
			goroutines.Go(func() {
				defer func() { _ = conn.Close() }()
				s.serve(sc, func(id uint32) {
					mu.Lock()
					defer mu.Unlock()
					calls++
					if sc.call == nil {
						s.answer(id)
					} else {
						sc.call(s, calls, id)
					}
					delete(s.message, id)
				})
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		goroutines.Wait()
	})
	return l.Addr().String()
}

func newScriptedConn(t *testing.T, conn net.Conn, dripping bool) *scriptedConn {
	w := conn
	if dripping {
		w = drip{conn}
	}
	s := &scriptedConn{
		Framer: http2.NewFramer(w, conn), t: t, conn: conn, message: map[uint32][]byte{},
		header: map[uint32]map[string]string{},
	}
	s.encoder = hpack.NewEncoder(&s.block)
	s.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	return s
}

// serve returns when the connection ends.
func (s *scriptedConn) serve(sc script, called func(id uint32)) {
	if _, err := io.ReadFull(s.conn, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	if err := s.WriteSettings(sc.settings...); err != nil {
		s.t.Error(err)
	}
	_ = s.WriteWindowUpdate(0, 1<<30)
	for {
		f, err := s.ReadFrame()
		if err != nil {
			if errors.As(err, new(http2.ConnectionError)) || errors.As(err, new(http2.StreamError)) {
				s.t.Error(err)
			}
			return
		}
		if h, ok := f.(*http2.MetaHeadersFrame); ok {
			s.message[h.StreamID] = []byte{}
			s.header[h.StreamID] = map[string]string{}
			for _, field := range h.Fields {
				s.header[h.StreamID][field.Name] = field.Value
			}
		}
		data, isData := f.(*http2.DataFrame)
		if isData {
			s.message[data.StreamID] = append(s.message[data.StreamID], data.Data()...)
		}
		if sc.frame != nil {
			sc.frame(s, f)
		}
		if isData && data.StreamEnded() {
			called(data.StreamID)
		}
	}
}

// encode returns a header block, which changes the dynamic table.
func (s *scriptedConn) encode(fields ...string) []byte {
	s.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = s.encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return s.block.Bytes()
}

// headers writes a header block.
func (s *scriptedConn) headers(id uint32, end bool, fields ...string) {
	_ = s.WriteHeaders(http2.HeadersFrameParam{
		StreamID: id, EndHeaders: true, EndStream: end,
		BlockFragment: s.encode(fields...),
	})
}

// okAnswer is a message with the code OK and n bytes of an unknown field.
func okAnswer(n int) []byte {
	wire, _ := proto.Marshal(&pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OK, RawBody: make([]byte, n)})
	return append([]byte{0, 0, byte(len(wire) >> 16), byte(len(wire) >> 8), byte(len(wire))}, wire...)
}

// answer answers OK.
func (s *scriptedConn) answer(id uint32) {
	s.headers(id, false, ":status", "200", "content-type", "application/grpc", "x-new", strings.Repeat("x", int(id)%7))
	_ = s.WriteData(id, false, okAnswer(0))
	s.headers(id, true, "grpc-status", "0", "grpc-message", "")
}

// TestLeanAnswers has one call of each run answered in an unusual way, and the others OK.
func TestLeanAnswers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		call  func(s *scriptedConn, id uint32)
		code  string // empty for an answer of OK.
		first string
	}{
		{
			"reset", func(s *scriptedConn, id uint32) { _ = s.WriteRSTStream(id, http2.ErrCodeProtocol) }, "INTERNAL",
			"the server reset the stream: PROTOCOL_ERROR",
		},
		{
			"refused", func(s *scriptedConn, id uint32) { _ = s.WriteRSTStream(id, http2.ErrCodeRefusedStream) }, "UNAVAILABLE",
			"REFUSED_STREAM",
		},
		{
			"cancelled", func(s *scriptedConn, id uint32) { _ = s.WriteRSTStream(id, http2.ErrCodeCancel) }, "CANCELLED",
			"CANCEL",
		},
		{
			"calm", func(s *scriptedConn, id uint32) { _ = s.WriteRSTStream(id, http2.ErrCodeEnhanceYourCalm) },
			"RESOURCE_EXHAUSTED", "ENHANCE_YOUR_CALM",
		},
		{"only trailers", func(s *scriptedConn, id uint32) {
			s.headers(id, true, ":status", "200", "grpc-status", "8", "grpc-message", "too%20much")
		}, "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED: too much"},
		{
			"another server", func(s *scriptedConn, id uint32) { s.headers(id, true, ":status", "404") }, "UNKNOWN",
			`HTTP status "404"`,
		},
		{"another server with a body", func(s *scriptedConn, id uint32) {
			s.headers(id, false, ":status", "502")
			_ = s.WriteData(id, true, []byte("bad gateway"))
		}, "UNKNOWN", `HTTP status "502"`},
		{"no trailers", func(s *scriptedConn, id uint32) {
			s.headers(id, false, ":status", "200")
			_ = s.WriteData(id, true, okAnswer(0))
		}, "INTERNAL", "without trailers"},
		{"half a message", func(s *scriptedConn, id uint32) {
			s.headers(id, false, ":status", "200")
			_ = s.WriteData(id, false, okAnswer(0)[:6])
			s.headers(id, true, "grpc-status", "0")
		}, "INTERNAL", "are not one uncompressed message"},
		{"a large message", func(s *scriptedConn, id uint32) {
			s.headers(id, false, ":status", "200")
			for range flowWindow / 2 / maxFrame {
				_ = s.WriteData(id, false, make([]byte, maxFrame))
			}
		}, "RESOURCE_EXHAUSTED", "more than 524288 bytes"},
		{"split", func(s *scriptedConn, id uint32) {
			s.headers(id, false, ":status", "103")
			block := s.encode(":status", "200", "x-long", "value")
			_ = s.WriteHeaders(http2.HeadersFrameParam{
				StreamID: id, BlockFragment: block[:1], PadLength: 9, Priority: http2.PriorityParam{StreamDep: 1, Weight: 3},
			})
			_ = s.WriteContinuation(id, false, block[1:2])
			_ = s.WriteContinuation(id, true, block[2:])
			for _, b := range okAnswer(3) {
				_ = s.WriteDataPadded(id, false, []byte{b}, make([]byte, 5))
			}
			_ = s.WriteData(id, false, nil)
			_ = s.WritePing(false, [8]byte{7})
			_ = s.WriteRawFrame(0xbe, 3, id, []byte("unknown"))
			s.headers(id, true, "grpc-status", "0")
		}, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := leanConfig(scripted(t, script{call: func(s *scriptedConn, n int, id uint32) {
				if n == 20 {
					tt.call(s, id)
				} else {
					s.answer(id)
				}
			}}))
			want := map[string]uint64{}
			if tt.code != "" {
				want[tt.code] = 1
			}
			r, err := bench.Run(t.Context(), cfg)
			if err != nil || r.Answers["OK"] != 100-uint64(len(want)) || !maps.Equal(r.Errors, want) ||
				!strings.Contains(r.FirstError, tt.first) {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

// leanConfig is one of a hundred calls over one connection.
func leanConfig(addr string) bench.Config {
	return bench.Config{
		Client: leanClient(new(bool)), Addr: addr, Connections: 1, InFlight: 4, Requests: 100, Timeout: 10 * time.Second,
		Seed: 1, Workload: "uniform", Domain: "d", Key: "k", Keys: 50,
	}
}

// drip is a connection that sends each byte on its own.
type drip struct{ net.Conn }

func (d drip) Write(p []byte) (int, error) {
	for i := range p {
		if _, err := d.Conn.Write(p[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(p), nil
}

// leanCase is a server that is unusual in a way that no call notices. check is called after the run.
type leanCase struct {
	name string
	script
	check func(t *testing.T)
}

func checkLean(t *testing.T, cases []leanCase) {
	t.Helper()
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			r, err := bench.Run(t.Context(), leanConfig(scripted(t, tt.script)))
			if err != nil || r.Answers["OK"] != 100 || len(r.Errors) > 0 {
				t.Errorf("%+v, %v", r, err)
			}
			if tt.check != nil {
				tt.check(t)
			}
		})
	}
}

func TestLeanConnection(t *testing.T) {
	t.Parallel()
	pings := 0
	checkLean(t, []leanCase{
		{name: "one stream at a time", script: script{
			settings: []http2.Setting{{ID: http2.SettingMaxConcurrentStreams, Val: 1}},
			call: func(s *scriptedConn, _ int, id uint32) {
				if len(s.message) > 1 {
					s.t.Errorf("%d streams are open", len(s.message))
				}
				s.answer(id)
			},
		}},
		{name: "ping", script: script{
			frame: func(_ *scriptedConn, f http2.Frame) {
				if p, ok := f.(*http2.PingFrame); ok && p.IsAck() && p.Data == [8]byte{1, 2, 3} {
					pings++
				}
			},
			call: func(s *scriptedConn, n int, id uint32) {
				if n == 50 {
					_ = s.WritePing(false, [8]byte{1, 2, 3})
				}
				s.answer(id)
			},
		}, check: func(t *testing.T) {
			if pings != 1 {
				t.Errorf("%d answers to a ping", pings)
			}
		}},
		{name: "byte by byte", script: script{dripping: true}},
	})
}

func TestLeanFlowControl(t *testing.T) {
	t.Parallel()
	updates, credit := 0, 0
	checkLean(t, []leanCase{
		{name: "no window at first", script: script{
			settings: []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 0}},
			frame: func(s *scriptedConn, f http2.Frame) {
				switch f := f.(type) {
				case *http2.MetaHeadersFrame:
					_ = s.WriteWindowUpdate(f.StreamID, 3)
				case *http2.DataFrame:
					if len(f.Data()) > 3 {
						s.t.Errorf("%d bytes of DATA, with a window of 3", len(f.Data()))
					}
					if !f.StreamEnded() {
						_ = s.WriteWindowUpdate(f.StreamID, 3)
					}
				}
			},
			call: checkMessage,
		}},
		{name: "windows by settings", script: script{
			settings: []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 10}, {ID: http2.SettingHeaderTableSize, Val: 0}},
			frame: func(s *scriptedConn, f http2.Frame) {
				if d, ok := f.(*http2.DataFrame); ok && !d.StreamEnded() {
					_ = s.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000},
						http2.Setting{ID: http2.SettingHeaderTableSize, Val: 4096})
				}
			},
			call: checkMessage,
		}},
		{name: "much data", script: script{ // 100 answers of 15,000 bytes exceed the connection's window.
			frame: func(_ *scriptedConn, f http2.Frame) {
				if w, ok := f.(*http2.WindowUpdateFrame); ok && w.StreamID == 0 {
					updates++
					credit += int(w.Increment)
				}
			},
			call: func(s *scriptedConn, _ int, id uint32) {
				s.headers(id, false, ":status", "200")
				_ = s.WriteData(id, false, okAnswer(15_000))
				s.headers(id, true, "grpc-status", "0")
			},
		}, check: func(t *testing.T) {
			if updates < 3 || credit < flowWindow-defaultWindow+2*flowWindow/2 {
				t.Errorf("%d bytes of window in %d frames", credit, updates)
			}
		}},
	})
}

// checkMessage answers, and fails the test if the message is not the first of 50 or one like it.
func checkMessage(s *scriptedConn, _ int, id uint32) {
	var req pb.RateLimitRequest
	m := s.message[id]
	if len(m) < messagePrefix || proto.Unmarshal(m[messagePrefix:], &req) != nil || req.GetDomain() != "d" ||
		len(req.GetDescriptors()) != 1 {
		s.t.Errorf("message %q", m)
	}
	s.answer(id)
}

// TestLeanReconnects has servers that end connections.
func TestLeanReconnects(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		call   func(s *scriptedConn, n int, id uint32)
		failed uint64 // the largest number of calls that fail with UNAVAILABLE.
	}{
		{"drained", func(s *scriptedConn, n int, id uint32) {
			if n%20 == 0 {
				_ = s.WriteGoAway(maxStreamID, http2.ErrCodeNo, nil)
			}
			s.answer(id)
		}, 0},
		{"calls refused", func(s *scriptedConn, n int, id uint32) {
			if n == 20 {
				_ = s.WriteGoAway(id, http2.ErrCodeEnhanceYourCalm, []byte("calm"))
			}
			s.answer(id)
		}, 3},
		{"broken", func(s *scriptedConn, n int, id uint32) {
			if n == 20 {
				_ = s.conn.Close()
				return
			}
			s.answer(id)
		}, 4},
	} {
		for _, rate := range []float64{0, 5000} {
			cfg := leanConfig(scripted(t, script{call: tt.call}))
			cfg.Rate = rate
			r, err := bench.Run(t.Context(), cfg)
			if err != nil {
				t.Errorf("%s: %v", tt.name, err)
				continue
			}
			failed := r.Errors["UNAVAILABLE"]
			if r.Requests != 100 || r.Answers["OK"]+failed != 100 || failed > tt.failed || rate > 0 && r.OpenLoop.Unsent > 0 {
				t.Errorf("%s, rate %v: %+v", tt.name, rate, r)
			}
		}
	}
}

// A server that has gone makes every later call fail, and the run ends.
func TestLeanServerGone(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{0, 1000} {
		l := listener(t)
		served := make(chan struct{})
		go func() {
			defer close(served)
			conn, err := l.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			_ = l.Close()
			s := newScriptedConn(t, conn, false)
			s.serve(script{}, func(uint32) { _ = conn.Close() })
		}()
		cfg := leanConfig(l.Addr().String())
		cfg.Rate, cfg.Requests = rate, 20
		r, err := bench.Run(t.Context(), cfg)
		if r == nil || err == nil || r.Errors["UNAVAILABLE"] != 20 {
			t.Errorf("%+v, %v", r, err)
		}
		<-served
	}
}

// Servers that do not speak HTTP/2 are named as such.
func TestLeanStrangers(t *testing.T) {
	t.Parallel()
	for says, want := range map[string]string{
		"HTTP/1.1 400 Bad Request\r\n\r\n": "does it speak HTTP/2 there?",

		"\x00\x00\x02\x07\x00\x00\x00\x00\x00xx":    "a GOAWAY frame whose 2 bytes are too few",
		"\x00\x00\x02\x01\x0c\x00\x00\x00\x01\x05x": "a HEADERS frame whose 2 bytes are too few",
		"\x00\x00\x00\x01\x28\x00\x00\x00\x01":      "a HEADERS frame whose 0 bytes are too few",
		"\x00\x00\x01\x01\x04\x00\x00\x00\x01\xff":  "",
		strings.Repeat("\x00\x40\x00\x09"+"\x00\x00\x00\x00\x01"+strings.Repeat("x", maxFrame),
			5): "a header block of more than 65536 bytes",
	} {
		l := listener(t)
		go func() {
			if conn, err := l.Accept(); err == nil {
				_, _ = io.WriteString(conn, says)
				_, _ = io.CopyN(io.Discard, conn, 1) // The client has sent something, so closing is a FIN or a RST.
				_, _ = io.Copy(io.Discard, io.LimitReader(conn, 1<<10))
				_ = conn.Close()
			}
		}()
		r, err := bench.Run(t.Context(), leanConfig(l.Addr().String()))
		if r != nil || err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "cannot reach") {
			t.Errorf("%.20q: %v, want %q", says, err, want)
		}
		_ = l.Close()
	}
}

// Each call has the fields of gRPC, and new values if these were asked for, with both clients.
func TestFreshHeaders(t *testing.T) {
	t.Parallel()
	clients := map[string]bench.Client{"lean": leanClient(new(bool)), "eager": leanClient(new(true)), "grpc-go": nil}
	for client, connect := range clients {
		for _, fresh := range []bool{false, true} {
			seen := map[string]int{}
			cfg := leanConfig(scripted(t, script{call: func(s *scriptedConn, _ int, id uint32) {
				h := s.header[id]
				if h[":path"] == pb.RateLimitService_ShouldRateLimit_FullMethodName {
					if h[":method"] != "POST" || h[":scheme"] != "http" || h[":authority"] != s.conn.LocalAddr().String() ||
						h["content-type"] != "application/grpc" || h["te"] != "trailers" || h["grpc-timeout"] == "" {
						s.t.Errorf("%v", h)
					}
					seen[h["traceparent"]]++
					seen[h["x-request-id"]]++
				}
				s.answer(id)
			}}))
			cfg.Client, cfg.FreshHeaders = connect, fresh
			if r, err := bench.Run(t.Context(), cfg); err != nil || r.Answers["OK"] != 100 {
				t.Errorf("%+v, %v", r, err)
			}
			want := map[bool]int{false: 1, true: 200}[fresh]
			if len(seen) != want {
				t.Errorf("%s: %d values, want %d: %v", client, len(seen), want, slices.Collect(maps.Keys(seen))[:min(len(seen), 4)])
			}
			for v := range seen {
				if trace := strings.HasPrefix(v, "00-") && len(v) == 55; fresh && !trace && len(v) != 36 {
					t.Errorf("value %q", v)
				}
			}
		}
	}
}

// A call that gets no answer fails when its time is up, the others do not wait for it, and its late answer is ignored.
func TestLeanTimeout(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{0, 1000} {
		var late []uint32
		cfg := leanConfig(scripted(t, script{call: func(s *scriptedConn, n int, id uint32) {
			if n == 10 || n == 20 {
				late = append(late, id)
				return
			}
			s.answer(id)
		}, frame: func(s *scriptedConn, f http2.Frame) {
			if r, ok := f.(*http2.RSTStreamFrame); ok && slices.Contains(late, r.StreamID) {
				s.answer(r.StreamID)
			}
		}}))
		cfg.Rate, cfg.Timeout, cfg.Requests, cfg.Duration = rate, 500*time.Millisecond, 0, 900*time.Millisecond
		r, err := bench.Run(t.Context(), cfg)
		if err != nil || r.Errors["DEADLINE_EXCEEDED"] != 2 || r.Answers["OK"]+2 != r.Requests || r.Latency.Max < 490_000 {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

// limited is a server of grpc-go that lets 10 calls of each run pass.
type limited struct {
	pb.UnimplementedRateLimitServiceServer
	asked atomic.Uint64
}

func (s *limited) ShouldRateLimit(context.Context, *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	code := pb.RateLimitResponse_OVER_LIMIT
	if s.asked.Add(1) <= 10 {
		code = pb.RateLimitResponse_OK
	}
	return &pb.RateLimitResponse{OverallCode: code}, nil
}

// serveOn serves s on l until the end of the test.
func (s *limited) serveOn(t *testing.T, l net.Listener, opt ...grpc.ServerOption) {
	t.Helper()
	srv := grpc.NewServer(opt...)
	pb.RegisterRateLimitServiceServer(srv, s)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

// Calls and answers are counted, in a closed and in an open loop, but not those of the warmup.
func TestLeanCounts(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{0, 2000} {
		for _, warmup := range []time.Duration{0, 20 * time.Millisecond} {
			s, l := new(limited), listener(t)
			s.serveOn(t, l)
			cfg := leanConfig(l.Addr().String())
			cfg.Rate, cfg.Warmup, cfg.Connections = rate, warmup, 2
			r, err := bench.Run(t.Context(), cfg)
			if err != nil || r.Requests != 100 || r.Answers["OK"]+r.Answers["OVER_LIMIT"] != 100 {
				t.Fatalf("rate %v, warmup %v: %+v, %v", rate, warmup, r, err)
			}
			if warm := s.asked.Load() - 100; (warm > 0) != (warmup > 0) || warm == 0 && r.Answers["OK"] != 10 {
				t.Errorf("rate %v, warmup %v: %d calls before the run, %+v", rate, warmup, warm, r)
			}
		}
	}
}

// A run that is ended early has a result, and no call is lost.
func TestLeanInterrupted(t *testing.T) {
	t.Parallel()
	s, l := new(limited), listener(t)
	s.serveOn(t, l)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	cfg := leanConfig(l.Addr().String())
	cfg.Requests, cfg.Duration = 0, time.Hour
	r, err := bench.Run(ctx, cfg)
	if err != nil || !r.Interrupted || r.Requests == 0 || r.Requests != s.asked.Load() {
		t.Errorf("%d were asked, %+v, %v", s.asked.Load(), r, err)
	}
}

func TestLeanUnixSocket(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/s"
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	new(limited).serveOn(t, l)
	if r, err := bench.Run(t.Context(), leanConfig("unix://"+path)); err != nil || r.Answers["OVER_LIMIT"] != 90 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TLS works, and a server without TLS is an error.
func TestLeanTLS(t *testing.T) {
	t.Parallel()
	certs := harness.NewCertificates(t)
	serverCreds, err := credentials.NewServerTLSFromFile(certs.Server.Cert, certs.Server.Key)
	if err != nil {
		t.Fatal(err)
	}
	l := listener(t)
	new(limited).serveOn(t, l, grpc.Creds(serverCreds))
	cfg := leanConfig(l.Addr().String())
	cfg.Credentials = credentials.NewTLS(certs.ClientConfig(t))
	if r, err := bench.Run(t.Context(), cfg); err != nil || r.Answers["OVER_LIMIT"] != 90 {
		t.Errorf("%+v, %v", r, err)
	}
	cfg.Addr = scripted(t, script{})
	cfg.Timeout = 500 * time.Millisecond
	if r, err := bench.Run(t.Context(), cfg); r != nil || err == nil ||
		!strings.Contains(err.Error(), "with TLS on one side only, this fails too") {
		t.Errorf("%+v, %v", r, err)
	}
}
