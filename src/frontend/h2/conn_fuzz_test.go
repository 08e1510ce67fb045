package h2

import (
	"hash/maphash"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

// boundedAccount is a testAccount that has room for so many bytes.
type boundedAccount struct {
	testAccount
	most int64
}

func (a *boundedAccount) HoldBytes(n int64) bool {
	return a.testAccount.HoldBytes(n) && a.held.Load() <= a.most
}

// lossyConn is a connection whose output is lost after its end, without an error.
type lossyConn struct{ net.Conn }

func (c lossyConn) Write(b []byte) (int, error) {
	_, _ = c.Conn.Write(b) // It fails after the end of the connection.
	return len(b), nil
}

// script is a client whose frames come from the data of a fuzz test.
type script struct {
	*client
	data     []byte
	messages map[uint32]string // of calls.
	largest  int64             // the largest window of streams that the client has announced.
	credit   map[uint32]int64  // the sum of WINDOW_UPDATE frames per stream; 0 is the connection.
}

// byte returns the next byte of the data; 0 after its end.
func (s *script) byte() int {
	if len(s.data) == 0 {
		return 0
	}
	b := s.data[0]
	s.data = s.data[1:]
	return int(b)
}

// stream returns a stream that the client has opened, or the next one.
func (s *script) stream() uint32 {
	back := 2 * uint32(s.byte()%8)
	return max(s.nextID, back+1) - back
}

// message returns a message of up to 64 KB.
func (s *script) message() string {
	seed, size := s.byte(), s.byte()
	if size > 240 {
		size *= 256
	}
	b := make([]byte, size+2)
	for i := range b {
		b[i] = byte(seed + i*i)
	}
	return string(b)
}

// size returns a number that is interesting for windows.
func (s *script) size() uint32 {
	return []uint32{0, 1, 10, 100, 1000, firstWindow, 1 << 20, maxWindow}[s.byte()%8]
}

// timeout returns the field of a timeout, or nothing.
func (s *script) timeout() []string {
	texts := []string{"", "1n", "5m", "20m", "1S", "8H", "bad"}
	if text := texts[s.byte()%len(texts)]; text != "" {
		return []string{"grpc-timeout", text}
	}
	return nil
}

// sendData sends a message in frames.
func (s *script) sendData(id uint32, text string, ends bool) {
	for len(text) > maxFrameBytes {
		s.frame(http2.FrameData, 0, id, text[:maxFrameBytes])
		text = text[maxFrameBytes:]
	}
	flags := uint8(0)
	if ends {
		flags = flagEndStream
	}
	s.frame(http2.FrameData, flags, id, text)
}

// step does one thing that the data says.
func (s *script) step() {
	switch s.byte() % 16 {
	case 0, 1, 2: // Whole calls are the most frequent.
		message, id := s.message(), s.open(s.timeout()...)
		s.messages[id] = message
		s.sendData(id, prefixed(message), true)
	case 3:
		s.open(s.timeout()...)
	case 4:
		s.sendData(s.openOther(), s.message(), s.byte()%2 == 0)
	case 5:
		s.sendData(s.stream(), s.message(), s.byte()%2 == 0)
	case 6:
		s.reset(s.stream())
	case 7:
		id, n := uint32(0), s.size()
		if s.byte()%2 == 0 {
			id = s.stream()
		}
		s.credit[id] += int64(n)
		s.frame(http2.FrameWindowUpdate, 0, id, number(n))
	case 8:
		n := s.size()
		s.largest = max(s.largest, int64(n))
		s.frame(http2.FrameSettings, 0, 0, setting(http2.SettingInitialWindowSize, n))
	case 9:
		s.frame(http2.FramePing, 0, 0, "12345678")
	case 10:
		s.frame(http2.FrameHeaders, flagEndHeaders|flagEndStream, s.stream(), s.encode("trailer", "text"))
	case 11:
		block, at := s.encode(requestFields(methodPath)...), s.byte()%8
		id := s.newID()
		s.frame(http2.FrameHeaders, 0, id, block[:min(at, len(block))])
		s.frame(http2.FrameContinuation, flagEndHeaders, id, block[min(at, len(block)):])
	case 12:
		n := s.byte() % 32
		n = min(n, len(s.data))
		s.frame(http2.FrameType(s.byte()%11), uint8(s.byte()), s.stream(), string(s.data[:min(n, len(s.data))]))
	case 13:
		s.write(string(s.data[:min(s.byte()%16, len(s.data))]))
	case 14:
		s.flush()
		time.Sleep(time.Duration(s.byte()) * 20 * time.Millisecond)
	case 15:
		s.flush()
		synctest.Wait()
	}
}

// check reads all answers. The output must be valid, within the windows, and have no wrong message.
func (s *script) check() {
	for {
		_, err := s.readFrame()
		if err == io.EOF {
			break
		}
		if err != nil && err != io.ErrUnexpectedEOF {
			s.t.Fatalf("the output is not valid: %v, %v", err, s.ErrorDetail())
		}
		if err != nil {
			break // The connection was closed within a frame.
		}
	}
	sum := int64(0)
	for id, a := range s.answers {
		sum += int64(len(a.data))
		if int64(len(a.data)) > s.largest+s.credit[id] {
			s.t.Errorf("%d bytes exceed the window of stream %d", len(a.data), id)
		}
		message, isCall := s.messages[id]
		if isCall && a.isEnded && a.fields["grpc-status"] == "0" && string(a.data) != prefixed(message) {
			s.t.Errorf("call %d has another answer", id)
		}
	}
	if sum > firstWindow+s.credit[0] {
		s.t.Errorf("%d bytes exceed the window of the connection", sum)
	}
}

// slowEcho answers with the messages after a time that depends on the first one. The messages must not change
// meanwhile.
func slowEcho(t testing.TB) func(*Batch) {
	seed := maphash.MakeSeed()
	sum := func(b *Batch) (sums []uint64) {
		for i := range b.Calls {
			sums = append(sums, maphash.Bytes(seed, b.Calls[i].Message))
		}
		return sums
	}
	return func(b *Batch) {
		before := sum(b)
		if m := b.Calls[0].Message; len(m) > 0 && m[0]%4 == 0 {
			time.Sleep(time.Duration(m[0]) * time.Millisecond)
		}
		for i, n := range sum(b) {
			if n != before[i] {
				t.Errorf("the message of call %d changed while it was decided", i)
			}
		}
		echo(b)
	}
}

// checkEnded checks that a connection that has ended is empty.
func (c *conn) checkEnded(t testing.TB) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users != 0 || c.phase != closed {
		t.Fatalf("%d goroutines use a connection in phase %d", c.users, c.phase)
	}
	if c.activeStreams != 0 || len(c.streams) != 0 || c.runningHandlers != 0 || c.waiting.Len() != 0 ||
		len(c.handedOver) != 0 {
		t.Errorf("%d active streams, %d streams, %d handlers, %d requests waiting, %d batches at the end",
			c.activeStreams, len(c.streams), c.runningHandlers, c.waiting.Len(), len(c.handedOver))
	}
}

