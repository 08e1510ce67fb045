package service

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	quotapb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

// serving asks gRPC's health service, about a limit and for a quota over TLS. The rules have no quotas.
func (s *service) serving(cfg *tls.Config) error {
	s.t.Helper()
	conn, err := grpc.NewClient(s.address("grpc"), grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, failed := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	_, err = pb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, request("d", "ip"))
	quotas, noStream := quotapb.NewRateLimitQuotaServiceClient(conn).StreamRateLimitQuotas(ctx)
	if noStream == nil {
		noStream = quotas.Send(&quotapb.RateLimitQuotaUsageReports{Domain: "d"})
	}
	if noStream == nil {
		if _, noStream = quotas.Recv(); status.Code(noStream) == codes.FailedPrecondition {
			noStream = nil
		}
	}
	return errors.Join(failed, err, noStream)
}

func TestTLS(t *testing.T) { eachEngine(t, testTLS) }

func testTLS(t *testing.T, engine string) {
	t.Parallel()
	c := harness.NewCertificates(t)
	live := c.Issue(t, "live", harness.Spec{CommonName: "live"})
	s := launch(t, oneRule,
		engine, "GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT="+live.Cert, "GRPC_SERVER_TLS_KEY="+live.Key,
		"GRPC_CLIENT_TLS_CACERT="+c.CA, "GRPC_CLIENT_TLS_SAN=localhost",
		"HTTP_TLS_CERT="+live.Cert, "HTTP_TLS_KEY="+live.Key,
		"DEBUG_TLS_CERT="+live.Cert, "DEBUG_TLS_KEY="+live.Key, "DEBUG_TLS_CLIENT_CACERT="+c.CA, "DEBUG_TOKEN=sesame",
		"DISABLE_STATS=false", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0", "LOG_LEVEL=info",
	)
	s.until("ready", s.logged("msg=ready"))
	good := c.ClientConfig(t)
	if err := s.serving(good.Clone()); err != nil {
		t.Error(err)
	}
	anonymous := good.Clone()
	anonymous.Certificates = nil
	if err := s.serving(anonymous.Clone()); err == nil { // the text depends on which side closes first
		t.Error("answered without a certificate")
	}
	for _, tt := range []struct {
		url   string
		cfg   *tls.Config
		token string
		code  int
		want  string
	}{
		{"https://" + s.address("http") + "/healthcheck", anonymous, "", 200, "OK"},
		{"http://" + s.address("http") + "/healthcheck", anonymous, "", 400, "HTTPS"},
		{"https://" + s.address("debug") + "/rlconfig", good, "sesame", 200, "d.ip"},
		{"https://" + s.address("debug") + "/rlconfig", good, "shut", 401, "DEBUG_TOKEN"},
		{"https://" + s.address("debug") + "/rlconfig", anonymous, "sesame", 0, "certificate required"},
	} {
		if code, text := fetch(t, tt.url, tt.cfg, tt.token); code != tt.code || !strings.Contains(text, tt.want) {
			t.Errorf("%s: %d %q, want %d %q", tt.url, code, text, tt.code, tt.want)
		}
	}
	s.replaceCertificates(c, live, good, anonymous)
}

func TestTLSFilesAreChecked(t *testing.T) {
	s := launch(t, oneRule, "GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=/nowhere.crt",
		"GRPC_SERVER_TLS_KEY=/nowhere.key")
	if err := s.wait(); err == nil ||
		err.Error() != "GRPC_SERVER_TLS_CERT: certs: the certificate: open /nowhere.crt: no such file or directory" {
		t.Errorf("%v", err)
	}
}

func TestReadyz(t *testing.T) {
	s := launch(t, "domain: [", "SHUTDOWN_DRAIN=1h")
	s.until("refused", s.logged("rules refused"))
	status := func(path string) (int, string) {
		code, text := s.get("http", path)
		var out bytes.Buffer
		if err := json.Compact(&out, []byte(text)); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return code, out.String()
	}
	s.until("not ready, and why", func() bool { // The line of the log comes first.
		code, text := status("/readyz")
		return code == 503 && strings.Contains(text, `{"ready":false,"name":"rules","why":"no rules are loaded: `) &&
			strings.Contains(text, `{"ready":true,"name":"memory"}`)
	})
	if code, text := status("/livez"); code != 200 || text != `{"live":true}` {
		t.Errorf("%d %s", code, text)
	}
	s.write("rules.yaml", oneRule)
	s.until("ready", func() bool { code, _ := status("/readyz"); return code == 200 })
	s.write("rules.yaml", "domain: [")
	s.until("a refused load is mentioned", func() bool {
		code, text := status("/readyz")
		return code == 200 && strings.Contains(text, "the last load was refused")
	})
	s.signals <- os.Interrupt
	s.until("stopping", func() bool {
		code, text := status("/readyz")
		return code == 503 && strings.Contains(text, `{"ready":false,"name":"process","why":"shutting down"}`)
	})
	if code, _ := status("/livez"); code != 200 {
		t.Errorf("/livez while stopping: %d", code)
	}
	s.signals <- os.Interrupt
}

// replaceCertificates writes a pair that does not match, which changes nothing, and then a
// good one, which all ports use.
func (s *service) replaceCertificates(c *harness.Certificates, live harness.Pair, good, anonymous *tls.Config) {
	t := s.t
	shown := func() string {
		conn, err := tls.Dial("tcp", s.address("http"), anonymous)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		return conn.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	other := testfiles.Read(t, c.Server.Cert)
	testfiles.Write(t, live.Cert, other)
	s.until("a half is refused", s.logged("the http port keeps its old certificates"))
	if name := shown(); name != "live" {
		t.Errorf("the server is %q", name)
	}
	key := testfiles.Read(t, c.Server.Key)
	testfiles.Write(t, live.Key, key)
	s.until("the pair is taken", func() bool { return shown() == "server" })
	s.until("by gRPC, too", s.logged("the grpc port has new certificates"))
	if err := s.serving(good.Clone()); err != nil {
		t.Error(err)
	}
	_, metrics := s.get("prometheus", "/metrics")
	for _, want := range []string{
		`ratelimit_tls_certificate_expiry_timestamp_seconds{port="grpc"} `,
		`ratelimit_tls_reloads_total{port="http",result="success"} 1`,
		`ratelimit_tls_reloads_total{port="http",result="error"} `,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
	if strings.Contains(s.log.String(), "sesame") {
		t.Error("the token is in the log")
	}
}

// fetch gets a page with a token, if it is not empty. A status of 0 comes with the error.
func fetch(t *testing.T, url string, cfg *tls.Config, token string) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: cfg}, Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}
