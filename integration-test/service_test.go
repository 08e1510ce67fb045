package integration

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"ratelimit/testbed/harness"
)

const repository = ".." // the repository's root, seen from this package

// client gives up on a request long before the test run does.
var client = &http.Client{Timeout: patience}

func TestMain(m *testing.M) {
	harness.RunTests(m, func() error {
		harness.RunAtOnce(4)
		return nil
	})
}

// service is a running rate limit service.
type service struct {
	*process
	http, grpc, debug, prometheus string // host:port; prometheus only when it is on
	divvy                         string // the same; "": not known yet
	health, resp                  string // only when they are on
}

// startService starts the service and waits until it is ready.
func startService(t *testing.T, env ...string) *service {
	t.Helper()
	s := runService(t, env...)
	s.awaitReady(t)
	return s
}

// startServiceFrom is startService with the rules in dir, by its flag for that.
func startServiceFrom(t *testing.T, dir string, env ...string) *service {
	t.Helper()
	cmd := serviceCommand(t, env...)
	cmd.Args = append(cmd.Args, "--config", dir)
	s := &service{process: start(t, "ratelimit", cmd)}
	s.awaitReady(t)
	return s
}

// configFlag returns the directory that the arguments of a container name: serve
// --config DIR.
func configFlag(t *testing.T, args []string) string {
	t.Helper()
	if len(args) != 3 || args[0] != "serve" || args[1] != "--config" {
		t.Fatalf("arguments %q, want serve --config DIR", args)
	}
	return args[2]
}

// awaitReady waits until the service says that it is ready, and where.
func (s *service) awaitReady(t *testing.T) {
	t.Helper()
	s.until(t, "the service is ready", func() error {
		if !s.readLog(t) {
			return errors.New("it does not say so")
		}
		return nil
	})
	if s.http == "" || s.grpc == "" {
		t.Fatalf("ready, and listening on %q for HTTP and %q for gRPC", s.http, s.grpc)
	}
}

// runService starts the service and does not wait for anything.
func runService(t *testing.T, env ...string) *service {
	t.Helper()
	return &service{process: start(t, "ratelimit", serviceCommand(t, env...))}
}

// serviceCommand is the service on the memory store with free ports. It sees
// no variables but env ("NAME=value", stronger than the ones set here) and so
// nothing of the machine it is tested on.
func serviceCommand(t *testing.T, env ...string) *exec.Cmd {
	t.Helper()
	path, err := harness.BuiltService()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "serve")
	cmd.Env = append([]string{
		"HOST=127.0.0.1", "PORT=0",
		"GRPC_HOST=127.0.0.1", "GRPC_PORT=0",
		"DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0",
		"USE_STATSD=false",
	}, env...)
	return cmd
}

// readLog takes the addresses from the log so far, and reports whether it says
// that the service is ready.
func (s *service) readLog(t *testing.T) (ready bool) {
	t.Helper()
	addrs, ready := harness.ReadLog(s.log(t))
	s.http, s.grpc, s.debug, s.prometheus = addrs["http"], addrs["grpc"], addrs["debug"], addrs["prometheus"]
	s.divvy, s.health, s.resp = addrs["divvy"], addrs["health"], addrs["resp"]
	return ready
}

// healthcheck is what /healthcheck answers.
func (s *service) healthcheck(t *testing.T) (status int, text string) {
	t.Helper()
	resp, err := client.Get("http://" + s.http + "/healthcheck")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// ask sends a request to /json; see request for how descriptors are written.
func (s *service) ask(t *testing.T, domain string,
	descriptors ...string,
) (status int, answer *rlsv3.RateLimitResponse) {
	t.Helper()
	body, err := protojson.Marshal(request(domain, descriptors...))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Post("http://"+s.http+"/json", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	answer = new(rlsv3.RateLimitResponse)
	if err := protojson.Unmarshal(text, answer); err != nil {
		t.Fatalf("%s to %s: %v in %q", resp.Status, body, err, text)
	}
	return resp.StatusCode, answer
}

// run runs another command of the service's binary and returns its output.
func run(args ...string) (string, error) {
	path, err := harness.BuiltService()
	if err != nil {
		return "", err
	}
	out, err := exec.Command(path, args...).CombinedOutput()
	return string(out), err
}

// request is a RateLimitRequest. Descriptors are written "key=value,key=value".
func request(domain string, descriptors ...string) *rlsv3.RateLimitRequest {
	r := &rlsv3.RateLimitRequest{Domain: domain}
	for _, text := range descriptors {
		d := new(commonv3.RateLimitDescriptor)
		for entry := range strings.SplitSeq(text, ",") {
			key, value, _ := strings.Cut(entry, "=")
			d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: key, Value: value})
		}
		r.Descriptors = append(r.Descriptors, d)
	}
	return r
}

// ruleDir is the directory of rules that a test's service reads.
type ruleDir struct {
	root  string // for RUNTIME_ROOT
	files string // where the files are
}

// newRuleDir makes an empty one.
func newRuleDir(t *testing.T) ruleDir {
	t.Helper()
	root := t.TempDir()
	d := ruleDir{root: root, files: filepath.Join(root, "ratelimit", "config")}
	if err := os.MkdirAll(d.files, 0o755); err != nil {
		t.Fatal(err)
	}
	return d
}

// env points the service to the directory.
func (d ruleDir) env() []string {
	return []string{"RUNTIME_ROOT=" + d.root, "RUNTIME_SUBDIRECTORY=ratelimit"}
}

// put makes text the content of the named file in one step, as a deployment
// would: a reader sees the old file or the new one and nothing in between.
func (d ruleDir) put(t *testing.T, name, text string) {
	t.Helper()
	draft := filepath.Join(d.root, name+".draft")
	if err := os.WriteFile(draft, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(draft, filepath.Join(d.files, name)); err != nil {
		t.Fatal(err)
	}
}

// putExample puts a file of examples/ratelimit/config, with each limit's unit
// made a year: a test that counts to a limit must not meet the end of a minute.
func (d ruleDir) putExample(t *testing.T, name string) {
	t.Helper()
	doc := readYAML(t, filepath.Join(repository, "examples/ratelimit/config", name))
	doc.set(t, "unit", "year")
	d.put(t, name, doc.text(t))
}
