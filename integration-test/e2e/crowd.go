package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"ratelimit/src/tools/bench"
)

// crowdTitle is the name of the case with many connections.
const crowdTitle = "many connections"

// crowdReport is one engine with many connections on memory: each has one call, then all are idle, then they have calls at
// a fixed rate.
type crowdReport struct {
	Engine      string       `json:"engine"`
	Connections int          `json:"connections"`
	Rate        int          `json:"rate"`               // calls due a second
	Idle        *spread      `json:"idle_kib,omitempty"` // KiB of memory of an idle connection
	CPU         *spread      `json:"cpu_us,omitempty"`   // CPU µs of a call
	P50         *spread      `json:"p50_us,omitempty"`
	P99         *spread      `json:"p99_us,omitempty"`
	Unsent      uint64       `json:"unsent"` // calls of all rounds that were due and not made
	Rounds      []crowdRound `json:"rounds"`
}

type crowdRound struct {
	Round   int           `json:"round"` // from 1
	IdleKiB float64       `json:"idle_kib"`
	Loaded  *bench.Result `json:"loaded,omitempty"`
	Problem string        `json:"problem,omitempty"`
}

// idleTarget is the most KiB of an idle connection.
const idleTarget = 8

// crowdEnv has Go's default of GOGC: with a higher one, idle memory would mostly be garbage of the calls before. Other
// ports get few of the files that the process may open.
var crowdEnv = []string{"GOGC=100", "HTTP_MAX_CONNECTIONS=100", "DIVVY_MAX_CONNECTIONS=1"}

// crowd measures a new process, as the memory of earlier loads would hide that of connections.
func (l *lab) crowd(ctx context.Context, engine string, round int) crowdRound {
	r := crowdRound{Round: round}
	srv, err := l.startService(ctx, serviceKey{inMemory, engine}, crowdEnv...)
	if err != nil {
		r.Problem = err.Error()
		return r
	}
	p := l.running[len(l.running)-1]
	err = l.measureCrowd(ctx, srv, &r)
	if err = errors.Join(err, p.stop()); err != nil {
		r.Problem = err.Error()
	}
	return r
}

func (l *lab) measureCrowd(ctx context.Context, srv server, r *crowdRound) error {
	pid := srv.processes[0].PID
	before, err := residentKiB(pid)
	if err != nil {
		return err
	}
	ld := load{Client: lean, Workload: "uniform", Connections: l.opt.crowd, InFlight: 1, Rate: float64(l.opt.crowdRate)}
	idle := ld
	idle.Requests, idle.Linger = l.opt.crowd, time.Second
	type outcome struct {
		kib float64
		err error
	}
	stop, sampled := make(chan struct{}), make(chan outcome)
	go func() { // samples until the generator, whose connections are idle at the end, has gone
		var last outcome
		for {
			select {
			case <-stop:
				sampled <- last
				return
			case <-time.After(pollEvery):
				last.kib, last.err = residentKiB(pid)
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
	r.Loaded, err = l.generate(ctx, &ld, srv, "OK", r.Round)
	return err
}

// residentKiB returns the memory of a process.
func residentKiB(pid int) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return parseResident(status)
}

// parseResident returns VmRSS of a file /proc/<pid>/status, in KiB.
func parseResident(status []byte) (float64, error) {
	for line := range bytes.Lines(status) {
		if value, ok := bytes.CutPrefix(line, []byte("VmRSS:")); ok {
			return strconv.ParseFloat(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(value), []byte("kB")))), 64)
		}
	}
	return 0, errors.New("/proc: the process has no VmRSS")
}

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
}

func (c *crowdReport) problem() string {
	return problemOf(c.Rounds, func(r crowdRound) (int, string) { return r.Round, r.Problem })
}

func (c *crowdReport) String() string {
	last := c.Rounds[len(c.Rounds)-1]
	if last.Problem != "" {
		return fmt.Sprintf("%s, %s: %s", crowdTitle, c.Engine, last.Problem)
	}
	return fmt.Sprintf("%s, %s: idle %.1f KiB, %.2f µs, p50 %d µs, p99 %d µs, %d unsent", crowdTitle, c.Engine, last.IdleKiB, cpu(last.Loaded),
		last.Loaded.Latency.P50, last.Loaded.Latency.P99, last.Loaded.OpenLoop.Unsent)
}

var crowdHead = []string{"connections", "engine", "idle connection", "target", "calls/s", "CPU", "p50", "p99", "not sent"}

func (c *crowdReport) row() []string {
	row := []string{strconv.Itoa(c.Connections), c.Engine}
	if c.Idle == nil {
		return append(row, "–", "", strconv.Itoa(c.Rate), "–", "–", "–", "–")
	}
	target := ""
	if c.Engine == h2 {
		target = verdict(idleTarget, c.Idle)
	}
	return append(row, fmt.Sprintf("%.1f KiB", c.Idle.Median), target, strconv.Itoa(c.Rate), fmt.Sprintf("%.1f µs", c.CPU.Median),
		fmt.Sprintf("%.0f µs", c.P50.Median), fmt.Sprintf("%.0f µs", c.P99.Median), strconv.FormatUint(c.Unsent, 10))
}
