// Package bench calls a server of Envoy's RateLimitService v3 and measures rate, latency, answers and CPU time.
//
// The generator often shares the machine with the server, so a call costs it little: requests are marshalled before the
// run, and only the overall code of an answer is read. What remains is grpc-go's client.
package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// Config configures a run.
type Config struct {
	Addr         string                           // host:port or unix:///path; required
	Credentials  credentials.TransportCredentials // for TLS; nil: plain text
	Client       Client                           // makes the calls; nil: grpc-go's client
	FreshHeaders bool                             // sends a new traceparent and a new x-request-id with each call
	Connections  int                              // how many to open, 1 to 10,000
	// InFlight is the largest number of calls under way on each connection; all connections together have at most 10,000.
	InFlight int
	// Rate is how many calls are due per second, however long they take (an open loop), at most 1,000,000. 0: each call
	// starts when the one before it ends (a closed loop).
	Rate float64
	// Duration and Requests end the run, whichever comes first; 0 is no limit. They do not count the warmup.
	Duration time.Duration
	Requests uint64
	Warmup   time.Duration // of calls that are not measured, before the run; 0: no warmup
	Timeout  time.Duration // bounds each call from its start
	// Linger is how long the connections stay open, idle, after the run, so that the memory of the server can be measured.
	Linger time.Duration
	Seed   uint64 // chooses the keys; equal seeds give equal requests

	Workload     string // one of Workloads
	Domain, Key  string // in all requests of a workload
	Keys         int    // the number of values of Key, 1 to 1,000,000
	RequestsFile string // has the requests, instead of a workload

	Processes []Process      // whose CPU time is measured, besides this one
	Progress  func(Progress) // is called once a second; may be nil
}

// Process is a process on this machine. Name is its name in the result.
type Process struct {
	Name string
	PID  int
}

// Progress is the state of a run.
type Progress struct {
	Warmup   bool
	Elapsed  time.Duration
	Requests uint64 // the number of calls that ended so far, with and without errors
	Errors   uint64
	Rate     float64 // how many calls ended per second since the last report
}

// With more than these, a run would measure the memory and file descriptors of the generator.
const (
	maxConnections = 10_000
	maxInFlight    = 10_000
	maxAllInFlight = 1_000_000 // for all connections together.
	maxRate        = 1e6
	maxRequests    = 1e10
	maxDuration    = 24 * time.Hour
	maxTimeout     = 10 * time.Minute
	maxKeys        = 1_000_000
	maxNameBytes   = 1024 // bounds the domain, and the key.
)

// validate returns all problems of the fields.
func (c *Config) validate() error {
	var problems []error
	require := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	inRange := func(what string, n, most int) {
		require(n >= 1 && n <= most, "%s %d: must be from 1 to %d", what, n, most)
	}
	durationInRange := func(what string, d, least, most time.Duration) {
		require(d >= least && d <= most, "%s %v: must be from %v to %v", what, d, least, most)
	}
	inRange("connections", c.Connections, maxConnections)
	inRange("in flight", c.InFlight, maxInFlight)
	durationInRange("duration", c.Duration, 0, maxDuration)
	durationInRange("warmup", c.Warmup, 0, maxDuration)
	durationInRange("linger", c.Linger, 0, maxDuration)
	durationInRange("timeout", c.Timeout, time.Microsecond, maxTimeout)
	require(len(problems) > 0 || c.Connections*c.InFlight <= maxAllInFlight,
		"%d connections with %d calls in flight each: must be %d together at most", c.Connections, c.InFlight, maxAllInFlight)
	// A rate of NaN fails.
	require(c.Rate >= 0 && c.Rate <= maxRate, "rate %v: must be above 0 and at most %v", c.Rate, maxRate)
	require(c.Requests <= maxRequests, "requests %d: must be at most %.0f", c.Requests, maxRequests)
	require(c.Requests > 0 || c.Duration != 0, "neither a duration nor a number of requests ends the run")
	if c.RequestsFile == "" {
		inRange("keys", c.Keys, maxKeys)
		inRange("bytes in domain", len(c.Domain), maxNameBytes)
		inRange("bytes in key", len(c.Key), maxNameBytes)
	}
	names := make(map[string]bool)
	for _, p := range c.Processes {
		require(!names[p.Name], "two processes are named %s", p.Name)
		names[p.Name] = true
	}
	return errors.Join(problems...)
}

