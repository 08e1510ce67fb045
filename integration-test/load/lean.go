package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"ratelimit/src/tools/bench"
)

// leanConn is the lean client: HTTP/2 for one unary method over one TCP connection. One goroutine reads what the socket
// has, counts the answers, and sends the next calls in one write; an eager one sends a call after each answer. In an
// open loop a second goroutine sends the calls that are due.
//
// After GOAWAY no call starts until all others have ended, and then leanConn connects again. If the connection breaks,
// calls under way fail with UNAVAILABLE.
type leanConn struct {
	cfg     *bench.Config
	creds   credentials.TransportCredentials
	message func(call uint64) []byte
	tally   *bench.Tally
	emit    func(hpack.HeaderField)
	eager   bool // set if a call starts as soon as one is answered, in a write of its own.

	network, addr string
	request       []hpack.HeaderField // the fields of every call.

	mu       sync.Mutex // guards the fields below.
	room     *sync.Cond // signalled when hasRoom may have become true.
	finished bool       // set when the phase has no more calls.
	down     error      // why there is no connection. Calls fail with it.
	// maxStreams is the server's SETTINGS_MAX_CONCURRENT_STREAMS.
	maxStreams int64
	free       []*leanCall // calls to use again.
	leanSession
}

// leanSession is the state of one TCP connection.
type leanSession struct {
	conn      net.Conn
	received  []byte // the beginning of a frame. Only the reading goroutine uses it.
	out       []byte // what flush writes.
	calls     map[uint32]*leanCall
	blocked   []*leanCall // calls that wait for flow control, oldest first.
	nextID    uint32
	goingAway bool // set when no more calls may start on this connection.
	settled   bool // set by the server's first SETTINGS.

	window        int // how many bytes of DATA the connection may send.
	initialWindow int // of a new stream.
	unreturned    int // how many bytes of DATA came without a WINDOW_UPDATE of ours.

	block       bytes.Buffer // the last header block.
	encoder     *hpack.Encoder
	repeats     bool // set if the next header block is the same as the last.
	decoder     *hpack.Decoder
	fields      leanFields // of the header block that was decoded last.
	headerBlock []byte     // collects HEADERS and CONTINUATION.
	headerEnds  bool       // END_STREAM of the HEADERS frame.
}

// leanCall is a call under way.
type leanCall struct {
	id       uint32
	due      time.Time // when latency starts.
	expires  time.Time
	lateness time.Duration
	window   int
	payload  []byte // the message with gRPC's prefix.
	unsent   []byte // the rest of payload.
	answer   []byte
}

// leanFields are the fields of a response that matter.
type leanFields struct{ httpStatus, grpcStatus, grpcMessage string }

const (
	// connectTimeout bounds the making of a connection.
	connectTimeout = 5 * time.Second
	// failurePause follows a call that fails at once, because there is no connection.
	failurePause = 10 * time.Millisecond
	// flowWindow is the flow control window, in bytes, of connections and calls.
	flowWindow = 1 << 20

	frameHeader    = 9
	maxFrame       = 16 << 10 // HTTP/2's default limit of a frame, in both directions.
	defaultWindow  = 1<<16 - 1
	maxStreamID    = 1<<31 - 1
	messagePrefix  = 5
	authorityField = 3 // the index of :authority in request.
	maxHeaderBlock = 64 << 10
)

var errGoAway = errors.New("the server said GOAWAY")

// leanClient returns the lean client, or the eager one.
func leanClient(eager *bool) bench.Client {
	return func(ctx context.Context, cfg *bench.Config, l *bench.Load) (bench.Connection, error) {
		c := &leanConn{
			cfg: cfg, creds: cfg.Credentials, message: l.Messages(cfg.Seed), eager: *eager, maxStreams: 1<<32 - 1,
		}
		return c, c.open(ctx)
	}
}

