package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ratelimit/src/tools/command"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/testfiles"
)

const (
	simulateRules = "domain: d\ndescriptors:\n  - {key: ip, rate_limit: {unit: year, requests_per_unit: 2}}\n"
	simulateLine  = `{"at":"1s","request":{"domain":"d","descriptors":[{"entries":[{"key":"ip","value":"a_b"}]}]}}` + "\n"
)

// simulateFiles writes files into a new directory.
func simulateFiles(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		testfiles.Write(t, path, text)
	}
	return dir
}

// Evicted counters would make decisions wrong, so eviction is an error.
func TestSimulateWithTooLittleMemory(t *testing.T) {
	var in strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&in, `{"at":"1s","request":{"domain":"d","descriptors":[{"entries":[{"key":"ip","value":"%d"}]}]}}`+"\n",
			i)
	}
	dir := simulateFiles(t, map[string]string{"rules.yaml": simulateRules, "requests.jsonl": in.String()})
	code, out, errOut := call(t, "ratelimit", "simulate", "--config", dir+"/rules.yaml", "--memory-max-bytes", "131072",
		dir+"/requests.jsonl")
	if code != command.ExitError || strings.Count(out, "\n") != 20_000 ||
		!strings.Contains(errOut, "so answers may be wrong; raise --memory-max-bytes") {
		t.Errorf("exit %d: %s", code, errOut)
	}
}

// Redis gives the same decisions, and no key is left after any end.
func TestSimulateOnRedis(t *testing.T) {
	t.Parallel()
	single := redistest.Start(t, redistest.Options{Password: "secret"})
	sentinel := redistest.StartSentinel(t, redistest.SentinelOptions{Server: redistest.Options{Password: "secret"}})
	cluster := redistest.StartCluster(t, redistest.ClusterOptions{Server: redistest.Options{Password: "secret"}})
	var many strings.Builder
	for i := range 500 {
		fmt.Fprintf(
			&many, `{"at":"1s","request":{"domain":"d","descriptors":[{"entries":[{"key":"ip","value":"%d"}]}]}}`+"\n", i%200)
	}
	dir := simulateFiles(t, map[string]string{
		"rules.yaml": simulateRules, "many.jsonl": many.String(), "bad.jsonl": many.String() + "x\n", "password": "secret\n",
	})
	rules, password := filepath.Join(dir, "rules.yaml"), filepath.Join(dir, "password")
	for _, tt := range []struct {
		name    string
		args    []string
		servers []*redistest.Server
	}{
		{"single", []string{"--redis-url", "redis://:secret@" + single.Addr}, []*redistest.Server{single}},
		{"sentinel", []string{
			"--redis-type", "sentinel", "--redis-url", sentinel.PrimaryName + "," + strings.Join(sentinel.SentinelAddrs, ","),
			"--redis-auth-file", password,
		}, []*redistest.Server{sentinel.Primary(t)}},
		{
			"cluster",
			[]string{"--redis-type", "cluster", "--redis-url", cluster.Addrs[0], "--redis-auth-file", password},
			cluster.Primaries(t),
		},
	} {
		for _, format := range []string{"v1", "v2"} {
			for file, want := range map[string]int{"many.jsonl": command.ExitOK, "bad.jsonl": command.ExitInput} {
				args := []string{"ratelimit", "simulate", "--config", rules, "--key-format", format, filepath.Join(dir, file)}
				_, memory, _ := call(t, args...)
				code, out, errOut := call(t, append(append(args, "--backend", "redis"), tt.args...)...)
				if code != want || out != memory || strings.Count(out, "\n") != 500 {
					t.Errorf("%s, %s, %s: exit %d, %d lines\n%s", tt.name, format, file, code, strings.Count(out, "\n"), errOut)
				}
				for _, s := range tt.servers {
					if n := s.Do(t, "DBSIZE"); n != int64(0) {
						t.Errorf("%s, %s, %s: %v are left", tt.name, format, file, s.Do(t, "KEYS", "*"))
					}
				}
			}
		}
	}
}

// startSimulate starts a run on Redis that reads its input line by line, sends a first line and waits for the answer.
func startSimulate(t *testing.T, server *redistest.Server) *background {
	t.Helper()
	s := startProgram(t, "ratelimit", "simulate", "--config",
		simulateFiles(t, map[string]string{"rules.yaml": simulateRules}),
		"--backend", "redis", "--redis-url", server.Addr)
	_, _ = io.WriteString(s.in, simulateLine)
	harness.Await(t, 10*time.Second, "a decision", func() error {
		if !strings.HasSuffix(s.out.String(), "\n") {
			return fmt.Errorf("there is none: %s", s.errOut.String())
		}
		return nil
	})
	return s
}

// Ctrl-C removes the keys and writes the decisions so far.
func TestSimulateInterrupted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	server.Do(t, "SET", "mine", "1")
	s := startSimulate(t, server)
	if keys := fmt.Sprint(server.Do(t, "KEYS", "*")); !strings.Contains(keys, "simulate-") {
		t.Errorf("keys on the way: %s", keys)
	}
	if err := s.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if got := <-s.code; got != command.ExitError || !strings.Contains(s.errOut.String(), "simulate: interrupted") ||
		!strings.Contains(s.errOut.String(), "requests: 1;") {
		t.Errorf("exit %d: %s", got, s.errOut.String())
	}
	if keys := fmt.Sprint(server.Do(t, "KEYS", "*")); keys != "[mine]" {
		t.Errorf("keys behind it: %s", keys)
	}
}

// If Redis stops answering, the error names the keys that may be left.
func TestSimulateLosesRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	s := startSimulate(t, server)
	server.Stop()
	_, _ = io.WriteString(s.in, simulateLine)
	if got := <-s.code; got != command.ExitError ||
		!strings.Contains(s.errOut.String(), "simulate: stdin:2: the store did not answer: redis: ") ||
		!strings.Contains(s.errOut.String(), "keys that begin with simulate-") {
		t.Errorf("exit %d: %s", got, s.errOut.String())
	}
}
