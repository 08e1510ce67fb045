//go:build linux

package siege

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/http2"
)

// Attacks on the gRPC port: compressed calls, bad text, replies and watches that
// are not read, floods of frames.
var grpcAttacks = []attack{
	{
		letter: "A", name: "gzip bombs",
		does:   "325 calls at once with 4 KiB of gzip that unpack to 4 MiB of text that is not UTF-8",
		strike: gzipBombs,
	},
	{
		letter: "A", name: "text that is not UTF-8",
		does:   "calls with 250 values of 4,000 bytes: CPU for the worst text, compared with ASCII",
		strike: badText,
	},
	{
		letter: "D", name: "window of zero",
		does: "calls of 1,000 descriptors over connections that give replies no window",
		// The memory has room for 3,300 of these calls.
		env: []string{"MAX_BUFFERED_BYTES=16777216"}, rules: unreadRules, peak: 192 << 20, strike: windowOfZero,
		goroutines: 3400,
	},
	{
		letter: "D", name: "replies that are not read",
		does: "the same with large windows and sockets that are never read; they are closed after 10 s",
		// The memory has room for 3,300 of these calls.
		env: []string{"MAX_BUFFERED_BYTES=16777216"}, rules: unreadRules, peak: 192 << 20, strike: fullSocket,
		goroutines: 3400,
	},
	{
		letter: "D", name: "watches of health", does: "thousands of `Watch` calls over a few connections",
		strike: healthWatches,
	},
	{
		letter: "D", name: "messages without an end",
		does:   "calls that send 63 KiB of a message of 4 MiB and stop, more than fit into memory",
		strike: halfMessages,
	},
	{
		letter: "D", name: "headers without a message",
		does:   "calls with 50 KiB of headers alone, more than fit into memory",
		strike: idleHeaders, goroutines: 8000, // a call that has begun has one
	},
	{
		letter: "D", name: "a full gRPC port",
		does: "idle connections up to `GRPC_MAX_CONNECTIONS`; newcomers are served all the same",
		env:  []string{"GRPC_MAX_CONNECTIONS=100"}, quiet: true, strike: grpcCrowd,
	},
	{
		letter: "K", name: "floods of control frames",
		does:   "3 million SETTINGS, PRIORITY, WINDOW_UPDATE, empty DATA and unknown frames",
		strike: controlFrames,
	},
	{
		letter: "K", name: "rapid resets", does: "846,000 calls that are taken back at once",
		strike: rapidResets,
	},
	{
		letter: "K", name: "reflection", does: "reflection is off by default; turned on, its replies are not read",
		env: []string{"GRPC_REFLECTION=true", "MAX_BUFFERED_BYTES=16777216"}, peak: 192 << 20, strike: reflectionUnread,
	},
	{
		letter: "K", name: "reflection by default", does: "a call of reflection, without a setting that turns it on",
		quiet: true, strike: reflectionOff,
	},
}

// wires opens n connections and reads them, unless they are to stay unread. They
// are closed when the attack has ended.
func (x *trial) wires(n int, read bool, settings ...http2.Setting) []*wire {
	var list []*wire
	for range n {
		w, err := dialWire(x.service.grpc, settings...)
		if err != nil {
			x.suspect("connecting: %v", err)
			continue
		}
		w.until(x.ctx)
		if read {
			go func() { _ = w.read() }()
		}
		list = append(list, w)
	}
	return list
}

func hangUp(list []*wire) {
	for _, w := range list {
		_ = w.conn.Close()
	}
}

// endSoon closes connections in a while, as the service may read them slowly.
func (x *trial) endSoon(list []*wire) {
	ctx, cancel := context.WithTimeout(x.ctx, pick(x, 3*time.Second, 20*time.Second))
	x.Cleanup(cancel)
	for _, w := range list {
		w.until(ctx)
	}
}

// together runs f for each connection at the same time.
func together(list []*wire, f func(i int, w *wire)) {
	var all sync.WaitGroup
	for i, w := range list {
		all.Go(func() { f(i, w) })
	}
	all.Wait()
}

