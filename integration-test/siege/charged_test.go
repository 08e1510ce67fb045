//go:build linux

package siege

import (
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"ratelimit/testbed/harness"
)

var chargedSeed = flag.Uint64("charged.seed", 0, "the seed of the random schedules of TestChargedMemory; 0: a new one")

// plainConn and tlsConn are what each connection may take that is not charged: half of GOMEMLIMIT is planned for
// connections.
const plainConn, tlsConn = 20 << 10, 36 << 10

// TestChargedMemory plays random hostile schedules on all ports that callers reach. What they make the process keep is
// charged: the live heap and the stacks never exceed 1.3 times what the budget says is held, and 8 MiB, beside what
// open connections plan for.
func TestChargedMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("this takes some seconds")
	}
	seed := *chargedSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	t.Run("plain", func(t *testing.T) { playDeeds(t, rand.New(rand.NewPCG(seed, 0)), nil) })
	t.Run("TLS", func(t *testing.T) { playDeeds(t, rand.New(rand.NewPCG(seed, 1)), harness.NewCertificates(t)) })
}

// playDeeds plays a random schedule on a service, with TLS on all ports if it has certificates.
func playDeeds(t *testing.T, random *rand.Rand, certs *harness.Certificates) {
	s := startService(t, options{
		env: []string{"MAX_BUFFERED_BYTES=33554432", "DEBUG_PPROF=true"}, rules: quotaRules,
		tls: certs,
	})
	live := func() int64 {
		bytes, err := s.liveBytes("HeapAlloc", "Stack")
		if err != nil {
			t.Fatal(err)
		}
		return bytes
	}
	live() // A first scrape allocates what later ones use again.
	base := live()
	list, each := deeds, int64(plainConn)
	if certs != nil {
		list, each = slices.Concat(deeds, tlsDeeds, tlsDeeds), tlsConn
	}
	var open []net.Conn
	hangUp := func(n int) {
		for _, c := range open[:n] {
			_ = c.Close()
		}
		open = slices.Delete(open, 0, n)
	}
	defer func() { hangUp(len(open)) }()
	for round := range pickRounds() {
		deed := list[random.IntN(len(list))]
		n := 1 + random.IntN(60)
		for range n {
			addr := map[string]string{"gRPC": s.grpc, "HTTP": s.http, "RESP": s.resp, "divvy": s.divvy}[deed.port]
			c, err := net.DialTimeout("tcp", addr, 5*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, c)
			_ = c.SetDeadline(time.Now().Add(time.Second)) // What is not read by then stays in the kernel.
			switch {
			case deed.shake != nil:
				deed.shake(random, c, certs.AnyServer)
			case certs != nil:
				_, _ = secure(c, certs.AnyServer).Write([]byte(deed.bytes(random)))
			default:
				_, _ = c.Write([]byte(deed.bytes(random))) // The service may close the connection.
			}
		}
		time.Sleep(200 * time.Millisecond)
		var used, held, allowed int64
		for range 5 { // What was sent may still be arriving.
			used = live() - base
			bytes, err := s.metric("ratelimit_buffered_bytes")
			if err != nil {
				t.Fatal(err)
			}
			held = int64(bytes)
			if allowed = held*13/10 + 8<<20 + int64(len(open))*each; used <= allowed {
				break
			}
			time.Sleep(500 * time.Millisecond)
		}
		t.Logf("%d connections with %s, %d in all: %d KiB are used, %d KiB are charged", n, deed.name, len(open), used>>10,
			held>>10)
		if used > allowed {
			t.Fatalf("round %d, %d connections with %s, %d in all: %d KiB are used, %d KiB are charged, which allows %d KiB",
				round, n, deed.name, len(open), used>>10, held>>10, allowed>>10)
		}
		if random.IntN(3) == 0 {
			hangUp(random.IntN(len(open) + 1))
		}
	}
}

// secure returns a client of TLS, which may speak HTTP/2.
func secure(c net.Conn, cfg *tls.Config, protocols ...string) *tls.Conn {
	cfg = cfg.Clone()
	cfg.NextProtos, cfg.DynamicRecordSizingDisabled = append([]string{"h2", "http/1.1"}, protocols...), true
	return tls.Client(c, cfg)
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
	shake      func(r *rand.Rand, c net.Conn, cfg *tls.Config) // set for what a connection does with TLS itself.
}

