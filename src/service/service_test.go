package service

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"ratelimit/src/service/logging"
	"ratelimit/src/settings"
	"ratelimit/src/tools/suggest"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

// buffer is a text that several goroutines may write and read.
type buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *buffer) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *buffer) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// service is a Service that runs in this process.
type service struct {
	t       *testing.T
	dir     string // of the rules
	out     buffer
	log     buffer
	signals chan os.Signal
	done    chan struct{}
	err     error // once done is closed
}

const oneRule = `
domain: d
descriptors:
  - key: ip
    rate_limit: {unit: year, requests_per_unit: 2}
`

// launch starts a service on free ports with text as its rules. Vars are NAME=value and
// replace those that launch sets.
func launch(t *testing.T, text string, vars ...string) *service {
	t.Helper()
	s := &service{
		t: t, dir: filepath.Join(t.TempDir(), "config"), signals: make(chan os.Signal, 4),
		done: make(chan struct{}),
	}
	if err := os.Mkdir(s.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s.write("rules.yaml", text)
	environ := []string{
		"HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1", "DIVVY_HOST=127.0.0.1", "RESP_HOST=127.0.0.1",
		"PORT=0", "GRPC_PORT=0", "DEBUG_PORT=0",
		"RUNTIME_ROOT=" + filepath.Dir(s.dir), "RUNTIME_DEBOUNCE=10ms", "DISABLE_STATS=true",
	}
	var rules, socket string
	for _, v := range vars {
		switch name, value, _ := strings.Cut(v, "="); name {
		case "--config":
			rules = value
		case "socket":
			socket = value
		default:
			environ = append(environ, v)
		}
	}
	s.run(func() (Config, error) {
		cfg, err := serveConfig(environ, rules, cmp.Or(socket, settings.UpstreamSocket))
		cfg.OnReady = func(r Ready) { suggest.Print(r.Stdout, false, r.Rules, r.HTTPAddr, r.DebugAddr) }
		return cfg, err
	})
	return s
}

// The log names a mistyped variable, but not its value.
func TestServeUnknownVariables(t *testing.T) {
	s := launch(t, oneRule, "HOME=/root", "REDIS_URLL=redis://:hunter2@x", "BACKEND=redis")
	s.until("ready", s.healthy)
	for _, want := range []string{
		"REDIS_URLL is no setting; did you mean REDIS_URL?",
		"BACKEND is no setting; did you mean BACKEND_TYPE?",
	} {
		if !s.logged(want)() {
			t.Errorf("no %s in\n%s", want, s.log.String())
		}
	}
	if strings.Contains(s.log.String(), "hunter2") {
		t.Errorf("a value is in\n%s", s.log.String())
	}
}

// --config replaces the three variables that name the rules.
func TestServeConfig(t *testing.T) {
	dir := t.TempDir()
	testfiles.Write(t, filepath.Join(dir, "rules.yaml"), oneRule)
	for _, tt := range []struct{ config, root, want string }{
		{dir, "", ""},
		{filepath.Join(dir, "rules.yaml"), "", ""},
		{dir, "/elsewhere", "RUNTIME_ROOT=/elsewhere has no effect: --config says where the rules are; remove one of the two"},
	} {
		s := launch(t, "domain: other", "--config="+tt.config, "RUNTIME_ROOT="+tt.root)
		s.until("ready", s.healthy)
		if _, rules := s.get("debug", "/rlconfig"); !strings.HasPrefix(rules, "d.ip: ") {
			t.Errorf("%s: rules\n%s", tt.config, rules)
		}
		if log := s.log.String(); tt.want == "" && strings.Contains(log, "no effect") || !strings.Contains(log, tt.want) {
			t.Errorf("%s: want %q in\n%s", tt.config, tt.want, log)
		}
	}
	s := launch(t, oneRule, "--config="+filepath.Join(dir, "none"))
	s.until("a problem", s.logged("none does not exist; create it, or name another one with --config"))
	s = launch(t, oneRule, "--config="+dir, "CONFIG_TYPE=GRPC_XDS_SOTW")
	if err := s.wait(); err == nil ||
		!strings.Contains(err.Error(), "--config: CONFIG_TYPE=GRPC_XDS_SOTW says that rules come from a management server; "+
			"leave out one of them") {
		t.Error(err)
	}
}

// run runs a service until the test ends.
func (s *service) run(configure func() (Config, error)) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(s.done)
		s.err = logging.WithOutput(&s.out, &s.log, func(o *logging.Output) error {
			cfg, err := configure()
			if err != nil {
				return err
			}
			cfg.Output, cfg.Signals = o, s.signals
			built, err := New(cfg)
			if err != nil {
				return err
			}
			return built.Run(ctx)
		})
	}()
	s.t.Cleanup(func() {
		cancel()
		_ = s.wait()
		if s.t.Failed() {
			s.t.Logf("log:\n%s", s.log.String())
		}
	})
}

