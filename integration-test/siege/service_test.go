//go:build linux

package siege

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"ratelimit/testbed/harness"
)

const (
	// groupBytes and goLimit are the values of examples/kubernetes.
	groupBytes = 256 << 20
	goLimit    = "GOMEMLIMIT=224MiB"
	// residentBytes is the most memory that may be resident: GOMEMLIMIT includes the program.
	residentBytes = 224 << 20

	// secret is what no port may show.
	secret = "hunter2-is-the-secret"
)

// options are how a service is started.
type options struct {
	env   []string
	rules string
	group int64                 // bytes of its memory control group; 0: groupBytes, negative: none
	files int                   // ulimit -n; 0: as the test has it
	log   string                // a FIFO that gets stderr instead of the log
	ready time.Duration         // how long it may take to be ready; 0: harness.Deadline
	tls   *harness.Certificates // with which all ports of callers speak TLS; nil: plain text
}

// service is the program under attack.
type service struct {
	proc   harness.Process
	dir    string // RUNTIME_ROOT
	config string // the directory of its rules
	group  *memoryGroup
	alone  string        // why there is no control group
	took   time.Duration // from the start until it was ready

	http, grpc, debug, prometheus, health string // addresses
	divvy, resp                           string

	client http.Client
}

const baseRules = `domain: siege
descriptors:
- {key: neighbour, rate_limit: {unit: hour, requests_per_unit: 1000000000}}
`

// startService starts the service and waits until it is ready. It is stopped at the
// end of the test.
func startService(t *testing.T, o options) *service {
	t.Helper()
	path, err := harness.BuiltService()
	if err != nil {
		t.Fatal(err)
	}
	s := &service{
		dir:    t.TempDir(),
		client: http.Client{Timeout: harness.Deadline, Transport: &http.Transport{DisableKeepAlives: true}},
	}
	s.config = filepath.Join(s.dir, "config")
	if err := os.Mkdir(s.config, 0o755); err != nil {
		t.Fatal(err)
	}
	s.writeRules(t, "siege.yaml", baseRules+o.rules)
	group := ""
	if o.group >= 0 {
		if s.group, err = newMemoryGroup(t, max(o.group, groupBytes)); err != nil {
			s.alone = err.Error()
		}
		group = goLimit
	}
	script := s.group.enter()
	if o.files > 0 {
		script += fmt.Sprintf("ulimit -n %d && ", o.files)
	}
	script += `exec "$@"`
	if o.log != "" {
		script += fmt.Sprintf(" 2>%q", o.log)
	}
	s.proc = harness.Process{
		Path: "/bin/sh", Args: []string{"-c", script, "sh", path, "serve"},
		Log: filepath.Join(s.dir, "log"),
	}
	var ports [7]string
	for i, addr := range []*string{&s.http, &s.grpc, &s.debug, &s.prometheus, &s.health, &s.divvy, &s.resp} {
		port, err := harness.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		ports[i] = strconv.Itoa(port)
		*addr = "127.0.0.1:" + ports[i]
	}
	s.proc.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "GOMAXPROCS=2", group,
		"HOST=127.0.0.1", "PORT=" + ports[0], "GRPC_HOST=127.0.0.1", "GRPC_PORT=" + ports[1],
		"DEBUG_HOST=127.0.0.1", "DEBUG_PORT=" + ports[2], "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=" + s.prometheus,
		"HEALTH_HOST=127.0.0.1", "HEALTH_PORT=" + ports[4], "DIVVY_HOST=127.0.0.1", "DIVVY_PORT=" + ports[5],
		"DIVVY_DOMAIN=siege",
		"RESP_HOST=127.0.0.1", "RESP_PORT=" + ports[6],
		"RUNTIME_ROOT=" + s.dir, "RUNTIME_DEBOUNCE=10ms", "RUNTIME_POLL_INTERVAL=0",
		"SHUTDOWN_TIMEOUT=1s",
	}, o.env...)
	scheme := "http://"
	if o.tls != nil {
		scheme = "https://"
		s.client.Transport.(*http.Transport).TLSClientConfig = o.tls.AnyServer
		s.proc.Env = append(s.proc.Env, "GRPC_SERVER_USE_TLS=true")
		for _, port := range []string{"GRPC_SERVER", "HTTP", "DIVVY", "RESP"} {
			s.proc.Env = append(s.proc.Env, port+"_TLS_CERT="+o.tls.Server.Cert, port+"_TLS_KEY="+o.tls.Server.Key)
		}
	}
	begun := time.Now()
	if err := s.proc.Start(); err != nil {
		t.Fatalf("starting the service: %v", err)
	}
	t.Cleanup(func() {
		s.proc.Stop()
		if t.Failed() {
			s.proc.ShowLog(t, "ratelimit")
		}
	})
	harness.Await(t, max(o.ready, harness.Deadline), "the service is not ready", func() error {
		if err := s.proc.Exited(); err != nil {
			return harness.Permanent{Err: err}
		}
		text, err := s.get(scheme + s.http + "/healthcheck")
		if err == nil && text != "OK" {
			err = fmt.Errorf("it says %q", text)
		}
		return err
	})
	s.took = time.Since(begun)
	return s
}