// Run makes the calls of a valid configuration and returns the result. When ctx ends, no further call starts, and the
// result covers the calls so far. If every call failed, or a process is gone, Run returns both a Result and an error.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	r, err := run(ctx, &cfg)
	if err != nil {
		err = fmt.Errorf("bench: %w", err)
	}
	return r, err
}

var errNothingMeasured = errors.New("ended before anything was measured")

func run(ctx context.Context, cfg *Config) (*Result, error) {
	l, err := newLoad(cfg)
	if err != nil {
		return nil, err
	}
	if _, err := cpuTimes(cfg.Processes); err != nil { // A wrong pid is reported before anything is sent.
		return nil, err
	}
	conns, err := connect(ctx, cfg, l)
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	switch {
	case ctx.Err() != nil:
		return nil, errNothingMeasured
	case err != nil:
		return nil, err
	}
	sleep, done := newSleep()
	defer done()

	runPhase := func(p *Phase) (took time.Duration, tallies []*Tally) {
		p.rate, p.sleep = cfg.Rate, sleep
		loops, tallies := newLoops(conns)
		defer reportProgress(cfg, p.warmup, tallies)()
		return p.run(ctx, loops), tallies
	}
	if cfg.Warmup > 0 {
		// The warmup numbers its calls differently from the run, so it asks for other keys.
		runPhase(&Phase{warmup: true, firstCall: 1 << 63, duration: cfg.Warmup})
	}
	if ctx.Err() != nil {
		return nil, errNothingMeasured
	}
	before, err := cpuTimes(cfg.Processes)
	if err != nil {
		return nil, err
	}
	p := Phase{maxCalls: cfg.Requests, duration: cfg.Duration, lateGrace: cfg.Timeout}
	took, tallies := runPhase(&p)
	after, processGone := cpuTimes(cfg.Processes)

	total := newTally()
	for _, t := range tallies {
		total.merge(t)
	}
	r := newResult(cfg, l, total, took)
	r.Interrupted = ctx.Err() != nil
	select {
	case <-ctx.Done():
	case <-time.After(cfg.Linger):
	}
	if r.OpenLoop != nil {
		r.OpenLoop.Unsent = p.unsent
	}
	r.setCPU(cfg.Processes, before, after)
	switch {
	case processGone != nil:
		return r, processGone
	case r.Requests == 0:
		return r, errors.New("no call was made")
	case total.answered() == 0:
		return r, fmt.Errorf("every call failed, the first with %s", r.FirstError)
	}
	return r, nil
}

// maxTallies bounds the memory of tallies, which take 200 KB each.
const maxTallies = 64

// newLoops returns the loops of all connections, and a tally for each connection, or for several if there are many.
// Tallies of each call in flight would exceed the caches of the CPU, and calls of a connection rarely use its tally at
// the same instant.
func newLoops(conns []Connection) (loops []Loop, tallies []*Tally) {
	for i, c := range conns {
		if i < maxTallies {
			tallies = append(tallies, newTally())
		}
		loops = append(loops, c.Loops(tallies[i%maxTallies])...)
	}
	return loops, tallies
}

// reportProgress calls cfg.Progress once a second until stop is called.
func reportProgress(cfg *Config, warmup bool, tallies []*Tally) (stop func()) {
	if cfg.Progress == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var reporter sync.WaitGroup
	reporter.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		started := time.Now()
		last, lastAt := uint64(0), started
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			now := time.Now()
			p := Progress{Warmup: warmup, Elapsed: now.Sub(started)}
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