// open connects and waits for the server's SETTINGS.
func (c *leanConn) open(ctx context.Context) error {
	cfg := c.cfg
	if c.creds == nil {
		c.creds = insecure.NewCredentials()
	}
	c.room = sync.NewCond(&c.mu)
	authority, scheme := cfg.Addr, "http"
	if c.network, c.addr = "tcp", cfg.Addr; strings.HasPrefix(cfg.Addr, "unix:") {
		c.network, c.addr, authority = "unix", strings.TrimPrefix(strings.TrimPrefix(cfg.Addr, "unix:"), "//"), "localhost"
	}
	if c.creds.Info().SecurityProtocol == "tls" {
		scheme = "https"
	}
	for _, f := range [][2]string{
		{":method", "POST"},
		{":scheme", scheme},
		{":path", pb.RateLimitService_ShouldRateLimit_FullMethodName},
		{":authority", authority},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
		{"grpc-timeout", fmt.Sprintf("%dm", (cfg.Timeout + time.Millisecond - 1).Milliseconds())},
	} {
		c.request = append(c.request, hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	c.request = slices.Clip(c.request)
	c.emit = func(f hpack.HeaderField) {
		switch f.Name {
		case ":status":
			c.fields.httpStatus = f.Value
		case "grpc-status":
			c.fields.grpcStatus = f.Value
		case "grpc-message":
			c.fields.grpcMessage = f.Value
		}
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := c.dial(ctx); err != nil {
		return err
	}
	deadline, _ := ctx.Deadline()
	err := c.conn.SetReadDeadline(deadline)
	for err == nil && !c.settled {
		if err = c.receive(); err == nil {
			err = ctx.Err()
		}
	}
	if err != nil {
		c.Close()
		return fmt.Errorf("no HTTP/2 settings from the server: %w", err)
	}
	c.expire(time.Now())
	return nil
}

// Close implements bench.Connection.
func (c *leanConn) Close() { _ = c.conn.Close() } // No call is under way any more.

// Loops implements bench.Connection.
func (c *leanConn) Loops(t *bench.Tally) []bench.Loop {
	c.tally = t
	return []bench.Loop{c}
}

// dial starts a session. Only the reading goroutine may call it.
func (c *leanConn) dial(ctx context.Context) error {
	var dialer net.Dialer
	raw, err := dialer.DialContext(ctx, c.network, c.addr)
	if err != nil {
		return err
	}
	conn, _, err := c.creds.ClientHandshake(ctx, c.request[authorityField].Value, raw)
	if err != nil {
		_ = raw.Close() // The handshake's error says more.
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = nil
	c.leanSession = leanSession{
		conn: conn, calls: make(map[uint32]*leanCall), nextID: 1, window: defaultWindow, initialWindow: defaultWindow,
		received: make([]byte, 0, min(max(512, c.cfg.InFlight*128), 64<<10)),
		decoder:  hpack.NewDecoder(4096, c.emit),
	}
	c.encoder = hpack.NewEncoder(&c.block)
	c.out = append(c.out, http2.ClientPreface...)
	c.frame(12, http2.FrameSettings, 0, 0)
	for _, s := range []http2.Setting{
		{ID: http2.SettingEnablePush, Val: 0},
		{ID: http2.SettingInitialWindowSize, Val: flowWindow},
	} {
		c.out = binary.BigEndian.AppendUint16(c.out, uint16(s.ID))
		c.out = binary.BigEndian.AppendUint32(c.out, s.Val)
	}
	c.frame(4, http2.FrameWindowUpdate, 0, 0)
	c.out = binary.BigEndian.AppendUint32(c.out, flowWindow-defaultWindow)
	c.flush()
	c.expire(time.Now())
	c.room.Broadcast()
	return nil
}

// Run implements bench.Loop.
func (c *leanConn) Run(ctx context.Context, p *bench.Phase) {
	c.finished = false
	var sender sync.WaitGroup
	if p.IsOpen() {
		sender.Go(func() { c.pace(ctx, p) })
	}
	for !c.refill(ctx, p) {
		if err := c.receive(); err != nil {
			c.reconnect(ctx, err)
		}
	}
	sender.Wait()
}

// refill starts the calls of a closed loop that have room, and writes them. done is true when all calls of the phase
// have ended.
func (c *leanConn) refill(ctx context.Context, p *bench.Phase) (done bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !p.IsOpen() && !c.finished && c.hasRoom() {
		n, due, ok := p.Next(ctx, true)
		if !ok {
			c.finished = true
			break
		}
		c.start(n, due, due)
		if c.down != nil { // The call has failed. reconnect pauses before the next.
			break
		}
	}
	c.flush()
	return c.finished && len(c.calls) == 0
}

// pace starts the calls of an open loop when they are due. Calls that are overdue go in one write, divided among the
// connections.
func (c *leanConn) pace(ctx context.Context, p *bench.Phase) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		c.awaitRoom()
		c.mu.Unlock()
		n, due, ok := p.Next(ctx, true)
		c.mu.Lock()
		if !ok {
			break
		}
		c.awaitRoom() // A GOAWAY may have come.
		now := time.Now()
		for share := p.Share(now); ok; share-- {
			c.start(n, due, now)
			if share == 0 || !c.hasRoom() {
				break
			}
			n, due, ok = p.Next(ctx, false)
		}
		c.flush()
	}
	c.finished = true
	_ = c.conn.SetReadDeadline(time.Now()) // It wakes the reading goroutine; a closed connection does so, too.
}

// hasRoom reports whether a call may start. Without a connection it fails at once.
func (c *leanConn) hasRoom() bool {
	return c.down != nil || !c.goingAway && int64(len(c.calls)) < min(int64(c.cfg.InFlight), c.maxStreams)
}

func (c *leanConn) awaitRoom() {
	for !c.hasRoom() {
		c.room.Wait()
	}
}

// reconnect fails the calls under way with cause and connects again.
func (c *leanConn) reconnect(ctx context.Context, cause error) {
	c.mu.Lock()
	now := time.Now()
	c.blocked = nil
	for _, s := range c.calls {
		c.end(s, 0, status.Error(codes.Unavailable, cause.Error()), now)
	}
	c.goingAway = c.down == nil // No call starts before dial returns.
	c.mu.Unlock()
	c.Close()
	dialCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), connectTimeout)
	defer cancel()
	if err := c.dial(dialCtx); err != nil {
		c.mu.Lock()
		c.down = status.Error(codes.Unavailable, err.Error())
		c.room.Broadcast()
		c.mu.Unlock()
		time.Sleep(failurePause)
	}
}

