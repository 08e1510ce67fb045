package tlsconn

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/fips140"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ratelimit/testbed/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// account is an Account without a bound.
type account struct{ held atomic.Int64 }

func (a *account) HoldBytes(n int64) bool { a.held.Add(n); return true }
func (a *account) ReleaseBytes(n int64)   { a.held.Add(-n) }

// server discards what its clients send.
type server struct {
	net.Listener
	account account
	waits   atomic.Int64 // counts the reads that have begun.
}

// waitingConn counts its reads.
type waitingConn struct {
	net.Conn
	waits *atomic.Int64
}

func (c waitingConn) Read(p []byte) (int, error) {
	c.waits.Add(1)
	return c.Conn.Read(p)
}

func startServer(t *testing.T, certs *harness.Certificates) *server {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(certs.Server.Cert, certs.Server.Key)
	if err != nil {
		t.Fatal(err)
	}
	cfg := &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}}
	l := harness.Listen(t)
	s := &server{Listener: l}
	t.Cleanup(func() {
		_ = l.Close()
		harness.Until(t, "all is released", func() bool { return s.account.held.Load() == 0 })
	})
	go func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			go s.serve(Server(waitingConn{raw, &s.waits}, cfg, &s.account))
		}
	}()
	return s
}

func (s *server) serve(c *Conn) {
	defer func() { _ = c.NetConn().Close() }()
	defer c.Release()
	if c.HandshakeContext(context.Background()) == nil {
		b := make([]byte, 512)
		for err := error(nil); err == nil; {
			_, err = c.Read(b)
		}
	}
}

// memoryInUse returns the bytes of the heap and of stacks after garbage collection.
func memoryInUse() int64 {
	for range 4 { // Pools keep their content for a cycle. Stacks become half as large in each.
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// records returns the records of a message of TLS, in plain text.
func records(message []byte) (b []byte) {
	for part := range slices.Chunk(message, 16<<10) {
		b = append(b, 22, 3, 1)
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(part))), part...)
	}
	return b
}

// prefixed16 returns b after its length.
func prefixed16(b ...byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)
}

// longHello returns a ClientHello of 64 KB, with a list of items that take 12 times as much memory, and to which the
// server answers.
func longHello(t *testing.T) []byte {
	key, err := ecdh.P256().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	share := append(append([]byte{0, 23}, 0, 65), key.PublicKey().Bytes()...)
	binders := prefixed16(slices.Repeat([]byte{1, 0}, 32_000)...)
	identities := prefixed16(0, 1, 'x', 0, 0, 0, 0)
	extensions := slices.Concat([]byte{0, 43, 0, 3, 2, 3, 4}, // TLS 1.3
		[]byte{0, 10}, prefixed16(0, 2, 0, 23), // secp256r1
		[]byte{0, 13}, prefixed16(0, 2, 4, 3), // ECDSA with P-256
		[]byte{0, 51}, prefixed16(prefixed16(share...)...),
		[]byte{0, 41}, prefixed16(append(identities, binders...)...))
	body := slices.Concat([]byte{3, 3}, make([]byte, 32), []byte{0}, prefixed16(0x13, 0x01), []byte{1, 0},
		prefixed16(extensions...))
	return records(append([]byte{1, 0, byte(len(body) >> 8), byte(len(body))}, body...))
}

