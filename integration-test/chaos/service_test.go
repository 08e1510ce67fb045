package chaos

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"ratelimit/testbed/harness"
)

// degradedHeader marks answers that were given without the store.
const degradedHeader = "x-ratelimit-degraded"

// service is the program under trial. It keeps its ports when it is started
// again.
type service struct {
	proc              harness.Process
	http, grpc, debug string
	client            http.Client
	started           bool
}

// startService starts it and waits until it is healthy.
func startService(t *testing.T, rules [][]rule, env []string, hosts string) *service {
	t.Helper()
	path, err := harness.BuiltService()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "ratelimit", "config")
	if err := os.MkdirAll(config, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, list := range rules {
		if len(list) == 0 {
			continue
		}
		if err := os.WriteFile(filepath.Join(config, list[0].domain+".yaml"), []byte(ruleFile(list)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := &service{client: http.Client{Timeout: harness.Deadline}}
	s.proc = harness.Process{Path: path, Args: []string{"serve"}, Log: filepath.Join(dir, "log")}
	if hosts != "" {
		command, err := ownHosts(hosts)
		if err != nil {
			t.Fatal(err)
		}
		s.proc.Path, s.proc.Args = command[0], append(command[1:], path, "serve")
	}
	var ports [3]string
	for i := range ports {
		port, err := harness.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		ports[i] = strconv.Itoa(port)
	}
	s.http, s.grpc, s.debug = "127.0.0.1:"+ports[0], "127.0.0.1:"+ports[1], "127.0.0.1:"+ports[2]
	s.proc.Env = append([]string{
		"HOST=127.0.0.1", "PORT=" + ports[0], "GRPC_HOST=127.0.0.1", "GRPC_PORT=" + ports[1], "DEBUG_HOST=127.0.0.1",
		"DEBUG_PORT=" + ports[2],
		"USE_STATSD=false", "DISABLE_STATS=true",
		"RUNTIME_ROOT=" + dir, "RUNTIME_SUBDIRECTORY=ratelimit",
		"REPLICAS=1", "LIMIT_DEGRADED_HEADER=" + degradedHeader,
	}, env...)
	s.start(t)
	return s
}

// start is also for the second time.
func (s *service) start(t *testing.T) {
	t.Helper()
	if err := s.proc.Start(); err != nil {
		t.Fatalf("starting the service: %v", err)
	}
	if !s.started {
		s.started = true
		t.Cleanup(func() {
			s.stop(t)
			if t.Failed() {
				s.proc.ShowLog(t, "ratelimit")
			}
		})
	}
	harness.Await(t, harness.Deadline, "the service is not healthy", func() error {
		if err := s.proc.Exited(); err != nil {
			return harness.Permanent{Err: err}
		}
		text, err := s.get("http://" + s.http + "/healthcheck")
		if err == nil && text != "OK" {
			err = fmt.Errorf("it says %q", text)
		}
		return err
	})
}

// stop ends it; again does nothing.
func (s *service) stop(t *testing.T) {
	t.Helper()
	s.proc.Stop()
}

// kill is an end without warning.
func (s *service) kill(t *testing.T) {
	t.Helper()
	if err := s.proc.Signal(syscall.SIGKILL); err != nil {
		t.Errorf("killing the service: %v", err)
	}
}

func (s *service) get(url string) (string, error) {
	resp, err := s.client.Get(url)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

// vitals are what must not grow.
type vitals struct {
	Goroutines, Files int
	Memory            int64 // resident, in bytes
}

func (v vitals) most(w vitals) vitals {
	return vitals{max(v.Goroutines, w.Goroutines), max(v.Files, w.Files), max(v.Memory, w.Memory)}
}

// vitals are those of now; an error says that the service is gone.
func (s *service) vitals() (v vitals, err error) {
	text, err := s.get("http://" + s.debug + "/debug/pprof/goroutine?debug=1")
	if err != nil {
		return v, err
	}
	if _, err := fmt.Sscanf(text, "goroutine profile: total %d", &v.Goroutines); err != nil {
		return v, fmt.Errorf("the profile of goroutines: %w", err)
	}
	proc := fmt.Sprintf("/proc/%d/", s.proc.PID())
	files, err := os.ReadDir(proc + "fd")
	if err != nil {
		return v, err
	}
	v.Files = len(files)
	status, err := os.ReadFile(proc + "status")
	if err != nil {
		return v, err
	}
	for line := range strings.Lines(string(status)) {
		if kib, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(kib), " kB"), 10, 64)
			v.Memory = n << 10
			return v, err
		}
	}
	return v, fmt.Errorf("no VmRSS in %sstatus", proc)
}
