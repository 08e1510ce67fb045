// Package bench calls a server of Envoy's RateLimitService v3 and measures rate, latency, answers and CPU time.
//
// The generator often shares the machine with the server, so a call costs it little: requests are marshalled before the run, and
// only the overall code of an answer is read. What remains is grpc-go's client.
package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// Config configures a run.
type Config struct {
	// Addr is host:port or unix:///path; required.
	Addr string
	// Credentials for TLS. Defaults to plain text.
	Credentials credentials.TransportCredentials
	// Connections to open, 1 to 1,000.
	Connections int
	// InFlight is the largest number of calls under way on each connection, and at most 10,000 on all together.
	InFlight int
	// Rate is how many calls a second are due, however long they take (an open loop), up to 1,000,000. 0: each call starts when
	// the one before it ends (a closed loop).
	Rate float64
	// Duration and Requests end the run, whichever comes first; 0 is no limit. Neither includes the warmup.
	Duration time.Duration
	Requests uint64
	// Warmup is the time before the run with calls that are not measured; 0: none.
	Warmup time.Duration
	// Timeout bounds each call from its start.
	Timeout time.Duration
	// Seed chooses the keys; equal seeds give equal requests.
	Seed uint64

	// Workload is one of Workloads.
	Workload string
	// Domain and Key are those of a workload's requests.
	Domain, Key string
	// Keys is the number of values of Key, 1 to 1,000,000.
	Keys int
	// RequestsFile is a file of requests, instead of a workload.
	RequestsFile string

	// Processes whose CPU time is measured, besides this one.
	Processes []Process
	// Progress, if not nil, is called once a second.
	Progress func(Progress)
}

// Process is a process on this machine, and its name in the result.
type Process struct {
	Name string
	PID  int
}

// Progress is the state of a run.
type Progress struct {
	Warmup   bool
	Elapsed  time.Duration
	Requests uint64  // ended so far, Errors among them
	Rate     float64 // requests a second, since the last report
	Errors   uint64
}

// Beyond these limits a run measures the memory and file descriptors of the generator.
const (
	maxConnections = 1000
	maxInFlight    = 10_000
	maxRate        = 1e6
	maxRequests    = 1e10
	maxDuration    = 24 * time.Hour
	maxTimeout     = 10 * time.Minute
	maxKeys        = 1_000_000
	maxText        = 1024 // bytes of domain and key
)

func (c *Config) check() error {
	var problems []error
	require := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	count := func(what string, n, most int) {
		require(n >= 1 && n <= most, "%s %d: must be from 1 to %d", what, n, most)
	}
	length := func(what string, d, least, most time.Duration) {
		require(d >= least && d <= most, "%s %v: must be from %v to %v", what, d, least, most)
	}
	count("connections", c.Connections, maxConnections)
	count("in flight", c.InFlight, maxInFlight)
	length("duration", c.Duration, 0, maxDuration)
	length("warmup", c.Warmup, 0, maxDuration)
	length("timeout", c.Timeout, time.Microsecond, maxTimeout)
	require(len(problems) > 0 || c.Connections*c.InFlight <= maxInFlight,
		"%d connections with %d calls in flight each: must be %d together at most", c.Connections, c.InFlight, maxInFlight)
	require(c.Addr != "", "the address is empty")
	require(c.Rate >= 0 && c.Rate <= maxRate, "rate %v: must be above 0 and at most %v", c.Rate, maxRate) // false for NaN
	require(c.Requests <= maxRequests, "requests %d: must be at most %.0f", c.Requests, maxRequests)
	require(c.Requests > 0 || c.Duration != 0, "neither a duration nor a number of requests ends the run")
	if c.RequestsFile == "" {
		count("keys", c.Keys, maxKeys)
		count("bytes in domain", len(c.Domain), maxText)
		count("bytes in key", len(c.Key), maxText)
		require(slices.Contains(Workloads, c.Workload), "workload %q: must be one of %s", c.Workload, strings.Join(Workloads, ", "))
	}
	names := make(map[string]bool)
	for _, p := range c.Processes {
		require(p.Name != "" && p.PID >= 1, "process %q, pid %d: needs a name, and a pid above 0", p.Name, p.PID)
		require(!names[p.Name], "two processes are named %s", p.Name)
		names[p.Name] = true
	}
	return errors.Join(problems...)
}