// FuzzConn runs a connection whose client sends what the data says, and checks its output and what is left of it. The
// first byte has the configuration. In the bubble, time passes at once, and a goroutine that is left fails the test.
func FuzzConn(f *testing.F) {
	for options := range 8 {
		f.Add([]byte{byte(options), 0, 4, 200, 2, 15, 0, 8, 20, 2, 1, 9, 9, 0, 14, 100, 0, 1, 1, 0})
		f.Add([]byte{byte(options), 8, 2, 0, 12, 250, 0, 0, 16, 250, 3, 15, 6, 1, 7, 5, 1, 7, 6, 0, 1, 8, 6, 15, 14, 80})
		f.Add([]byte{
			byte(options), 4, 1, 200, 1, 4, 7, 255, 0, 4, 1, 1, 1, 15, 5, 1, 1, 2, 0, 10, 2, 6, 1, 14, 200, 3, 0, 0,
			4, 5, 0, 11, 3,
		})
		f.Add([]byte{
			byte(options), 3, 0, 5, 1, 2, 3, 0, 3, 1, 10, 1, 12, 5, 3, 4, 1, 1, 2, 3, 4, 13, 9, 0, 0, 0, 0, 0, 0,
			0, 0, 0,
		})
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<10 {
			return
		}
		synctest.Test(t, func(t *testing.T) { runScript(t, data) })
	})
}

func runScript(t *testing.T, data []byte) {
	s := &script{data: data, messages: make(map[uint32]string), credit: make(map[uint32]int64), largest: firstWindow}
	options := s.byte()
	account := &boundedAccount{most: 1 << 40}
	if options&1 != 0 {
		account.most = int64(s.byte()) << 8
	}
	cfg := Config{
		DecideWaits: options&2 != 0, Decide: slowEcho(t),
		OpenAccount: func(func()) Account { return account },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(10 * time.Millisecond)
			echoBody(w, r)
		}),
	}
	if options&4 != 0 {
		cfg.MaxStreams, cfg.MaxConnectionAge, cfg.MaxConnectionAgeGrace = 4, time.Second, time.Second
	}
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	server := startServerOn(t, cfg, l)
	raw, err := l.dial()
	if err != nil {
		t.Fatal(err)
	}
	s.client = newClient(t, lossyConn{raw})
	s.greet()
	synctest.Wait()
	conns := server.openConns(nil)
	for len(s.data) > 0 {
		s.step()
	}
	s.flush()
	time.Sleep(3 * time.Second)
	_ = s.net.Close()
	time.Sleep(time.Minute) // All that the server waits for ends.
	s.check()
	for _, c := range conns {
		c.checkEnded(t)
	}
	if held := account.held.Load(); held != 0 || account.lowest.Load() < 0 || !account.closed.Load() {
		t.Errorf("the account holds %d bytes at the end, at least %d before", held, account.lowest.Load())
	}
}
