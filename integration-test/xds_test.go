package integration

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/testfiles"
	"ratelimit/testbed/xdstest"
)

// untilRules waits until /rlconfig is as wanted.
func (s *service) untilRules(t *testing.T, want string) {
	t.Helper()
	s.until(t, "the rules are in force", func() error {
		page, err := get("http://" + s.debug + "/rlconfig")
		if err == nil && string(page) != want {
			err = fmt.Errorf("/rlconfig is\n%swant\n%s", page, want)
		}
		return err
	})
}

// Envoy Gateway's environment, as it deploys envoyproxy/ratelimit, less the
// addresses; and a server with its TLS, node and rules.
func TestEnvoyGateway(t *testing.T) {
	c := harness.NewCertificates(t)
	store := redistest.Start(t, redistest.Options{})
	pem := testfiles.Read(t, c.CA)
	authority := x509.NewCertPool()
	authority.AppendCertsFromPEM(pem)
	l := harness.Listen(t)
	gateway := xdstest.Start(t, l, grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13,
		ClientAuth: tls.RequireAndVerifyClientCert,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			pair, err := tls.LoadX509KeyPair(c.Server.Cert, c.Server.Key)
			return &tls.Config{
				MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
				ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: authority,
			}, err
		},
	})))

	s := startServiceUnready(t,
		// which do not exist
		"RUNTIME_ROOT=/data", "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_IGNOREDOTFILES=true", "RUNTIME_WATCH_ROOT=false",
		"LOG_LEVEL=info", "USE_STATSD=false",
		"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL="+l.Addr().String(),
		"CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit",
		"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT="+c.Server.Cert, "GRPC_SERVER_TLS_KEY="+c.Server.Key,
		"GRPC_SERVER_TLS_CA_CERT="+c.CA,
		"CONFIG_GRPC_XDS_SERVER_USE_TLS=true", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT="+c.Client.Cert,
		"CONFIG_GRPC_XDS_CLIENT_TLS_KEY="+c.Client.Key,
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT="+c.CA, "FORCE_START_WITHOUT_INITIAL_CONFIG=true",
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+store.Addr, "REDIS_TLS=false", "REDIS_TIMEOUT=1s", // for busy machines
		"USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0", "PROMETHEUS_MAPPER_YAML=/etc/statsd-exporter/conf.yaml",
		"TRACING_ENABLED=false", "TRACING_SERVICE_NAME=eg", "TRACING_SERVICE_NAMESPACE=envoy-gateway-system",
		"TRACING_SERVICE_INSTANCE_ID=pod-1",
		"TRACING_SAMPLING_RATE=0.01", "OTEL_EXPORTER_OTLP_ENDPOINT=http://otel:4318",
	)
	// The gateway has nothing to say before there is a policy.
	s.until(t, "the service is healthy without rules", func() error {
		if !strings.Contains(s.log(t), "connected to the xds server") {
			return errors.New("it is not connected")
		}
		if code, text := s.healthcheck(t); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, text)
		}
		return nil
	})
	const match = "httproute/default/backend/rule/0/match/0/*"
	gateway.Publish(t, "envoy-ratelimit", "1", &configv3.RateLimitConfig{
		Name: "default/eg/http", Domain: "default/eg/http",
		Descriptors: []*configv3.RateLimitDescriptor{{
			Key: "httproute/default/backend/rule/0", Value: "httproute/default/backend/rule/0",
			Descriptors: []*configv3.RateLimitDescriptor{{
				Key: "rule-0-match-0", RateLimit: &configv3.RateLimitPolicy{RequestsPerUnit: 2, Unit: configv3.RateLimitUnit_YEAR},
			}},
		}},
	})
	s.untilRules(t, "default/eg/http.httproute/default/backend/rule/0_httproute/default/backend/rule/0.rule-0-match-0: "+
		"unit=YEAR requests_per_unit=2, shadow_mode: false, quota_mode: false\n")
	s.awaitReady(t)
	ask := []string{
		"client", "-dial_string", s.grpc, "--grpc-use-tls", "--grpc-server-ca-file", c.CA, "-domain", "default/eg/http",
		"-descriptors", "httproute/default/backend/rule/0=httproute/default/backend/rule/0,rule-0-match-0=" + match,
	}
	for i, want := range []bool{true, true, false} {
		if out, err := run(ask...); (err == nil) != want {
			t.Errorf("request %d: %v\n%s", i+1, err, out)
		}
	}
	showsXDSFigures(t, s)
	for line := range strings.Lines(s.log(t)) {
		// Envoy Gateway sets two things that the service does not use.
		if strings.Contains(line, "level=info") || strings.Contains(line, "GRPC_SERVER_TLS_CA_CERT has no effect") ||
			strings.Contains(line, "/etc/statsd-exporter/conf.yaml") {
			continue
		}
		t.Errorf("the service complains: %s", line)
	}
}

