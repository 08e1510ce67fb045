package integration

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"ratelimit/src/tools/bench"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

// BenchmarkLeasesFarStore measures the durations of calls on 100 leased counters, whose limit has room, with a Redis
// whose replies come 2 ms or 80 ms late. Each measurement covers several windows, as the first hits of a window may
// wait for Redis. It reports medians, in milliseconds, and which share of the hits waited.
func BenchmarkLeasesFarStore(b *testing.B) {
	for _, away := range []time.Duration{2 * time.Millisecond, 80 * time.Millisecond} {
		for _, window := range []time.Duration{time.Second, 10 * time.Second, time.Minute} {
			for _, rate := range []int{1_000, 20_000} {
				b.Run(fmt.Sprintf("away=%v/window=%v/rate=%d", away, window, rate), func(b *testing.B) {
					load, asked := startFarLeases(b, away, window)
					var p50, p99 []float64
					load(rate, window) // The first hits of all counters wait.
					calls, before := uint64(0), asked()
					for b.Loop() {
						r := load(rate, max(4*time.Second, window*5/4))
						calls += r.Requests
						p50 = append(p50, float64(r.Latency.P50)/1000)
						p99 = append(p99, float64(r.Latency.P99)/1000)
						if r.Answers["OK"] != r.Requests || r.OpenLoop.Unsent > 0 {
							b.Errorf("of %d calls some were not admitted: %v, %v %s; %d were not sent", r.Requests, r.Answers, r.Errors,
								r.FirstError, r.OpenLoop.Unsent)
						}
					}
					slices.Sort(p50)
					slices.Sort(p99)
					b.ReportMetric(0, "ns/op") // It says nothing here.
					b.ReportMetric(p50[len(p50)/2], "p50-ms")
					b.ReportMetric(p99[len(p99)/2], "p99-ms")
					b.ReportMetric(100*(asked()-before)/float64(calls), "waited-%")
				})
			}
		}
	}
}

// startFarLeases starts the service with a Redis that is away. load sends calls, and asked returns how many hits were
// sent to Redis.
func startFarLeases(
	b *testing.B, away, window time.Duration,
) (load func(rate int, d time.Duration) (r bench.Result), asked func() float64) {
	b.Helper()
	proxy := harness.StartProxy(b, redistest.Start(b, redistest.Options{}).Addr)
	proxy.Latency(away)
	s := harness.NewService(b, "DISABLE_STATS=true", "BACKEND_TYPE=redis", "REDIS_TIMEOUT=5s", "REDIS_URL="+proxy.Addr)
	s.WriteRules(b, "bench.yaml", fmt.Sprintf("domain: bench\ncounting: leased\ndescriptors:\n"+
		"- {key: user, rate_limit: {period: %v, requests_per_unit: 100000000}}\n", window))
	s.Start(b)
	path, err := harness.BuiltLoad()
	if err != nil {
		b.Fatal(err)
	}
	load = func(rate int, d time.Duration) (r bench.Result) {
		out, err := exec.Command(path, "--json", "--client", "lean", "--workload", "uniform", "--keys", "100",
			"--connections", "2", "--in-flight", "2000", "--warmup", "1ms", "--rate", fmt.Sprint(rate), "--duration", d.String(),
			"--address", s.Addrs["grpc"]).Output()
		if err != nil || json.Unmarshal(out, &r) != nil {
			b.Fatalf("%v: %s", err, out)
		}
		return r
	}
	asked = func() (n float64) {
		text, err := get("http://" + s.Addrs["debug"] + "/stats")
		if _, line, found := strings.Cut(string(text), "ratelimit.leases.sent: "); err != nil || !found {
			b.Fatalf("/stats: %v\n%s", err, text)
		} else if _, err := fmt.Sscan(line, &n); err != nil {
			b.Fatal(err)
		}
		return n
	}
	return load, asked
}

// BenchmarkLeasesCommands reports how many commands Redis had for each decision, those in scripts included, and which
// share of a limit that is asked for all the time was used. Zipf is one replica and 100,000 counters, whose limit has
// room, after a minute; hot is three replicas and one counter of 500,000 a second. Callers have 20 ms, as Envoy's
// default is.
func BenchmarkLeasesCommands(b *testing.B) {
	for name, c := range map[string]struct {
		replicas, limit int
		unit, workload  string
		warmup, measure time.Duration
	}{
		"zipf": {1, 1_000_000_000, "hour", "zipf", time.Minute, 20 * time.Second},
		"hot":  {3, 500_000, "second", "hot", 3 * time.Second, 20 * time.Second},
	} {
		b.Run(name, func(b *testing.B) {
			redis := redistest.Start(b, redistest.Options{})
			path, err := harness.BuiltLoad()
			if err != nil {
				b.Fatal(err)
			}
			var all []*harness.Service
			for range c.replicas {
				s := harness.NewService(b, "DISABLE_STATS=true", "BACKEND_TYPE=redis", "REDIS_TIMEOUT=5s", "REDIS_URL="+redis.Addr,
					"LOCAL_CACHE_SIZE_IN_BYTES=1048576")
				s.WriteRules(b, "bench.yaml", fmt.Sprintf("domain: bench\ncounting: leased\ndescriptors:\n"+
					"- {key: user, rate_limit: {unit: %s, requests_per_unit: %d}}\n", c.unit, c.limit))
				s.Start(b)
				all = append(all, s)
			}
			commands := func() (n float64) {
				_, line, _ := strings.Cut(fmt.Sprint(redis.Do(b, "INFO", "stats")), "total_commands_processed:")
				if _, err := fmt.Sscan(line, &n); err != nil {
					b.Fatal(err)
				}
				return n
			}
			load := func(d time.Duration) (requests, admitted uint64) {
				running, outs := make([]*exec.Cmd, len(all)), make([]strings.Builder, len(all))
				for i, s := range all {
					running[i] = exec.Command(path, "--json", "--client", "lean", "--workload", c.workload, "--keys", "100000",
						"--connections", "2", "--in-flight", "32", "--warmup", "1ms", "--duration", d.String(),
						"--address", s.Addrs["grpc"])
					running[i].Stdout = &outs[i]
					if err := running[i].Start(); err != nil {
						b.Fatal(err)
					}
				}
				for i, cmd := range running {
					var r bench.Result
					if err := cmd.Wait(); err != nil || json.Unmarshal([]byte(outs[i].String()), &r) != nil {
						b.Fatalf("%v: %s", err, outs[i].String())
					}
					requests, admitted = requests+r.Requests, admitted+r.Answers["OK"]
				}
				return requests, admitted
			}
			load(c.warmup)
			for b.Loop() {
				before := commands()
				requests, admitted := load(c.measure)
				b.ReportMetric(0, "ns/op") // It says nothing here.
				b.ReportMetric((commands()-before)/float64(requests), "commands/decision")
				b.ReportMetric(float64(requests)/c.measure.Seconds(), "decisions/s")
				if c.replicas > 1 {
					b.ReportMetric(100*float64(admitted)/(float64(c.limit)*c.measure.Seconds()), "used-%")
				}
			}
		})
	}
}
