//go:build linux

package siege

import (
	"bytes"
	"context"
	big "encoding/binary" // binary is the program
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	shouldRateLimit  = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
	checkHealth      = "/grpc.health.v1.Health/Check"
	watchHealth      = "/grpc.health.v1.Health/Watch"
	serverReflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
)

// wire is an HTTP/2 connection that does what no client library would. Its methods
// that write may be called from one goroutine at a time.
type wire struct {
	conn net.Conn
	f    *http2.Framer
	next uint32 // stream

	head bytes.Buffer
	enc  *hpack.Encoder

	writing sync.Mutex // guards writes of f, which the reader needs for acknowledgements
	mu      sync.Mutex // guards what follows
	moved   *sync.Cond // something below has changed
	replies map[uint32]*reply
	ended   int   // replies
	pongs   int   // answers to pings
	err     error // why reading ended
	initial int64 // window of new streams
	window  int64 // of the connection
	streams map[uint32]int64
}

// reply is what came back of a call.
type reply struct {
	headers map[string]string // and trailers
	body    []byte
	ended   bool
}

// dialWire connects and says hello with these settings.
func dialWire(addr string, settings ...http2.Setting) (*wire, error) {
	dialer := net.Dialer{Timeout: 5 * time.Second}
	conn, err := dialer.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	w := newWire(conn)
	w.conn, w.f = conn, http2.NewFramer(conn, conn)
	w.f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if err := w.f.WriteSettings(settings...); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return w, nil
}

// newWire returns a wire that only writes, to out.
func newWire(out io.Writer) *wire {
	w := &wire{
		f: http2.NewFramer(out, nil), next: 1, replies: make(map[uint32]*reply), initial: 65535, window: 65535,
		streams: make(map[uint32]int64),
	}
	w.moved = sync.NewCond(&w.mu)
	w.enc = hpack.NewEncoder(&w.head)
	return w
}

// until ends all waiting when ctx ends, by closing the connection.
func (w *wire) until(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = w.conn.Close() })
}

// open begins a call and returns its stream.
func (w *wire) open(path string, headers ...string) (uint32, error) {
	stream := w.next
	w.next += 2
	w.head.Reset()
	fields := append([]string{
		":method", "POST", ":scheme", "http", ":path", path, ":authority", "a", "content-type", "application/grpc", "te",
		"trailers",
	}, headers...)
	for i := 0; i < len(fields); i += 2 {
		if err := w.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			return 0, err
		}
	}
	w.mu.Lock()
	w.replies[stream] = &reply{headers: make(map[string]string)}
	w.streams[stream] = w.initial
	w.mu.Unlock()
	return stream, w.write(func() error { return w.writeHead(stream) })
}

// writeHead writes a block of headers in frames that are not too large.
func (w *wire) writeHead(stream uint32) error {
	const most = 16384
	block := w.head.Bytes()
	first := block[:min(len(block), most)]
	block = block[len(first):]
	err := w.f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: first, EndHeaders: len(block) == 0})
	for err == nil && len(block) > 0 {
		part := block[:min(len(block), most)]
		block = block[len(part):]
		err = w.f.WriteContinuation(stream, len(block) == 0, part)
	}
	return err
}

// write has one frame at a time written.
func (w *wire) write(frame func() error) error {
	w.writing.Lock()
	defer w.writing.Unlock()
	return frame()
}

// message is a gRPC message with its prefix.
func message(compressed bool, content []byte) []byte {
	m := make([]byte, 5, 5+len(content))
	if compressed {
		m[0] = 1
	}
	big.BigEndian.PutUint32(m[1:], uint32(len(content)))
	return append(m, content...)
}

// errAnswered says that a call has its answer, so that the server wants no more of its data.
var errAnswered = errors.New("the call has ended")

// data sends data of a stream as far as windows allow, and waits for more of them. It stops without an error if
// the call is answered before. Something must read the connection meanwhile.
func (w *wire) data(stream uint32, data []byte, end bool) error {
	for len(data) > 0 {
		n, err := w.reserve(stream, min(len(data), 16384))
		if errors.Is(err, errAnswered) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := w.write(func() error { return w.f.WriteData(stream, end && n == len(data), data[:n]) }); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// isAnswered reports whether a call has its answer.
func (w *wire) isAnswered(stream uint32) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.replies[stream].ended
}

// reserve waits for room in the windows, and reserves up to n bytes of it.
func (w *wire) reserve(stream uint32, n int) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.err == nil && (w.window <= 0 || w.streams[stream] <= 0) {
		if r := w.replies[stream]; r != nil && r.ended {
			return 0, errAnswered
		}
		w.moved.Wait()
	}
	n = int(min(int64(n), w.window, w.streams[stream]))
	w.window -= int64(n)
	w.streams[stream] -= int64(n)
	return n, w.err
}

