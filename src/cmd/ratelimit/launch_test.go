package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"ratelimit/src/service"
	"ratelimit/src/service/logging"
	"ratelimit/testbed/harness"
)

// sharedBuffer is a buffer that several goroutines may write and read.
type sharedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *sharedBuffer) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *sharedBuffer) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// running is a service that runs in this process.
type running struct {
	t *testing.T
	*service.Service
	rules string // the file
	log   sharedBuffer
}

const oneRule = `
domain: d
descriptors:
  - key: ip
    rate_limit: {unit: year, requests_per_unit: 2}
`

// launch starts a service on free ports with text as its rules. Variables are NAME=value
// and replace those that launch sets.
func launch(t *testing.T, text string, variables ...string) *running {
	t.Helper()
	r := &running{t: t, rules: filepath.Join(t.TempDir(), "rules.yaml")}
	r.write(text)
	environ := append([]string{
		"HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1", "DIVVY_HOST=127.0.0.1",
		"PORT=0", "GRPC_PORT=0", "DEBUG_PORT=0", "RUNTIME_DEBOUNCE=10ms", "DISABLE_STATS=true",
	}, variables...)
	cfg, err := service.ServeConfig(environ, r.rules)
	if err != nil {
		t.Fatal(err)
	}
	built, stopped := make(chan error), make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		stopped <- logging.WithOutput(io.Discard, &r.log, func(o *logging.Output) (err error) {
			cfg.Output = o
			r.Service, err = service.New(cfg)
			built <- err
			if err == nil {
				err = r.Run(ctx)
			}
			return err
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Logf("the service ended with %v", err)
		}
		if t.Failed() {
			t.Logf("log:\n%s", r.log.String())
		}
	})
	if err := <-built; err != nil {
		t.Fatal(err)
	}
	return r
}

// write replaces the rules by rename, as careful editors do.
func (r *running) write(text string) {
	r.t.Helper()
	if err := os.WriteFile(r.rules+".new", []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(r.rules+".new", r.rules); err != nil {
		r.t.Fatal(err)
	}
}

// until waits for ok; what describes it.
func (r *running) until(what string, ok func() bool) {
	r.t.Helper()
	harness.Until(r.t, what, ok) // the cleanup of launch shows the log
}

func (r *running) address(port string) string { return r.Addr(port).String() }

// get returns the status and the body of a page; 0 if there is no answer.
func (r *running) get(port, path string) (int, string) {
	resp, err := http.Get("http://" + r.address(port) + path)
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

// ask asks about ip in domain d.
func (r *running) ask(ip string) int {
	r.t.Helper()
	code, err := r.post("ip", ip)
	if err != nil {
		r.t.Fatal(err)
	}
	return code
}

// post asks about one entry in domain d.
func (r *running) post(key, value string) (int, error) {
	body := fmt.Sprintf(`{"domain":"d","descriptors":[{"entries":[{"key":%q,"value":%q}]}]}`, key, value)
	resp, err := http.Post("http://"+r.address("http")+"/json", "application/json", strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return resp.StatusCode, nil
}

func (r *running) healthy() bool {
	code, _ := r.get("http", "/healthcheck")
	return code == http.StatusOK
}

func (r *running) logged(text string) func() bool {
	return func() bool { return strings.Contains(r.log.String(), text) }
}
