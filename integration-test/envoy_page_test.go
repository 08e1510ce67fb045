package integration

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

const (
	envoyPage = "docs/envoy.md"
	tcpFile   = repository + "/examples/envoy/tcp.yaml"
)

// startPageRules serves the rules of docs/envoy.md, with years as units, and with a path that proxy.yaml has a route
// for.
func startPageRules(t *testing.T) *service {
	t.Helper()
	rules := newRuleDir(t)
	for i, text := range blocks(t, envoyPage, "yaml", "domain: ") {
		rules.put(t, string(rune('a'+i))+".yaml",
			strings.NewReplacer("unit: minute", "unit: year", "/items", "/test").Replace(text))
	}
	return startService(t, append(rules.env(), "MERGE_DOMAIN_CONFIG=true")...)
}

// startFrontWith is startFront with these rate_limits on every route.
func startFrontWith(t *testing.T, serviceAddress, rateLimits string) *front {
	t.Helper()
	var actions struct {
		List yaml.Node `yaml:"rate_limits"`
	}
	if err := yaml.Unmarshal([]byte(rateLimits), &actions); err != nil {
		t.Fatal(err)
	}
	mock := readYAML(t, mockFile)
	mock.move(t, map[string]string{"0.0.0.0:9999": anyPort})
	_, mockAddress := startEnvoy(t, "mock", mock)
	proxy := readYAML(t, proxyFile)
	proxy.move(t, map[string]string{
		"0.0.0.0:8001": anyPort, "0.0.0.0:8888": anyPort, "envoy-mock:9999": mockAddress,
		"ratelimit:8081": serviceAddress,
	})
	proxy.set(t, "timeout", "5s")
	proxy.set(t, "failure_mode_deny", "true")
	for _, n := range proxy.at("rate_limits") {
		*n = actions.List
	}
	p, address := startEnvoy(t, "proxy", proxy)
	return &front{process: p, url: "http://" + address}
}

// The commands of docs/envoy.md that start an Envoy without Docker make a configuration that Envoy accepts, without the
// hosts of the compose file.
func TestEnvoyWithoutDocker(t *testing.T) {
	t.Parallel()
	envoy, dir := harness.Envoy(t), t.TempDir()
	examples, err := filepath.Abs(repository + "/examples")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(examples, filepath.Join(dir, "examples")); err != nil {
		t.Fatal(err)
	}
	script := blocks(t, envoyPage, "sh", "envoy=")[0]
	validate := strings.Replace(script, "--config-path", "--mode validate --config-path", 1)
	if validate == script {
		t.Fatal("no Envoy is started")
	}
	runIn(t, dir, "env", "ENVOY_BIN="+envoy, "bash", "-euc", validate)
	text := testfiles.Read(t, filepath.Join(dir, "my-envoy.yaml"))
	for _, address := range regexp.MustCompile(`address: ([^{},]+),`).FindAllSubmatch(text, -1) {
		if string(address[1]) != "127.0.0.1" {
			t.Errorf("the configuration has the address %s", address[1])
		}
	}
}

// What docs/envoy.md says about paths and about the order of actions.
func TestEnvoyPage(t *testing.T) {
	harness.Envoy(t)
	blocks := blocks(t, envoyPage, "yml", "rate_limits:")
	if len(blocks) != 3 {
		t.Fatalf("%d blocks of rate_limits, want 3", len(blocks))
	}
	swapped := strings.Split(strings.TrimSpace(blocks[2]), "\n")
	slices.Reverse(swapped[2:])
	repeat := func(path string, statuses ...int) (steps []pageStep) {
		for _, status := range statuses {
			steps = append(steps, pageStep{call{path, "x-user: alex"}, status})
		}
		return steps
	}
	for _, tt := range []struct {
		name, rateLimits string
		steps            []pageStep
	}{
		{
			"the header :path", blocks[0],
			slices.Concat(repeat("/test", 200), repeat("/test?page=2", 200), repeat("/test?page=3&sort=up", 200, 429),
				repeat("/test", 429), repeat("/test-old?a", 200)),
		},
		{
			"request.url_path", blocks[1],
			slices.Concat(repeat("/test?a", 200), repeat("/test?b", 200), repeat("/test", 200, 429), repeat("/test?c", 429),
				repeat("/test-old", 200)),
		},
		{"the order of actions", blocks[2], append(repeat("/test", 200, 200, 429), pageStep{call{path: "/test"}, 200})},
		{"the other order", strings.Join(swapped, "\n"), repeat("/test", 200, 200, 200, 200)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := startFrontWith(t, startPageRules(t).grpc, tt.rateLimits)
			for i, s := range tt.steps {
				status, _, err := f.send(s.call)
				if err != nil {
					t.Fatal(err)
				}
				if status != s.want {
					t.Errorf("step %d, %s: status %d, want %d", i+1, s.call.path, status, s.want)
				}
			}
		})
	}
}

type pageStep struct {
	call call
	want int
}

// The network filter closes connections over the limit before a byte passes.
func TestEnvoyTCP(t *testing.T) {
	harness.Envoy(t)
	database, err := net.Listen("tcp", anyPort)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = database.Close() })
	go func() {
		for {
			conn, err := database.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	s := startPageRules(t)
	config := readYAML(t, tcpFile)
	config.move(t, map[string]string{
		"127.0.0.1:8001": anyPort, "0.0.0.0:5433": anyPort,
		"127.0.0.1:5432": database.Addr().String(), "127.0.0.1:8081": s.grpc,
	})
	config.set(t, "timeout", "5s")
	config.set(t, "failure_mode_deny", "true")
	_, address := startEnvoy(t, "tcp", config)
	for i, want := range []error{nil, nil, nil, io.EOF, io.EOF} {
		if err := echo(address); !errors.Is(err, want) {
			t.Errorf("connection %d: %v, want %v", i+1, err, want)
		}
	}
	if _, answer := s.ask(t, "tcp",
		"listener=postgres,remote_address=127.0.0.1"); answer.Statuses[0].LimitRemaining != 0 || len(answer.Statuses) != 1 {
		t.Errorf("the connections were not counted by the address: %v", answer)
	}
}

// echo opens a connection, sends a byte and waits until it comes back. It returns io.EOF if the connection ends before.
func echo(address string) error {
	conn, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte{1}); err != nil {
		return io.EOF // The connection was closed before the byte was sent.
	}
	_, err = conn.Read(make([]byte, 1))
	if err != nil && !errors.Is(err, io.EOF) && strings.Contains(err.Error(), "reset") {
		return io.EOF
	}
	return err
}