// writeRules replaces a file of rules.
func (s *service) writeRules(t *testing.T, name, text string) {
	t.Helper()
	draft := filepath.Join(s.dir, "draft")
	if err := os.WriteFile(draft, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(draft, filepath.Join(s.config, name)); err != nil {
		t.Fatal(err)
	}
}

// reload asks for the rules to be read, besides what the file system reports.
func (s *service) reload() { _ = s.proc.Signal(syscall.SIGHUP) }

// log is what the service has written.
func (s *service) log() string {
	text, err := os.ReadFile(s.proc.Log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// get reads a page over a connection of its own; an error for any status but 200.
func (s *service) get(url string) (string, error) {
	resp, err := s.client.Get(url)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.200s", url, resp.Status, text)
	}
	return string(text), err
}

// metric sums the series of a native metric.
func (s *service) metric(name string) (float64, error) {
	text, err := s.get("http://" + s.prometheus + "/metrics")
	if err != nil {
		return 0, err
	}
	found := regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(name)+`(?:\{.*\})? (\S+)$`).FindAllStringSubmatch(text, -1)
	if found == nil {
		return 0, fmt.Errorf("/metrics has no %s", name)
	}
	sum := 0.0
	for _, m := range found {
		value, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			return 0, err
		}
		sum += value
	}
	return sum, nil
}

// vitals are what must not grow.
type vitals struct {
	Goroutines, Files int
	Memory            int64 // resident, in bytes
	Heap              int64 // in bytes, alive after a collection; 0 if it was not read
}

func (v vitals) most(w vitals) vitals {
	return vitals{max(v.Goroutines, w.Goroutines), max(v.Files, w.Files), max(v.Memory, w.Memory), max(v.Heap, w.Heap)}
}

// kernelVitals are those that the kernel knows. An error says that the service is
// gone.
func (s *service) kernelVitals() (v vitals, err error) {
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.proc.PID()))
	if err != nil {
		return v, err
	}
	v.Files = len(files)
	v.Memory, err = s.status("VmRSS")
	return v, err
}

// peak is the most memory that was ever resident.
func (s *service) peak() (int64, error) { return s.status("VmHWM") }

// status is a figure of /proc/PID/status, in bytes.
func (s *service) status(name string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.proc.PID()))
	if err != nil {
		return 0, err
	}
	m := regexp.MustCompile(name + `:\s+(\d+) kB`).FindSubmatch(text)
	if m == nil {
		return 0, errors.New("the process is gone")
	}
	kib, err := strconv.ParseInt(string(m[1]), 10, 64)
	return kib << 10, err
}

// goroutines reads the list of profiles, for which their stacks are not walked.
func (s *service) goroutines() (int, error) {
	text, err := s.get("http://" + s.debug + "/debug/pprof/")
	if err != nil {
		return 0, err
	}
	m := regexp.MustCompile(`<td>(\d+)</td><td><a href='goroutine\?debug=1'>`).FindStringSubmatch(text)
	if m == nil {
		return 0, errors.New("the list of profiles does not count goroutines")
	}
	return strconv.Atoi(m[1])
}

// liveBytes sums figures of the heap's profile, such as HeapAlloc, after a collection.
func (s *service) liveBytes(figures ...string) (sum int64, err error) {
	profile, err := s.get("http://" + s.debug + "/debug/pprof/heap?gc=1&debug=1")
	if err != nil {
		return 0, err
	}
	for _, name := range figures {
		m := regexp.MustCompile(`(?m)^# ` + name + ` = (\d+)`).FindStringSubmatch(profile)
		if m == nil {
			return 0, fmt.Errorf("the profile of the heap has no %s", name)
		}
		n, err := strconv.ParseInt(m[1], 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// vitals are all, after a collection.
func (s *service) vitals() (v vitals, err error) {
	heap, err := s.liveBytes("HeapAlloc")
	if err != nil {
		return v, err
	}
	goroutines, err := s.goroutines()
	if err != nil {
		return v, err
	}
	if v, err = s.kernelVitals(); err != nil {
		return v, err
	}
	v.Goroutines, v.Heap = goroutines, heap
	return v, nil
}

// lines are those of the log.
func (s *service) lines() []string { return strings.Split(s.log(), "\n") }
