package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ratelimit/src/tools/bench"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

// BenchmarkCandidateCost compares the CPU time of a gRPC call, that of Redis included, without candidate rules, with
// equal ones, with ones that have other numbers, with ones that have other windows, and with ones that have three
// windows each. The services take turns, so that other work on the machine slows all of them alike. It reports medians.
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
				for _, candidate := range []string{
					"", live, strings.Replace(live, "1000000000", "999999999", 1),
					strings.Replace(live, "hour", "day", 1), three,
				} {
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

// startBenched starts the binary with live rules in root/config and candidate rules, and Redis if that is the store. It
// returns the arguments of `ratelimit bench` that name the service and its processes.
func startBenched(b *testing.B, root, store, live, candidate string) []string {
	b.Helper()
	s := harness.NewService(b, "DISABLE_STATS=true", "LOG_LEVEL=info", "RUNTIME_ROOT="+root,
		"RUNTIME_CANDIDATE_SUBDIRECTORY=next")
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
	var args []string
	if store == "redis" {
		redis := redistest.Start(b, redistest.Options{})
		s.Env = append(s.Env, "BACKEND_TYPE=redis", "REDIS_TIMEOUT=5s", "REDIS_URL="+redis.Addr)
		args = append(args, "--pid", fmt.Sprintf("redis=%d", redis.PID()))
	}
	s.Start(b)
	harness.Until(b, "candidate rules are loaded", func() bool {
		text, err := os.ReadFile(s.Log)
		return err == nil && (candidate == "" || bytes.Contains(text, []byte("candidate rules loaded")))
	})
	return append(args, "--pid", fmt.Sprintf("ratelimit=%d", s.PID()), "--address", s.Addrs["grpc"])
}

// microsPerCall sends calls for a second and returns the CPU time of one, in microseconds.
func microsPerCall(b *testing.B, workload string, inFlight int, args []string) float64 {
	b.Helper()
	path, err := harness.BuiltLoad()
	if err != nil {
		b.Fatal(err)
	}
	out, err := exec.Command(path, append([]string{
		"--json", "--client", "lean", "--workload", workload, "--keys", "100000", "--connections", "2", "--in-flight",
		fmt.Sprint(inFlight),
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
