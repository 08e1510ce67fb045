package h2guard

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"ratelimit/src/frontend/connlimit"
)

// wire is a connection whose client has said everything already.
type wire struct {
	net.Conn
	in     bytes.Buffer
	once   sync.Once
	closed chan struct{}
	full   chan struct{} // if set, writes wait for it
}

func (w *wire) Read(p []byte) (int, error) { return w.in.Read(p) }

func (w *wire) Write(p []byte) (int, error) {
	if w.full != nil {
		select {
		case <-w.full:
		case <-w.closed:
			return 0, net.ErrClosed
		}
	}
	return len(p), nil
}

func (w *wire) Close() error {
	w.once.Do(func() { close(w.closed) })
	return nil
}

// cutOff reports whether the connection is closed once all goroutines wait.
func (w *wire) cutOff() bool {
	synctest.Wait()
	select {
	case <-w.closed:
		return true
	default:
		return false
	}
}

// table is a guard with one connection, in a bubble of synctest.
type table struct {
	*testing.T
	guard  *Guard
	budget *connlimit.MemoryBudget
	conn   *Conn
	wire   *wire
	client *http2.Framer // writes what the server reads
	out    bytes.Buffer
	server *http2.Framer // writes to out what send has the server send
}

// bubble calls f with a table whose budget has max bytes. f starts between two sweeps.
func bubble(t *testing.T, max int64, f func(tb *table)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tb := newTable(t, max)
		time.Sleep(sweepInterval / 2)
		f(tb)
	})
}

func newTable(t *testing.T, max int64) *table {
	t.Helper()
	tb := &table{T: t, budget: connlimit.NewMemoryBudget(max)}
	tb.guard = New(tb.budget)
	tb.conn, tb.wire = tb.another()
	tb.client = http2.NewFramer(&tb.wire.in, nil)
	tb.server = http2.NewFramer(&tb.out, nil)
	tb.wire.in.WriteString(http2.ClientPreface)
	t.Cleanup(func() {
		if err := tb.conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return tb
}

func (tb *table) another() (*Conn, *wire) {
	w := &wire{closed: make(chan struct{})}
	return tb.guard.WrapConn(context.Background(), w), w
}

// got has the server read all that the client wrote.
func (tb *table) got(errs ...error) {
	tb.Helper()
	if err := errors.Join(errs...); err != nil {
		tb.Fatal(err)
	}
	tb.conn.chargeReceivedFrames(tb.wire.in.Bytes())
	tb.wire.in.Reset()
}

// sent has the server write.
func (tb *table) sent(errs ...error) {
	tb.Helper()
	if err := errors.Join(errs...); err != nil {
		tb.Fatal(err)
	}
	_, err := tb.conn.Write(tb.out.Bytes())
	tb.out.Reset()
	if err != nil {
		tb.Fatal(err)
	}
}

// holds checks how much is charged, beside what stays for the most streams.
func (tb *table) holds(what string, want int64) {
	tb.Helper()
	if got := tb.budget.HeldBytes() - int64(tb.conn.peakOpenStreams)*bytesPerPeakStream; got != want {
		tb.Errorf("%s: %d bytes are held, want %d", what, got, want)
	}
}

func (tb *table) open(id uint32, headers int, end bool) error {
	return tb.client.WriteHeaders(http2.HeadersFrameParam{
		StreamID: id, BlockFragment: make([]byte, headers),
		EndHeaders: true, EndStream: end,
	})
}

func TestStreamsAreCharged(t *testing.T) {
	bubble(t, 0, func(tb *table) {
		tb.got(tb.client.WriteSettings())
		tb.holds("nothing is open", 0)
		tb.got(tb.open(1, 10, false), tb.client.WriteData(1, true, make([]byte, 100)))
		tb.holds("a call", StreamBytes+80+260)
		tb.got(tb.open(3, 20_000, false), tb.client.WriteData(3, false, make([]byte, 1100)),
			tb.client.WriteData(3, false, make([]byte, 5000)))
		tb.holds("and a large one", StreamBytes+80+260+StreamBytes+maxHeaderBytes+(4<<10+160)+(16<<10+160))
		tb.sent(tb.server.WriteData(1, false, make([]byte, 10)))
		tb.holds("the reply is not the end", StreamBytes+80+260+StreamBytes+maxHeaderBytes+20<<10+320)
		tb.sent(tb.server.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true, EndStream: true}))
		tb.holds("the trailers are", StreamBytes+maxHeaderBytes+20<<10+320)
		tb.sent(tb.server.WriteRSTStream(1, http2.ErrCodeNo), tb.server.WriteRSTStream(3, http2.ErrCodeCancel))
		tb.holds("a stream that was reset lingers", StreamBytes+maxHeaderBytes+20<<10+320)
		tb.conn.ReleaseCancelledCall()
		tb.holds("its handler ended", maxHeaderBytes+20<<10+320)
		time.Sleep(2*sweepInterval + time.Millisecond)
		synctest.Wait()
		tb.holds("its data is collected", 0)
		tb.got(tb.client.WriteData(1, false, make([]byte, 5000)), tb.open(1, 10, true))
		tb.holds("what comes for streams that have ended", 0)
	})
}

