package health

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"ratelimit/src/settings"
	"ratelimit/testbed/harness"
)

var divvyPort = LinePort{"divvy", "ERR ", settings.DivvyAddr}

func portOf(l net.Listener) string { return strconv.Itoa(l.Addr().(*net.TCPAddr).Port) }

// service answers /healthcheck on a port of its own, with TLS if cfg is not nil, and returns the port.
func service(t *testing.T, status int, text string, cfg *tls.Config) string {
	t.Helper()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthcheck" {
			t.Errorf("a request for %s", r.URL.Path)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes that fail are meant to
	if srv.TLS = cfg; cfg != nil {
		srv.StartTLS()
	} else {
		srv.Start()
	}
	t.Cleanup(srv.Close)
	return portOf(srv.Listener)
}

// lines answers the first line of each connection to addr with reply; an empty reply: with silence. It returns the
// port.
func lines(t *testing.T, addr, reply string) string {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			r := bufio.NewReader(conn)
			if _, err := r.ReadString('\n'); err == nil {
				_, _ = io.WriteString(conn, reply)
			}
			_, _ = io.Copy(io.Discard, r) // until the client has read the reply
			_ = conn.Close()
		}
	}()
	return portOf(l)
}

func unused(t *testing.T) string {
	t.Helper()
	port, err := harness.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(port)
}

func TestAsk(t *testing.T) {
	t.Parallel()
	ready := service(t, http.StatusOK, "OK", nil)
	loading := service(t, http.StatusInternalServerError, "no rules are loaded\n", nil)
	withTLS := service(t, http.StatusOK, "OK", &tls.Config{})
	mutual := service(t, http.StatusOK, "OK", &tls.Config{ClientAuth: tls.RequireAnyClientCert})
	gRPC := lines(t, "127.0.0.1:0", "\x00\x00\x12\x04\x00\x00\x00\x00\x00\r\n")
	silent := lines(t, "127.0.0.1:0", "")
	divvy := lines(t, "127.0.0.1:0", "ERR unknown-command \"GET\"\n")
	elsewhere := unused(t)
	lines(t, "127.0.0.2:"+elsewhere, "")
	const certificate = " HTTP_TLS_CERT=cert.pem HTTP_TLS_KEY=key.pem"
	for _, tt := range []struct{ name, env, want string }{
		{"ready", "PORT=" + ready, "OK"},
		{"an address", "HOST=127.0.0.1 PORT=" + ready, "OK"},
		{"every address of IPv6", "HOST=:: PORT=" + unused(t), "[::1]:"},
		{"not ready", "PORT=" + loading, "status 500: no rules are loaded"},
		{"the health port comes first", "PORT=" + loading + " HEALTH_PORT=" + ready, "OK"},
		{
			"a health port without a service", "PORT=" + ready + " HEALTH_PORT=" + unused(t),
			"connection refused: no service is on HEALTH_PORT",
		},
		{"TLS", "PORT=" + withTLS + certificate, "OK"},
		{"a certificate for clients", "PORT=" + mutual + certificate, "if HTTP_TLS_CLIENT_CACERT is set, set HEALTH_PORT"},
		{"no service", "PORT=" + unused(t), "connection refused: no service is on PORT"},
		{"another protocol", "PORT=" + gRPC, "is a rate limit service on PORT?"},
		{"no answer", "PORT=" + silent, "no answer in time"},
		{
			"a port that the system picks", "PORT=0",
			"PORT=0 lets the service choose a port that health cannot know: set HEALTH_PORT",
		},
		{"divvy on PORT", "PORT=" + divvy, "OK: divvy's port answers"},
		{"divvy without HTTP", "HOST=127.0.0.1 DIVVY_HOST=127.0.0.2 PORT=" + elsewhere, "OK: divvy's port is open"},
		{"divvy and a health port", "DIVVY_HOST=127.0.0.2 PORT=" + elsewhere + " HEALTH_PORT=" + loading, "status 500"},
		{"a setting that the service refuses", "GRPC_PORT=many PORT=" + ready, "OK"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			within := 10 * time.Second
			if tt.want == "no answer in time" {
				within = 500 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			got, err := ask(ctx, "", settings.NewEnvironment(strings.Fields(tt.env)), divvyPort)
			isOK := strings.HasPrefix(tt.want, "OK")
			switch {
			case isOK && (err != nil || got != tt.want):
				t.Errorf("%q, %v; want %q", got, err, tt.want)
			case !isOK && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("%q, %v; want an error with %q", got, err, tt.want)
			}
		})
	}
}
