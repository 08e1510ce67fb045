package service

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// All ports close connections of clients that send slowly, send nothing or read no answer.
// Other clients are answered meanwhile.
func TestSlowCallers(t *testing.T) {
	t.Parallel()
	s := launch(t, oneRule, "DISABLE_STATS=false", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0")
	s.until("ready", s.healthy)
	var all sync.WaitGroup
	for _, port := range []string{"http", "debug", "prometheus", "grpc"} {
		for name, hello := range map[string]string{
			"nothing":       "",
			"half a header": "POST /json HTTP/1.1\r\nHost: a\r\nX-Slow: ",
			"half a body":   "POST /json HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{",
		} {
			all.Go(func() { stall(t, s.address(port), port+": "+name, hello) })
		}
	}
	for port, path := range map[string]string{"http": "/readyz", "debug": "/stats", "prometheus": "/metrics"} {
		all.Go(func() { neverRead(t, s.address(port), port, path) })
	}
	for range 5 {
		if code := s.ask("10.0.0.1"); code != 200 && code != 429 {
			t.Errorf("meanwhile: %d", code)
		}
	}
	all.Wait()
	conn, err := net.Dial("tcp", s.address("http"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(bodyTimeout)); err != nil {
		t.Fatal(err)
	}
	go func() { // it may be closed before all is written
		_, _ = fmt.Fprintf(conn, "GET /healthcheck HTTP/1.1\r\nHost: a\r\nX-Long: %s\r\n\r\n",
			strings.Repeat("x", 2*headerBytes))
	}()
	reply := make([]byte, 12)
	if _, err := io.ReadFull(conn, reply); err != nil || string(reply) != "HTTP/1.1 431" {
		t.Errorf("headers without end: %q, %v", reply, err)
	}
}

// stall sends hello and then a byte each second. The server must close the connection.
func stall(t *testing.T, addr, name, hello string) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetReadDeadline(time.Now().Add(4 * bodyTimeout)); err != nil {
		t.Error(err)
	}
	if _, err := io.WriteString(conn, hello); err != nil {
		t.Error(err)
	}
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for hello != "" {
			select {
			case <-stop:
				return
			case <-time.After(time.Second):
				if _, err := io.WriteString(conn, "x"); err != nil {
					return
				}
			}
		}
	}()
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%s: the server still listens", name)
	}
}

// neverRead sends requests and reads no answer. The server must close the connection.
func neverRead(t *testing.T, addr, port, path string) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetWriteDeadline(time.Now().Add(4 * bodyTimeout)); err != nil {
		t.Error(err)
	}
	many := strings.Repeat("GET "+path+" HTTP/1.1\r\nHost: a\r\n\r\n", 1000)
	for err == nil { // until answers, and then requests, fill all buffers
		_, err = io.WriteString(conn, many)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%s: the server waits for a caller that never reads", port)
	}
}