func gzipBombs(x *trial) {
	bomb := message(true, gzipped(question("siege", descriptor("a", strings.Repeat("\xff", 4<<20-100)))))
	list := x.wires(pick(x, 1, 10), true)
	defer hangUp(list)
	calls := pick(x, 20, 33)
	together(list, func(_ int, w *wire) {
		var streams []uint32
		for range calls {
			stream, err := w.open(shouldRateLimit, "grpc-encoding", "gzip")
			if err == nil {
				_ = w.data(stream, bomb, true) // a call that is refused early takes none
			}
			streams = append(streams, stream)
		}
		for _, stream := range streams {
			r, err := w.await(stream)
			if err != nil {
				x.complain("a compressed call was not answered: %v", err)
				return
			}
			if r.headers["grpc-status"] != "13" {
				x.complain("a bomb got grpc-status %q %q, want 13 (INTERNAL)", r.headers["grpc-status"], r.headers["grpc-message"])
			}
		}
	})
}

// badText compares CPU times in turns, so that what else the machine does hits all
// texts alike.
func badText(x *trial) {
	const descriptors, length = 250, 4000
	texts := []string{"plain ASCII", "every byte wrong", "every other byte wrong", "sequences cut short", "surrogates"}
	units := []string{"a", "\xff", "a\xff", "\xe2\x82", "\xed\xa0\x80"}
	var contents [][]byte
	for _, unit := range units {
		var list []string
		for range descriptors {
			list = append(list, descriptor("text", strings.Repeat(unit, length/len(unit))))
		}
		contents = append(contents, question("siege", list...))
	}
	list := x.wires(1, true)
	defer hangUp(list)
	if len(list) == 0 {
		return
	}
	spent := make([]time.Duration, len(texts))
	for range pick(x, 4, 20) {
		for i, content := range contents {
			before, err := x.service.proc.CPU()
			if err != nil {
				x.complain("CPU time: %v", err)
				return
			}
			if _, err := list[0].flood(15, 5, func(int) []byte { return content }); err != nil {
				x.complain("%s: %v", texts[i], err)
				return
			}
			after, err := x.service.proc.CPU()
			if err != nil {
				x.complain("CPU time: %v", err)
				return
			}
			spent[i] += after - before
		}
	}
	worst := slices.Index(spent, slices.Max(spent))
	ratio := spent[worst].Seconds() / max(spent[0].Seconds(), 0.01)
	x.note("the worst text (%s) costs %.1f times the best", texts[worst], ratio)
	if most := pick(x, 3.0, 2.0); ratio > most { // short phases are measured in few ticks of 10 ms
		x.suspect("%s: %v of CPU, %.1f times the %v of ASCII, want at most %.0f", texts[worst], spent[worst], ratio,
			spent[0], most)
	}
}

// unreadRules make long replies: each descriptor's limit is told.
const unreadRules = "- {key: a, rate_limit: {unit: hour, requests_per_unit: 1000000000, name: " +
	"a-limit-whose-name-is-repeated-in-each-status}}\n"

const longestDescriptors = 1000