// write replaces a file of rules by rename, as careful editors do.
func (s *service) write(name, text string) {
	s.t.Helper()
	draft := filepath.Join(s.dir, name+".new")
	if err := os.WriteFile(draft, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(draft, filepath.Join(s.dir, name)); err != nil {
		s.t.Fatal(err)
	}
}

// wait waits for the service to end and returns its error.
func (s *service) wait() error {
	s.t.Helper()
	select {
	case <-s.done:
		return s.err
	case <-time.After(30 * time.Second):
		s.t.Fatal("the service does not end")
		return nil
	}
}

// until waits for ok; what names it.
func (s *service) until(what string, ok func() bool) {
	s.t.Helper()
	harness.Until(s.t, what, ok) // the cleanup of run shows the log
}

func (s *service) logged(text string) func() bool {
	return func() bool { return strings.Contains(s.log.String(), text) }
}

// address is where the service listens: http, grpc or debug.
func (s *service) address(port string) string {
	s.t.Helper()
	line := regexp.MustCompile(`msg=listening address="?([^" ]+)"? port=` + port)
	var found []string
	s.until("listening on "+port, func() bool {
		found = line.FindStringSubmatch(s.log.String())
		return found != nil
	})
	return found[1]
}

// get returns the code and body of a page, or 0 if there is no answer.
func (s *service) get(port, path string) (int, string) {
	resp, err := http.Get("http://" + s.address(port) + path)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(body)
}

func (s *service) ask(ip string) int {
	s.t.Helper()
	code, err := s.post("ip", ip)
	if err != nil {
		s.t.Fatal(err)
	}
	return code
}

// post asks about one entry in domain d.
func (s *service) post(key, value string) (int, error) {
	body := fmt.Sprintf(`{"domain":"d","descriptors":[{"entries":[{"key":%q,"value":%q}]}]}`, key, value)
	resp, err := http.Post("http://"+s.address("http")+"/json", "application/json", strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return resp.StatusCode, nil
}

func (s *service) healthy() bool {
	code, _ := s.get("http", "/healthcheck")
	return code == http.StatusOK
}

func TestServe(t *testing.T) {
	t.Parallel()
	s := launch(t, oneRule, "LOG_LEVEL=panic")
	s.until("ready", s.healthy)
	for i, want := range []int{200, 200, 429} {
		if got := s.ask("1"); got != want {
			t.Errorf("request %d: got %d, want %d", i+1, got, want)
		}
	}
	if code, body := s.get("debug", "/rlconfig"); code != 200 ||
		body != "d.ip: unit=YEAR requests_per_unit=2, shadow_mode: false, quota_mode: false\n" {
		t.Errorf("/rlconfig: %d %s", code, body)
	}
	_, stats := s.get("debug", "/stats")
	for _, want := range []string{
		"ratelimit.service.rate_limit.d.ip.total_hits: 3\n", "ratelimit.service.rate_limit.d.ip.over_limit: 1\n",
		"ratelimit.service.config_load_success: 1\n", "ratelimit.memory.keys: 1\n",
	} {
		if !strings.Contains(stats, want) {
			t.Errorf("/stats lacks %s:\n%s", want, stats)
		}
	}
	if code, _ := s.get("http", "/nothing"); code != 404 {
		t.Errorf("an unknown path: %d", code)
	}
	if log := s.log.String(); strings.Count(log, "\n") != 4 || !strings.Contains(log, "msg=ready") ||
		!strings.Contains(log, "store=memory") {
		t.Errorf("want the listening lines and the ready line only, got\n%s", log)
	}
	if out := s.out.String(); !strings.Contains(out, "curl") ||
		!strings.Contains(out, `'{"domain":"d","descriptors":[{"entries":[{"key":"ip","value":"any"}]}]}'`) ||
		strings.Contains(out, "\x1b") {
		t.Errorf("what to try:\n%s", out)
	}
	s.signals <- syscall.SIGTERM
	if err := s.wait(); err != nil {
		t.Errorf("stopped with %v", err)
	}
}

func TestNotReady(t *testing.T) {
	t.Parallel()
	s := launch(t, "domain: d\ndescriptors:\n  - kez: ip\n  - key: a\n    key: b\n    rate_limit: {unit: day, "+
		"requests_per_unit: x}\n")
	s.until("the refusal in the health answer", func() bool {
		code, body := s.get("http", "/healthcheck")
		return code == 500 && strings.HasPrefix(body, "no rules are loaded: refused at 20") &&
			!strings.Contains(body, "rules.yaml")
	})
	if code, body := s.get("debug", "/readyz"); code != 503 ||
		!strings.Contains(body, `rules.yaml:3:5: unknown key \"kez\"`) {
		t.Errorf("the debug port: %d %s", code, body)
	}
	if got := s.ask("1"); got != http.StatusServiceUnavailable {
		t.Errorf("got %d", got)
	}
	if _, body := s.get("debug", "/rlconfig"); !strings.HasSuffix(body, "(none are in force yet)\n") {
		t.Errorf("/rlconfig without rules: %s", body)
	}
	if strings.Contains(s.log.String(), "port=grpc") {
		t.Error("the gRPC port is open without rules")
	}
	s.write("rules.yaml", oneRule)
	conn, err := grpc.NewClient(s.address("grpc"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	serving := func(want healthpb.HealthCheckResponse_ServingStatus) func() bool {
		return func() bool {
			resp, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
			return err == nil && resp.GetStatus() == want
		}
	}
	s.until("serving", serving(healthpb.HealthCheckResponse_SERVING))
	if got := s.ask("1"); got != 200 || !s.healthy() {
		t.Errorf("got %d", got)
	}
}

func TestHealthSettings(t *testing.T) {
	t.Parallel()
	const bad = "domain: [\n"
	for _, tt := range []struct {
		name, rules, setting string
		healthy              bool
	}{
		{"bad rules", bad, "LOG_FORMAT=text", false},
		{"bad rules, forced", bad, "FORCE_START_WITHOUT_INITIAL_CONFIG=true", true},
		{"a domain", oneRule, "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true", true},
		{"no domain", "", "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true", false},
		{"no domain, not needed", "", "LOG_FORMAT=text", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := launch(t, tt.rules, tt.setting,
				"RUNTIME_APPDIRECTORY="+map[bool]string{true: "empty", false: "config"}[tt.rules == ""])
			if tt.rules == "" {
				if err := os.Mkdir(filepath.Join(filepath.Dir(s.dir), "empty"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if tt.rules == bad {
				s.until("refused", s.logged("rules refused"))
			} else {
				s.until("loaded", s.logged("msg=ready"))
			}
			s.until(fmt.Sprintf("healthy %t", tt.healthy), func() bool { return s.healthy() == tt.healthy })
		})
	}
}

func TestInitialTimeout(t *testing.T) {
	t.Parallel()
	s := launch(t, "domain: [\n", "CONFIG_INITIAL_TIMEOUT=500ms")
	if err := s.wait(); !errors.Is(err, errNoRulesInTime) {
		t.Errorf("got %v", err)
	}
	s = launch(t, oneRule, "CONFIG_INITIAL_TIMEOUT=500ms")
	s.until("ready", s.healthy)
	select {
	case <-s.done:
		t.Errorf("the timeout ended a service that has its rules: %v", s.err)
	case <-time.After(time.Second):
	}
	if !s.healthy() {
		t.Error("the timeout hit a service that has its rules")
	}
}

// While it drains, the service is unhealthy and still answers.
func TestDrain(t *testing.T) {
	t.Parallel()
	s := launch(t, oneRule, "SHUTDOWN_DRAIN=5s")
	s.until("ready", s.healthy)
	s.signals <- syscall.SIGINT
	s.until("unhealthy", func() bool {
		code, body := s.get("http", "/healthcheck")
		return code == 500 && strings.Contains(body, "shutting down")
	})
	if got := s.ask("1"); got != 200 {
		t.Errorf("got %d while draining", got)
	}
	s.signals <- syscall.SIGHUP // does not count as a second signal
	s.signals <- syscall.SIGINT
	if err := s.wait(); err != nil {
		t.Error(err)
	}
	if !s.logged("level=info msg=stopping signal=interrupt")() {
		t.Error("the start of the drain is not in the log of the default level")
	}
	if !s.logged("stopping at once")() {
		t.Error("the second signal did not cut the drain short")
	}
}

// A signal that arrives before Run stops the service.
func TestSignalAtOnce(t *testing.T) {
	for range 20 {
		s := &service{t: t, signals: make(chan os.Signal, 1), done: make(chan struct{})}
		s.signals <- syscall.SIGTERM
		environ := []string{
			"PORT=0", "GRPC_PORT=0", "DEBUG_PORT=0", "HOST=127.0.0.1", "RUNTIME_ROOT=" + t.TempDir(),
			"RUNTIME_APPDIRECTORY=",
		}
		s.run(func() (Config, error) { return ServeConfig(environ, "") })
		err := s.wait()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Silent clients and endless streams do not delay the end.
func TestStopWithOpenConnections(t *testing.T) {
	t.Parallel()
	eachEngine(t, testStopWithOpenConnections)
}

func testStopWithOpenConnections(t *testing.T, engine string) {
	t.Parallel()
	s := launch(t, oneRule, engine, "SHUTDOWN_TIMEOUT=1s")
	s.until("ready", s.healthy)
	for _, port := range []string{"grpc", "http", "debug"} {
		silent, err := net.Dial("tcp", s.address(port))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = silent.Close() }()
	}
	begun := time.Now()
	s.signals <- syscall.SIGTERM
	if err := s.wait(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begun); took > 4*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestSettingsAreChecked(t *testing.T) {
	err := launch(t, oneRule, "PORT=x", "LOG_LEVEL=loud").wait()
	if err == nil || !strings.Contains(err.Error(), "PORT=x") || !strings.Contains(err.Error(), "LOG_LEVEL=loud") {
		t.Errorf("got %v", err)
	}
	if err := launch(t, oneRule, "MEMORY_MAX_BYTES=1").wait(); err == nil ||
		!strings.Contains(err.Error(), "MEMORY_MAX_BYTES") {
		t.Errorf("got %v", err)
	}
}

func TestLogFormats(t *testing.T) {
	s := launch(t, oneRule+"  - key: none\n", "LOG_FORMAT=JSON", "LOG_LEVEL=debug")
	s.until("ready", s.logged(`"@message":"ready"`))
	log := s.log.String()
	for _, want := range []string{
		`"@timestamp":"2`, `"level":"debug"`, `loading domain: d`,
		`loading descriptor: d.ip: unit=YEAR`, `loading descriptor: d.none: no limit`, `"store":"memory"`,
	} {
		if !strings.Contains(log, want) {
			t.Errorf("no %s in\n%s", want, log)
		}
	}
	s = launch(t, oneRule, "SHADOW_MODE=")
	s.until("a warning", s.logged(`level=warning msg="SHADOW_MODE is set but empty`))
}