// A stream that neither side ends costs as much as its connection may hold.
func TestTheLargestConnectionIsClosed(t *testing.T) {
	bubble(t, 10*StreamBytes, func(tb *table) {
		other, otherWire := tb.another()
		other.ChargeQueuedReply(StreamBytes)
		for i := range uint32(20) {
			tb.got(tb.open(2*i+1, 0, true))
		}
		if !tb.wire.cutOff() || otherWire.cutOff() || tb.budget.EvictedAccounts() != 1 {
			tb.Errorf("closed: %t, the other %t, counted %d", tb.wire.cutOff(), otherWire.cutOff(), tb.budget.EvictedAccounts())
		}
		if n := tb.budget.HeldBytes(); n != StreamBytes {
			tb.Errorf("%d bytes are held, want those of the other", n)
		}
		other.ReleaseWrittenReply(StreamBytes)
		if err := other.Close(); err != nil {
			tb.Error(err)
		}
	})
}

// What an evicted connection held is in use until its handlers end. Meanwhile others
// that hold much are not read from.
func TestEvictedMemoryIsWaitedFor(t *testing.T) {
	bubble(t, 100*StreamBytes, func(tb *table) {
		for i := range uint32(120) {
			tb.got(tb.open(2*i+1, 0, true))
		}
		other, _ := tb.another()
		defer func() { _ = other.Close() }()
		other.ChargeQueuedReply(20 * StreamBytes)
		if !tb.wire.cutOff() || !tb.guard.budgetIsFull() {
			tb.Fatalf("closed %t, full %t", tb.wire.cutOff(), tb.guard.budgetIsFull())
		}
		for range 40 {
			tb.conn.ReleaseCancelledCall() // handlers end
		}
		if tb.guard.budgetIsFull() {
			tb.Errorf("%d bytes remain after 40 of 100 handlers ended, and %d are held", tb.guard.evictedHandlerBytes.Load(),
				tb.budget.HeldBytes())
		}
		other.ChargeQueuedReply(80 * StreamBytes)
		if !tb.guard.budgetIsFull() {
			tb.Error("there is room for more than the budget")
		}
		for range 55 {
			tb.conn.ReleaseCancelledCall()
		}
		if tb.guard.budgetIsFull() {
			tb.Errorf("a full budget is not read for because %d bytes remain of calls without a handler",
				tb.guard.evictedHandlerBytes.Load())
		}
		if err := tb.conn.Close(); err != nil {
			tb.Error(err)
		}
		time.Sleep(maxHandlerTime)
		synctest.Wait()
		if n := tb.guard.evictedHandlerBytes.Load(); n != 0 {
			tb.Errorf("%d bytes remain for ever", n)
		}
	})
}

func TestTokens(t *testing.T) {
	t.Parallel()
	ping := func(tb *table) error { return tb.client.WritePing(true, [8]byte{}) }
	for _, tt := range []struct {
		name  string
		times int
		write func(tb *table, i uint32) error
		owed  time.Duration // once all were read in no time
	}{
		{"calls", 10_000, func(tb *table, i uint32) error {
			return errors.Join(tb.open(2*i+1, 10, false), tb.client.WriteData(2*i+1, true, make([]byte, 10)),
				tb.client.WriteWindowUpdate(0, 100), tb.client.WriteWindowUpdate(2*i+1, 100))
		}, 0},
		{"few frames", 1000, func(tb *table, _ uint32) error { return ping(tb) }, 0},
		{"many frames", 5000, func(tb *table, _ uint32) error { return ping(tb) }, 4 * time.Second},
		// for a stream that is not open
		{"empty data", 2000, func(tb *table, _ uint32) error { return tb.client.WriteData(1, false, nil) }, time.Second},
		{
			"unknown frames", 2000, func(tb *table, _ uint32) error { return tb.client.WriteRawFrame(99, 0, 0, nil) },
			time.Second,
		},
		{"settings", 2000, func(tb *table, _ uint32) error { return tb.client.WriteSettingsAck() }, time.Second},
		{"many settings", 10, func(tb *table, _ uint32) error {
			return tb.client.WriteSettings(make([]http2.Setting, 1000)...)
		}, 9010 * time.Millisecond},
		{"rapid resets", 3000, func(tb *table, i uint32) error {
			return errors.Join(tb.open(2*i+1, 10, true), tb.client.WriteRSTStream(2*i+1, http2.ErrCodeCancel))
		}, 5 * time.Second},
		{"resets after a while", 3000, func(tb *table, i uint32) error {
			err := errors.Join(tb.open(2*i+1, 10, true), ping(tb))
			tb.got(err)
			time.Sleep(rapidResetTime)
			return tb.client.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
		}, 0},
		{"resets provoked", 2000, func(tb *table, i uint32) error {
			tb.got(tb.open(2*i+1, 10, true))
			tb.sent(tb.server.WriteRSTStream(2*i+1, http2.ErrCodeFlowControl))
			return nil
		}, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, 0, func(tb *table) {
				for i := range uint32(tt.times) {
					if err := tt.write(tb, i); err != nil {
						tb.Fatal(err)
					}
				}
				tb.got()
				if got := tb.conn.tokenWaitTime(); (got - tt.owed).Abs() > 20*time.Millisecond {
					tb.Errorf("the client owes %v, want %v", got, tt.owed)
				}
				time.Sleep(tt.owed + 10*time.Millisecond)
				if got := tb.conn.tokenWaitTime(); got > 0 {
					tb.Errorf("later it still owes %v", got)
				}
			})
		})
	}
}