// windowOfZero makes calls whose replies may not be sent.
func windowOfZero(x *trial) {
	x.unread(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
}

// fullSocket gives replies all the window there is, and never reads them.
func fullSocket(x *trial) {
	x.unread(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
}

func (x *trial) unread(setting http2.Setting) {
	content := message(false, same(longestDescriptors, "a", ""))
	list := x.wires(pick(x, 4, 16), false, setting)
	defer hangUp(list)
	calls := pick(x, 1000, 5000)
	var sent, closed atomic.Int64
	together(list, func(_ int, w *wire) {
		if setting.Val > 0 {
			if err := w.f.WriteWindowUpdate(0, 1<<31-1-65535); err != nil {
				return
			}
			if err := w.conn.(*net.TCPConn).SetReadBuffer(4096); err != nil {
				x.complain("%v", err)
			}
		}
		n, err := w.blast(calls, content)
		sent.Add(int64(n))
		if err != nil {
			closed.Add(1)
		}
	})
	time.Sleep(pick(x, time.Second, 3*time.Second))
	x.note("%d calls were sent over %d connections, %d of which were closed meanwhile", sent.Load(), len(list),
		closed.Load())
	if x.full && setting.Val > 0 {
		for i, w := range list {
			if err := w.awaitClosed(20 * time.Second); err != nil {
				x.complain("connection %d is open, although nothing was written to it for 20 s: %v", i, err)
				return
			}
		}
	}
}

// blast makes calls without a look at windows or replies: what the service has not
// allowed it may refuse.
func (w *wire) blast(calls int, content []byte) (sent int, err error) {
	for range calls {
		// A write that waits for so long: the service does not read on.
		if err := w.conn.SetWriteDeadline(time.Now().Add(3 * time.Second)); err != nil {
			return sent, err
		}
		stream, err := w.open(shouldRateLimit)
		if err == nil {
			err = w.write(func() error { return w.f.WriteData(stream, true, content) })
		}
		if err != nil {
			return sent, err
		}
		sent++
	}
	return sent, nil
}

// awaitClosed waits until the service has closed the connection, and reads nothing:
// a reset shows in SO_ERROR, or when something is written.
func (w *wire) awaitClosed(within time.Duration) error {
	raw, err := w.conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return nil // it was closed
	}
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		state := 0
		if err := raw.Control(func(fd uintptr) {
			// The first byte of struct tcp_info is the state; 1 is established.
			state, _ = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_INFO)
		}); err != nil || state&0xff != 1 {
			return nil
		}
	}
	return fmt.Errorf("it is still established")
}

func healthWatches(x *trial) {
	list := x.wires(pick(x, 4, 10), true)
	defer hangUp(list)
	each := pick(x, 1500, 10_000)
	together(list, func(_ int, w *wire) {
		for range each {
			if _, err := w.send(watchHealth, nil); err != nil {
				return // closed for it
			}
		}
		// The last one has been seen when a call after it was answered.
		if stream, err := w.send(shouldRateLimit, same(1, "neighbour", "w")); err == nil {
			_, _ = w.await(stream)
		}
	})
	x.awaitSample()
	open := 0
	for _, w := range list {
		w.mu.Lock()
		if w.err == nil {
			open += int(w.next/2) - w.ended
		}
		w.mu.Unlock()
	}
	x.note("%d of %d watches are open", open, len(list)*each)
}

// awaitSample gives the watch of the vitals time for a look.
func (x *trial) awaitSample() { time.Sleep(500 * time.Millisecond) }

func halfMessages(x *trial) {
	const part = 63 << 10
	list := x.wires(pick(x, 10, 20), true)
	defer hangUp(list)
	x.endSoon(list)
	each := 320 << 20 / part / 10
	content := message(false, make([]byte, 4<<20-5))[:part]
	var sent, closed atomic.Int64
	together(list, func(_ int, w *wire) {
		for range each {
			stream, err := w.open(shouldRateLimit)
			if err == nil {
				err = w.data(stream, content, false)
			}
			if err != nil {
				closed.Add(1)
				return
			}
			sent.Add(1)
		}
	})
	x.awaitSample()
	x.note("%d MiB were sent, %d of %d connections were closed for it", sent.Load()*part>>20, closed.Load(), len(list))
}

func idleHeaders(x *trial) {
	list := x.wires(20, true)
	defer hangUp(list)
	x.endSoon(list)
	const size = 50 << 10
	each := 320 << 20 / size / 20
	var sent, closed atomic.Int64
	together(list, func(i int, w *wire) {
		for n := range each {
			// Texts differ, so that they cannot be one in memory, and are of a
			// letter whose Huffman code is no shorter than itself.
			text := fmt.Sprintf("%06d%06d", i, n) + strings.Repeat("|", 4000)
			var headers []string
			for k := range size / 4096 {
				headers = append(headers, fmt.Sprintf("x-%d", k), text+fmt.Sprint(k))
			}
			if _, err := w.open(shouldRateLimit, headers...); err != nil {
				closed.Add(1)
				return
			}
			sent.Add(1)
		}
	})
	x.awaitSample()
	x.note("%d MiB of headers were sent, %d of %d connections were closed for it", sent.Load()*size>>20, closed.Load(),
		len(list))
}

