package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"ratelimit/src/tools/bench"
)

// crowdTitle is the name of the case with many connections.
const crowdTitle = "many connections"

// crowdReport is one engine with many connections on memory: each has one call, then all are idle, then they have calls
// at a fixed rate, and then h2 has bursts: burstCalls calls on each connection, and more as soon as they are answered.
type crowdReport struct {
	Engine      string  `json:"engine"`
	Connections int     `json:"connections"`
	Rate        int     `json:"rate"`               // calls due a second
	Idle        *spread `json:"idle_kib,omitempty"` // KiB of memory of an idle connection
	CPU         *spread `json:"cpu_us,omitempty"`   // µs of a call
	P50         *spread `json:"p50_us,omitempty"`
	P99         *spread `json:"p99_us,omitempty"`
	Unsent      uint64  `json:"unsent"`                 // calls of all rounds that were due and not made
	BurstCPU    *spread `json:"burst_cpu_us,omitempty"` // CPU µs of a call in bursts
	// cores that 100 calls a second on each connection take, in bursts
	BurstCores *spread      `json:"burst_cores,omitempty"`
	BurstRate  *spread      `json:"burst_calls_s,omitempty"` // calls/s in bursts
	Rounds     []crowdRound `json:"rounds"`
}

type crowdRound struct {
	Round   int           `json:"round"` // from 1
	IdleKiB float64       `json:"idle_kib"`
	Loaded  *bench.Result `json:"loaded,omitempty"`
	Burst   *bench.Result `json:"burst,omitempty"`
	Problem string        `json:"problem,omitempty"`
}

const (
	idleTarget = 8 // the most KiB of an idle connection.
	// burstCalls is how many calls each connection has in flight in bursts. grpc-go's server would need some 10 GB for
	// them.
	burstCalls  = 100
	burstWarmup = 3 * time.Second // longer than the first burst takes.
	coresTarget = 2               // the most cores for burstCalls calls a second on each connection.
)

// crowdEnv opens the profile of the heap. Other ports get few of the files that the process may open.
var crowdEnv = []string{"DEBUG_PPROF=true", "HTTP_MAX_CONNECTIONS=100", "DIVVY_MAX_CONNECTIONS=1"}

// idleTime is longer than a connection keeps memory for its next calls.
const idleTime = 3 * time.Second

// crowd measures a new process, as the memory of earlier loads would hide that of connections.
func (l *lab) crowd(ctx context.Context, engine string, round int) crowdRound {
	r := crowdRound{Round: round}
	srv, err := l.startService(ctx, serviceKey{inMemory, engine}, crowdEnv...)
	if err != nil {
		r.Problem = err.Error()
		return r
	}
	p := l.running[len(l.running)-1]
	err = l.measureCrowd(ctx, srv, engine, &r)
	if err = errors.Join(err, p.stop()); err != nil {
		r.Problem = err.Error()
	}
	return r
}

func (l *lab) measureCrowd(ctx context.Context, srv server, engine string, r *crowdRound) error {
	before, err := liveKiB(ctx, srv.debugAddr)
	if err != nil {
		return err
	}
	ld := load{Client: lean, Workload: "uniform", Connections: l.opt.crowd, InFlight: 1, Rate: float64(l.opt.crowdRate)}
	idle := ld
	idle.Requests, idle.Linger = l.opt.crowd, idleTime
	type outcome struct {
		kib float64
		err error
	}
	stop, sampled := make(chan struct{}), make(chan outcome)
	go func() { // samples until the generator has gone; the last sample may have been too late
		var earlier, last outcome
		for {
			select {
			case <-stop:
				sampled <- earlier
				return
			case <-time.After(samplePause):
				earlier = last
				last.kib, last.err = liveKiB(ctx, srv.debugAddr)
			}
		}
	}()
	_, err = l.generate(ctx, &idle, server{addr: srv.addr}, "OK", r.Round)
	close(stop)
	during := <-sampled
	if err = errors.Join(err, during.err); err != nil {
		return fmt.Errorf("idle: %w", err)
	}
	r.IdleKiB = max(0, during.kib-before) / float64(l.opt.crowd)
	if r.Loaded, err = l.generate(ctx, &ld, srv, "OK", r.Round); err != nil || engine != h2 {
		return err
	}
	burst := load{Client: lean, Workload: "uniform", Connections: l.opt.crowd, InFlight: burstCalls, Warmup: burstWarmup}
	r.Burst, err = l.generate(ctx, &burst, srv, "OK", r.Round)
	return err
}

