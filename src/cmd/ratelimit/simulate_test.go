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
)

const (
	simulateRules = "domain: d\ndescriptors:\n  - {key: ip, rate_limit: {unit: year, requests_per_unit: 2}}\n"
	simulateLine  = `{"at":"1s","request":{"domain":"d","descriptors":[{"entries":[{"key":"ip","value":"a_b"}]}]}}` + "\n"
)

// answered is simulateLine with a recorded answer.
func answered(answer string) string {
	return strings.Replace(simulateLine, "{", `{"answer":"`+answer+`",`, 1)
}

// simulateFiles writes files into a new directory.
func simulateFiles(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestSimulateCommand(t *testing.T) {
	t.Setenv("SHADOW_MODE", "true") // has no effect
	t.Setenv("CACHE_KEY_PREFIX", "x")
	t.Chdir(simulateFiles(t, map[string]string{
		"rules/a.yaml":  simulateRules,
		"twice/a.yaml":  "domain: d\n",
		"twice/b.yaml":  simulateRules,
		"odd/a.yaml":    simulateRules + "  - {key: x, quota_mode: true}\n",
		"bad/a.yaml":    "domain: d\ndescriptors:\n  - {kez: ip}\n",
		"three.jsonl":   simulateLine + simulateLine + simulateLine,
		"bad.jsonl":     simulateLine + "\n{}\n" + simulateLine,
		"instant.jsonl": strings.Replace(simulateLine, "1s", "2025-01-01T00:00:00Z", 1),
		"back.jsonl":    simulateLine + strings.Replace(simulateLine, "1s", "0s", 1),
		"empty.jsonl":   "",
		"right.jsonl":   answered("OK") + simulateLine + answered("OVER_LIMIT"),
		"wrong.jsonl":   answered("OK") + answered("OVER_LIMIT") + answered("ERROR"),
	}))
	over := `{"at":"2026-01-01T00:00:01Z","response":{"overallCode":"OVER_LIMIT"`
	for _, tt := range []struct {
		args  string
		stdin string
		code  int
		lines int
		out   string // is in the output
		err   string // is in the error output
	}{
		{"--config rules three.jsonl", "", 0, 3, over, "\nd.ip  3     2         1"},
		{"--config rules/a.yaml", simulateLine, 0, 1, `"key":"d_ip_a_b_"`, "requests: 1; OK: 1"},
		{"--config rules -", simulateLine, 0, 1, `"remaining":1`, "requests: 1; OK: 1"},
		{"--config=rules --key-format V2 -", simulateLine, 0, 1, `"key":"d_ip_a%5Fb_"`, ""},
		{"-config rules -start 2020-02-29T12:00:00.5+01:00", simulateLine, 0, 1, `{"at":"2020-02-29T11:00:01.5Z"`, ""},
		{"--config rules instant.jsonl", "", 0, 1, `{"at":"2025-01-01T00:00:00Z"`, ""},
		{"--config rules --allow-clock-steps back.jsonl", "", 0, 2, `{"at":"2026-01-01T00:00:00Z"`, ""},
		{"--config rules right.jsonl", "", 0, 3, over, "\nanswers as recorded: all 2\n"},
		{"--config rules wrong.jsonl", "", 0, 3, over, "\nanswers as recorded: 1 of 3; the first other one is on line 2\n"},
		{"--config rules empty.jsonl", "", 0, 0, "", "requests: 0;"},
		{"--config twice --merge-domain-configs", simulateLine, 0, 1, `"rule":"ip"`, ""},
		{"--config odd", simulateLine, 0, 1, `"rule":"ip"`, "warning: odd/a.yaml:4:5: quota_mode has no effect"},
		{"--config rules --memory-max-bytes 131072", simulateLine, 0, 1, `"rule":"ip"`, ""},

		{"--config rules bad.jsonl", "", 2, 1, `"remaining":1`, "\nbad.jsonl:3: there is no \"at\"; add "},
		{"--config rules", "\n\nx", 2, 0, "", "stdin:3: the line is not JSON"},
		{"--config rules back.jsonl", "", 2, 1, "", "\nback.jsonl:2: the clock steps back"},
		{"--config bad", simulateLine, 2, 0, "", "error: bad/a.yaml:3:6: unknown key \"kez\"; did you mean `key`?"},
		{"--config twice", simulateLine, 2, 0, "", "MERGE_DOMAIN_CONFIG"},
		{"--config none", simulateLine, 2, 0, "", "error: none: "},
		{"--config rules none.jsonl", "", 2, 0, "", "ratelimit: simulate: open none.jsonl"},
		{"--config rules three.jsonl back.jsonl", "", 2, 0, "", "simulate: accepts at most 1 arg"},
		{"three.jsonl", "", 2, 0, "", "simulate: name rule files, or a directory of them, with --config"},
		{"--config rules --what", "", 2, 0, "", "simulate: unknown flag: --what"},
		{"--config rules --start today", "", 2, 0, "", "simulate: --start today: no instant as RFC 3339 has it; write "},
		{"--config rules --start 1969-01-01T00:00:00Z", "", 2, 0, "", "outside the years 1970 to 2149"},
		{"--config rules --key-format v3", "", 2, 0, "", "--key-format v3: write v1 or v2"},
		{"--config rules --backend disk", "", 2, 0, "", "--backend disk: write memory or redis"},
		{"--config rules --redis-url localhost:1", "", 2, 0, "", "--redis-url: it goes with --backend redis"},
		{"--config rules --backend redis", "", 2, 0, "", "--redis-url=: write host:port"},
		{"--config rules --backend redis --redis-url redis://:secret@", "", 2, 0, "", "--redis-url=…: it begins like a URL"},
		{
			"--config rules --backend redis --redis-type ring --redis-url a:1", "", 2, 0, "",
			"--redis-type=ring: write single, sentinel or cluster",
		},
		{"--config rules --memory-max-bytes 1", "", 2, 0, "", "--memory-max-bytes 1: write 131072 or more"},

		{
			"--config rules --backend redis --redis-url 127.0.0.1:1", simulateLine, 1, 0, "",
			"simulate: no answer from Redis: redis: 127.0.0.1:1: ",
		},
		{"--config rules .", "", 1, 0, "", "simulate: .:1: read .: "},
	} {
		code, out, errOut := callWithInput(t, tt.stdin,
			append([]string{"ratelimit", "simulate"}, strings.Fields(tt.args)...)...)
		if n := strings.Count(out, "\n"); code != tt.code || n != tt.lines || !strings.Contains(out, tt.out) ||
			!strings.Contains(errOut, tt.err) {
			t.Errorf("%s: exit %d, %d lines\n%s%s\nwant exit %d, %d lines, %s\n%s", tt.args, code, n, out, errOut, tt.code,
				tt.lines, tt.out, tt.err)
		}
		if strings.Contains(errOut, "secret") {
			t.Errorf("%s: a password is shown: %s", tt.args, errOut)
		}
	}
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
		!strings.Contains(errOut, "so decisions may be wrong; raise --memory-max-bytes") {
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