// start appends call n to out.
func (c *leanConn) start(n uint64, due, now time.Time) {
	if len(c.free) == 0 {
		c.free = append(c.free, &leanCall{})
	}
	last := len(c.free) - 1
	s := c.free[last]
	c.free = c.free[:last]
	message := c.message(n)
	*s = leanCall{
		id: c.nextID, due: due, lateness: now.Sub(due), expires: now.Add(c.cfg.Timeout), window: c.initialWindow,
		payload: append(binary.BigEndian.AppendUint32(append(s.payload[:0], 0), uint32(len(message))), message...),
		answer:  s.answer[:0],
	}
	c.calls[s.id] = s
	if c.down != nil {
		c.end(s, 0, c.down, now)
		return
	}
	c.nextID += 2
	c.goingAway = c.goingAway || c.nextID > maxStreamID
	block := c.headers(n)
	c.frame(len(block), http2.FrameHeaders, http2.FlagHeadersEndHeaders, s.id)
	c.out = append(c.out, block...)
	s.unsent = s.payload
	if !c.send(s) {
		c.blocked = append(c.blocked, s)
	}
}

// headers returns the header block of call n. It is valid until the next call of headers.
func (c *leanConn) headers(n uint64) []byte {
	if c.repeats {
		return c.block.Bytes()
	}
	var last []byte
	fields := c.request
	if c.cfg.FreshHeaders {
		fields = append(fields, bench.FreshHeaders(n)...)
	} else {
		last = bytes.Clone(c.block.Bytes())
	}
	c.block.Reset()
	for _, f := range fields {
		_ = c.encoder.WriteField(f) // A bytes.Buffer accepts all.
	}
	c.repeats = bytes.Equal(last, c.block.Bytes()) // Fresh blocks are not empty, and so never equal.
	return c.block.Bytes()
}

// send appends as much of a message to out as flow control allows. It reports whether all of it was appended.
func (c *leanConn) send(s *leanCall) bool {
	for {
		n := min(len(s.unsent), maxFrame, c.window, s.window)
		if n <= 0 {
			return false
		}
		var flags http2.Flags
		if n == len(s.unsent) {
			flags = http2.FlagDataEndStream
		}
		c.frame(n, http2.FrameData, flags, s.id)
		c.out = append(c.out, s.unsent[:n]...)
		s.unsent = s.unsent[n:]
		c.window -= n
		s.window -= n
		if len(s.unsent) == 0 {
			return true
		}
	}
}

