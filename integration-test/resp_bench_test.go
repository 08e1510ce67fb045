package integration

import (
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

// BenchmarkRESPAgainstRedis compares the CPU time of RATELIMIT and CL.THROTTLE, with counters in memory, with that of
// INCR in redis-server. redis-benchmark sends the commands on 50 connections. The servers take turns, so that other
// work on the machine slows both. It reports medians of the CPU time and of the ratio in each round, and the least
// ratio.
func BenchmarkRESPAgainstRedis(b *testing.B) {
	const commands = 100_000
	redis := redistest.Start(b, redistest.Options{})
	service, port := startBenchedRESP(b)
	_, redisPort, err := net.SplitHostPort(redis.Addr)
	if err != nil {
		b.Fatal(err)
	}
	for _, pipelined := range []int{1, 16} {
		b.Run(fmt.Sprintf("pipelined=%d", pipelined), func(b *testing.B) {
			cost := make(map[string][]float64)
			for b.Loop() {
				n := commands * min(pipelined, 5)
				micros := func(cpu func() time.Duration, port, command string) float64 {
					before := cpu()
					args := []string{"-p", port, "-c", "50", "-P", fmt.Sprint(pipelined), "-n", fmt.Sprint(n), "-r", "100000", "-q"}
					if out, err := exec.Command("redis-benchmark",
						append(args, strings.Fields(command)...)...).CombinedOutput(); err != nil ||
						strings.Contains(string(out), "Error") {
						b.Fatalf("%s: %v\n%s", command, err, out)
					}
					return float64((cpu() - before).Microseconds()) / float64(n)
				}
				incr := micros(redis.CPU, redisPort, "INCR key:__rand_int__")
				cost["INCR-µs"] = append(cost["INCR-µs"], incr)
				for name, command := range map[string]string{
					"RATELIMIT":   "RATELIMIT api user __rand_int__",
					"CL.THROTTLE": "CL.THROTTLE __rand_int__ 15 30 60",
				} {
					ours := micros(service, port, command)
					cost[name+"-µs"] = append(cost[name+"-µs"], ours)
					cost[name+"-ratio"] = append(cost[name+"-ratio"], ours/incr)
				}
			}
			for name, list := range cost {
				slices.Sort(list)
				b.ReportMetric(list[len(list)/2], name)
				if strings.HasSuffix(name, "-ratio") {
					b.ReportMetric(list[0], "least-"+name)
				}
			}
		})
	}
}

// startBenchedRESP starts the service with a rule for users. It returns a function that returns its CPU time, and the
// port.
func startBenchedRESP(b *testing.B) (cpu func() time.Duration, port string) {
	b.Helper()
	p := harness.NewService(b, "DISABLE_STATS=true", "RESP_HOST=127.0.0.1", "RESP_PORT=0")
	p.WriteRules(b, "rules.yaml", "domain: api\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: "+
		"1000000000}}]\n")
	p.Start(b, "resp")
	_, port, err := net.SplitHostPort(p.Addrs["resp"])
	if err != nil {
		b.Fatal(err)
	}
	harness.Until(b, "the service answers", func() bool {
		out, _ := exec.Command("redis-cli", "-p", port, "RATELIMIT", "api", "user", "x").Output()
		return strings.HasPrefix(string(out), "0\n")
	})
	return func() time.Duration {
		d, err := p.CPU()
		if err != nil {
			b.Fatal(err)
		}
		return d
	}, port
}
