package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ratelimit/src/tools/bench"
)

// benchOptions are the flags of `ratelimit bench` that have no field in bench.Config.
type benchOptions struct {
	tls         tlsOptions
	pids        []string
	asJSON      bool
	nullAddr    string // host:port of the empty service to serve; empty: load a service
	nullWorkers uint32 // goroutines of the empty service; 0: one for each call
}

func benchCommand(std stdio) *cobra.Command {
	var opt benchOptions
	var cfg bench.Config
	cmd := newCommand("bench", func(cmd *cobra.Command, args []string) error {
		ctx, stop := untilSignal(cmd.Context())
		defer stop()
		if opt.nullAddr != "" {
			if len(args) > 0 {
				return errors.New("--null serves, and an address is what to load: give one of them")
			}
			return opt.serveNull(ctx, std)
		}
		cfg.Addr = "localhost:8081"
		if len(args) > 0 {
			cfg.Addr = args[0]
		}
		if err := opt.complete(&cfg, cmd.Flags()); err != nil {
			return err
		}
		return opt.run(ctx, std, cfg)
	})
	cmd.Args = cobra.MaximumNArgs(1)
	f := cmd.Flags()
	f.SortFlags = false
	f.IntVar(&cfg.Connections, "connections", 2, "connections to open")
	f.IntVar(&cfg.InFlight, "in-flight", 32, "calls under way on each connection")
	f.Float64Var(&cfg.Rate, "rate", 0, "calls due a second; without it the next call starts when one ends")
	f.DurationVar(&cfg.Duration, "duration", 10*time.Second, "how long to measure")
	f.Uint64Var(&cfg.Requests, "requests", 0, "how many calls to measure, instead of --duration, or until then if both are given")
	f.DurationVar(&cfg.Warmup, "warmup", time.Second, "how long to make calls before that")
	f.DurationVar(&cfg.Timeout, "timeout", 5*time.Second, "time limit of each call")
	f.StringVar(&cfg.Workload, "workload", "uniform", "what to ask: "+strings.Join(bench.Workloads, ", "))
	f.StringVar(&cfg.Domain, "domain", "bench", "domain to ask")
	f.StringVar(&cfg.Key, "key", "user", "key of the descriptors' entries")
	f.IntVar(&cfg.Keys, "keys", 100_000, "how many values of the key there are, at most a million")
	f.StringVar(&cfg.RequestsFile, "requests-file", "", "file of requests to send instead")
	f.Uint64Var(&cfg.Seed, "seed", 1, "beginning of the pseudorandom numbers")
	f.StringArrayVar(&opt.pids, "pid", nil, "N or NAME=N: a process whose CPU time to report (Linux, steps of 10 ms); repeatable")
	f.BoolVar(&opt.asJSON, "json", false, "print one JSON object")
	opt.tls.flags(f)
	f.StringVar(&opt.nullAddr, "null", "", "serve an empty service on this address, host:port, instead of loading one")
	f.Uint32Var(&opt.nullWorkers, "null-workers", 0, "goroutines that --null keeps for calls; 0: a new one for each")
	return cmd
}

// complete checks the flags, and sets the processes and the credentials of cfg.
func (opt *benchOptions) complete(cfg *bench.Config, f *pflag.FlagSet) error {
	if f.Changed("rate") && cfg.Rate == 0 {
		return errors.New("--rate 0: must be above 0; leave it out to have the next call start when one ends")
	}
	if f.Changed("requests") {
		if cfg.Requests == 0 {
			return errors.New("--requests 0: must be above 0")
		}
		if !f.Changed("duration") {
			cfg.Duration = 0
		}
	}
	if cfg.RequestsFile != "" {
		if f.Changed("workload") {
			return errors.New("--workload and --requests-file both say what to send: give one of them")
		}
	} else if f.Changed("requests-file") {
		return errors.New("--requests-file: the name is empty")
	}
	if f.Changed("null-workers") {
		return errors.New("--null-workers is about --null")
	}
	for _, text := range opt.pids {
		name, number, ok := strings.Cut(text, "=")
		if !ok {
			name, number = text, text
		}
		pid, err := strconv.Atoi(number)
		if err != nil || pid < 1 || name == "" {
			return fmt.Errorf("--pid %s: write N or NAME=N, N being the id of a process", text)
		}
		cfg.Processes = append(cfg.Processes, bench.Process{Name: name, PID: pid})
	}
	var err error
	cfg.Credentials, err = opt.tls.credentials()
	return err
}

func (opt *benchOptions) run(ctx context.Context, std stdio, cfg bench.Config) error {
	if os.Getenv("GOGC") == "" {
		// A heap of a few megabytes would be collected a hundred times a second.
		defer debug.SetGCPercent(debug.SetGCPercent(400))
	}
	show := progressLine(std.err)
	cfg.Progress = func(p bench.Progress) {
		stage := "measuring"
		if p.Warmup {
			stage = "warming up"
		}
		show("%s %v: %d requests, %.0f/s, errors: %d ", stage, p.Elapsed.Round(time.Second), p.Requests, p.Rate, p.Errors)
	}
	result, err := bench.Run(ctx, cfg)
	show("")
	if result == nil {
		return err
	}
	if opt.asJSON {
		return errors.Join(err, json.NewEncoder(std.out).Encode(result))
	}
	return errors.Join(err, result.Write(std.out))
}

func (opt *benchOptions) serveNull(ctx context.Context, std stdio) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", opt.nullAddr)
	if err != nil {
		return err
	}
	fmt.Fprintf(std.out, "listening on %s\n", l.Addr())
	return bench.ServeNull(ctx, l, opt.nullWorkers)
}