// frame appends the header of a frame to out.
func (c *leanConn) frame(size int, kind http2.FrameType, flags http2.Flags, stream uint32) {
	c.out = append(c.out, byte(size>>16), byte(size>>8), byte(size), byte(kind), byte(flags))
	c.out = binary.BigEndian.AppendUint32(c.out, stream)
}

// flush writes out. If that fails, the reading goroutine finds the connection closed.
func (c *leanConn) flush() {
	if len(c.out) == 0 {
		return
	}
	err := c.conn.SetWriteDeadline(time.Now().Add(c.cfg.Timeout))
	if err == nil {
		_, err = c.conn.Write(c.out)
	}
	if err != nil {
		c.Close()
	}
	c.out = c.out[:0]
}

// receive reads what the socket has and handles all whole frames. An error ends the session.
func (c *leanConn) receive() error {
	if c.down != nil { // Only this goroutine sets it.
		return c.down
	}
	if len(c.received) == cap(c.received) {
		c.received = slices.Grow(c.received, frameHeader+maxFrame)
	}
	var err error
	if !c.eager || !beginsWithFrame(c.received) { // An eager client may have left some.
		var n int
		n, err = c.conn.Read(c.received[len(c.received):cap(c.received)])
		c.received = c.received[:len(c.received)+n]
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.expire(now)
		err = nil
	}
	rest, before := c.received, len(c.calls)
	for len(rest) >= frameHeader && (!c.eager || len(c.calls) >= before) {
		size := frameSize(rest)
		if size > maxFrame {
			return fmt.Errorf("the server sent a frame of %d bytes, and %d are allowed (does it speak HTTP/2 there?)", size,
				maxFrame)
		}
		if len(rest) < frameHeader+size {
			break
		}
		h := http2.FrameHeader{
			Type: http2.FrameType(rest[3]), Flags: http2.Flags(rest[4]),
			StreamID: binary.BigEndian.Uint32(rest[5:]) & maxStreamID,
		}
		if err := c.handle(h, rest[frameHeader:frameHeader+size], now); err != nil {
			return err
		}
		rest = rest[frameHeader+size:]
	}
	c.received = c.received[:copy(c.received, rest)]
	if err == nil && c.goingAway && len(c.calls) == 0 {
		err = errGoAway
	}
	return err
}

// frameSize returns the size of the payload of a frame.
func frameSize(header []byte) int { return int(header[0])<<16 | int(header[1])<<8 | int(header[2]) }

// beginsWithFrame reports whether data begins with a whole frame, or with one that is too large.
func beginsWithFrame(data []byte) bool {
	return len(data) >= frameHeader && (len(data) >= frameHeader+frameSize(data) || frameSize(data) > maxFrame)
}

// expire fails the calls whose time is up, and sets the read deadline to the next such time.
func (c *leanConn) expire(now time.Time) {
	next := now.Add(max(c.cfg.Timeout, time.Millisecond))
	for _, s := range c.calls {
		if s.expires.After(now) {
			next = minTime(next, s.expires)
			continue
		}
		c.reset(s, c.timeUp(), now)
	}
	_ = c.conn.SetReadDeadline(next) // It fails if the connection is closed, and then Read fails, too.
}

func (c *leanConn) timeUp() error {
	return status.Errorf(codes.DeadlineExceeded, "no answer within %v", c.cfg.Timeout)
}

func minTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// reset ends a call that the server has not ended.
func (c *leanConn) reset(s *leanCall, err error, now time.Time) {
	c.frame(4, http2.FrameRSTStream, 0, s.id)
	c.out = binary.BigEndian.AppendUint32(c.out, uint32(http2.ErrCodeCancel))
	c.end(s, 0, err, now)
}

// end counts a call and forgets it.
func (c *leanConn) end(s *leanCall, answer pb.RateLimitResponse_Code, err error, now time.Time) {
	if len(s.unsent) > 0 {
		c.blocked = slices.DeleteFunc(c.blocked, func(b *leanCall) bool { return b == s })
	}
	delete(c.calls, s.id)
	c.free = append(c.free, s)
	c.tally.Add(answer, err, now.Sub(s.due), s.lateness)
	c.room.Signal()
}