// seal returns a record with the first content of a client after its handshake. The key log has its secret.
func seal(t *testing.T, keyLog string, kind byte, content []byte, sequence byte) []byte {
	_, line, _ := strings.Cut(keyLog, "CLIENT_TRAFFIC_SECRET_0 ")
	secret, err := hex.DecodeString(strings.Fields(line)[1])
	if err != nil {
		t.Fatal(err)
	}
	derive := func(label string, n int) []byte {
		label = "tls13 " + label
		b, err := hkdf.Expand(sha256.New, secret, "\x00"+string(rune(n))+string(rune(len(label)))+label+"\x00", n)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	block, err := aes.NewCipher(derive("key", 16))
	if err != nil {
		t.Fatal(err)
	}
	var aead cipher.AEAD
	fips140.WithoutEnforcement(func() { aead, err = cipher.NewGCM(block) }) // as crypto/tls does for itself
	if err != nil {
		t.Fatal(err)
	}
	nonce := derive("iv", 12)
	nonce[11] ^= sequence
	inner := append(slices.Clone(content), kind)
	header := append([]byte{23, 3, 3}, prefixed16(make([]byte, len(inner)+16)...)[:2]...)
	return append(header, aead.Seal(nil, nonce, inner, header)...)
}

// TestChargedMemory lets many connections keep as much as they can, and compares the memory in use with the charge.
func TestChargedMemory(t *testing.T) {
	// idle is what a connection takes that has done nothing unusual, with its goroutine and sockets.
	const conns, idle = 100, 20 << 10
	certs := harness.NewCertificates(t)
	cfg := certs.ClientConfig(t)
	cfg.ServerName, cfg.DynamicRecordSizingDisabled = "localhost", true
	long := longHello(t)
	with := func(protocols ...string) *tls.Config {
		c := cfg.Clone()
		c.NextProtos = protocols
		return c
	}
	handshake := func(t *testing.T, raw net.Conn, cfg *tls.Config) *tls.Conn {
		c := tls.Client(raw, cfg)
		if err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		return c
	}
	message := append([]byte{11, 3, 255, 0}, make([]byte, 255<<10)...) // A certificate may be longer than other messages.
	for name, attack := range map[string]func(t *testing.T, raw net.Conn){
		"nothing":                 func(*testing.T, net.Conn) {},
		"a handshake":             func(t *testing.T, raw net.Conn) { handshake(t, raw, with("h2")) },
		"an unfinished handshake": func(_ *testing.T, raw net.Conn) { unfinished(raw, with("h2")) },
		"half a long hello":       func(_ *testing.T, raw net.Conn) { _, _ = raw.Write(long[:60<<10]) },
		"a long hello":            func(_ *testing.T, raw net.Conn) { _, _ = raw.Write(long) },
		"a hello of many protocols": func(_ *testing.T,
			raw net.Conn,
		) {
			unfinished(raw, with(slices.Repeat([]string{"h2"}, 20_000)...))
		},
		"a handshake with a long hello": func(t *testing.T, raw net.Conn) {
			handshake(t, raw, with(append(slices.Repeat([]string{strings.Repeat("x", 255)}, 250), "h2")...))
		},
		"a long record": func(t *testing.T, raw net.Conn) {
			_,
				_ = handshake(t, raw, with("h2")).Write(make([]byte, 16<<10))
		},
		"half a record": func(t *testing.T, raw net.Conn) {
			handshake(t, raw, with("h2"))
			_, _ = raw.Write(append([]byte{23, 3, 3, 65, 0}, make([]byte, 16<<10)...))
		},
		"an unfinished message after the handshake": func(t *testing.T, raw net.Conn) {
			var keyLog strings.Builder
			c := with("h2")
			c.KeyLogWriter = &keyLog
			handshake(t, raw, c)
			var sent []byte
			for part := range slices.Chunk(message, 16<<10) {
				sent = append(sent, seal(t, keyLog.String(), 22, part, byte(len(sent)/(16<<10)))...)
			}
			_, _ = raw.Write(sent)
		},
		"an unfinished message in one segment with data": func(t *testing.T, raw net.Conn) {
			var keyLog strings.Builder
			c := with("h2")
			c.KeyLogWriter = &keyLog
			_, _ = handshake(t, raw, c).Write(make([]byte, 16<<10)) // The buffer for records has room for both records now.
			_, _ = raw.Write(append(seal(t, keyLog.String(), 23, []byte("x"), 1),
				seal(t, keyLog.String(), 22, message[:15<<10], 2)...))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := startServer(t, certs)
			before := memoryInUse()
			for range conns {
				raw, err := net.Dial("tcp", s.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = raw.Close() })
				attack(t, raw)
			}
			harness.AwaitQuiet(t, 200*time.Millisecond, "all has been read", s.waits.Load)
			inUse, charged := (memoryInUse()-before)/conns, s.account.held.Load()/conns
			t.Logf("each connection uses %d bytes, and is charged %d", inUse, charged)
			if inUse > charged*13/10+idle+plannedBytes {
				t.Errorf("each connection uses %d bytes, and is charged %d", inUse, charged)
			}
			if inUse < 4<<10 && name != "nothing" {
				t.Error("the server has closed the connections")
			}
			if name == "a handshake" && charged > 0 {
				t.Errorf("a usual connection is charged %d bytes", charged)
			}
		})
	}
}

// unfinished begins a handshake and does not go on.
func unfinished(raw net.Conn, cfg *tls.Config) {
	_ = tls.Client(onlyWrites{raw}, cfg).Handshake() // It fails after the ClientHello.
}

// onlyWrites is a connection on which nothing arrives.
type onlyWrites struct{ net.Conn }

func (onlyWrites) Read([]byte) (int, error) { return 0, io.EOF }
func (c onlyWrites) Write(b []byte) (int, error) {
	if bytes.HasPrefix(b, []byte{22}) { // An alert would follow.
		return c.Conn.Write(b)
	}
	return len(b), nil
}