func showsXDSFigures(t *testing.T, s *service) {
	t.Helper()
	if page, err := get("http://" + s.prometheus + "/metrics"); err != nil ||
		!strings.Contains(string(page), "\nratelimit_service_config_load_success 1\n") {
		t.Errorf("%v, no load is counted in\n%s", err, page)
	}
	page, err := get("http://" + s.prometheus + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\nratelimit_xds_connected 1\n",
		"\nratelimit_tls_client_certificate_expiry_timestamp_seconds{to=\"xds\"} 1",
	} {
		if !strings.Contains(string(page), want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
}

// startServiceUnready starts the service and waits until the ports of operators are open. Those of callers may wait for
// rules.
func startServiceUnready(t *testing.T, env ...string) *service {
	t.Helper()
	s := runService(t, env...)
	s.until(t, "the service listens", func() error {
		s.readLog(t)
		if s.http == "" || s.debug == "" {
			return errors.New("it does not say where")
		}
		return nil
	})
	return s
}

// configServer is the example of a management server, as a process.
type configServer struct {
	*process
	address string
}

func startConfigServer(t *testing.T, binary, address, dir string) *configServer {
	t.Helper()
	s := &configServer{process: start(t, "xds-sotw-config-server", exec.Command(binary, "-listen", address, "-dir", dir))}
	listening := regexp.MustCompile(`listening on (\S+)`)
	s.until(t, "the config server listens", func() error {
		m := listening.FindStringSubmatch(s.log(t))
		if m == nil {
			return errors.New("it does not say where")
		}
		s.address = m[1]
		return nil
	})
	return s
}

// The example of a management server and the service, each as a process.
func TestConfigServer(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "xds-sotw-config-server")
	build, err := harness.GoCommand(t.Context(), "build", "-C", "examples/xds-sotw-config-server", "-o", binary, ".")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", build, err, out)
	}
	rules := newRuleDir(t)
	limit := func(perYear int) string {
		return fmt.Sprintf("domain: d\ndescriptors:\n  - key: ip\n    rate_limit: {unit: year, requests_per_unit: %d, "+
			"algorithm: gcra}\n", perYear)
	}
	shown := func(perYear int) string {
		return fmt.Sprintf("d.ip: unit=YEAR requests_per_unit=%d, shadow_mode: false, quota_mode: false, algorithm: gcra, "+
			"burst: %d\n", perYear, perYear-1)
	}
	rules.put(t, "d.yaml", limit(1))
	server := startConfigServer(t, binary, "127.0.0.1:0", rules.files)
	s := startService(t, "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL="+server.address,
		"CONFIG_GRPC_XDS_NODE_ID=any",
		"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL=50ms", "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=50ms",
		"XDS_CLIENT_BACKOFF_MAX_INTERVAL=100ms")
	s.untilRules(t, shown(1))
	rules.put(t, "d.yaml", limit(2))
	s.untilRules(t, shown(2))
	rules.put(t, "d.yaml", "domain: d\ndescriptors: [{kez: x}]\n")
	server.until(t, "the mistake is found", func() error {
		if !strings.Contains(server.log(t), `d.yaml:2:16: unknown key "kez"`) {
			return errors.New("it is not said")
		}
		return nil
	})
	s.untilRules(t, shown(2))

	server.stop(t)
	s.until(t, "the loss is noticed", func() error {
		if !strings.Contains(s.log(t), "the rules stay as they are") {
			return errors.New("it is not said")
		}
		return nil
	})
	s.untilRules(t, shown(2))
	if code, _ := s.ask(t, "d", "ip=1"); code != http.StatusOK {
		t.Errorf("got %d without the config server", code)
	}
	rules.put(t, "d.yaml", limit(3))
	server = startConfigServer(t, binary, server.address, rules.files)
	s.untilRules(t, shown(3))
	server.until(t, "the config server knows who has what", func() error {
		if !regexp.MustCompile(`node "any" has version "[0-9a-f]{16}"`).MatchString(server.log(t)) {
			return errors.New("it does not say")
		}
		return nil
	})
}