func grpcCrowd(x *trial) {
	var idle []net.Conn
	defer func() {
		for _, c := range idle {
			_ = c.Close()
		}
	}()
	for range 150 {
		if c, err := net.DialTimeout("tcp", x.service.grpc, 2*time.Second); err == nil {
			idle = append(idle, c)
		}
	}
	served := 0
	const newcomers = 10
	for range newcomers {
		if err := x.newcomer(); err != nil {
			x.complain("a newcomer is not served: %v", err)
			continue
		}
		served++
	}
	x.note("%d of %d newcomers were served", served, newcomers)
}

// newcomer asks once over a connection of its own.
func (x *trial) newcomer() error {
	ctx, cancel := context.WithTimeout(x.ctx, x.deadline)
	defer cancel()
	w, err := dialWire(x.service.grpc)
	if err != nil {
		return err
	}
	defer func() { _ = w.conn.Close() }()
	w.until(ctx)
	go func() { _ = w.read() }()
	stream, err := w.send(shouldRateLimit, same(1, "neighbour", "new"))
	if err != nil {
		return err
	}
	r, err := w.await(stream)
	if err == nil && r.headers["grpc-status"] != "0" {
		err = fmt.Errorf("grpc-status %s: %s", r.headers["grpc-status"], r.headers["grpc-message"])
	}
	return err
}

// controlKinds are frames that cost their sender nearly nothing.
var controlKinds = []struct {
	name  string
	frame func(f *http2.Framer) error
}{
	{"SETTINGS", func(f *http2.Framer) error { return f.WriteSettings() }},
	{"PRIORITY", func(f *http2.Framer) error { return f.WritePriority(1, http2.PriorityParam{StreamDep: 3}) }},
	{"WINDOW_UPDATE", func(f *http2.Framer) error { return f.WriteWindowUpdate(0, 1) }},
	{"empty DATA", func(f *http2.Framer) error { return f.WriteData(1, false, nil) }},
	{"unknown", func(f *http2.Framer) error { return f.WriteRawFrame(0xbe, 0, 0, nil) }},
}

// controlFrames sends all kinds at the same time, each over a connection of its
// own, as fast as they are taken.
func controlFrames(x *trial) {
	before, err := x.service.proc.CPU()
	if err != nil {
		return // it is gone, and that is noticed
	}
	begun := time.Now()
	var all sync.WaitGroup
	for _, kind := range controlKinds {
		all.Go(func() {
			const chunk = 500 // frames in a write
			var frames bytes.Buffer
			f := http2.NewFramer(&frames, nil)
			for range chunk {
				if err := kind.frame(f); err != nil {
					x.complain("%v", err)
					return
				}
			}
			sent, err := x.controlFlood(frames.Bytes(), chunk, pick(x, 150_000, 600_000),
				begun.Add(pick(x, time.Second, 10*time.Second)))
			rate := float64(sent) / time.Since(begun).Seconds()
			x.note("%s: %d frames, %.0f a second%s", kind.name, sent, rate,
				map[bool]string{true: ", closed or slowed down"}[err != nil])
			if err == nil && rate > 50_000 {
				x.complain("%d frames %s of one connection were read at %.0f a second: it was neither closed nor slowed down", sent,
					kind.name, rate)
			}
		})
	}
	all.Wait()
	if after, err := x.service.proc.CPU(); err == nil {
		x.note("%.2f cores for all", (after-before).Seconds()/time.Since(begun).Seconds())
	}
}