// samplePause is the time between two samples of memory.
const samplePause = 200 * time.Millisecond

// liveKiB returns what a process of ours uses after a garbage collection: live objects, and the stacks of goroutines.
func liveKiB(ctx context.Context, debugAddr string) (float64, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+debugAddr+"/debug/pprof/heap?debug=1&gc=1", nil)
	if err != nil {
		return 0, err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer func() { _ = answer.Body.Close() }()
	profile, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err
	}
	return parseLive(profile)
}

// parseLive returns the sum of HeapAlloc and Stack at the end of a profile of the heap, in KiB.
func parseLive(profile []byte) (float64, error) {
	var bytes float64
	for _, pattern := range []*regexp.Regexp{heapPattern, stackPattern} {
		m := pattern.FindSubmatch(profile)
		if m == nil {
			return 0, fmt.Errorf("/debug/pprof/heap has no %v", pattern)
		}
		n, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			return 0, err
		}
		bytes += n
	}
	return bytes / 1024, nil
}

var (
	heapPattern  = regexp.MustCompile(`(?m)^# HeapAlloc = (\d+)`)
	stackPattern = regexp.MustCompile(`(?m)^# Stack = (\d+) `)
)

func (c *crowdReport) add(r crowdRound) {
	c.Rounds = append(c.Rounds, r)
	over := func(value func(crowdRound) float64) *spread {
		return spreadOver(c.Rounds, func(r crowdRound) bool { return r.Problem == "" }, value)
	}
	c.Idle = over(func(r crowdRound) float64 { return r.IdleKiB })
	c.CPU = over(func(r crowdRound) float64 { return cpu(r.Loaded) })
	c.P50 = over(func(r crowdRound) float64 { return float64(r.Loaded.Latency.P50) })
	c.P99 = over(func(r crowdRound) float64 { return float64(r.Loaded.Latency.P99) })
	if r.Problem == "" {
		c.Unsent += r.Loaded.OpenLoop.Unsent
	}
	if c.Engine == h2 {
		c.BurstCPU = over(func(r crowdRound) float64 { return cpu(r.Burst) })
		c.BurstRate = over(func(r crowdRound) float64 { return r.Burst.Rate })
		c.BurstCores = over(func(r crowdRound) float64 { return cpu(r.Burst) * burstCalls * float64(c.Connections) / 1e6 })
	}
}

func (c *crowdReport) problem() string {
	return problemOf(c.Rounds, func(r crowdRound) (int, string) { return r.Round, r.Problem })
}

func (c *crowdReport) String() string {
	last := c.Rounds[len(c.Rounds)-1]
	if last.Problem != "" {
		return fmt.Sprintf("%s, %s: %s", crowdTitle, c.Engine, last.Problem)
	}
	line := fmt.Sprintf("%s, %s: idle %.1f KiB, %.2f µs, p50 %d µs, p99 %d µs, %d unsent", crowdTitle, c.Engine,
		last.IdleKiB, cpu(last.Loaded),
		last.Loaded.Latency.P50, last.Loaded.Latency.P99, last.Loaded.OpenLoop.Unsent)
	if b := last.Burst; b != nil {
		line += fmt.Sprintf("; bursts: %.0f calls/s, %.2f µs", b.Rate, cpu(b))
	}
	return line
}

var crowdHead = []string{
	"connections", "engine", "idle connection", "target", "calls/s", "CPU", "p50", "p99",
	"not sent", "bursts: calls/s", "CPU", "cores", "target",
}

func (c *crowdReport) row() []string {
	row := []string{strconv.Itoa(c.Connections), c.Engine}
	if c.Idle == nil {
		return append(row, "–", "", strconv.Itoa(c.Rate), "–", "–", "–", "–", "", "", "", "")
	}
	target := ""
	if c.Engine == h2 {
		target = verdict(idleTarget, c.Idle)
	}
	row = append(row, fmt.Sprintf("%.1f KiB", c.Idle.Median), target, strconv.Itoa(c.Rate),
		fmt.Sprintf("%.1f µs", c.CPU.Median),
		fmt.Sprintf("%.0f µs", c.P50.Median), fmt.Sprintf("%.0f µs", c.P99.Median), strconv.FormatUint(c.Unsent, 10))
	if c.BurstCPU == nil {
		return append(row, "", "", "", "")
	}
	return append(row, fmt.Sprintf("%.0f", c.BurstRate.Median), fmt.Sprintf("%.1f µs", c.BurstCPU.Median),
		fmt.Sprintf("%.2f", c.BurstCores.Median),
		verdict(coresTarget, c.BurstCores))
}