var errEnded = errors.New("bench: ended before anything was measured")

// Run makes the calls and returns the result. When ctx ends, no further call starts, and the result is that of the run so far. If
// every call failed, or a process is gone, Run returns both a Result and an error.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	l, err := newLoad(&cfg)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	if _, err := cpuTimes(cfg.Processes); err != nil { // before anything is sent
		return nil, fmt.Errorf("bench: %w", err)
	}
	conns, err := dial(ctx, &cfg)
	defer func() {
		for _, c := range conns {
			_ = c.Close() // no call is under way
		}
	}()
	switch {
	case ctx.Err() != nil:
		return nil, errEnded
	case err != nil:
		return nil, fmt.Errorf("bench: %w", err)
	}
	sleep, done := newSleep()
	defer done()

	run := func(p *phase) (took time.Duration, tallies []*tally) {
		p.rate, p.sleep = cfg.Rate, sleep
		work, tallies := workers(&cfg, conns, l)
		defer watch(&cfg, p.warmup, tallies)()
		return p.run(ctx, work), tallies
	}
	if cfg.Warmup > 0 {
		// Its calls have other numbers, and so other keys.
		run(&phase{warmup: true, from: 1 << 63, lasts: cfg.Warmup})
	}
	if ctx.Err() != nil {
		return nil, errEnded
	}
	before, err := cpuTimes(cfg.Processes)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	p := phase{calls: cfg.Requests, lasts: cfg.Duration, grace: cfg.Timeout}
	took, tallies := run(&p)
	after, gone := cpuTimes(cfg.Processes)

	total := newTally()
	for _, t := range tallies {
		total.merge(t)
	}
	r := newResult(&cfg, l, total, took)
	r.Interrupted = ctx.Err() != nil
	if r.OpenLoop != nil {
		r.OpenLoop.Unsent = p.unsent
	}
	r.setCPU(cfg.Processes, before, after)
	switch {
	case gone != nil:
		return r, fmt.Errorf("bench: %w", gone)
	case r.Requests == 0:
		return r, errors.New("bench: no call was made")
	case total.answered() == 0:
		return r, fmt.Errorf("bench: every call failed, the first with %s", r.FirstError)
	}
	return r, nil
}

// workers returns the workers of all connections, and a tally for each connection: tallies of each worker would take more memory
// than the caches hold, and workers of a connection rarely use theirs at the same instant.
func workers(cfg *Config, conns []*grpc.ClientConn, l *load) ([]worker, []*tally) {
	var all []worker
	tallies := make([]*tally, len(conns))
	for i, c := range conns {
		tallies[i] = newTally()
		for range cfg.InFlight {
			all = append(all, worker{call: newCaller(c, cfg, l), tally: tallies[i]})
		}
	}
	return all, tallies
}

// watch reports progress once a second until the function it returns is called.
func watch(cfg *Config, warmup bool, tallies []*tally) (stop func()) {
	if cfg.Progress == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var reporter sync.WaitGroup
	reporter.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		begun := time.Now()
		last, lastAt := uint64(0), begun
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			now := time.Now()
			p := Progress{Warmup: warmup, Elapsed: now.Sub(begun)}
			for _, t := range tallies {
				requests, errs := t.counts()
				p.Requests += requests
				p.Errors += errs
			}
			p.Rate = float64(p.Requests-last) / now.Sub(lastAt).Seconds()
			last, lastAt = p.Requests, now
			cfg.Progress(p)
		}
	})
	return func() {
		cancel()
		reporter.Wait()
	}
}
