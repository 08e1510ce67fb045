//go:build !race

package service

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"ratelimit/src/service/ports"
	"ratelimit/testbed/harness"
)

// TestIdleConnectionsFitThePlan measures what idle connections take, with their sockets in the client, and compares it
// with what is planned for them. The race detector makes stacks larger. It is not parallel, so that other tests do not
// change the memory.
func TestIdleConnectionsFitThePlan(t *testing.T) {
	if testing.Short() {
		t.Skip("this takes some seconds")
	}
	const conns = 300
	certs := harness.NewCertificates(t)
	secure := []string{
		"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=" + certs.Server.Cert, "GRPC_SERVER_TLS_KEY=" + certs.Server.Key,
		"HTTP_TLS_CERT=" + certs.Server.Cert, "HTTP_TLS_KEY=" + certs.Server.Key,
	}
	mutual := append([]string{"GRPC_CLIENT_TLS_CACERT=" + certs.CA, "HTTP_TLS_CLIENT_CACERT=" + certs.CA}, secure...)
	for _, tt := range []struct {
		name string
		env  []string
		cfg  *tls.Config
		plan int64
	}{
		{"plain text", nil, nil, ports.IdleConnBytes},
		{"TLS", secure, certs.AnyServer, ports.IdleTLSBytes},
		{"TLS with client certificates", mutual, certs.AnyServer, ports.IdleTLSBytes},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := launch(t, oneRule, append([]string{"LOG_LEVEL=info"}, tt.env...)...)
			s.until("ready", s.logged("msg=ready"))
			for port, use := range map[string]func(net.Conn) error{"grpc": callOften, "http": probeOften} {
				before := liveMemory()
				for range conns {
					raw, err := net.Dial("tcp", s.address(port))
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = raw.Close() })
					c := raw
					if tt.cfg != nil {
						cfg := tt.cfg.Clone()
						cfg.NextProtos = []string{map[string]string{"grpc": "h2", "http": "http/1.1"}[port]}
						c = tls.Client(raw, cfg)
					}
					if err := use(c); err != nil {
						t.Fatal(err)
					}
				}
				harness.Await(t, harness.Deadline, port, func() error { // A connection frees memory after a second.
					time.Sleep(200 * time.Millisecond)
					if each := (liveMemory() - before) / conns; each > tt.plan {
						return fmt.Errorf("an idle connection takes %d bytes, and %d are planned", each, tt.plan)
					}
					return nil
				})
				t.Logf("%s: %d bytes of %d", port, (liveMemory()-before)/conns, tt.plan)
			}
		})
	}
}

// liveMemory returns the bytes of the heap and of stacks after garbage collection.
func liveMemory() int64 {
	for range 4 { // Pools keep their content for a cycle. Stacks become half as large in each.
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// callOften makes 50 calls on c.
func callOften(c net.Conn) error {
	const calls = 50
	message, err := proto.Marshal(request("d", "ip"))
	if err != nil {
		return err
	}
	var head, sent bytes.Buffer
	sent.WriteString(http2.ClientPreface)
	f, fields := http2.NewFramer(&sent, c), hpack.NewEncoder(&head)
	err = f.WriteSettings()
	for i := range calls {
		head.Reset()
		for _, field := range [][2]string{
			{":method", "POST"},
			{":scheme", "http"},
			{":path", pb.RateLimitService_ShouldRateLimit_FullMethodName},
			{":authority", "a"},
			{"content-type", "application/grpc"},
			{"te", "trailers"},
			{"x-request-id", fmt.Sprint("a text that is new in each call: ", i)},
		} {
			_ = fields.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}) // A buffer takes all.
		}
		id := uint32(2*i + 1)
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head.Bytes(), EndHeaders: true})
		_ = f.WriteData(id, true, append([]byte{0, 0, 0, 0, byte(len(message))}, message...))
	}
	if err == nil {
		_, err = c.Write(sent.Bytes())
	}
	for answers := 0; answers < calls && err == nil; {
		var frame http2.Frame
		if frame, err = f.ReadFrame(); err == nil && frame.Header().Type == http2.FrameHeaders &&
			frame.Header().Flags.Has(http2.FlagHeadersEndStream) {
			answers++
		}
	}
	return err
}

// probeOften asks five times whether the service lives.
func probeOften(c net.Conn) error {
	in := bufio.NewReader(c)
	for range 5 {
		if _, err := io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			return err
		}
		answer, err := http.ReadResponse(in, nil)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, answer.Body)
		if err != nil || answer.StatusCode != http.StatusOK {
			return fmt.Errorf("%s, %w", answer.Status, err)
		}
	}
	return nil
}
