// Package bench loads a server of Envoy's RateLimitService v3 with calls and
// says how it stood: rate, latency, answers, CPU time.
//
// The generator shares the machine with what it measures, so it spends little
// on a call: requests are marshalled before the run, of an answer only the
// overall code is read. What remains is grpc-go's client.
package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
)

// Config says what is sent to whom, and how fast.
type Config struct {
	// Addr is host:port or unix:///path; required.
	Addr string
	// Credentials for TLS. Defaults to plain text.
	Credentials credentials.TransportCredentials
	// Connections to open, 1 to 1,000.
	Connections int
	// InFlight is how many calls each connection has under way at most; those
	// of all connections together are at most 10,000.
	InFlight int
	// Rate is how many calls a second are due, whatever becomes of them (an
	// open loop), up to 1,000,000. 0: each call starts when the one before it
	// ends (a closed loop).
	Rate float64
	// Duration and Requests end the run, whichever comes first; 0: that one
	// does not. Neither counts the warmup.
	Duration time.Duration
	Requests uint64
	// Warmup is how long calls are made that do not count; 0: none.
	Warmup time.Duration
	// Timeout is how long a call may take once it has started.
	Timeout time.Duration
	// Seed decides which keys are asked about; equal seeds give equal requests.
	Seed uint64

	// Workload says what is asked; see Workloads.
	Workload string
	// Domain and Key are those of the requests that a workload makes.
	Domain, Key string
	// Keys is how many values of Key there are, 1 to 1,000,000.
	Keys int
	// RequestsFile names a file of requests to send instead of a workload's.
	RequestsFile string

	// Processes whose CPU time is taken, besides our own.
	Processes []Process
	// Progress, if set, is told once a second how far the run has come.
	Progress func(Progress)
}

// Process is a process on this machine, and what to call it.
type Process struct {
	Name string
	PID  int
}

// Progress is how far a run has come.
type Progress struct {
	Warmup   bool
	Elapsed  time.Duration
	Requests uint64  // ended so far, Errors among them
	Rate     float64 // requests a second, since the last report
	Errors   uint64
}

// Caps. Beyond them it is memory and file descriptors of the generator that
// are measured.
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
	counts := func(what string, n, most int) error {
		if n < 1 || n > most {
			return fmt.Errorf("%s %d: must be from 1 to %d", what, n, most)
		}
		return nil
	}
	lasts := func(what string, d, least, most time.Duration) error {
		if d < least || d > most {
			return fmt.Errorf("%s %v: must be from %v to %v", what, d, least, most)
		}
		return nil
	}
	problems := []error{
		counts("connections", c.Connections, maxConnections),
		counts("in flight", c.InFlight, maxInFlight),
		lasts("duration", c.Duration, 0, maxDuration),
		lasts("warmup", c.Warmup, 0, maxDuration),
		lasts("timeout", c.Timeout, time.Microsecond, maxTimeout),
	}
	if c.Addr == "" {
		problems = append(problems, errors.New("the address is empty"))
	}
	if n := c.Connections * c.InFlight; errors.Join(problems...) == nil && n > maxInFlight {
		problems = append(problems, fmt.Errorf("%d connections with %d calls in flight each: must be %d together at most", c.Connections, c.InFlight, maxInFlight))
	}
	if !(c.Rate >= 0 && c.Rate <= maxRate) { // also not a number
		problems = append(problems, fmt.Errorf("rate %v: must be above 0 and at most %v", c.Rate, maxRate))
	}
	if c.Requests > maxRequests {
		problems = append(problems, fmt.Errorf("requests %d: must be at most %.0f", c.Requests, maxRequests))
	}
	if c.Requests == 0 && c.Duration == 0 {
		problems = append(problems, errors.New("neither a duration nor a number of requests ends the run"))
	}
	if c.RequestsFile == "" {
		problems = append(problems,
			counts("keys", c.Keys, maxKeys),
			counts("bytes in domain", len(c.Domain), maxText),
			counts("bytes in key", len(c.Key), maxText))
		if !slices.Contains(Workloads, c.Workload) {
			problems = append(problems, fmt.Errorf("workload %q: must be one of %s", c.Workload, strings.Join(Workloads, ", ")))
		}
	}
	names := make(map[string]bool)
	for _, p := range c.Processes {
		if p.Name == "" || p.PID < 1 {
			problems = append(problems, fmt.Errorf("process %q, pid %d: needs a name, and a pid above 0", p.Name, p.PID))
		}
		if names[p.Name] {
			problems = append(problems, fmt.Errorf("two processes are named %s", p.Name))
		}
		names[p.Name] = true
	}
	return errors.Join(problems...)
}

var errEnded = errors.New("bench: ended before anything was measured")

// Run makes the calls and returns what came of them. When ctx ends, no further
// call starts, and the result is that of the run so far. Both a Result and an
// error are returned if calls were made and the result says less than it should:
// every call failed, or a process is gone.
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
			_ = c.Close() // nothing is lost with it
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

	if cfg.Warmup > 0 {
		// Its calls have numbers of their own, so it asks about other keys.
		p := phase{from: 1 << 63, lasts: cfg.Warmup, rate: cfg.Rate, sleep: sleep}
		work, tallies := workers(&cfg, conns, l)
		watched := watch(&cfg, true, tallies)
		p.run(ctx, work)
		watched()
	}
	if ctx.Err() != nil {
		return nil, errEnded
	}

	p := phase{calls: cfg.Requests, lasts: cfg.Duration, rate: cfg.Rate, grace: cfg.Timeout, sleep: sleep}
	work, tallies := workers(&cfg, conns, l)
	before, err := cpuTimes(cfg.Processes)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	watched := watch(&cfg, false, tallies)
	took := p.run(ctx, work)
	watched()
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
	r.charge(cfg.Processes, before, after)
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

// workers makes the callers of all connections, and one tally for each
// connection: one for each caller would spread over more memory than the caches
// hold, and two callers seldom want it in the same instant.
func workers(cfg *Config, conns []*connection, l *load) ([]worker, []*tally) {
	var all []worker
	tallies := make([]*tally, len(conns))
	for i, c := range conns {
		tallies[i] = newTally()
		for range cfg.InFlight {
			all = append(all, worker{call: c.caller(l, cfg.Seed), tally: tallies[i]})
		}
	}
	return all, tallies
}

// watch reports progress once a second until the function it returns is called.
func watch(cfg *Config, warmup bool, tallies []*tally) (stop func()) {
	if cfg.Progress == nil {
		return func() {}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		begun := time.Now()
		last, lastAt := uint64(0), begun
		for {
			select {
			case <-done:
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
	}()
	return func() {
		close(done)
		<-ended
	}
}
