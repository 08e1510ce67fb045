package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"ratelimit/src/tools/bench"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

// BenchmarkCandidateCost compares the CPU time of a gRPC call, that of Redis included, without candidate rules, with equal ones, with ones that
// have other numbers, with ones that have other windows, and with ones that have three windows each. The services take turns, so that other work
// on the machine slows all of them alike. It reports medians.
func BenchmarkCandidateCost(b *testing.B) {
	const live = `domain: bench
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 1000000000}
`
	const three = `domain: bench
descriptors:
  - key: user
    rate_limits: [{unit: minute, requests_per_unit: 1000000000}, {unit: day, requests_per_unit: 1000000000}, {unit: day, requests_per_unit: 1000000000, algorithm: sliding_window_counter}]
`
	for _, store := range []string{"memory", "redis"} {
		for _, load := range []struct {
			workload string
			inFlight int
		}{{"uniform", 1}, {"uniform", 32}, {"uniform", 256}, {"multi", 32}} {
			b.Run(fmt.Sprintf("%s/%s/inFlight=2x%d", store, load.workload, load.inFlight), func(b *testing.B) {
				var args [][]string
				for _, candidate := range []string{"", live, strings.Replace(live, "1000000000", "999999999", 1), strings.Replace(live, "hour", "day", 1), three} {
					args = append(args, startBenched(b, b.TempDir(), store, live, candidate))
				}
				cost := make([][]float64, len(args))
				for b.Loop() {
					for i := range args {
						cost[i] = append(cost[i], microsPerCall(b, load.workload, load.inFlight, args[i]))
					}
				}
				median := func(list []float64) float64 {
					slices.Sort(list)
					return list[len(list)/2]
				}
				without := median(cost[0])
				b.ReportMetric(without, "without-µs")
				b.ReportMetric(median(cost[1])/without, "same-ratio")
				b.ReportMetric(median(cost[2])/without, "numbers-ratio")
				b.ReportMetric(median(cost[3])/without, "windows-ratio")
				b.ReportMetric(median(cost[4])/without, "three-ratio")
			})
		}
	}
}

// startBenched starts the binary with live rules in root/config and candidate rules, and Redis if that is the store. It returns the arguments
// of `ratelimit bench` that name the service and its processes.
func startBenched(b *testing.B, root, store, live, candidate string) []string {
	b.Helper()
	for dir, text := range map[string]string{"config": live, "next/config": candidate} {
		dir = filepath.Join(root, dir)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			b.Fatal(err)
		}
		if text == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, "bench.yaml"), []byte(text), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	path, err := harness.BuiltService()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(path, "serve")
	cmd.Env = []string{
		"HOST=127.0.0.1", "PORT=0", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0", "DISABLE_STATS=true",
		"LOG_LEVEL=info", "RUNTIME_ROOT=" + root, "RUNTIME_CANDIDATE_SUBDIRECTORY=next",
	}
	var args []string
	if store == "redis" {
		redis := redistest.Start(b, redistest.Options{})
		cmd.Env = append(cmd.Env, "BACKEND_TYPE=redis", "REDIS_TIMEOUT=5s", "REDIS_URL="+redis.Addr)
		args = append(args, "--pid", fmt.Sprintf("redis=%d", redis.PID()))
	}
	log := filepath.Join(root, "log")
	out, err := os.Create(log)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = out.Close() }() // The program has its own copy.
	if cmd.Stdout, cmd.Stderr = out, out; cmd.Start() != nil {
		b.Fatal("the service does not start")
	}
	b.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() }) // Both fail only if it has ended.
	address := ""
	harness.Until(b, "the service is ready", func() bool {
		text, err := os.ReadFile(log)
		found := grpcAddress.FindSubmatch(text)
		if err != nil || found == nil || !bytes.Contains(text, []byte("msg=ready")) || candidate != "" && !bytes.Contains(text, []byte("candidate rules loaded")) {
			return false
		}
		address = string(found[1])
		return true
	})
	return append(args, "--pid", fmt.Sprintf("ratelimit=%d", cmd.Process.Pid), "--address", address)
}

var grpcAddress = regexp.MustCompile(`msg=listening address="([^"]+)" port=grpc`)

// microsPerCall sends calls for a second and returns the CPU time of one, in microseconds.
func microsPerCall(b *testing.B, workload string, inFlight int, args []string) float64 {
	b.Helper()
	path, err := harness.BuiltLoad()
	if err != nil {
		b.Fatal(err)
	}
	out, err := exec.Command(path, append([]string{
		"--json", "--client", "lean", "--workload", workload, "--keys", "100000", "--connections", "2", "--in-flight", fmt.Sprint(inFlight),
		"--warmup", "300ms", "--duration", "1s",
	}, args...)...).Output()
	var r bench.Result
	if err != nil || json.Unmarshal(out, &r) != nil {
		b.Fatalf("%v: %s", err, out)
	}
	sum := 0.0
	for _, cpu := range r.CPU {
		sum += cpu.PerRequest
	}
	return sum
}
