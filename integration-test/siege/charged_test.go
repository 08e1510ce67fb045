//go:build linux

package siege

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

var chargedSeed = flag.Uint64("charged.seed", 0, "the seed of the random schedules of TestChargedMemory; 0: a new one")

// chargedConn is what each connection may take that is not charged: half of GOMEMLIMIT is planned for connections.
const chargedConn = 16 << 10

// TestChargedMemory plays random hostile schedules on all ports that callers reach. What they make the process keep is charged: the
// live heap and the stacks never exceed 1.3 times what the budget says is held, and 8 MiB, beside what open connections plan for.
func TestChargedMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("this takes some seconds")
	}
	seed := *chargedSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s := startService(t, options{env: []string{"MAX_BUFFERED_BYTES=33554432", "DEBUG_PPROF=true"}})
	live := func() int64 {
		bytes, err := s.liveBytes("HeapAlloc", "Stack")
		if err != nil {
			t.Fatal(err)
		}
		return bytes
	}
	live() // A first scrape allocates what later ones use again.
	base := live()
	var open []net.Conn
	hangUp := func(n int) {
		for _, c := range open[:n] {
			_ = c.Close()
		}
		open = slices.Delete(open, 0, n)
	}
	defer func() { hangUp(len(open)) }()
	for round := range pickRounds() {
		deed := deeds[random.IntN(len(deeds))]
		n := 1 + random.IntN(60)
		for range n {
			addr := map[string]string{"gRPC": s.grpc, "HTTP": s.http, "RESP": s.resp, "divvy": s.divvy}[deed.port]
			c, err := net.DialTimeout("tcp", addr, 5*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, c)
			_ = c.SetWriteDeadline(time.Now().Add(time.Second)) // What is not read by then stays in the kernel.
			_, _ = c.Write([]byte(deed.bytes(random)))          // The service may close the connection.
		}
		time.Sleep(200 * time.Millisecond)
		var used, held int64
		var allowed int64
		for range 5 { // What was sent may still be arriving.
			used = live() - base
			bytes, err := s.metric("ratelimit_buffered_bytes")
			if err != nil {
				t.Fatal(err)
			}
			held = int64(bytes)
			if allowed = held*13/10 + 8<<20 + int64(len(open))*chargedConn; used <= allowed {
				break
			}
			time.Sleep(500 * time.Millisecond)
		}
		if used > allowed {
			t.Fatalf("round %d, %d connections with %s, %d in all: %d KiB are used, %d KiB are charged, which allows %d KiB",
				round, n, deed.name, len(open), used>>10, held>>10, allowed>>10)
		}
		if random.IntN(3) == 0 {
			hangUp(random.IntN(len(open) + 1))
		}
	}
}

// pickRounds returns how many rounds are played.
func pickRounds() int {
	if *full {
		return 300
	}
	return 12
}

// deed is something hostile that a connection does once, and then waits.
type deed struct {
	name, port string
	bytes      func(r *rand.Rand) string
}

var deeds = []deed{
	{"a list of references", "gRPC", func(r *rand.Rand) string {
		return frames(func(w *wire) {
			block := append([]byte{0x40, 1, 'a', 0x7f, 0x81, 0x07}, strings.Repeat("y", 1024)...)
			block = append(block, slices.Repeat([]byte{0xbe}, r.IntN(3000))...)
			_ = w.f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndHeaders: true, EndStream: true})
		})
	}},
	{"calls without a message", "gRPC", func(r *rand.Rand) string {
		path := []string{shouldRateLimit, checkHealth, watchHealth, "/x/y"}[r.IntN(4)]
		return frames(func(w *wire) {
			for range r.IntN(400) {
				_, _ = w.open(path, slices.Repeat([]string{"a", "b"}, r.IntN(90))...)
			}
		})
	}},
	{"messages in small frames", "gRPC", func(r *rand.Rand) string {
		part := message(false, make([]byte, 60<<10))[:64+r.IntN(2000)]
		path := []string{shouldRateLimit, checkHealth, watchHealth}[r.IntN(3)]
		return frames(func(w *wire) {
			for range r.IntN(20) {
				stream, _ := w.open(path)
				for n := 0; n < 48<<10; n += len(part) {
					_ = w.f.WriteData(stream, false, part)
				}
			}
		})
	}},
	{"answers that are not read", "gRPC", func(r *rand.Rand) string {
		return frames(func(w *wire) {
			_ = w.f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			for range r.IntN(50) {
				stream, _ := w.open(shouldRateLimit)
				_ = w.f.WriteData(stream, true, message(false, same(1+r.IntN(200), "neighbour", "x")))
			}
		})
	}},
	{"watches", "gRPC", func(r *rand.Rand) string {
		return frames(func(w *wire) {
			for range r.IntN(100) {
				stream, _ := w.open(watchHealth)
				_ = w.f.WriteData(stream, r.IntN(2) == 0, message(false, nil))
			}
		})
	}},
	{"half a header block", "gRPC", func(r *rand.Rand) string {
		return frames(func(w *wire) {
			_ = w.f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: make([]byte, r.IntN(16<<10))})
			for range r.IntN(5) {
				_ = w.f.WriteContinuation(1, false, make([]byte, r.IntN(16<<10)))
			}
		})
	}},
	{"half a frame", "gRPC", func(r *rand.Rand) string {
		return frames(func(*wire) {}) + "\x00\x3f\xff\x00\x00\x00\x00\x00\x01" + strings.Repeat("x", r.IntN(16<<10))
	}},
	{"half a body", "HTTP", func(r *rand.Rand) string {
		size := 1 + r.IntN(1<<20)
		return fmt.Sprintf("POST /json HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", size, strings.Repeat("x", r.IntN(size)))
	}},
	{"half a head", "HTTP", func(r *rand.Rand) string {
		return "POST /json HTTP/1.1\r\n" + strings.Repeat("X-A: b\r\n", r.IntN(7000))
	}},
	{"half a command", "RESP", func(r *rand.Rand) string {
		size := 1 + r.IntN(1<<20-100)
		return fmt.Sprintf("*2\r\n$4\r\nECHO\r\n$%d\r\n%s", size, strings.Repeat("a", r.IntN(size)))
	}},
	{"commands whose replies are not read", "RESP", func(r *rand.Rand) string { return strings.Repeat(array("COMMAND"), r.IntN(2000)) }},
	{"half a line", "divvy", func(r *rand.Rand) string { return "HIT " + strings.Repeat("a=b ", r.IntN(250_000)) }},
}

// frames returns what a connection sends that greets and does something.
func frames(do func(w *wire)) string {
	var sent strings.Builder
	w := newWire(&sent)
	sent.WriteString(http2.ClientPreface)
	_ = w.f.WriteSettings() // A builder takes all.
	do(w)
	return sent.String()
}
