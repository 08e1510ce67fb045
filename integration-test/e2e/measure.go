package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"ratelimit/src/tools/bench"
)

// pair is one case in one round: the two servers one after the other.
type pair struct {
	Round      int           `json:"round"` // from 1
	EmptyFirst bool          `json:"empty_first"`
	Empty      *bench.Result `json:"empty,omitempty"`
	Ours       *bench.Result `json:"ours,omitempty"`
	Problem    string        `json:"problem,omitempty"` // why the pair does not count
}

// measure fills in the report, round by round, until it is done or ctx ends.
// The empty server goes first in every other round, so that a machine that
// grows busier or warmer favours neither.
func (l *lab) measure(ctx context.Context, r *report) {
	each := l.opt.warmup + l.opt.duration
	measurements := 2*len(r.Cases) + len(r.Tails)*(1+len(l.opt.engines)) + 3*len(r.Crowds)
	fmt.Fprintf(l.progress, "%d cases, %d rounds: above %v.\n", len(r.Cases)+len(r.Tails)+len(r.Crowds), l.opt.rounds,
		(time.Duration(measurements*l.opt.rounds) * each).Round(time.Second))
	for round := 1; round <= l.opt.rounds; round++ {
		for _, c := range r.Cases {
			p := l.pair(ctx, &c.testCase, round)
			if ctx.Err() != nil {
				return // half a pair is nothing
			}
			c.add(p)
			fmt.Fprintf(l.progress, "round %d of %d  %-35s  %-7s  %s\n", round, l.opt.rounds, c.title(), c.Engine, p)
		}
		for _, t := range r.Tails {
			t.add(l.tail(ctx, t.Store, round))
			if ctx.Err() != nil {
				t.Rounds = t.Rounds[:round-1]
				return
			}
			fmt.Fprintf(l.progress, "round %d of %d  %s\n", round, l.opt.rounds, t)
		}
		for _, c := range r.Crowds {
			c.add(l.crowd(ctx, c.Engine, round))
			if ctx.Err() != nil {
				c.Rounds = c.Rounds[:round-1]
				return
			}
			fmt.Fprintf(l.progress, "round %d of %d  %s\n", round, l.opt.rounds, c)
		}
	}
}

func (l *lab) pair(ctx context.Context, c *testCase, round int) pair {
	p := pair{Round: round, EmptyFirst: round%2 == 1}
	var problems []string
	empty := func() {
		var err error
		if p.Empty, err = l.generate(ctx, &c.load, l.empty, "OK", round); err != nil {
			problems = append(problems, "empty server: "+err.Error())
		}
	}
	ours := func() {
		var err error
		if p.Ours, err = l.generate(ctx, &c.load, l.services[serviceKey{c.Store, c.Engine}], c.want, round); err != nil {
			problems = append(problems, err.Error())
		}
	}
	if p.EmptyFirst {
		empty()
		ours()
	} else {
		ours()
		empty()
	}
	p.Problem = strings.Join(problems, "; ")
	return p
}

// slack is how much longer than planned the generator may take.
const slack = time.Minute

// generate runs the generator against a server. There may be a result beside the
// error. Both servers of a round are asked about the same keys.
func (l *lab) generate(ctx context.Context, ld *load, to server, want string, seed int) (*bench.Result, error) {
	warmup := max(l.opt.warmup, ld.Warmup)
	ctx, cancel := context.WithTimeout(ctx, warmup+l.opt.duration+slack)
	defer cancel()
	args := append(ld.args(), "--seed", strconv.Itoa(seed))
	if ld.Requests == 0 {
		args = append(args, "--warmup", warmup.String(), "--duration", l.opt.duration.String())
	} else {
		args = append(args, "--warmup", "0s")
	}
	for _, p := range to.processes {
		args = append(args, "--pid", fmt.Sprintf("%s=%d", p.Name, p.PID))
	}
	cmd := exec.CommandContext(ctx, l.generator, append(args, "--address", to.addr)...)
	cmd.Env = []string{} // nil would be our own
	cmd.SysProcAttr = attributes()
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = patience
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	err := cmd.Run()
	if complaint.Len() > 0 {
		err = errors.Join(err, errors.New(strings.TrimSpace(complaint.String())))
	}
	var r *bench.Result
	if out.Len() > 0 {
		err = errors.Join(err, json.Unmarshal(out.Bytes(), &r))
	}
	if err != nil {
		return r, errors.New(strings.ReplaceAll(err.Error(), "\n", ", "))
	}
	return r, check(r, want, to.processes)
}

// check says what makes a result useless, or nil.
func check(r *bench.Result, want string, processes []bench.Process) error {
	if r == nil {
		return errors.New("the generator printed nothing")
	}
	if r.Interrupted {
		return errInterrupted
	}
	var failed uint64
	for _, n := range r.Errors {
		failed += n
	}
	switch {
	case failed > 0:
		return fmt.Errorf("%d of %d calls failed, the first with %s", failed, r.Requests, r.FirstError)
	case r.Requests == 0:
		return errors.New("no call was made")
	}
	for _, name := range slices.Sorted(maps.Keys(r.Answers)) {
		if n := r.Answers[name]; name != want && n > 0 {
			return fmt.Errorf("%d of %d calls were answered %s, not %s", n, r.Requests, name, want)
		}
	}
	for _, p := range processes {
		if _, ok := r.CPU[p.Name]; !ok {
			return fmt.Errorf("the CPU time of %s is unknown", p.Name)
		}
	}
	if len(processes) > 0 && cpu(r) <= 0 || r.Latency.P50 <= 0 || r.Latency.P99 <= 0 {
		return errors.New("it took no time that could be measured")
	}
	return nil
}

// cpu is what a call costs in µs, Redis included.
func cpu(r *bench.Result) float64 {
	var sum float64
	for _, name := range slices.Sorted(maps.Keys(r.CPU)) { // in order, as sums of floats depend on it
		sum += r.CPU[name].PerRequest
	}
	return sum
}

func (p pair) String() string {
	if p.Problem != "" {
		return p.Problem
	}
	return fmt.Sprintf("%.2f µs, empty %.2f µs, ratio %.2f", cpu(p.Ours), cpu(p.Empty), cpu(p.Ours)/cpu(p.Empty))
}
