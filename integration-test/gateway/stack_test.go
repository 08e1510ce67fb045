package gateway

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/testfiles"
)

// stack is everything that takes part: Redis, the service, Envoy Gateway with its Envoy, and the servers behind Envoy.
type stack struct {
	dir       string // the working directory of Envoy Gateway and Envoy
	resources string // the directory that Envoy Gateway watches
	values    *strings.Replacer
	tokens    *strings.Replacer

	redis   *redistest.Server
	service harness.Process
	gateway harness.Process

	debug    string // the address of the service's debug port
	listener string // the address of the gateway that most cases use
	merged   string // the address of the gateway "merged"
}

// fixedPorts are those of the service, of Envoy Gateway's servers of xDS for Envoy and for the service, of its health
// and its metrics.
var fixedPorts = []int{8081, 18000, 18001, 18081, 19001}

// startStack starts all, with all cases, and returns after Envoy has sent a request to a server behind it.
func startStack(t *testing.T, cases []*policyCase) *stack {
	t.Helper()
	gateway, err := gatewayBinary()
	if err != nil {
		t.Fatal(err)
	}
	service, err := harness.BuiltService()
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range fixedPorts {
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err != nil {
			t.Fatalf("Envoy Gateway has fixed ports, so no other program may use them: %v", err)
		}
		_ = l.Close()
	}
	s := &stack{dir: t.TempDir(), redis: redistest.Start(t, redistest.Options{})}
	s.resources = filepath.Join(s.dir, "resources")
	envoy := filepath.Join(s.dir, "data/envoy-versions", harness.EnvoyVersion, "bin/envoy")
	for _, dir := range []string{s.resources, filepath.Dir(envoy)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(harness.Envoy(t), envoy); err != nil {
		t.Fatal(err)
	}
	s.writeConfiguration(t, cases)

	s.gateway = harness.Process{
		Path: gateway, Args: []string{"certgen", "--local", "--config-home", s.dir}, Dir: s.dir,
		Log: filepath.Join(s.dir, "gateway.log"),
		Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "KUBERNETES_CLUSTER_DOMAIN=localhost"},
	}
	s.start(t, &s.gateway, "envoy-gateway")
	harness.Until(t, "Envoy Gateway has written certificates", func() bool { return !s.gateway.Alive() })
	s.gateway.Args = []string{"server", "--config-path", filepath.Join(s.dir, "envoy-gateway.yaml")}
	s.service = harness.Process{
		Path: service, Dir: s.dir, Log: filepath.Join(s.dir, "ratelimit.log"),
		Env: s.environment(t),
	}
	s.start(t, &s.service, "ratelimit")
	if err := s.gateway.Start(); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	s.awaitEnvoy(t)
	t.Logf("Envoy serves %v after the start of Envoy Gateway", time.Since(begun).Round(100*time.Millisecond))
	return s
}

// start starts a program, and stops it at the end of the test.
func (s *stack) start(t *testing.T, p *harness.Process, name string) {
	t.Helper()
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Stop()
		if t.Failed() {
			p.ShowLog(t, name)
		}
	})
}

// awaitEnvoy returns after Envoy serves the route without a policy.
func (s *stack) awaitEnvoy(t *testing.T) {
	t.Helper()
	harness.Await(t, eventDeadline, "Envoy does not serve", func() error {
		if err := s.gateway.Exited(); err != nil {
			return harness.Permanent{Err: err}
		}
		code, _, err := s.do(t, request{method: "GET", host: "plain.example", path: "/"})
		if err == nil && code != "200" {
			err = fmt.Errorf("it answers %s", code)
		}
		return err
	})
}

// environment is what Envoy Gateway sets, with the addresses and files of this run.
func (s *stack) environment(t *testing.T) []string {
	t.Helper()
	s.debug = freeAddress(t)
	here := strings.NewReplacer(
		"/certs/", filepath.Join(s.dir, "certs/envoy-rate-limit")+"/",
		"envoy-gateway:18001", "localhost:18001",
		"redis.redis.svc:6379", s.redis.Addr,
		":19001", freeAddress(t),
		"TRACING_ENABLED=true", "TRACING_ENABLED=false",
	)
	env := []string{
		"HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1", // the loopback interface only
		"PORT=" + portOf(freeAddress(t)), "DEBUG_PORT=" + portOf(s.debug),
		"CONFIG_GRPC_XDS_SERVER_TLS_SAN=envoy-gateway", // which is the host's name in Kubernetes
		"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL=200ms", "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=200ms",
		"XDS_CLIENT_BACKOFF_MAX_INTERVAL=500ms",
		"REDIS_TIMEOUT=5s", // for busy machines
	}
	for _, line := range environment {
		if !strings.HasPrefix(line, "REDIS_TLS") { // this Redis has no TLS
			env = append(env, here.Replace(line))
		}
	}
	return env
}

// writeConfiguration writes the configuration of Envoy Gateway, and the resources of all cases.
func (s *stack) writeConfiguration(t *testing.T, cases []*policyCase) {
	t.Helper()
	jwks, sign := newIssuer(t)
	s.tokens = strings.NewReplacer("{ann}", "Bearer "+sign("ann"), "{bob}", "Bearer "+sign("bob"))
	s.listener, s.merged = freeAddress(t), freeAddress(t)
	s.values = strings.NewReplacer(
		"${DIR}", s.dir, "${ENVOY_VERSION}", harness.EnvoyVersion, "${REDIS_PORT}", portOf(s.redis.Addr),
		"${PORT}", portOf(s.listener), "${MERGED_PORT}", portOf(s.merged), "${JWKS}", jwks,
		"${HTTP_PORT}", startHTTPServer(t), "${GRPC_PORT}", startGRPCServer(t))
	s.writeResources(t, "base.yaml", readFile(t, "testdata/base.yaml"))
	for _, c := range cases {
		s.writeResources(t, c.name+".yaml", c.text)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "envoy-gateway.yaml"),
		[]byte(s.values.Replace(readFile(t, "testdata/envoy-gateway.yaml"))), 0o600); err != nil {
		t.Fatal(err)
	}
}

// writeResources replaces a file of resources in one step.
func (s *stack) writeResources(t *testing.T, name, text string) {
	t.Helper()
	draft := filepath.Join(s.dir, "draft")
	testfiles.Write(t, draft, s.values.Replace(text))
	if err := os.Rename(draft, filepath.Join(s.resources, name)); err != nil {
		t.Fatal(err)
	}
}

// rules returns the rules that the service has in force.
func (s *stack) rules() (string, error) {
	resp, err := http.Get("http://" + s.debug + "/rlconfig")
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := harness.FreePort()
	for err == nil && slices.Contains(fixedPorts, port) {
		port, err = harness.FreePort()
	}
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

func portOf(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }

func readFile(t *testing.T, name string) string {
	t.Helper()
	text := testfiles.Read(t, name)
	return string(text)
}
