package main

import (
	"fmt"
	"slices"
	"strconv"
	"time"
)

// testCase is one row of the first table: a store, an engine of the service, and what they are asked.
type testCase struct {
	Name   string `json:"name"`
	Store  store  `json:"store"`
	Engine string `json:"engine"` // a value of GRPC_ENGINE
	load
	Target float64 `json:"target,omitempty"` // the most that the ratio may be; 0: none
	want   string  // what every call is answered
}

// load is what the generator does.
type load struct {
	Client      string        `json:"client"`   // of integration-test/load
	Workload    string        `json:"workload"` // likewise
	Connections int           `json:"connections"`
	InFlight    int           `json:"in_flight"` // on each connection
	Fresh       bool          `json:"fresh_headers,omitempty"`
	Eager       bool          `json:"eager,omitempty"`    // a call starts as soon as one is answered, in a write of its own.
	Rate        float64       `json:"rate,omitempty"`     // 0: the next call starts when one ends
	Requests    int           `json:"requests,omitempty"` // 0: as many as fit in --duration
	Linger      time.Duration `json:"linger,omitempty"`
	Warmup      time.Duration `json:"warmup,omitempty"` // the least warm-up of this load.
}

// store says which of our services a case is about.
type store string

const (
	inMemory     store = "memory"
	inRedis      store = "redis"
	inLocalCache store = "local-cache" // in front of Redis, for limits that are used up
	inFarRedis   store = "far-redis"   // Redis behind a delay of farAway
	inLeases     store = "leases"      // leased counters of Redis
)

// The engines. Targets are those of the first.
const (
	h2     = "h2"
	grpcGo = "grpc-go"
)

const (
	connections = 2
	keys        = 100_000 // values that uniform and multi ask about
	lean        = "lean"  // the client of integration-test/load that leaves the cores to the server
	farAway     = 2 * time.Millisecond
	// upstream is what a call costs envoyproxy/ratelimit on Redis, as a multiple of the empty server's. It was measured
	// once, on a machine of two cores, and is in the plot for scale.
	upstream = 9
)

// cases are all cases, without engines.
var cases = []testCase{
	newCase("memory, 100k keys", inMemory, "uniform", 32, 0.12),
	newCase("memory, 100k keys", inMemory, "uniform", 256, 0.08),
	newCase("memory, 100k keys", inMemory, "uniform", 1, 0.6),
	with(newCase("memory, fresh headers", inMemory, "uniform", 32, 0.2), func(c *testCase) { c.Fresh = true }),
	newCase("Redis, 100k keys", inRedis, "uniform", 32, 0.5),
	newCase("Redis, 100k keys", inRedis, "uniform", 256, 0.28),
	newCase("Redis, 100k keys", inRedis, "uniform", 1, 2.2),
	newCase("Redis, one hot key", inRedis, "hot", 32, 0.32),
	newCase("Redis, 4 descriptors", inRedis, "multi", 32, 1),
	with(newCase("memory, one write a call", inMemory, "uniform", 32, 0), eager),
	with(newCase("Redis, one write a call", inRedis, "uniform", 32, 0.45), eager),
	with(newCase("Redis, hot key, one write a call", inRedis, "hot", 32, 0.32), eager),
	with(newCase("Redis, 4 descriptors, one write a call", inRedis, "multi", 32, 1), eager),
	with(newCase("Redis, grpc-go client", inRedis, "uniform", 32, 0.9), func(c *testCase) { c.Client = grpcGo }),
	newCase("leased, 100k keys", inLeases, "uniform", 32, 0.16),
	newCase("leased, 100k keys", inLeases, "uniform", 1, 0.65),
	newCase("leased, Zipf", inLeases, "zipf", 32, 0.16),
	newCase("leased, one hot key", inLeases, "hot", 32, 0.14),
	newCase("leased, 4 descriptors", inLeases, "multi", 32, 0.4),
	with(newCase("over limit, local cache", inLocalCache, "overlimit", 32, 0.15),
		func(c *testCase) { c.want = "OVER_LIMIT" }),
}

func newCase(name string, s store, workload string, inFlight int, target float64) testCase {
	return testCase{
		Name: name, Store: s, Target: target, want: "OK",
		load: load{Client: lean, Workload: workload, Connections: connections, InFlight: inFlight},
	}
}

func eager(c *testCase) { c.Eager = true }

func with(c testCase, change func(*testCase)) testCase {
	change(&c)
	return c
}

// rules let everything pass but the key of the workload overlimit. An hour's
// windows rarely end during a run, so few keys are new to the store; the year is
// there because a window's first call would be OK.
const rules = `domain: bench
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 1000000000}
  - key: user
    value: overlimit
    rate_limit: {unit: year, requests_per_unit: 1}
`

func (c *testCase) title() string { return c.Name + ", " + c.shape() }

func (l *load) shape() string { return fmt.Sprintf("%d x %d", l.Connections, l.InFlight) }

// args are the arguments of the generator.
func (l *load) args() []string {
	args := []string{
		"--json", "--client", l.Client, "--workload", l.Workload, "--keys", strconv.Itoa(keys),
		"--connections", strconv.Itoa(l.Connections), "--in-flight", strconv.Itoa(l.InFlight), "--linger", l.Linger.String(),
	}
	if l.Fresh {
		args = append(args, "--fresh-headers")
	}
	if l.Eager {
		args = append(args, "--eager")
	}
	if l.Rate > 0 {
		args = append(args, "--rate", fmt.Sprintf("%.0f", l.Rate))
	}
	if l.Requests > 0 {
		args = append(args, "--requests", strconv.Itoa(l.Requests))
	}
	return args
}

// ofEngines returns each case once for each engine. Only h2 has targets.
func ofEngines(list []testCase, engines []string) (all []testCase) {
	for _, c := range list {
		for _, e := range engines {
			c := c
			if c.Engine = e; e != h2 {
				c.Target = 0
			}
			all = append(all, c)
		}
	}
	return all
}

func withoutRedis(list []testCase) []testCase {
	return slices.DeleteFunc(slices.Clone(list), func(c testCase) bool { return c.Store != inMemory })
}