// send makes a call, and does not wait for the reply.
func (w *wire) send(path string, content []byte) (uint32, error) {
	stream, err := w.open(path)
	if err != nil {
		return 0, err
	}
	return stream, w.data(stream, message(false, content), true)
}

// read keeps replies until the connection ends. Windows are given back.
func (w *wire) read() error {
	for {
		frame, err := w.f.ReadFrame()
		if err == nil {
			err = w.handle(frame)
		}
		if err != nil {
			w.mu.Lock()
			w.err = err
			w.moved.Broadcast()
			w.mu.Unlock()
			return err
		}
	}
}

func (w *wire) handle(frame http2.Frame) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.moved.Broadcast()
	stream := frame.Header().StreamID
	r := w.replies[stream]
	if r == nil {
		r = &reply{headers: make(map[string]string)} // of a stream that was forgotten
	}
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		if f.IsAck() {
			return nil
		}
		if v, ok := f.Value(http2.SettingInitialWindowSize); ok {
			for id := range w.streams {
				w.streams[id] += int64(v) - w.initial
			}
			w.initial = int64(v)
		}
		return w.write(w.f.WriteSettingsAck)
	case *http2.PingFrame:
		if f.IsAck() {
			w.pongs++
			return nil
		}
		return w.write(func() error { return w.f.WritePing(true, f.Data) })
	case *http2.WindowUpdateFrame:
		if stream == 0 {
			w.window += int64(f.Increment)
		} else if _, ok := w.streams[stream]; ok {
			w.streams[stream] += int64(f.Increment)
		}
	case *http2.DataFrame:
		r.body = append(r.body, f.Data()...)
		if n := uint32(f.Length); n > 0 {
			if err := w.write(func() error {
				return errors.Join(w.f.WriteWindowUpdate(0, n), w.f.WriteWindowUpdate(stream, n))
			}); err != nil {
				return err
			}
		}
		if f.StreamEnded() {
			w.finish(stream, r)
		}
	case *http2.MetaHeadersFrame:
		for _, h := range f.Fields {
			r.headers[h.Name] = h.Value
		}
		if f.StreamEnded() {
			w.finish(stream, r)
		}
	case *http2.RSTStreamFrame:
		r.headers["reset"] = f.ErrCode.String()
		w.finish(stream, r)
	case *http2.GoAwayFrame:
		return fmt.Errorf("told to go away: %v %s", f.ErrCode, f.DebugData())
	}
	return nil
}

// finish ends a reply, under mu.
func (w *wire) finish(stream uint32, r *reply) {
	if !r.ended {
		r.ended = true
		w.ended++
	}
	delete(w.streams, stream)
}

// await waits for the reply of a stream, and forgets it.
func (w *wire) await(stream uint32) (*reply, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.replies[stream]
	for !r.ended && w.err == nil {
		w.moved.Wait()
	}
	delete(w.replies, stream)
	if !r.ended {
		return nil, w.err
	}
	return r, nil
}

// ping returns once everything sent before has been read.
func (w *wire) ping() error {
	w.mu.Lock()
	want := w.pongs + 1
	w.mu.Unlock()
	if err := w.write(func() error { return w.f.WritePing(false, [8]byte{1}) }); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.pongs < want && w.err == nil {
		w.moved.Wait()
	}
	return w.err
}

// flood makes n calls, so many at a time, of the contents that next gives. Replies
// are counted by their grpc-status and forgotten.
func (w *wire) flood(n, atOnce int, next func(i int) []byte) (byStatus map[string]int, err error) {
	byStatus = make(map[string]int)
	var open []uint32
	for i := range n {
		stream, err := w.send(shouldRateLimit, next(i))
		if err != nil {
			return byStatus, err
		}
		if open = append(open, stream); len(open) < atOnce && i < n-1 {
			continue
		}
		for _, stream := range open {
			r, err := w.await(stream)
			if err != nil {
				return byStatus, err
			}
			byStatus[r.headers["grpc-status"]]++
		}
		open = open[:0]
	}
	return byStatus, nil
}