var deeds = []deed{
	{name: "a list of references", port: "gRPC", bytes: func(r *rand.Rand) string {
		return frames(func(w *wire) {
			block := append([]byte{0x40, 1, 'a', 0x7f, 0x81, 0x07}, strings.Repeat("y", 1024)...)
			block = append(block, slices.Repeat([]byte{0xbe}, r.IntN(3000))...)
			_ = w.f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndHeaders: true, EndStream: true})
		})
	}},
	{name: "calls without a message", port: "gRPC", bytes: func(r *rand.Rand) string {
		path := []string{shouldRateLimit, checkHealth, watchHealth, "/x/y"}[r.IntN(4)]
		return frames(func(w *wire) {
			for range r.IntN(400) {
				_, _ = w.open(path, slices.Repeat([]string{"a", "b"}, r.IntN(90))...)
			}
		})
	}},
	{name: "messages in small frames", port: "gRPC", bytes: func(r *rand.Rand) string {
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
	{name: "answers that are not read", port: "gRPC", bytes: func(r *rand.Rand) string {
		return frames(func(w *wire) {
			_ = w.f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			for range r.IntN(50) {
				stream, _ := w.open(shouldRateLimit)
				_ = w.f.WriteData(stream, true, message(false, same(1+r.IntN(200), "neighbour", "x")))
			}
		})
	}},
	{name: "watches", port: "gRPC", bytes: func(r *rand.Rand) string {
		return frames(func(w *wire) {
			for range r.IntN(100) {
				stream, _ := w.open(watchHealth)
				_ = w.f.WriteData(stream, r.IntN(2) == 0, message(false, nil))
			}
		})
	}},
	{name: "quota reports", port: "gRPC", bytes: func(r *rand.Rand) string {
		return frames(func(w *wire) {
			for range r.IntN(10) {
				report := field(1, "siege")
				for n := range 1 + r.IntN(30) {
					report += usage(fmt.Sprint(n, strings.Repeat("v", r.IntN(3000))), 1)
				}
				stream, _ := w.open(streamQuotas)
				for sent := message(false, []byte(report)); len(sent) > 0 && r.IntN(20) > 0; { // Some stay unfinished.
					part := sent[:min(len(sent), 1+r.IntN(16<<10))]
					_ = w.f.WriteData(stream, false, part)
					sent = sent[len(part):]
				}
			}
		})
	}},
	{name: "half a header block", port: "gRPC", bytes: func(r *rand.Rand) string {
		return frames(func(w *wire) {
			_ = w.f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: make([]byte, r.IntN(16<<10))})
			for range r.IntN(5) {
				_ = w.f.WriteContinuation(1, false, make([]byte, r.IntN(16<<10)))
			}
		})
	}},
	{name: "half a frame", port: "gRPC", bytes: func(r *rand.Rand) string {
		return frames(func(*wire) {}) + "\x00\x3f\xff\x00\x00\x00\x00\x00\x01" + strings.Repeat("x", r.IntN(16<<10))
	}},
	{name: "half a body", port: "HTTP", bytes: func(r *rand.Rand) string {
		size := 1 + r.IntN(1<<20)
		return fmt.Sprintf("POST /json HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", size,
			strings.Repeat("x", r.IntN(size)))
	}},
	{name: "half a head", port: "HTTP", bytes: func(r *rand.Rand) string {
		return "POST /json HTTP/1.1\r\n" + strings.Repeat("X-A: b\r\n", r.IntN(7000))
	}},
	{name: "half a command", port: "RESP", bytes: func(r *rand.Rand) string {
		size := 1 + r.IntN(1<<20-100)
		return fmt.Sprintf("*2\r\n$4\r\nECHO\r\n$%d\r\n%s", size, strings.Repeat("a", r.IntN(size)))
	}},
	{
		name: "commands whose replies are not read", port: "RESP",
		bytes: func(r *rand.Rand) string { return strings.Repeat(array("COMMAND"), r.IntN(2000)) },
	},
	{
		name: "half a line", port: "divvy",
		bytes: func(r *rand.Rand) string { return "HIT " + strings.Repeat("a=b ", r.IntN(250_000)) },
	},
}

// tlsDeeds are those of clients with TLS. Each is on one of the ports.
var tlsDeeds = []deed{
	{name: "long handshakes", port: "gRPC", shake: longHandshake},
	{name: "long handshakes", port: "HTTP", shake: longHandshake},
	{name: "long handshakes", port: "RESP", shake: longHandshake},
	{name: "unfinished handshakes", port: "gRPC", shake: halfHandshake},
	{name: "unfinished handshakes", port: "HTTP", shake: halfHandshake},
	{name: "unfinished handshakes", port: "divvy", shake: halfHandshake},
	{name: "half a record", port: "gRPC", shake: halfRecord},
	{name: "half a record", port: "HTTP", shake: halfRecord},
	{name: "half a record", port: "RESP", shake: halfRecord},
}

// longHandshake does a handshake that offers up to 60 KB of protocols.
func longHandshake(r *rand.Rand, c net.Conn, cfg *tls.Config) {
	// The service may close the connection.
	_ = secure(c, cfg, slices.Repeat([]string{strings.Repeat("x", 255)}, r.IntN(240))...).Handshake()
}

// halfHandshake begins a handshake with many short names of protocols, which take more memory than they have bytes.
func halfHandshake(r *rand.Rand, c net.Conn, cfg *tls.Config) {
	// It fails after the ClientHello.
	_ = secure(noAnswers{c}, cfg, slices.Repeat([]string{"h2"}, r.IntN(21_000))...).Handshake()
}

// halfRecord sends a record of the largest size after a handshake, and begins another one.
func halfRecord(r *rand.Rand, c net.Conn, cfg *tls.Config) {
	size := 1 + r.IntN(16<<10)
	if _, err := secure(c, cfg).Write(make([]byte, size)); err == nil {
		_, _ = c.Write(append([]byte{23, 3, 3, byte(size >> 8), byte(size)}, make([]byte, r.IntN(size))...)) // As above.
	}
}

// noAnswers is a connection on which nothing arrives, and on which the client sends no alert.
type noAnswers struct{ net.Conn }

func (noAnswers) Read([]byte) (int, error) { return 0, io.EOF }
func (c noAnswers) Write(b []byte) (int, error) {
	if b[0] != 22 {
		return len(b), nil
	}
	return c.Conn.Write(b)
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