// controlFlood sends frames until there are so many or time is up, and waits until
// they were read. An error says that the service closed the connection or is slow to
// read it.
func (x *trial) controlFlood(frames []byte, chunk, most int, end time.Time) (sent int, err error) {
	w, err := dialWire(x.service.grpc)
	if err != nil {
		x.suspect("connecting: %v", err)
		return 0, err
	}
	defer func() { _ = w.conn.Close() }()
	// What is not read a second later has been slowed down, which is as good.
	ctx, cancel := context.WithDeadline(x.ctx, end.Add(time.Second))
	defer cancel()
	w.until(ctx)
	go func() { _ = w.read() }()
	if _, err := w.open(shouldRateLimit); err != nil { // stream 1, for empty DATA
		return 0, err
	}
	for sent < most && time.Now().Before(end) {
		if err := w.write(func() error { _, err := w.conn.Write(frames); return err }); err != nil {
			return sent, err
		}
		sent += chunk
	}
	return sent, w.ping()
}

func rapidResets(x *trial) {
	connections := pick(x, 8, 16)
	sent, closed := x.resets(connections, pick(x, 96_000, 846_000)/connections, time.Now().Add(x.atMost))
	x.note("%d resets were sent, %d connections were closed for it", sent, closed)
}

// resets takes back calls at once over n connections, up to so many over each of them. A connection that is closed for
// it is replaced until the end.
func (x *trial) resets(n, each int, end time.Time) (sent, closed int64) {
	content := message(false, same(1, "neighbour", "reset"))
	var resets, ends atomic.Int64
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for left := each; left > 0 && time.Now().Before(end); {
				list := x.wires(1, true)
				if len(list) == 0 {
					return
				}
				err := error(nil)
				for ; left > 0 && err == nil && time.Now().Before(end); left-- {
					if err = list[0].takeBack(content); err == nil {
						resets.Add(1)
					}
				}
				if err != nil {
					ends.Add(1)
				}
				hangUp(list)
			}
		})
	}
	all.Wait()
	return resets.Load(), ends.Load()
}

// takeBack makes a call and resets its stream.
func (w *wire) takeBack(content []byte) error {
	stream, err := w.open(shouldRateLimit)
	if err == nil {
		err = w.write(func() error { return w.f.WriteData(stream, true, content) })
	}
	if err == nil {
		err = w.write(func() error { return w.f.WriteRSTStream(stream, http2.ErrCodeCancel) })
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.replies, stream)
	delete(w.streams, stream)
	return err
}

// reflectionUnread asks for descriptors again and again and reads no answer.
func reflectionUnread(x *trial) {
	// ServerReflectionRequest{file_containing_symbol: the service}
	ask := message(false, []byte(field(4, "envoy.service.ratelimit.v3.RateLimitService")))
	asks := []byte(strings.Repeat(string(ask), 20)) // more than a stream's quota of replies
	list := x.wires(pick(x, 4, 16), false, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	defer hangUp(list)
	streams := pick(x, 1500, 5000)
	together(list, func(_ int, w *wire) {
		for range streams {
			_ = w.conn.SetWriteDeadline(time.Now().Add(2 * time.Second))
			stream, err := w.open(serverReflection)
			if err == nil {
				err = w.write(func() error { return w.f.WriteData(stream, false, asks) })
			}
			if err != nil {
				return
			}
		}
	})
	x.awaitSample()
}

func reflectionOff(x *trial) {
	list := x.wires(1, true)
	defer hangUp(list)
	if len(list) == 0 {
		return
	}
	stream, err := list[0].send(serverReflection, []byte(field(7, "*")))
	if err != nil {
		x.complain("%v", err)
		return
	}
	switch r, err := list[0].await(stream); {
	case err != nil:
		x.complain("%v", err)
	case r.headers["grpc-status"] != "12":
		x.complain("it was answered with grpc-status %s and %d bytes, want 12 (UNIMPLEMENTED)", r.headers["grpc-status"],
			len(r.body))
	}
}