func TestStalls(t *testing.T) {
	t.Parallel()
	t.Run("replies that are not read", func(t *testing.T) {
		bubble(t, 0, func(tb *table) {
			time.Sleep(time.Minute)
			tb.conn.ChargeQueuedReply(100)
			tb.conn.ChargeQueuedReply(200)
			time.Sleep(10 * time.Second)
			tb.conn.ReleaseWrittenReply(100)
			time.Sleep(10 * time.Second)
			if tb.wire.cutOff() {
				tb.Error("closed although a reply was read 10 s ago")
			}
			time.Sleep(2 * time.Second)
			if !tb.wire.cutOff() || tb.guard.StalledConnections.Load() != 1 {
				tb.Errorf("cut off %t, counted %d", tb.wire.cutOff(), tb.guard.StalledConnections.Load())
			}
		})
	})
	t.Run("a blocked write", func(t *testing.T) {
		bubble(t, 0, func(tb *table) {
			tb.wire.full = make(chan struct{})
			ended := make(chan error, 1)
			go func() {
				_, err := tb.conn.Write(make([]byte, 100))
				ended <- err
			}()
			time.Sleep(10 * time.Second)
			if tb.wire.cutOff() {
				tb.Error("closed too early")
			}
			time.Sleep(2 * time.Second)
			if err := <-ended; err == nil {
				tb.Error("the write succeeded")
			}
		})
	})
	t.Run("writes that go on", func(t *testing.T) {
		bubble(t, 0, func(tb *table) {
			for range 30 {
				tb.sent(tb.server.WritePing(false, [8]byte{}))
				time.Sleep(time.Second)
			}
			if tb.wire.cutOff() {
				tb.Error("closed")
			}
		})
	})
}

// A client that owes time must not hold up the end of its connection.
func TestCloseEndsThePause(t *testing.T) {
	bubble(t, 0, func(tb *table) {
		tb.conn.tokens = -1e9
		ended := make(chan struct{})
		go func() {
			_, _ = tb.conn.Read(make([]byte, 1))
			close(ended)
		}()
		if synctest.Wait(); tb.guard.SlowedReads.Load() != 1 {
			tb.Fatal("the read does not wait")
		}
		if err := tb.conn.Close(); err != nil {
			tb.Error(err)
		}
		<-ended
	})
}

// BenchmarkCall is what the guard adds to a call in batches of 32.
func BenchmarkCall(b *testing.B) {
	var in, out bytes.Buffer
	client, server := http2.NewFramer(&in, nil), http2.NewFramer(&out, nil)
	const batch = 32
	for i := range uint32(batch) {
		for _, err := range []error{
			client.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: make([]byte, 20), EndHeaders: true}),
			client.WriteData(2*i+1, true, make([]byte, 50)),
			server.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: make([]byte, 5), EndHeaders: true}),
			server.WriteData(2*i+1, false, make([]byte, 30)),
			server.WriteHeaders(http2.HeadersFrameParam{
				StreamID: 2*i + 1, BlockFragment: make([]byte, 5), EndHeaders: true,
				EndStream: true,
			}),
		} {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	c := New(connlimit.NewMemoryBudget(1<<30)).WrapConn(b.Context(), &wire{closed: make(chan struct{})})
	c.clientFrames.bytesToSkip = 0
	b.ReportAllocs()
	for b.Loop() {
		c.lastOpenedStreamID = 0
		for range batch {
			c.ChargeQueuedReply(2560)
		}
		c.chargeReceivedFrames(in.Bytes())
		if _, err := c.Write(out.Bytes()); err != nil {
			b.Fatal(err)
		}
		for range batch {
			c.ReleaseWrittenReply(2560)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/batch, "ns/call")
}
